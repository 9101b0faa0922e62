// Images in another size, by bilinear interpolation as TensorFlow rounds it: along rows first, then
// between rows. Called through ctypes, without the interpreter's lock.

#include <cstdint>
#include <vector>

#include "cpus.h"

// A product and a sum are rounded one after the other.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define TWICE_ROUNDED
#else
#define TWICE_ROUNDED __attribute__((optimize("fp-contract=off")))
#endif

namespace {

FOR_EVERY_CPU void from_bytes(const uint8_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

FOR_EVERY_CPU TWICE_ROUNDED void along(const float* row, const int32_t* low, const int32_t* high,
                                       const float* share, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float left = row[low[i]], right = row[high[i]];
    out[i] = left + (right - left) * share[i];
  }
}

FOR_EVERY_CPU TWICE_ROUNDED void between(const float* upper, const float* lower, float share,
                                         float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = upper[i] + (lower[i] - upper[i]) * share;
}

}  // namespace

// An image of `width` numbers a row, uint8 (`bytes`) or float32, gives `rows` rows of `count` numbers:
// number i lies between those at low[i] and high[i], row y between those at top[y] and bottom[y].
extern "C" void meshflow_bilinear(const void* image, int bytes, int64_t width, const int32_t* low,
                                  const int32_t* high, const float* across, int64_t count,
                                  const int32_t* top, const int32_t* bottom, const float* down,
                                  int64_t rows, float* out) {
  std::vector<float> plain(bytes ? width : 0), held(2 * count);
  float* lines[2] = {held.data(), held.data() + count};
  int64_t numbers[2] = {-1, -1};
  // A row of the old image along the new places; `keep` is the line that must stay.
  auto line = [&](int64_t number, int keep) {
    for (int i = 0; i < 2; ++i)
      if (numbers[i] == number) return i;
    const int at = keep == 0 ? 1 : 0;
    const float* row = static_cast<const float*>(image) + number * width;
    if (bytes) {
      from_bytes(static_cast<const uint8_t*>(image) + number * width, plain.data(), width);
      row = plain.data();
    }
    along(row, low, high, across, lines[at], count);
    numbers[at] = number;
    return at;
  };
  for (int64_t y = 0; y < rows; ++y) {
    // The lower row is found after the upper one, which it must not replace.
    const int first = line(top[y], numbers[0] == bottom[y] ? 0 : 1);
    const int second = line(bottom[y], first);
    between(lines[first], lines[second], down[y], out + y * count, count);
  }
}
