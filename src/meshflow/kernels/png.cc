// PNG decoding by the libpng in Pillow's wheel, which is located at run time. Called without the global
// interpreter lock, which Pillow holds while it decompresses.

#include "png.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "guard.h"
#include "image_sizes.h"

namespace {

// Image structure of libpng's simplified interface, version 1.
struct Image {
  void* opaque;
  uint32_t version, width, height, format, flags, colors, problem;
  char message[64];
};
static_assert(sizeof(Image) == 104);
constexpr uint32_t kColor = 2;

struct Api {
  int (*begin)(Image*, const void*, size_t);
  int (*finish)(Image*, const void*, void*, int32_t, void*);
  void (*free)(Image*);
} api;

constexpr unsigned char kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

uint32_t number(const unsigned char* data) {
  return uint32_t(data[0]) << 24 | data[1] << 16 | data[2] << 8 | data[3];
}

// Returns whether pixels are stored as requested: bytes of one or three channels, without transparency and
// without gamma information, which libpng would correct.
bool is_plain(const unsigned char* data, size_t bytes, int channels) {
  // libpng skips unknown chunks before the header, which other sizes could follow.
  constexpr unsigned char kHeader[] = {0, 0, 0, 13, 'I', 'H', 'D', 'R'};
  if (bytes < 33 || std::memcmp(data, kSignature, sizeof(kSignature)) != 0 || std::memcmp(data + 8, kHeader, sizeof(kHeader)) != 0)
    return false;
  const int depth = data[24], kind = data[25];
  if (depth != 8 || kind != (channels == 3 ? 2 : 0)) return false;
  for (size_t at = 33; at + 8 <= bytes;) {
    const unsigned char* name = data + at + 4;
    if (std::memcmp(name, "IDAT", 4) == 0) return true;
    for (const char* other : {"gAMA", "iCCP", "tRNS", "cICP", "mDCV"})
      if (std::memcmp(name, other, 4) == 0) return false;
    at += size_t(number(data + at)) + 12;
  }
  return false;
}

}  // namespace

// Loads a shared library; returns 0 if it has the required functions.
extern "C" int meshflow_png_library(const char* path) noexcept {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return 1;
  const char* names[] = {"png_image_begin_read_from_memory", "png_image_finish_read", "png_image_free"};
  void* functions[3];
  static_assert(sizeof(functions) == sizeof(api));
  for (int i = 0; i < 3; ++i)
    if (!(functions[i] = dlsym(handle, names[i]))) return 2;
  std::memcpy(&api, functions, sizeof(api));
  return 0;
}

namespace {

// Returns whether an image can be decoded here, and its size [height, width, channels].
bool read_size(const unsigned char* data, int64_t bytes, int channels, int64_t limit, int32_t* shape) {
  if (!api.begin || !is_plain(data, bytes, channels)) return false;
  const uint64_t most = std::min<uint64_t>(limit, kInflated * bytes);
  const uint32_t width = number(data + 16), height = number(data + 20);
  if (!fits(height, width, channels, most)) return false;
  const int32_t found[3] = {int32_t(height), int32_t(width), channels};
  std::memcpy(shape, found, sizeof(found));
  return true;
}

// Decodes an image of a shape that was read, for which there is memory.
bool read_pixels(const unsigned char* data, int64_t bytes, const int32_t* shape, unsigned char* pixels) {
  Image image = {};
  image.version = 1;
  if (!api.begin(&image, data, bytes)) return false;
  if (image.height != uint32_t(shape[0]) || image.width != uint32_t(shape[1])) {
    api.free(&image);
    return false;
  }
  image.format = shape[2] == 3 ? kColor : 0;
  // This frees the image. Warnings count as errors, which Pillow handles.
  const int done = api.finish(&image, nullptr, pixels, shape[1] * shape[2], nullptr);
  return done && image.problem == 0;
}

}  // namespace

bool decode_png(const unsigned char* data, int64_t bytes, int channels, int64_t limit, int32_t* shape,
                std::vector<unsigned char>* pixels) {
  if (!read_size(data, bytes, channels, limit, shape)) return false;
  pixels->resize(size_t(shape[0]) * shape[1] * channels);
  return read_pixels(data, bytes, shape, pixels->data());
}

// Reads the size of an image if `pixels` is null, or decodes it; returns 0 if it was possible.
extern "C" int meshflow_png(const unsigned char* data, int64_t bytes, int channels, int64_t limit, int32_t* shape,
                            unsigned char* pixels) noexcept {
  return !(read_size(data, bytes, channels, limit, shape) && (!pixels || read_pixels(data, bytes, shape, pixels)));
}
