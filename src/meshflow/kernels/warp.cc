// Affine and projective transforms of float32 images. XLA and NumPy need an array of the size of the result for each of some 100
// operations; this makes one pass. Every operation is rounded, without fused products, so that all processors compute the same bits.

#pragma GCC optimize("fp-contract=off,no-trapping-math")

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpus.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;

enum Fill : int64_t { kConstant, kNearest, kReflect, kWrap };

struct Warp {
  int64_t height, width, channels, rows, columns;  // of an image, and of its result
  int64_t map_size;                                // 6, or 9 with divisors
  int64_t fill;
  bool nearest;
  float value;
};

INLINE float wrap_position(float p, float size, int64_t fill) {
  if (fill == kReflect) {
    const float turn = p - 2 * size * std::floor((p + 0.5f) / (2 * size));
    p = turn > size - 0.5f ? 2 * size - 1 - turn : turn;
  } else if (fill == kWrap) {
    const float period = size > 2 ? size - 1 : 1;
    const float from_left = p + size * (std::floor(-p / period) + 1), from_right = p - size * std::floor(p / period);
    p = p < 0 ? from_left : p > size - 1 ? from_right : p;
  }
  // A position that is not a number remains one, and is outside of the image.
  return fill == kConstant ? p : p < 0 ? 0 : p > size - 1 ? size - 1 : p;
}

// Computes the positions of a row of the result in the image.
template <int64_t fill>
INLINE void find_positions(const Warp& warp, const float* map, float y, float* across, float* down) {
  for (int64_t i = 0; i < warp.columns; ++i) {
    const float x = static_cast<float>(i);
    float a = map[0] * x + map[1] * y + map[2], d = map[3] * x + map[4] * y + map[5];
    const float divisor = warp.map_size == 9 ? map[6] * x + map[7] * y + map[8] : 1.0f;
    const bool finite = divisor != 0;
    a = wrap_position(finite ? a / divisor : a, static_cast<float>(warp.width), fill);
    d = wrap_position(finite ? d / divisor : d, static_cast<float>(warp.height), fill);
    // All pixels around this position are outside of the image.
    across[i] = finite ? a : -2.0f, down[i] = finite ? d : -2.0f;
  }
}

INLINE const float* find_pixel(const Warp& warp, const float* image, float row, float column, const float* outside) {
  const bool inside = row >= 0 && row < static_cast<float>(warp.height) && column >= 0 && column < static_cast<float>(warp.width);
  return inside ? image + (static_cast<int64_t>(row) * warp.width + static_cast<int64_t>(column)) * warp.channels : outside;
}

INLINE float round_away(float v) { return std::copysign(std::floor(std::fabs(v) + 0.5f), v); }

INLINE void warp_image(const Warp& warp, const float* image, const float* map, const float* outside, float* room, float* y) {
  float *across = room, *down = room + warp.columns;
  for (int64_t row = 0; row < warp.rows; ++row) {
    const float height = static_cast<float>(row);
    switch (warp.fill) {
      case kConstant: find_positions<kConstant>(warp, map, height, across, down); break;
      case kNearest: find_positions<kNearest>(warp, map, height, across, down); break;
      case kReflect: find_positions<kReflect>(warp, map, height, across, down); break;
      default: find_positions<kWrap>(warp, map, height, across, down);
    }
    for (int64_t i = 0; i < warp.columns; ++i, y += warp.channels) {
      if (warp.nearest) {
        const float* pixel = find_pixel(warp, image, round_away(down[i]), round_away(across[i]), outside);
        for (int64_t c = 0; c < warp.channels; ++c) y[c] = pixel[c];
        continue;
      }
      const float top = std::floor(down[i]), left = std::floor(across[i]), lower = down[i] - top, right = across[i] - left;
      const float *a = find_pixel(warp, image, top, left, outside), *b = find_pixel(warp, image, top, left + 1, outside);
      const float *c = find_pixel(warp, image, top + 1, left, outside), *d = find_pixel(warp, image, top + 1, left + 1, outside);
      for (int64_t k = 0; k < warp.channels; ++k) {
        const float above = (1 - right) * a[k] + right * b[k], below = (1 - right) * c[k] + right * d[k];
        y[k] = (1 - lower) * above + lower * below;
      }
    }
  }
}
constexpr auto warp_on_cpu = meshflow::for_every_cpu<warp_image>;

// Descriptor: images, height, width, channels, rows and columns of the results, numbers of a map (6 or 9), fill mode in the order of
// warping.py, whether pixels are not interpolated, and the bits of the value outside of the images.
constexpr int64_t kFields = 10;

}  // namespace

extern "C" int meshflow_warp(const int64_t* descriptor, const float* images, const float* maps, float* y) noexcept {
  const int64_t count = descriptor[0];
  Warp warp{descriptor[1], descriptor[2], descriptor[3], descriptor[4], descriptor[5], descriptor[6], descriptor[7], descriptor[8] != 0, 0};
  const int32_t bits = static_cast<int32_t>(descriptor[9]);
  std::memcpy(&warp.value, &bits, sizeof bits);
  try {
    std::vector<float> outside(warp.channels, warp.value), room(2 * warp.columns);
    for (int64_t i = 0; i < count; ++i) {
      warp_on_cpu(warp, images + i * warp.height * warp.width * warp.channels, maps + i * warp.map_size, outside.data(), room.data(),
                  y + i * warp.rows * warp.columns * warp.channels);
    }
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

namespace {

ffi::Error execute(ffi::AnyBuffer images, ffi::AnyBuffer maps, ffi::Result<ffi::AnyBuffer> y, ffi::Span<const int64_t> descriptor) {
  return meshflow::handled("meshflow_warped", [&]() -> ffi::Error {
    const int64_t* d = descriptor.begin();
    const bool valid = static_cast<int64_t>(descriptor.size()) == kFields && (d[6] == 6 || d[6] == 9) &&
                       std::all_of(d, d + 6, [](int64_t size) { return size >= 0; }) &&
                       static_cast<int64_t>(images.element_count()) == d[0] * d[1] * d[2] * d[3] &&
                       static_cast<int64_t>(maps.element_count()) == d[0] * d[6] &&
                       static_cast<int64_t>(y->element_count()) == d[0] * d[4] * d[5] * d[3];
    if (!valid || images.element_type() != ffi::DataType::F32 || maps.element_type() != ffi::DataType::F32 ||
        y->element_type() != ffi::DataType::F32)
      return ffi::Error::InvalidArgument("meshflow_warped: the operands do not match the descriptor");
    const int failed = meshflow_warp(d, static_cast<const float*>(images.untyped_data()), static_cast<const float*>(maps.untyped_data()),
                                     static_cast<float*>(y->untyped_data()));
    return failed ? ffi::Error(ffi::ErrorCode::kResourceExhausted, "meshflow_warped: out of memory") : ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    meshflow_warped, execute,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("descriptor"));
