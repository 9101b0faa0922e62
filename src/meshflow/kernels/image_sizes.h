// Checks of the sizes that image files declare, before memory is allocated for them.
#pragma once

#include <cstdint>

// Maximum pixels per byte of a JPEG file: a bit for each unit of at most 32 x 32 pixels.
constexpr uint64_t kJpegPixels = 8 * 32 * 32;
// Maximum bytes that deflate decodes from one.
constexpr uint64_t kInflated = 1032;

// Returns whether an image of this size is not empty and has at most so many bytes.
inline bool fits(uint64_t height, uint64_t width, uint64_t channels, uint64_t most) {
  return height && width && channels && width <= most / height / channels;
}
