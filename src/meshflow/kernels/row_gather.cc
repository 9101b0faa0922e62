// Input pipelines: gathers rows of an array, casts them to float32 and applies steps in one pass over memory;
// draws of a shuffle buffer. Called through ctypes, without the global interpreter lock.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpus.h"
#include "guard.h"
#include "row_gather.h"
#include "team.h"

namespace {

using meshflow::has;
using meshflow::in_parts;
using meshflow::Level;

// The order of `TYPES` and `OPERATIONS` in row_gather.py.
enum Type { kBytes, kBool, kUint8, kInt8, kUint16, kInt16, kInt32, kInt64, kFloat32, kFloat64 };
enum Operation { kAdd, kSubtract, kSubtractFrom, kMultiply, kDivide, kDivideInto, kDivideQuickly };

// Elements that remain in the first-level cache from one operation to the next.
constexpr int64_t kTile = 2048;
// Bytes of results from which another thread is worthwhile.
constexpr int64_t kThread = 1 << 18;
// Bytes of the following rows that are prefetched while one is computed.
constexpr int64_t kPrefetched = 2048;

// Description of an array (row_gather.py): rows are `stride` bytes apart, each with `size` contiguous
// elements (type 0: bytes). After a cast to float32, `steps` operations are applied, each with one value or
// (`each`) with one for each element of a row.
struct Rows {
  const char* source;
  int64_t stride, rows, size, type, steps;
  int32_t* codes;
  const float* const* values;
  const int32_t* each;
};

int64_t width_of(int64_t type) {
  constexpr int64_t widths[] = {1, 1, 1, 1, 2, 2, 4, 8, 4, 8};
  return widths[type];
}

template <class Number>
INLINE void convert(const char* from, float* to, int64_t count) {
  const Number* numbers = reinterpret_cast<const Number*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(numbers[i]);
}

INLINE void convert(int64_t type, const char* from, float* to, int64_t count) {
  switch (type) {
    case kBool:
    case kUint8: return convert<uint8_t>(from, to, count);
    case kInt8: return convert<int8_t>(from, to, count);
    case kUint16: return convert<uint16_t>(from, to, count);
    case kInt16: return convert<int16_t>(from, to, count);
    case kInt32: return convert<int32_t>(from, to, count);
    case kInt64: return convert<int64_t>(from, to, count);
    case kFloat32: return convert<float>(from, to, count);
    default: return convert<double>(from, to, count);
  }
}

INLINE void operate(int32_t code, float* x, const float* values, bool each, int64_t count) {
  const float value = *values, inverse = 1 / value;
  switch (code) {
#define OPERATION(code, expression)                                   \
  case code:                                                          \
    if (each)                                                         \
      for (int64_t i = 0; i < count; ++i) {                           \
        const float a = x[i], b = values[i];                          \
        x[i] = expression;                                            \
      }                                                               \
    else                                                              \
      for (int64_t i = 0; i < count; ++i) {                           \
        const float a = x[i], b = value;                              \
        x[i] = expression;                                            \
      }                                                               \
    return;
    OPERATION(kAdd, a + b)
    OPERATION(kSubtract, a - b)
    OPERATION(kSubtractFrom, b - a)
    OPERATION(kMultiply, a * b)
    OPERATION(kDivide, a / b)
    OPERATION(kDivideInto, b / a)
    case kDivideQuickly:
      // The quotient as a product, corrected by its remainder.
      for (int64_t i = 0; i < count; ++i) {
        const float a = x[i], quotient = a * inverse;
        x[i] = __builtin_fmaf(__builtin_fmaf(-quotient, value, a), inverse, quotient);
      }
  }
}

INLINE void computed(const Rows& rows, const char* from, float* to) {
  const int64_t width = width_of(rows.type);
  for (int64_t at = 0; at < rows.size; at += kTile) {
    const int64_t count = std::min(kTile, rows.size - at);
    convert(rows.type, from + at * width, to + at, count);
    for (int64_t s = 0; s < rows.steps; ++s)
      operate(rows.codes[s], to + at, rows.values[s] + (rows.each[s] ? at : 0), rows.each[s], count);
  }
}

// Computes a row, compiled for several processors. With fused multiply-add, divisions may be replaced.
FOR_CPU("avx512f,avx512bw,avx512vl,fma") void row_by_512(const Rows& rows, const char* from, float* to) {
  computed(rows, from, to);
}
FOR_CPU("avx2,fma") void row_by_256(const Rows& rows, const char* from, float* to) { computed(rows, from, to); }
void row_by_any(const Rows& rows, const char* from, float* to) { computed(rows, from, to); }

bool fuses() { return has(Level::kAvx2) && meshflow::fuses(); }

void compute(const Rows& rows, const char* from, float* to) {
  (!fuses() ? row_by_any : has(Level::kAvx512) ? row_by_512 : row_by_256)(rows, from, to);
}

INLINE void operate_loop(const Steps& steps, float* x, int64_t at, int64_t count) {
  for (int64_t s = 0; s < steps.count; ++s)
    operate(steps.codes[s], x, steps.values[s] + (steps.each[s] ? at : 0), steps.each[s], count);
}

void prepare(const Rows* rows) {
  const int64_t width = width_of(rows->type);
  if (rows->type == kBytes || width > 2 || !fuses()) return;
  Rows every = *rows;
  every.size = 1 << 8 * width;
  std::vector<char> numbers(every.size * width);
  for (int64_t i = 0; i < every.size; ++i) std::memcpy(&numbers[i * width], &i, width);
  std::vector<float> exact(every.size), quick(every.size);
  for (int64_t s = 0; s < rows->steps && !rows->each[s]; ++s) {
    if (rows->codes[s] != kDivide) continue;
    every.steps = s + 1;
    compute(every, numbers.data(), exact.data());
    rows->codes[s] = kDivideQuickly;
    compute(every, numbers.data(), quick.data());
    if (std::memcmp(quick.data(), exact.data(), every.size * sizeof(float)) != 0)
      rows->codes[s] = kDivide;
  }
}

}  // namespace

