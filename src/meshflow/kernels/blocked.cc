// oneDNN's post-ops turn NaN to zero (ReLU) and round the operands of additions; a separate pass would read
// the result from memory again. Here each thread computes a block with oneDNN's single-threaded code, with
// float32 sums in its cache, and applies the epilogue while it writes the result.

#include "blocked.h"

#include <unordered_map>

#define LOOPS "blocked_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
namespace {

using dnnl::memory;
using Type = memory::data_type;

// Bytes of a block's sums, which fit in the second-level cache. A right matrix larger than kRight is read from
// farther away for each block, so blocks are larger.
constexpr int64_t kSums = 256 << 10, kRight = 512 << 10, kMoreSums = 2 << 20;

int64_t aligned(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Blocked in_blocks(const Sum& sum, int threads) {
  Blocked found;
  // Without instructions for bfloat16, oneDNN has no fast products of its numbers.
  if (!has(sum.result == Type::bf16 ? Level::kBfloat16 : Level::kAvx2)) return found;
  const Number type = sum.result == Type::bf16 ? Number::kBfloat : sum.result == Type::f16 ? Number::kHalf : Number::kFloat;
  auto up = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  int64_t row_sums = sum.features * 4;
  int64_t most = int64_t(sum.right.get_size()) > kRight ? kMoreSums : kSums;
  int64_t size = std::clamp<int64_t>(most / row_sums, 1, sum.count);
  // If there are few, each thread gets the same number.
  if (up(sum.count, size) < 8 * threads) size = up(sum.count, up(up(sum.count, size), threads) * threads);
  int64_t last = sum.count % size;
  Sum::Block main, rest;
  {
    SingleThread alone;
    main = sum.make(size, Type::f32, sum.any);
    if (last) rest = sum.make(last, Type::f32, main.right);
  }
  dnnl::engine engine = sum.engine;
  int64_t blocks = up(sum.count, size), sums = aligned(size * row_sums);
  size_t pad = std::max(main.scratchpad.get_size(), last ? rest.scratchpad.get_size() : 0);
  int64_t own = sums + aligned(pad), packed = sum.right == main.right ? 0 : aligned(main.right.get_size());
  auto memory_of = [engine](const memory::desc& desc, const void* data) {
    return memory(desc, engine, const_cast<void*>(data));
  };
  if (packed) {
    dnnl::reorder reorder(dnnl::reorder::primitive_desc(engine, sum.right, engine, main.right));
    found.packed_bytes = main.right.get_size();
    found.pack = [=](const void* right, char* to) {
      dnnl::stream stream(engine);
      memory source = memory_of(sum.right, right), target = memory_of(main.right, to);
      reorder.execute(stream, source, target);
      stream.wait();
    };
  }
  found.implementation = main.implementation;
  found.scratch_bytes = packed + own * threads;
  found.run = [=, pack = found.pack](const void* left, const void* right, const char* before, const Epilogue& epilogue,
                                     void* result, char* scratch) {
    const void* weights = before ? before : packed ? scratch : right;
    if (packed && !before) pack(right, scratch);
    std::vector<dnnl::stream> streams;
    for (int i = 0; i < threads; ++i) streams.emplace_back(engine);
    auto compute = [&](int64_t number) {
      dnnl::stream& stream = streams[place().thread];
      float* mine = reinterpret_cast<float*>(scratch + packed + own * place().thread);
      char* pad = reinterpret_cast<char*>(mine) + sums;
      int64_t first = number * size, count = std::min(size, sum.count - first);
      const Sum::Block& block = count < size ? rest : main;
      block.primitive.execute(
          stream,
          {{DNNL_ARG_SRC, memory_of(block.left, static_cast<const char*>(left) + first * sum.row_bytes)},
           {DNNL_ARG_WEIGHTS, memory_of(block.right, weights)},
           {DNNL_ARG_DST, memory_of(block.result, mine)},
           {DNNL_ARG_SCRATCHPAD, memory_of(block.scratchpad, pad)}});
      BY_WIDTH(apply_epilogue(epilogue, type, mine, count, sum.features, first, result));
    };
    in_turns(blocks, compute, threads);
  };
  return found;
}
#else
Blocked in_blocks(const Sum&, int) { return {}; }
#endif

}  // namespace meshflow
