// Color changes of float32 images: hue, saturation, contrast, and conversions from and to HSV. XLA and NumPy need a pass and an
// array for each of some 20 operations; these loops make one pass. They round every operation, without fused products, so that
// all processors compute the same bits.

#pragma GCC optimize("fp-contract=off,no-trapping-math")

#include <algorithm>
#include <cstdint>

#include "cpus.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlock = 256;  // pixels whose components are separated together

INLINE float max(float a, float b) { return a > b ? a : b; }
INLINE float min(float a, float b) { return a < b ? a : b; }
INLINE float clip(float x) { return min(max(x, 0.0f), 1.0f); }
// Rounds towards minus infinity numbers of a magnitude below 2^22.
INLINE float floor_small(float x) {
  const float shift = 12582912.0f, rounded = (x + shift) - shift;
  return rounded > x ? rounded - 1.0f : rounded;
}
INLINE float wrap(float x, float period) { return x - period * floor_small(x / period); }
// Hue in sixths of a turn, from -1 to 5; 0 for gray.
INLINE float hue_of(float r, float g, float b, float high, float span) {
  const bool red = high == r, green = high == g;
  const float difference = red ? g - b : green ? b - r : r - g;
  return (red ? 0.0f : green ? 2.0f : 4.0f) + difference / (span == 0.0f ? 1.0f : span);
}
INLINE float ramp(float hue, float shift) {
  const float distance = wrap(hue + shift, 6.0f) - 3.0f;
  return clip((distance < 0.0f ? -distance : distance) - 1.0f);
}

struct Pixel {
  float a, b, c;
};
INLINE Pixel rotate_hue(Pixel p, float delta) {
  const float high = max(max(p.a, p.b), p.c), low = min(min(p.a, p.b), p.c), span = high - low;
  const float hue = hue_of(p.a, p.b, p.c, high, span) + 6.0f * delta;
  return {low + span * ramp(hue, 0.0f), low + span * ramp(hue, 4.0f), low + span * ramp(hue, 2.0f)};
}
INLINE Pixel scale_saturation(Pixel p, float factor) {
  const float high = max(max(p.a, p.b), p.c), low = min(min(p.a, p.b), p.c), span = high - low;
  const float saturation = clip((high > 0.0f ? span / (high > 0.0f ? high : 1.0f) : 0.0f) * factor);
  const float scale = high * saturation / (span == 0.0f ? 1.0f : span);
  return {high - (high - p.a) * scale, high - (high - p.b) * scale, high - (high - p.c) * scale};
}
INLINE Pixel to_hsv(Pixel p, float) {
  const float high = max(max(p.a, p.b), p.c), low = min(min(p.a, p.b), p.c), span = high - low;
  const float hue = wrap(hue_of(p.a, p.b, p.c, high, span) / 6.0f, 1.0f);
  return {hue, high > 0.0f ? span / (high > 0.0f ? high : 1.0f) : 0.0f, high};
}
INLINE Pixel from_hsv(Pixel p, float) {
  const float hue = p.a * 6.0f;
  return {p.c * (1.0f - p.b * (1.0f - ramp(hue, 0.0f))), p.c * (1.0f - p.b * (1.0f - ramp(hue, 4.0f))),
          p.c * (1.0f - p.b * (1.0f - ramp(hue, 2.0f)))};
}

template <Pixel (*change)(Pixel, float)>
INLINE void change_pixels(const float* x, float factor, float* y, int64_t pixels, int64_t) {
  float a[kBlock], b[kBlock], c[kBlock];
  for (int64_t start = 0; start < pixels; start += kBlock, x += 3 * kBlock, y += 3 * kBlock) {
    const int64_t count = std::min(kBlock, pixels - start);
    for (int64_t i = 0; i < count; ++i) a[i] = x[3 * i], b[i] = x[3 * i + 1], c[i] = x[3 * i + 2];
    for (int64_t i = 0; i < count; ++i) {
      const Pixel p = change({a[i], b[i], c[i]}, factor);
      a[i] = p.a, b[i] = p.b, c[i] = p.c;
    }
    for (int64_t i = 0; i < count; ++i) y[3 * i] = a[i], y[3 * i + 1] = b[i], y[3 * i + 2] = c[i];
  }
}