void operate(const Steps& steps, float* x, int64_t at, int64_t count) {
  meshflow::for_every_cpu<operate_loop>(steps, x, at, count);
}

// Enables the replacement of divisions if it has the same bits for every value of the type: a division takes
// four times as long as a product. Without memory for the check, divisions are not replaced.
extern "C" void meshflow_rows_prepare(const Rows* rows) noexcept {
  meshflow::guarded([&] { prepare(rows); });
}

// Copies or computes the rows `index`. Returns 1 if an index is out of range.
extern "C" int meshflow_rows_take(const Rows* rows, const int64_t* index, int64_t count, char* out,
                                  int threads) noexcept {
  const Rows r = *rows;
  for (int64_t i = 0; i < count; ++i)
    if (index[i] < 0 || index[i] >= r.rows) return 1;
  const int64_t in_bytes = r.size * width_of(r.type);
  const int64_t out_bytes = r.type == kBytes ? in_bytes : r.size * sizeof(float);
  const int64_t fetched = std::min(in_bytes, kPrefetched), distance = kPrefetched / std::max<int64_t>(1, fetched);
  threads = std::max<int64_t>(1, std::min<int64_t>(threads, count * out_bytes / kThread));
  auto take = [&](int64_t i) {
    if (i + distance < count) {
      const char* next = r.source + index[i + distance] * r.stride;
      for (int64_t at = 0; at < fetched; at += 64) __builtin_prefetch(next + at);
    }
    const char* from = r.source + index[i] * r.stride;
    if (r.type == kBytes)
      std::memcpy(out + i * out_bytes, from, in_bytes);
    else
      compute(r, from, reinterpret_cast<float*>(out + i * out_bytes));
  };
  in_parts(count, take, threads);
  return 0;
}

// Removes a random element of the ring for each new one, like TensorFlow: the first element replaces the
// removed one, and the new one, the last, replaces the first. Returns the new index of the first.
extern "C" int64_t meshflow_ring(const uint32_t* words, const int64_t* items, int64_t count,
                                 int64_t* buffer, int64_t size, int64_t first,
                                 int64_t* out) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = first + static_cast<int64_t>(words[i] % static_cast<uint64_t>(size));
    if (place >= size) place -= size;
    out[i] = buffer[place];
    buffer[place] = buffer[first];
    buffer[first] = items[i];
    if (++first == size) first = 0;
  }
  return first;
}

// Swaps each element, from the first, with a random one from there to the end.
extern "C" void meshflow_shuffle(const uint32_t* words, int64_t steps, int64_t* buffer,
                                 int64_t count) noexcept {
  for (int64_t i = 0; i < steps; ++i) {
    std::swap(buffer[i], buffer[i + words[i] % static_cast<uint64_t>(count - i)]);
  }
}
