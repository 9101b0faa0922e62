// XLA FFI handler of attention and its gradient, in tiles of the scores, so that memory is linear in the lengths of
// the sequences. The softmax of a row is updated tile by tile (Milakov and Gimelshein 2018, arXiv:1805.02867); the
// gradient recomputes the scores from the maximum and the sum of each row (Dao et al. 2022, arXiv:2205.14135).
//
// Products work on 32-bit units: a float, or a pair of adjacent bfloat16 along the summed dimension, which
// AVX512-BF16 or matrix tiles multiply and add in float32. Work is split by the shapes only, so results do not depend on the
// number of threads.

#include "cpus.h"

#if !defined(MESHFLOW_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 10

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "handler.h"
#include "tile_products.h"

#define FOR_PAIRS FOR_CPU("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")

namespace meshflow {
namespace {

constexpr int64_t kAlignment = 16;           // floats of the longest vector
constexpr int64_t kRows = 96, kKeys = 128;   // queries and keys of a tile
constexpr int64_t kSpan = 8 * kRows;         // maximum number of queries of a task of the forward pass
constexpr int64_t kTasks = 16;               // tasks, if there are fewer heads

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

enum Masking { kAdd, kAddEach, kReplace };

// Sizes, options and strides (in elements) of the bias and the mask; the other arrays are [batch, t, heads, size].
struct Sizes {
  int64_t batch, queries, keys, heads, size, values;
  bool causal;
  int64_t masking;
  float scale, fill, factor;  // factor: of the weights that dropout keeps
  int64_t bias[3], mask[3];   // strides of batch, head and query
  uint32_t threshold, bits;   // dropout keeps weights whose random bits are at least the threshold
};

struct Arrays {
  const char *q, *k, *v, *out, *gradient;
  const float *bias;
  const uint8_t *mask, *queries;
  const uint64_t* key;
  float *high, *total;
  char *result[3];
};

// Memory of a task.
class Memory {
 public:
  float* take(int64_t floats) {
    float* found = memory_ ? memory_ + used_ : nullptr;
    used_ += up(floats, kAlignment);
    return found;
  }
  int64_t used() const { return used_; }
  explicit Memory(float* memory) : memory_(memory) {}

 private:
  float* memory_;
  int64_t used_ = 0;
};

// Queries of a task of the forward pass: each task packs all keys, but there must be enough tasks.
int64_t choose_span(const Sizes& s) {
  int64_t parts = (kTasks + s.batch * s.heads - 1) / (s.batch * s.heads);
  return std::min(kSpan, up((s.queries + parts - 1) / parts, kRows));
}

}  // namespace
}  // namespace meshflow

#define LOOPS "attention_loops.h"
#include "every_width.h"

