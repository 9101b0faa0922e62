// Loads damaged JPEG and PNG files, as input pipelines do.
//
// MESHFLOW_JPEG and MESHFLOW_PNG are the paths of libjpeg and libpng. An input is an image file after four bytes
// of options.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "../../src/meshflow/kernels/jpeg.h"
#include "../../src/meshflow/kernels/resize.h"

extern "C" int meshflow_jpeg_library(const char* path) noexcept;
extern "C" int meshflow_png_library(const char* path) noexcept;
extern "C" void meshflow_images(const char* const* texts, const int64_t* sizes, int64_t count, int are_paths,
                                const JpegOptions* options, double share, int64_t height, int64_t width,
                                const int64_t (*windows)[4], const Steps* before, const Steps* after,
                                const uint8_t* mirrored, float* const* out, uint8_t* failed) noexcept;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char *jpeg = std::getenv("MESHFLOW_JPEG"), *png = std::getenv("MESHFLOW_PNG");
  if (!jpeg || !png || meshflow_jpeg_library(jpeg) || meshflow_png_library(png)) std::abort();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return -1;
  const JpegOptions options = {data[0] & 1 ? 3 : 1, 1 << (data[0] >> 1 & 3), data[0] >> 3 & 1, data[0] >> 4 & 1, 1 << 22};
  const int64_t height = 1 + data[1] % 16, width = 1 + data[2] % 16;
  const int64_t windows[1][4] = {{0, 0, height, width}};
  const uint8_t mirrored = data[0] >> 5 & 3;
  const double share = (1 + data[3] % 8) / 8.0;
  // A copy of exact size, in which the sanitizer finds reads behind the end.
  const std::vector<char> file(data + 4, data + size);
  const char* texts[] = {file.data()};
  const int64_t sizes[] = {static_cast<int64_t>(file.size())};
  std::vector<float> pixels(height * width * options.channels);
  float* out[] = {pixels.data()};
  const Steps none{}, steps[1] = {};
  uint8_t failed = 0;
  meshflow_images(texts, sizes, 1, 0, &options, share, height, width, windows, &none, steps, &mirrored, out, &failed);
  return 0;
}
