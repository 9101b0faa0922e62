// XLA FFI handlers for the cross entropy of logits and class indices, and its gradient, over arrays [rows,
// classes]. A row remains in the core's caches between the pass that finds its maximum and the one that sums
// its exponentials, and the only array of the logits' size that is written is their gradient.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "cpus.h"
#include "floats.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::bfloat16;
using meshflow::for_every_cpu;
using meshflow::handled;
using meshflow::in_parts;
using meshflow::narrow;
using meshflow::Reader;
using meshflow::Team;
using meshflow::wide;

// e^x for x <= 0, with an error of two units in the last place; 0 below the smallest normal number. Values
// are compared as integers, because float comparisons would prevent vectorization on some processors.
inline float exponential(float x) {
  constexpr uint32_t kLeast = 0xc2ae999a, kInfinity = 0xff800000;  // -87.3 and minus infinity
  constexpr float kRound = 12582912.0f;
  uint32_t bits = SAME_BITS(uint32_t, x), below = bits - (kLeast + 1) <= kInfinity - (kLeast + 1);
  uint32_t kept = below - 1;
  float inside = SAME_BITS(float, (bits & kept) | (kLeast & ~kept));
  float shifted = inside * 1.44269504f + kRound, n = shifted - kRound;
  float r = inside - n * 0.693145752f - n * 1.42860677e-6f;
  float p = 1.38889054e-3f;
  p = p * r + 8.33333377e-3f;
  p = p * r + 4.16666679e-2f;
  p = p * r + 1.66666657e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  float power = SAME_BITS(float, (SAME_BITS(uint32_t, shifted) + 127) << 23);
  return SAME_BITS(float, SAME_BITS(uint32_t, p * power) & kept);
}

INLINE float highest_loop(const float* x, float high, int64_t n) {
#pragma omp simd reduction(max : high)
  for (int64_t c = 0; c < n; ++c) high = x[c] > high ? x[c] : high;
  return high;
}

INLINE float sum_of_exponentials_loop(const float* x, float high, int64_t n) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t c = 0; c < n; ++c) total += exponential(x[c] - high);
  return total;
}

INLINE void probabilities_loop(const float* __restrict x, float high, float total, float scale,
                               float* __restrict to, int64_t n) {
  for (int64_t c = 0; c < n; ++c) to[c] = exponential((x[c] - high) - total) * scale;
}

INLINE void widen_loop(const bfloat16* __restrict x, float* __restrict to, int64_t n) {
  for (int64_t c = 0; c < n; ++c) to[c] = wide(x[c]);
}

INLINE void store_loop(const float* __restrict x, bfloat16* __restrict to, int64_t n) {
  for (int64_t c = 0; c < n; ++c) narrow(x[c], to + c);
}

constexpr auto highest = for_every_cpu<highest_loop>;
constexpr auto sum_of_exponentials = for_every_cpu<sum_of_exponentials_loop>;
constexpr auto probabilities = for_every_cpu<probabilities_loop>;
constexpr auto widen = for_every_cpu<widen_loop>;
constexpr auto store = for_every_cpu<store_loop>;

constexpr int64_t kPart = 1024;  // elements of a row that fit in the first-level cache as floats

// Calls use(floats, start, count) for the parts of a row.
template <typename Use>
void parts(const float* row, int64_t n, Use use) {
  for (int64_t c = 0; c < n; c += kPart) use(row + c, c, std::min(kPart, n - c));
}
template <typename Use>
void parts(const bfloat16* row, int64_t n, Use use) {
  alignas(64) float floats[kPart];
  for (int64_t c = 0; c < n; c += kPart) {
    int64_t count = std::min(kPart, n - c);
    widen(row + c, floats, count);
    use(floats, c, count);
  }
}

struct Rows {
  int64_t count, classes;
  const int32_t* labels;  // all within range
};