namespace meshflow {
namespace {

ffi::Error wrong(const std::string& reason) {
  return ffi::Error::InvalidArgument("meshflow_attention: " + reason);
}

float read_float(Reader& reader) {
  return SAME_BITS(float, static_cast<uint32_t>(reader.next()));
}

// Descriptor: backward; batch, queries, keys, heads, sizes of keys and values; causal, masking; scale, fill value and
// factor of dropout as bits of floats; whether there are a bias, a mask, a mask of queries and a key of dropout; strides of
// the bias and the mask; threshold and bits of dropout. From queries, keys, values, and those of the bias (float32), the
// mask, the mask of queries [batch, queries] (bool) and the key (int64 [3]) that exist: the values, and the maximum of each row of scores and the logarithm of
// the sum of its exponentials relative to it, [batch, heads, queries]. From the same, these results and a gradient of
// the values: gradients of queries, keys and values.
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_attention", [&]() -> ffi::Error {
    Reader reader(descriptor.begin(), descriptor.size());
    bool backward = reader.next();
    Sizes s;
    for (int64_t* size : {&s.batch, &s.queries, &s.keys, &s.heads, &s.size, &s.values})
      if ((*size = reader.next()) < 1) return wrong("a size is not positive");
    s.causal = reader.next(), s.masking = reader.next();
    s.scale = read_float(reader), s.fill = read_float(reader), s.factor = read_float(reader);
    bool biased = reader.next(), masked = reader.next(), hides = reader.next(), drops = reader.next();
    for (int64_t& stride : s.bias) stride = reader.next();
    for (int64_t& stride : s.mask) stride = reader.next();
    s.threshold = reader.next(), s.bits = reader.next();
    size_t count = 3 + biased + masked + hides + drops + 4 * backward, at = 0;
    if (arguments.size() != count || results.size() != 3) return wrong("the descriptor has another number of operands");
    auto type = arguments.get<ffi::AnyBuffer>(0).value().element_type();
    if (type != ffi::DataType::F32 && type != ffi::DataType::BF16) return wrong("the queries are neither float32 nor bfloat16");
    bool valid = true;
    auto check = [&](const ffi::AnyBuffer& buffer, ffi::DataType expected, int64_t least) {
      valid &= buffer.element_type() == expected && static_cast<int64_t>(buffer.element_count()) >= least;
      return static_cast<char*>(buffer.untyped_data());
    };
    auto take = [&](ffi::DataType expected, int64_t least) {
      return check(arguments.get<ffi::AnyBuffer>(at++).value(), expected, least);
    };
    int64_t rows = s.batch * s.heads * s.queries, key_rows = s.batch * s.heads * s.keys;
    auto extent = [&](const int64_t* strides) {
      return (s.batch - 1) * strides[0] + (s.heads - 1) * strides[1] + (s.queries - 1) * strides[2] + s.keys;
    };
    Arrays x{};
    x.q = take(type, rows * s.size), x.k = take(type, key_rows * s.size), x.v = take(type, key_rows * s.values);
    if (biased) x.bias = reinterpret_cast<const float*>(take(ffi::DataType::F32, extent(s.bias)));
    if (masked) x.mask = reinterpret_cast<const uint8_t*>(take(ffi::DataType::PRED, extent(s.mask)));
    if (hides) x.queries = reinterpret_cast<const uint8_t*>(take(ffi::DataType::PRED, s.batch * s.queries));
    if (drops) x.key = reinterpret_cast<const uint64_t*>(take(ffi::DataType::S64, 3));
    auto give = [&](int i, ffi::DataType expected, int64_t least) {
      return check(*results.get<ffi::AnyBuffer>(i).value(), expected, least);
    };
    x.result[0] = give(0, type, rows * (backward ? s.size : s.values));
    if (backward) {
      x.out = take(type, rows * s.values);
      x.high = reinterpret_cast<float*>(take(ffi::DataType::F32, rows));
      x.total = reinterpret_cast<float*>(take(ffi::DataType::F32, rows));
      x.gradient = take(type, rows * s.values);
      x.result[1] = give(1, type, key_rows * s.size), x.result[2] = give(2, type, key_rows * s.values);
    } else {
      x.high = reinterpret_cast<float*>(give(1, ffi::DataType::F32, rows));
      x.total = reinterpret_cast<float*>(give(2, ffi::DataType::F32, rows));
    }
    if (!valid) return wrong("an operand has another type, or is smaller than the descriptor says");
    if (!has(Level::kAvx2)) return wrong("the processor has no AVX2");
    Team::get().run([&] {
      if (type == ffi::DataType::F32) {
        backward ? BY_WIDTH(differentiate<float, false>(s, x)) : BY_WIDTH(attend<float, false>(s, x));
      } else if (has(Level::kBfloat16)) {
        backward ? by_512::differentiate<bfloat16, true>(s, x) : by_512::attend<bfloat16, true>(s, x);
      } else {
        backward ? BY_WIDTH(differentiate<bfloat16, false>(s, x)) : BY_WIDTH(attend<bfloat16, false>(s, x));
      }
    });
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace meshflow

using meshflow::execute;
namespace ffi = xla::ffi;
XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_attention, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));

#endif