// Sums each channel in 64 bits, in lanes, and changes the distances from the means.
template <int64_t kChannels>
INLINE void change_contrast(const float* x, float factor, float* y, int64_t pixels) {
  constexpr int64_t kLanes = 8, kRow = kLanes * kChannels;
  double lanes[kRow] = {};
  const int64_t size = pixels * kChannels, whole = size - size % kRow;
  for (int64_t i = 0; i < whole; i += kRow)
    for (int64_t j = 0; j < kRow; ++j) lanes[j] += x[i + j];
  for (int64_t i = whole; i < size; ++i) lanes[i - whole] += x[i];
  float means[kRow];
  for (int64_t c = 0; c < kChannels; ++c) {
    double total = 0;
    for (int64_t j = c; j < kRow; j += kChannels) total += lanes[j];
    for (int64_t j = c; j < kRow; j += kChannels) means[j] = static_cast<float>(total / static_cast<double>(pixels));
  }
  for (int64_t i = 0; i < whole; i += kRow)
    for (int64_t j = 0; j < kRow; ++j) y[i + j] = (x[i + j] - means[j]) * factor + means[j];
  for (int64_t i = whole; i < size; ++i) y[i] = (x[i] - means[i - whole]) * factor + means[i - whole];
}
INLINE void scale_contrast(const float* x, float factor, float* y, int64_t pixels, int64_t channels) {
  channels == 1 ? change_contrast<1>(x, factor, y, pixels) : change_contrast<3>(x, factor, y, pixels);
}

// Changes in the order of colors.py.
using Loop = void (*)(const float*, float, float*, int64_t, int64_t);
constexpr Loop kLoops[] = {
    meshflow::for_every_cpu<change_pixels<rotate_hue>>, meshflow::for_every_cpu<change_pixels<scale_saturation>>,
    meshflow::for_every_cpu<change_pixels<to_hsv>>, meshflow::for_every_cpu<change_pixels<from_hsv>>,
    meshflow::for_every_cpu<scale_contrast>};
constexpr int64_t kCount = sizeof kLoops / sizeof *kLoops, kContrast = kCount - 1;

}  // namespace

// Changes images [images, pixels, channels] by a factor for each image; y may be x. Only the contrast may have one channel.
extern "C" void meshflow_change_colors(int64_t change, const float* x, const float* factors, float* y, int64_t images,
                                       int64_t pixels, int64_t channels) noexcept {
  const int64_t size = pixels * channels;
  for (int64_t i = 0; i < images; ++i) kLoops[change](x + i * size, factors[i], y + i * size, pixels, channels);
}

namespace {

ffi::Error wrong(const char* problem) { return ffi::Error::InvalidArgument(std::string("meshflow_colors: ") + problem); }

// Descriptor: the change.
ffi::Error execute(ffi::AnyBuffer x, ffi::AnyBuffer factors, ffi::Result<ffi::AnyBuffer> y, ffi::Span<const int64_t> descriptor) {
  return meshflow::handled("meshflow_colors", [&]() -> ffi::Error {
    const auto sizes = x.dimensions();
    if (descriptor.size() != 1 || descriptor[0] < 0 || descriptor[0] >= kCount) return wrong("the descriptor has no change");
    if (x.element_type() != ffi::DataType::F32 || factors.element_type() != ffi::DataType::F32 ||
        y->element_type() != ffi::DataType::F32)
      return wrong("a type is not float32");
    if (sizes.size() != 3 || (sizes[2] != 3 && !(sizes[2] == 1 && descriptor[0] == kContrast)) ||
        static_cast<int64_t>(factors.element_count()) != sizes[0] || y->element_count() != x.element_count())
      return wrong("the sizes do not match");
    meshflow_change_colors(descriptor[0], static_cast<const float*>(x.untyped_data()),
                           static_cast<const float*>(factors.untyped_data()), static_cast<float*>(y->untyped_data()), sizes[0],
                           sizes[1], sizes[2]);
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    meshflow_colors, execute,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("descriptor"));
