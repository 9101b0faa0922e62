// Input pipelines: rows of an array gathered, turned into float32 and computed on in one pass over
// memory, and the draws of a shuffle buffer. Called through ctypes, without the interpreter's lock.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpus.h"
#include "rows.h"

namespace {

// The order of `TYPES` and `OPERATIONS` in rows.py.
enum Type { kBytes, kBool, kUint8, kInt8, kUint16, kInt16, kInt32, kInt64, kFloat32, kFloat64 };
enum Operation { kAdd, kSubtract, kSubtractFrom, kMultiply, kDivide, kDivideInto };

// Numbers that stay in the first cache from one operation to the next.
constexpr int64_t kTile = 2048;
// Bytes of results that are worth a thread.
constexpr int64_t kThread = 1 << 18;

#define CONVERSION(name, type)                                                  \
  FOR_EVERY_CPU void name(const void* from, float* to, int64_t count) {         \
    const type* numbers = static_cast<const type*>(from);                       \
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(numbers[i]); \
  }
CONVERSION(from_uint8, uint8_t)
CONVERSION(from_int8, int8_t)
CONVERSION(from_uint16, uint16_t)
CONVERSION(from_int16, int16_t)
CONVERSION(from_int32, int32_t)
CONVERSION(from_int64, int64_t)
CONVERSION(from_float32, float)
CONVERSION(from_float64, double)

// With a number for all, or with one for each.
#define OPERATION(name, expression)                                                      \
  FOR_EVERY_CPU void name(float* x, const float* values, bool each, int64_t count) {     \
    const float value = *values;                                                         \
    if (each) {                                                                          \
      for (int64_t i = 0; i < count; ++i) {                                              \
        const float a = x[i], b = values[i];                                             \
        x[i] = expression;                                                               \
      }                                                                                  \
    } else {                                                                             \
      for (int64_t i = 0; i < count; ++i) {                                              \
        const float a = x[i], b = value;                                                 \
        x[i] = expression;                                                               \
      }                                                                                  \
    }                                                                                    \
  }
OPERATION(add, a + b)
OPERATION(subtract, a - b)
OPERATION(subtract_from, b - a)
OPERATION(multiply, a * b)
OPERATION(divide, a / b)
OPERATION(divide_into, b / a)

using Convert = void (*)(const void*, float*, int64_t);
using Operate = void (*)(float*, const float*, bool, int64_t);

Convert conversion(int type, int64_t* width) {
  switch (type) {
    case kBool:
    case kUint8: *width = 1; return from_uint8;
    case kInt8: *width = 1; return from_int8;
    case kUint16: *width = 2; return from_uint16;
    case kInt16: *width = 2; return from_int16;
    case kInt32: *width = 4; return from_int32;
    case kInt64: *width = 8; return from_int64;
    case kFloat32: *width = 4; return from_float32;
    case kFloat64: *width = 8; return from_float64;
    default: *width = 1; return nullptr;
  }
}

Operate operation(int code) {
  switch (code) {
    case kAdd: return add;
    case kSubtract: return subtract;
    case kSubtractFrom: return subtract_from;
    case kMultiply: return multiply;
    case kDivide: return divide;
    default: return divide_into;
  }
}

}  // namespace

void operate(const Steps& steps, float* x, int64_t at, int64_t count) {
  for (int64_t s = 0; s < steps.count; ++s)
    operation(steps.codes[s])(x, steps.values[s] + (steps.each[s] ? at : 0), steps.each[s], count);
}

// Rows `index` of an array whose rows lie `stride` bytes apart, each of `size` numbers side by side.
//
// As bytes (type 0, `size` bytes a row) they are copied. Numbers become float32, and then `steps` are
// done on them.
// 1 when an index is outside of the array, which has `rows` rows.
extern "C" int meshflow_rows(const char* source, int64_t stride, int64_t rows, const int64_t* index,
                             int64_t count, int64_t size, int type, char* out, const Steps* steps,
                             int threads) {
  for (int64_t i = 0; i < count; ++i)
    if (index[i] < 0 || index[i] >= rows) return 1;
  int64_t width;
  const Convert convert = conversion(type, &width);
  const int64_t out_bytes = type == kBytes ? size : size * 4;
  threads = std::max<int64_t>(1, std::min<int64_t>(threads, count * out_bytes / kThread));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < count; ++i) {
    const char* from = source + index[i] * stride;
    if (i + 1 < count) {
      const char* next = source + index[i + 1] * stride;
      for (int64_t at = 0; at < std::min<int64_t>(size * width, 1024); at += 64)
        __builtin_prefetch(next + at);
    }
    if (type == kBytes) {
      std::memcpy(out + i * size, from, size);
      continue;
    }
    float* to = reinterpret_cast<float*>(out) + i * size;
    for (int64_t at = 0; at < size; at += kTile) {
      const int64_t n = std::min(kTile, size - at);
      convert(from + at * width, to + at, n);
      operate(*steps, to + at, at, n);
    }
  }
  return 0;
}

// Takes a number from a place of the buffer for each new one, which is put there.
extern "C" void meshflow_exchange(const double* draws, const int64_t* items, int64_t count,
                                  int64_t* buffer, int64_t size, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = static_cast<int64_t>(draws[i] * static_cast<double>(size));
    out[i] = buffer[place];
    buffer[place] = items[i];
  }
}

// Takes all numbers from a buffer; what is taken next is put last.
extern "C" void meshflow_drain(const double* draws, int64_t* buffer, int64_t count) {
  for (int64_t size = count; size > 0; --size) {
    const int64_t place = static_cast<int64_t>(draws[count - size] * static_cast<double>(size));
    std::swap(buffer[place], buffer[size - 1]);
  }
}