// For each row: its maximum, the logarithm of the sum of exponentials relative to it, and the loss.
template <typename T>
void losses(const Rows& rows, const T* x, float* loss, float* high, float* total) {
  in_parts(rows.count, [&](int64_t i) {
    const T* row = x + i * rows.classes;
    float most = -std::numeric_limits<float>::infinity(), sum = 0;
    parts(row, rows.classes, [&](const float* part, int64_t, int64_t n) { most = highest(part, most, n); });
    parts(row, rows.classes,
          [&](const float* part, int64_t, int64_t n) { sum += sum_of_exponentials(part, most, n); });
    high[i] = most;
    total[i] = std::log(sum);
    loss[i] = total[i] - (wide(row[rows.labels[i]]) - high[i]);
  });
}

template <typename T, typename To>
void gradient(const Rows& rows, const T* x, const float* high, const float* total, const float* g, To* dx) {
  in_parts(rows.count, [&](int64_t i) {
    const T* row = x + i * rows.classes;
    To* to = dx + i * rows.classes;
    parts(row, rows.classes, [&](const float* part, int64_t first, int64_t n) {
      if constexpr (std::is_same_v<To, float>) {
        probabilities(part, high[i], total[i], g[i], to + first, n);
      } else {
        alignas(64) float floats[kPart];
        probabilities(part, high[i], total[i], g[i], floats, n);
        store(floats, to + first, n);
      }
    });
    int32_t label = rows.labels[i];
    narrow((exponential((wide(row[label]) - high[i]) - total[i]) - 1) * g[i], to + label);
  });
}

ffi::Error wrong(const std::string& what) { return ffi::Error::InvalidArgument("meshflow_cross_entropy: " + what); }

bool is(const ffi::AnyBuffer& buffer, ffi::DataType type, int64_t count) {
  return buffer.element_type() == type && static_cast<int64_t>(buffer.element_count()) >= count;
}

// Calls `use` with the logits or their gradient as their element type.
template <typename Use>
void typed(const ffi::AnyBuffer& buffer, Use use) {
  buffer.element_type() == ffi::DataType::F32 ? use(static_cast<float*>(buffer.untyped_data()))
                                              : use(static_cast<bfloat16*>(buffer.untyped_data()));
}

// Descriptor: rows, classes. From logits and labels: loss, maximum, logarithm of the sum; from logits,
// labels, these two and the gradient of the loss: the gradient of the logits.
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_cross_entropy", [&]() -> ffi::Error {
    Reader reader(descriptor.begin(), descriptor.size());
    int64_t count = reader.next(), classes = reader.next();
    bool backward = arguments.size() == 5;
    if (arguments.size() + results.size() != (backward ? 6 : 5) || count < 0 || classes < 1)
      return wrong("the descriptor has another number of operands, or no sizes");
    std::vector<ffi::AnyBuffer> given;
    for (size_t i = 0; i < arguments.size(); ++i) given.push_back(arguments.get<ffi::AnyBuffer>(i).value());
    for (size_t i = 0; i < results.size(); ++i) given.push_back(*results.get<ffi::AnyBuffer>(i).value());
    for (size_t i = 0; i < given.size(); ++i) {
      bool large = i == 0 || (backward && i == 5);
      auto type = i == 1 ? ffi::DataType::S32 : ffi::DataType::F32;
      int64_t least = large ? count * classes : count;
      if (!is(given[i], type, least) && !(large && is(given[i], ffi::DataType::BF16, least)))
        return wrong("operand " + std::to_string(i) + " has another type, or is smaller than its descriptor says");
    }
    Rows rows{count, classes, static_cast<const int32_t*>(given[1].untyped_data())};
    for (int64_t i = 0; i < count; ++i)
      if (rows.labels[i] < 0 || rows.labels[i] >= classes) return wrong("a label names no class");
    auto floats = [&](int i) { return static_cast<float*>(given[i].untyped_data()); };
    Team::get().run([&] {
      typed(given[0], [&](auto* x) {
        if (!backward) return losses(rows, x, floats(2), floats(3), floats(4));
        typed(given[5], [&](auto* dx) { gradient(rows, x, floats(2), floats(3), floats(4), dx); });
      });
    });
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_cross_entropy, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));
