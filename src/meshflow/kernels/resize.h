// Images in another size, by bilinear interpolation as TensorFlow rounds it.
#pragma once

#include <cstdint>
#include <vector>

#include "row_gather.h"

// `width` numbers a row, uint8 (`bytes`) or float32; rows begin `stride` numbers after each other.
struct Pixels {
  const void* data;
  bool bytes;
  int64_t width, stride;
};

// New number i lies `share[i]` of the way between the old ones at low[i] and high[i]; those of a pixel's
// `channels` side by side.
struct Grid {
  int64_t count, channels;
  const int32_t *low, *high;
  const float* share;
};

// The places of `size` new pixels among `old` ones, for each of their channels; `mirrored` in reverse.
struct Places {
  int64_t channels;
  std::vector<int32_t> low, high;
  std::vector<float> share;
  Places(int64_t size, int64_t old, int64_t channels, bool mirrored);
  // Those of `count` pixels from pixel `first` on.
  Grid part(int64_t first, int64_t count) const {
    const int64_t at = first * channels;
    return {count * channels, channels, low.data() + at, high.data() + at, share.data() + at};
  }
};

// `before` is done to the old numbers, which takes one value for all of them, and `after` to the new ones.
void bilinear(const Pixels& image, const Grid& across, const Grid& down, const Steps& before,
              const Steps& after, float* out);
