// Sizes that image files declare, looked at before anything is allocated for them.
#pragma once

#include <cstdint>

// Pixels that a byte of a JPEG file may stand for: a bit for each unit of at most 32 x 32 pixels.
constexpr uint64_t kJpegPixels = 8 * 32 * 32;
// Bytes that deflate makes of one at most.
constexpr uint64_t kInflated = 1032;

// Whether an image of that size is not empty and takes at most so many bytes.
inline bool fits(uint64_t height, uint64_t width, uint64_t channels, uint64_t most) {
  return height && width && channels && width <= most / height / channels;
}
