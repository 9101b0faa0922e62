// JPEG decoding by the libjpeg in Pillow's wheel, which is located at run time.
//
// Pillow does not expose libjpeg's fast transform, which TensorFlow uses, and copies each image twice. Called
// through ctypes, without the global interpreter lock.

#include <dlfcn.h>

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>

#include "guard.h"
#include "image_sizes.h"
#include "jpeg.h"

namespace {

// libjpeg's public structures, version 6.2, up to the last field used here. libjpeg checks their declared
// size and rejects other layouts.
constexpr int kVersion = 62;
constexpr size_t kWhole = 632;
// Rows per call.
constexpr unsigned kRows = 16;
enum { kGray = 1, kRgb = 2, kYcc = 3 };

struct Errors {
  void (*error_exit)(void*);
  void (*emit_message)(void*, int);
  void (*output_message)(void*);
  void* more[2];
  int code;
  char text[80];
  int trace_level;
  long warnings;
  void* tables[4];
};

struct Decoder {
  Errors* errors;
  void *memory, *progress, *client;
  int decompresses, state;
  void* source;
  unsigned width, height;
  int components, colors, out_colors;
  unsigned scale_over, scale_under;
  double gamma;
  int buffered, raw, transform, fancy, smooth, quantize, dither, two_pass, wanted_colors, passes[3];
  unsigned out_width, out_height;
  int out_color_components, out_components, rows_at_once, found_colors;
  void* map;
  unsigned row;
};
static_assert(offsetof(Decoder, transform) == 96 && offsetof(Decoder, row) == 168);
static_assert(offsetof(Errors, warnings) == 128);

struct Api {
  void* (*std_error)(void*);
  void (*create)(void*, int, size_t);
  void (*memory_source)(void*, const unsigned char*, unsigned long);
  int (*read_header)(void*, int);
  void (*size)(void*);
  int (*start)(void*);
  unsigned (*read)(void*, unsigned char**, unsigned);
  int (*finish)(void*);
  void (*destroy)(void*);
} api;

struct Work {
  Errors errors;
  std::jmp_buf failed;
  union {
    Decoder decoder;
    char whole[kWhole];
  };
};

void fail(void* decoder) {
  Errors* errors = static_cast<Decoder*>(decoder)->errors;
  std::longjmp(reinterpret_cast<Work*>(errors)->failed, 1);
}
// libjpeg counts warnings (level -1) in the function that prints them.
void count(void* decoder, int level) {
  if (level < 0) ++static_cast<Decoder*>(decoder)->errors->warnings;
}
void ignore(void*) {}

// Decodes to `out`, an image of size `shape`, or to `pixels`; without either, only finds the size.
bool decode(Work& work, const unsigned char* data, size_t bytes, const JpegOptions& options,
            int32_t* shape, unsigned char* out, std::vector<unsigned char>* pixels = nullptr) {
  const int channels = options.channels;
  Decoder* decoder = &work.decoder;
  std::memset(&work, 0, sizeof(work));
  decoder->errors = static_cast<Errors*>(api.std_error(&work.errors));
  work.errors.error_exit = fail;
  work.errors.emit_message = count;
  work.errors.output_message = ignore;
  if (setjmp(work.failed)) {
    if (decoder->memory) api.destroy(decoder);
    return false;
  }
  api.create(decoder, kVersion, kWhole);
  api.memory_source(decoder, data, bytes);
  bool done = false;
  if (api.read_header(decoder, 1) == 1) {
    // Images with four color components need a special conversion.
    const bool plain = decoder->colors == kGray || decoder->colors == kRgb || decoder->colors == kYcc;
    const int wanted = channels ? channels : decoder->components;
    // The limit applies to the full size, at which progressive images are buffered.
    const bool sound = fits(decoder->height, decoder->width, 1, kJpegPixels * bytes) &&
                       fits(decoder->height, decoder->width, wanted, options.limit);
    if (plain && sound && (wanted == 1 || wanted == 3) && !(wanted == 1 && decoder->colors == kRgb)) {
      decoder->out_colors = wanted == 1 ? kGray : kRgb;
      decoder->scale_over = 1;
      decoder->scale_under = options.ratio;
      decoder->transform = options.fast ? 1 : 0;
      decoder->fancy = options.fancy;
      api.size(decoder);
      const int32_t found[3] = {int32_t(decoder->out_height), int32_t(decoder->out_width), wanted};
      if (!out) std::memcpy(shape, found, sizeof(found));
      if (pixels) {
        try {
          pixels->resize(size_t(found[0]) * found[1] * found[2]);
        } catch (const std::bad_alloc&) {
          api.destroy(decoder);
          throw;
        }
        out = pixels->data();
      }
      if (!out) {
        done = true;
      } else if (std::memcmp(shape, found, sizeof(found)) == 0) {
        api.start(decoder);
        const size_t stride = size_t(decoder->out_width) * wanted;
        while (decoder->row < decoder->out_height) {
          unsigned char* rows[kRows];
          for (unsigned i = 0; i < kRows; ++i) rows[i] = out + stride * (decoder->row + i);
          const unsigned left = decoder->out_height - decoder->row;
          if (api.read(decoder, rows, left < kRows ? left : kRows) == 0) break;
        }
        done = decoder->row == decoder->out_height;
        if (done) api.finish(decoder);
        done = done && work.errors.warnings == 0;
      }
    }
  }
  api.destroy(decoder);
  return done;
}

}  // namespace

// Loads a shared library; returns 0 if it has the required functions.
extern "C" int meshflow_jpeg_library(const char* path) noexcept {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return 1;
  const char* names[] = {"jpeg_std_error",     "jpeg_CreateDecompress",       "jpeg_mem_src",
                         "jpeg_read_header",   "jpeg_calc_output_dimensions", "jpeg_start_decompress",
                         "jpeg_read_scanlines", "jpeg_finish_decompress",     "jpeg_destroy_decompress"};
  void* functions[9];
  static_assert(sizeof(functions) == sizeof(api));
  for (int i = 0; i < 9; ++i)
    if (!(functions[i] = dlsym(handle, names[i]))) return 2;
  std::memcpy(&api, functions, sizeof(api));
  return 0;
}

// Reads the size [height, width, channels] of an image, or its pixels if `pixels` is given.
//
// Returns 0 unless the image cannot be decoded here, because it is damaged or of a kind that Pillow must
// decode. Callers that pass memory for the pixels have checked the size.
extern "C" int meshflow_jpeg(const unsigned char* data, int64_t bytes, int channels, int ratio,
                             int fast, int fancy, int32_t* shape, unsigned char* out) noexcept {
  return meshflow::guarded(1, [&] {
    Work work;
    const JpegOptions options = {channels, ratio, fast, fancy, std::numeric_limits<int64_t>::max()};
    return decode(work, data, bytes, options, shape, out) ? 0 : 1;
  });
}

bool decode_jpeg(const unsigned char* data, int64_t bytes, const JpegOptions& options,
                 int32_t* shape, std::vector<unsigned char>* pixels) {
  Work work;
  return decode(work, data, bytes, options, shape, nullptr, pixels);
}
