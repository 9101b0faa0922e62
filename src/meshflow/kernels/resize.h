// Bilinear resizing of images, rounded as in TensorFlow.
#pragma once

#include <cstdint>
#include <vector>

#include "row_gather.h"

// Rows of `width` elements, uint8 (`bytes`) or float32, which start `stride` elements apart.
struct Pixels {
  const void* data;
  bool bytes;
  int64_t width, stride;
};

// New element i is at the fraction `share[i]` between the old ones at low[i] and high[i]; the `channels` of a
// pixel are contiguous.
struct Grid {
  int64_t count, channels;
  const int32_t *low, *high;
  const float* share;
};

// Positions of `size` new pixels among `old` ones, for each channel; reversed if `mirrored`.
struct Places {
  int64_t channels;
  std::vector<int32_t> low, high;
  std::vector<float> share;
  Places(int64_t size, int64_t old, int64_t channels, bool mirrored);
  // Positions of `count` pixels from pixel `first` on.
  Grid part(int64_t first, int64_t count) const {
    const int64_t at = first * channels;
    return {count * channels, channels, low.data() + at, high.data() + at, share.data() + at};
  }
};

// `before` is applied to the old elements, with one value for all of them, and `after` to the new ones.
void bilinear(const Pixels& image, const Grid& across, const Grid& down, const Steps& before,
              const Steps& after, float* out);
