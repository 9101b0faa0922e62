// XLA FFI handler for recurrent layers over complete sequences, and for their gradients. Threads take examples and,
// if there are fewer examples than threads, columns of the weights; only the latter wait for each other.

#include "recurrent.h"

#ifndef MESHFLOW_PORTABLE
#include <immintrin.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "floats.h"
#include "guard.h"
#include "handler.h"

#define LAMBDA TARGET __attribute__((always_inline))

namespace meshflow {

void PollingBarrier::wait(int64_t count) {
  if (count == 1) return;
  const int64_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  // Another thread may use the core of one that has not arrived.
  for (int polls = 0; phase_.load(std::memory_order_acquire) == phase; ++polls) polls < 4096 ? pause() : (void)usleep(20);
}

int64_t count_recurrent_bytes(const RecurrentTask& p, int64_t row_unit) {
  const int64_t row = (p.units + row_unit - 1) / row_unit * row_unit;
  const int64_t inputs = (p.features + row_unit - 1) / row_unit * row_unit;
  return 4 * (p.gates * row * (row + inputs) + count_rows(p) * (2 * p.gates * row + 4 * row + 2 * inputs + 2));
}

namespace plain {
#define TARGET
#define WIDTH 4
#define REGISTERS 16
#define PAIRS 0
#include "recurrent_loops.h"
#undef TARGET
#undef WIDTH
#undef REGISTERS
}  // namespace plain

#ifndef MESHFLOW_PORTABLE
namespace by_256 {
#define TARGET FOR_CPU("avx2,fma")
#define WIDTH 8
#define REGISTERS 16
#include "recurrent_loops.h"
#undef TARGET
#undef WIDTH
#undef REGISTERS
}  // namespace by_256

namespace by_512 {
#define TARGET FOR_CPU("avx512f,avx512bw,avx512vl,fma")
#define WIDTH 16
#define REGISTERS 32
#include "recurrent_loops.h"
#undef TARGET
#undef PAIRS
}  // namespace by_512

namespace by_pairs {
#define TARGET FOR_CPU("avx512f,avx512bw,avx512vl,avx512bf16,fma")
#define PAIRS 1
#include "recurrent_loops.h"
#undef PAIRS
}  // namespace by_pairs

namespace by_pairs_on_tiles {
#define PAIRS 2
#include "recurrent_loops.h"
}  // namespace by_pairs_on_tiles
#endif

template <typename T>
RecurrentLoops choose_loops(int64_t kind) {
#ifndef MESHFLOW_PORTABLE
  if constexpr (std::is_same_v<T, bfloat16>)
    if (has(Level::kBfloat16)) return can_multiply_tiles() ? by_pairs_on_tiles::choose<T>(kind) : by_pairs::choose<T>(kind);
  if (has(Level::kAvx512)) return by_512::choose<T>(kind);
  if (has(Level::kAvx2) && fuses()) return by_256::choose<T>(kind);
#endif
  return plain::choose<T>(kind);
}

// Multiply-adds of a step below which threads do not divide its columns, and of a call that one thread computes.
constexpr int64_t kMinStep = 1 << 18, kMinCall = 1 << 22;
// Weights that one thread packs faster than a team starts.
constexpr int64_t kMinWeights = 1 << 17;

void run(const RecurrentTask& task, const RecurrentLoops& loops, bool backward) {
  const int64_t bytes = count_recurrent_bytes(task, loops.row_unit), weights = (task.units + task.features) * task.units * task.gates;
  const int64_t groups = ((task.units + loops.width - 1) / loops.width + kGroup - 1) / kGroup;
  const auto compute = backward ? loops.backward : loops.forward;
  const bool divides = weights * task.batch >= kMinStep;
  // Starting a team for one thread would only cost time.
  if (weights * task.batch * task.steps < kMinCall || (task.batch <= 2 && !divides)) {
    static thread_local Scratch scratch;
    char* memory = scratch.get(bytes);
    loops.pack(task, backward, 0, 1, memory);
    return compute(task, {0, task.batch, 0, groups, nullptr, 1, 0}, memory);
  }
  Team::get().run([&] {
    char* memory = Team::get().scratch(bytes);
    in_team(weights >= kMinWeights ? max_threads() : 1,
            [&] { loops.pack(task, backward, place().thread, place().threads, memory); });
    std::vector<PollingBarrier> barriers(max_threads());
    auto compute_part = [&] {
      const int64_t threads = place().threads, thread = place().thread;
      // Two examples of a tile share the weights that they read.
      const int64_t teams = std::max<int64_t>(1, std::min(threads, (task.batch + 1) / 2));
      const int64_t divisions = divides ? std::max<int64_t>(1, std::min(threads / teams, groups)) : 1;
      const int64_t team = thread / divisions, member = thread % divisions;
      auto split = [](int64_t count, int64_t parts, int64_t part) { return count * part / parts; };
      if (team < teams)
        compute(task,
                {split(task.batch, teams, team), split(task.batch, teams, team + 1), split(groups, divisions, member),
                 split(groups, divisions, member + 1), &barriers[team], divisions, member},
                memory);
    };
    in_team(max_threads(), compute_part, divides);
  });
}

enum Flag { kReverse = 1, kTimeMajor = 2, kSequences = 4, kZeroes = 8, kSaves = 16, kBias = 32, kMask = 64, kKeep = 128 };

// The operands and results of a descriptor: whether it is a gradient, the kind of cell, batch, steps, units, features
// of x or 0, flags. Forward: x and its weights, or their product; recurrent weights, states, bias, mask, dropout mask;
// outputs, states, saved arrays. Gradient: saved arrays, recurrent weights, mask, dropout mask, gradients of outputs
// and states; gradients of x, of a GRU's product, and of the states. `take` returns the next buffer, given its number
// of elements and whether they are booleans.
template <typename Take>
RecurrentTask read_task(Reader& reader, bool& backward, Take take) {
  RecurrentTask p{};
  backward = reader.next() != 0;
  p.kind = reader.next(), p.batch = reader.next(), p.steps = reader.next(), p.units = reader.next();
  p.features = reader.next();
  const int64_t flags = reader.next(), limit = int64_t{1} << 24;
  for (int64_t size : {p.batch, p.steps, p.units, p.features + 1})
    if (size < 1 || size > limit) throw std::invalid_argument("the sizes are not supported");
  if (p.kind < 0 || p.kind >= kNumKinds || (p.features && (backward || p.kind == kGruBefore)))
    throw std::invalid_argument("the kind of cell is not supported");
  if (static_cast<double>(p.batch) * p.steps * std::max(4 * p.units, p.features) > 1e15)
    throw std::invalid_argument("the sizes are not supported");
  p.gates = p.kind == kSimple ? 1 : p.kind == kLstm ? 4 : 3;
  p.reverse = flags & kReverse, p.time_major = flags & kTimeMajor, p.sequences = flags & kSequences, p.zeroes = flags & kZeroes;
  const int64_t rows = p.batch * p.steps, state = p.batch * p.units, all = rows * p.units;
  auto masks = [&] {
    if (flags & kMask) p.mask = static_cast<const uint8_t*>(take(rows, true));
    if (flags & kKeep) p.keep = take(state, false);
  };
  const bool is_lstm = p.kind == kLstm;
  const int64_t weights = p.units * p.units * p.gates, outputs = p.sequences ? all : state;
  if (backward) {
    p.saved = take(all * p.gates, false), p.before = take(all, false);
    if (p.has_memory()) p.memory = take(all, false);
    p.recurrent = take(weights, false);
    masks();
    p.dy = take(outputs, false), p.dh = take(state, false);
    if (is_lstm) p.dc = take(state, false);
    p.dx = take(all * p.gates, false);
    if (p.kind == kGru) p.inner = take(all * p.gates, false);
    p.dh0 = take(state, false);
    if (is_lstm) p.dc0 = take(state, false);
    return p;
  }
  p.x = take(p.features ? rows * p.features : all * p.gates, false);
  if (p.features) p.kernel = take(p.features * p.units * p.gates, false);
  p.recurrent = take(weights, false), p.h0 = take(state, false);
  if (is_lstm) p.c0 = take(state, false);
  if (flags & kBias) p.bias = take(p.gates * p.units * (p.kind == kGru ? 2 : 1), false);
  masks();
  p.y = take(outputs, false), p.h = take(state, false);
  if (is_lstm) p.c = take(state, false);
  if (flags & kSaves) {
    p.saved = take(all * p.gates, false), p.before = take(all, false);
    if (p.has_memory()) p.memory = take(all, false);
  }
  return p;
}

namespace {

ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_recurrent", [&]() -> ffi::Error {
    Reader reader(descriptor.begin(), descriptor.size());
    std::vector<ffi::AnyBuffer> buffers;
    for (size_t i = 0; i < arguments.size(); ++i) buffers.push_back(arguments.get<ffi::AnyBuffer>(i).value());
    for (size_t i = 0; i < results.size(); ++i) buffers.push_back(*results.get<ffi::AnyBuffer>(i).value());
    const auto type = buffers.empty() ? ffi::DataType::INVALID : buffers[0].element_type();
    if (type != ffi::DataType::F32 && type != ffi::DataType::BF16) throw std::invalid_argument("the type is not float32 or bfloat16");
    size_t index = 0;
    bool backward = false;
    const RecurrentTask task = read_task(reader, backward, [&](int64_t count, bool is_mask) {
      if (index >= buffers.size()) throw std::invalid_argument("the descriptor has another number of operands");
      const auto& buffer = buffers[index++];
      if (buffer.element_type() != (is_mask ? ffi::DataType::PRED : type) || static_cast<int64_t>(buffer.element_count()) < count)
        throw std::invalid_argument("operand " + std::to_string(index - 1) + " has another type, or is smaller than its descriptor says");
      return buffer.untyped_data();
    });
    if (index != buffers.size()) throw std::invalid_argument("the descriptor has another number of operands");
    run(task, type == ffi::DataType::F32 ? choose_loops<float>(task.kind) : choose_loops<bfloat16>(task.kind), backward);
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace meshflow

using meshflow::execute;
XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_recurrent, execute,
                              xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<xla::ffi::Span<const int64_t>>("descriptor"));

// Runs a descriptor without XLA, on the operands and results at `buffers`; returns 0 on success.
extern "C" int meshflow_recurrent_run(const int64_t* descriptor, int64_t size, const char* type, void* const* buffers) noexcept {
  using namespace meshflow;
  return guarded(1, [&] {
    Reader reader(descriptor, size);
    bool backward = false;
    const RecurrentTask task = read_task(reader, backward, [&](int64_t, bool) { return *buffers++; });
    run(task, *type == 'f' ? choose_loops<float>(task.kind) : choose_loops<bfloat16>(task.kind), backward);
    return 0;
  });
}
