// Bilinear resizing of images, rounded as in TensorFlow: along rows first, then between rows. Called through
// ctypes, without the global interpreter lock.

#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpus.h"
#include "guard.h"

// Product and sum are rounded separately.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define TWICE_ROUNDED
#else
#define TWICE_ROUNDED __attribute__((optimize("fp-contract=off")))
#endif

namespace {

using meshflow::has;
using meshflow::Level;

INLINE void from_bytes_loop(const uint8_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

INLINE TWICE_ROUNDED void along_loop(const float* row, const int32_t* low, const int32_t* high,
                                     const float* share, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float left = row[low[i]], right = row[high[i]];
    out[i] = left + (right - left) * share[i];
  }
}

// Pixels of three channels are loaded together with the following element, so rows and results are padded by
// one element.
TWICE_ROUNDED void along_threes(const float* row, const int32_t* low, const int32_t* high,
                                const float* share, float* out, int64_t count) {
  typedef float Four __attribute__((vector_size(16)));
  for (int64_t i = 0; i < count; i += 3) {
    Four left, right;
    std::memcpy(&left, row + low[i], sizeof(left));
    std::memcpy(&right, row + high[i], sizeof(right));
    left += (right - left) * share[i];
    std::memcpy(out + i, &left, sizeof(left));
  }
}

INLINE TWICE_ROUNDED void between_loop(const float* upper, const float* lower, float share,
                                       float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = upper[i] + (lower[i] - upper[i]) * share;
}

MAKE_FOR_EVERY_CPU(RoundedTwice, TWICE_ROUNDED)

constexpr auto from_bytes = meshflow::for_every_cpu<from_bytes_loop>;
constexpr auto along = &RoundedTwice<along_loop>::run;
constexpr auto between = &RoundedTwice<between_loop>::run;

}  // namespace

TWICE_ROUNDED Places::Places(int64_t size, int64_t old, int64_t channels, bool mirrored)
    : channels(channels), low(size * channels), high(size * channels), share(size * channels) {
  const float step = static_cast<float>(static_cast<double>(old) / static_cast<double>(size));
  const int64_t last = old - 1;
  for (int64_t i = 0; i < size; ++i) {
    float place = (static_cast<float>(i) + 0.5f) * step;
    place -= 0.5f;
    const float first = std::floor(place);
    const int64_t from = static_cast<int64_t>(first);
    const int64_t at = (mirrored ? size - 1 - i : i) * channels;
    for (int64_t c = 0; c < channels; ++c) {
      low[at + c] = std::clamp<int64_t>(from, 0, last) * channels + c;
      high[at + c] = std::clamp<int64_t>(from + 1, 0, last) * channels + c;
      share[at + c] = place - first;
    }
  }
}

void bilinear(const Pixels& image, const Grid& across, const Grid& down, const Steps& before,
              const Steps& after, float* out) {
  const int64_t width = image.width, count = across.count;
  const bool threes = across.channels == 3;
  const bool copied = image.bytes || before.count || threes;
  std::vector<float> plain(copied ? width + 1 : 0), held(2 * count + 2);
  float* lines[2] = {held.data(), held.data() + count + 1};
  int64_t numbers[2] = {-1, -1};
  // Resizes a row of the old image along its width; the line `keep` must not be replaced.
  auto line = [&](int64_t number, int keep) {
    for (int i = 0; i < 2; ++i)
      if (numbers[i] == number) return i;
    const int at = keep == 0 ? 1 : 0;
    const float* row = static_cast<const float*>(image.data) + number * image.stride;
    if (image.bytes) {
      from_bytes(static_cast<const uint8_t*>(image.data) + number * image.stride, plain.data(), width);
    } else if (copied) {
      std::copy(row, row + width, plain.data());
    }
    if (copied) {
      operate(before, plain.data(), 0, width);
      row = plain.data();
    }
    (threes ? along_threes : along)(row, across.low, across.high, across.share, lines[at], count);
    numbers[at] = number;
    return at;
  };
  for (int64_t y = 0; y < down.count; ++y) {
    // The lower row is computed after the upper one and must not replace it.
    const int first = line(down.low[y], numbers[0] == down.high[y] ? 0 : 1);
    const int second = line(down.high[y], first);
    float* row = out + y * count;
    between(lines[first], lines[second], down.share[y], row, count);
    operate(after, row, y * count, count);
  }
}

// Resizes an image with rows of `width` elements, uint8 (`bytes`) or float32, to `rows` rows of `count`
// elements: element i is interpolated between low[i] and high[i], row y between top[y] and bottom[y]. Returns
// 1 if there is not enough memory.
extern "C" int meshflow_bilinear(const void* image, int bytes, int64_t width, const int32_t* low,
                                  const int32_t* high, const float* across, int64_t count,
                                  int64_t channels, const int32_t* top, const int32_t* bottom, const float* down,
                                  int64_t rows, float* out) noexcept {
  return meshflow::guarded(1, [&] {
    bilinear({image, bytes != 0, width, width}, {count, channels, low, high, across},
             {rows, 1, top, bottom, down}, {}, {}, out);
    return 0;
  });
}
