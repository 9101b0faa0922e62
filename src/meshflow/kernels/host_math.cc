// Functions for programs that run op by op on host arrays: float32 functions that NumPy computes slowly on processors
// without AVX-512, selections, and the words of the Philox generator. The loops round every operation, without fused products, so that all
// processors compute the same bits.

#pragma GCC optimize("fp-contract=off,no-trapping-math")

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpus.h"

namespace {

INLINE float as_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE int32_t as_bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
INLINE float power_of_two(int32_t n) { return as_float((n + 127) << 23); }

// x = n log 2 + r with an integer n and |r| <= log(2) / 2, for |x| < 2^20. NaN remains NaN in r.
struct Reduced {
  float r;
  int32_t n;
};
INLINE Reduced reduce(float x) {
  const float round = 12582912.0f, shifted = x * 1.44269504f + round, n = shifted - round;
  return {x - n * 0.693145752f - n * 1.42860677e-6f, as_bits(shifted) - as_bits(round)};
}
// (e^r - 1 - r) / r^2, by the polynomial with the smallest maximum error of e^r, 3e-9
INLINE float series(float r) {
  float p = 1.39517221e-3f;
  p = p * r + 8.36960133e-3f;
  p = p * r + 4.16661873e-2f;
  p = p * r + 1.66665122e-1f;
  return p * r + 0.5f;
}

INLINE float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const Reduced y = reduce(x);
  const int32_t half = y.n >> 1;
  // There are two factors, because the power may be too small or too large for one.
  return (series(y.r) * y.r * y.r + y.r + 1.0f) * power_of_two(half) * power_of_two(y.n - half);
}
INLINE float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE float hyperbolic_tangent(float x) {
  const int32_t sign = as_bits(x) & INT32_MIN;
  float twice = as_float(as_bits(x) ^ sign);
  twice = twice > 20.0f ? 40.0f : twice + twice;
  const Reduced y = reduce(twice);
  const float power = power_of_two(y.n);
  // e^2x - 1 without cancellation
  const float minus_one = (series(y.r) * y.r * y.r + y.r) * power + (power - 1.0f);
  return as_float(as_bits(minus_one / (minus_one + 2.0f)) | sign);
}

template <float (*function)(float)>
INLINE void loop(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = function(x[i]);
}
// Functions in the order of host_math.py.
using Loop = void (*)(const float*, float*, int64_t);
constexpr Loop kLoops[] = {meshflow::for_every_cpu<loop<exponential>>, meshflow::for_every_cpu<loop<logistic>>,
                           meshflow::for_every_cpu<loop<hyperbolic_tangent>>};

// A step of 0 repeats one number.
template <int first_step, int second_step>
INLINE void select(const uint8_t* which, const uint32_t* first, const uint32_t* second, uint32_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t a = first[i * first_step], b = second[i * second_step];
    out[i] = which[i] ? b : a;
  }
}
using Select = void (*)(const uint8_t*, const uint32_t*, const uint32_t*, uint32_t*, int64_t);
constexpr Select kSelections[] = {meshflow::for_every_cpu<select<0, 0>>, meshflow::for_every_cpu<select<0, 1>>,
                                  meshflow::for_every_cpu<select<1, 0>>, meshflow::for_every_cpu<select<1, 1>>};

constexpr int64_t kLanes = 64;  // blocks at a time, in vectors

// Counters are those of `low`, or follow its first one, with one high half and key.
struct Counters {
  const uint64_t *low, *high, *key;
  bool is_sequence;
};

template <bool as_floats>
INLINE void draw(const Counters& counters, int64_t count, uint32_t* out) {
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    uint32_t words[4][kLanes], first[kLanes], second[kLanes];
    auto& [a, b, c, d] = words;
    const int64_t lanes = std::min(count - begin, kLanes);
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t from = counters.is_sequence ? 0 : begin + (i < lanes ? i : 0);
      const uint64_t low = counters.low[from] + (counters.is_sequence ? begin + i : 0), high = counters.high[from], key = counters.key[from];
      a[i] = low, b[i] = low >> 32, c[i] = high, d[i] = high >> 32, first[i] = key, second[i] = key >> 32;
    }
    for (int round = 0; round < 10; ++round)
      for (int64_t i = 0; i < kLanes; ++i) {
        const uint64_t left = uint64_t{a[i]} * 0xD2511F53u, right = uint64_t{c[i]} * 0xCD9E8D57u;
        a[i] = static_cast<uint32_t>(right >> 32) ^ b[i] ^ first[i], b[i] = static_cast<uint32_t>(right);
        c[i] = static_cast<uint32_t>(left >> 32) ^ d[i] ^ second[i], d[i] = static_cast<uint32_t>(left);
        first[i] += 0x9E3779B9u, second[i] += 0xBB67AE85u;
      }
    if (as_floats)
      for (auto& part : words)
        for (uint32_t& word : part) word = as_bits(as_float((word & 0x7FFFFF) | 127 << 23) - 1.0f);
    for (int64_t i = 0; i < lanes; ++i)
      for (int64_t j = 0; j < 4; ++j) out[4 * (begin + i) + j] = words[j][i];
  }
}

}  // namespace

// Selects each of `count` numbers of 32 bits from the first array, or where `which` is 1 from the second one. A step of 0
// repeats one number. The result may replace an array.
extern "C" void meshflow_select(const uint8_t* which, const uint32_t* first, int32_t first_step, const uint32_t* second, int32_t second_step,
                                uint32_t* out, int64_t count) noexcept {
  kSelections[2 * first_step + second_step](which, first, second, out, count);
}

// Computes a function of `count` numbers; y may be x.
extern "C" void meshflow_float_function(int32_t function, const float* x, float* y, int64_t count) noexcept {
  kLoops[function](x, y, count);
}

// Computes the four words of each of `count` blocks: low and high halves of their counters, and their keys. A sequence
// has only the first of these. The words are numbers from 0 to 1 on request.
extern "C" void meshflow_philox_words(const uint64_t* low, const uint64_t* high, const uint64_t* key, int64_t count, int32_t is_sequence,
                                      int32_t as_floats, uint32_t* out) noexcept {
  const auto run = as_floats ? meshflow::for_every_cpu<draw<true>> : meshflow::for_every_cpu<draw<false>>;
  run({low, high, key, is_sequence != 0}, count, out);
}
