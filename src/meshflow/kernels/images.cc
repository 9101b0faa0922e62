// Images of input pipelines: read, decoded, resized and scaled in one call, directly into a batch. Called
// through ctypes, without the global interpreter lock.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "guard.h"
#include "jpeg.h"
#include "png.h"
#include "resize.h"

namespace {

using Bytes = std::vector<unsigned char>;

// Closes a file at the end of a scope.
struct Closing {
  int file;
  ~Closing() {
    if (file >= 0) close(file);
  }
};

bool read_file(const char* path, int64_t limit, Bytes* contents) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const Closing closing{file};
  struct stat found;
  bool whole = fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size <= limit;
  if (whole) {
    contents->resize(found.st_size);
    size_t done = 0;
    while (done < contents->size()) {
      const ssize_t count = read(file, contents->data() + done, contents->size() - done);
      if (count <= 0) break;
      done += count;
    }
    whole = done == contents->size();
  }
  return whole;
}

bool is_jpeg(const unsigned char* data, size_t bytes) {
  return bytes > 2 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff;
}

// Options for all images.
struct How {
  const JpegOptions& options;
  double share;
  int64_t height, width;
  const Steps& before;
};

// Buffers that are reused for all images.
struct Room {
  Bytes contents, pixels;
};

// Loads an encoded image and writes the part `window` of the resized image; returns whether it succeeded.
bool load(const unsigned char* data, int64_t bytes, const How& how, const int64_t (&window)[4], const Steps& after,
          uint8_t mirrored, Bytes* pixels, float* out) {
  const JpegOptions& options = how.options;
  int32_t shape[3];
  const bool decoded = is_jpeg(data, bytes)
                           ? decode_jpeg(data, bytes, options, shape, pixels)
                           : options.ratio == 1 &&
                                 decode_png(data, bytes, options.channels, options.limit, shape, pixels);
  if (!decoded || shape[2] != options.channels) return false;
  const int64_t top = static_cast<int64_t>((shape[0] - shape[0] * how.share) / 2);
  const int64_t left = static_cast<int64_t>((shape[1] - shape[1] * how.share) / 2);
  const int64_t channels = shape[2], stride = shape[1] * channels;
  const int64_t rows = shape[0] - 2 * top, columns = shape[1] - 2 * left;
  const bool flipped = mirrored & 1, upside_down = mirrored & 2;
  const Places across(how.width, columns, channels, flipped), down(how.height, rows, 1, upside_down);
  const unsigned char* first = pixels->data() + top * stride + left * channels;
  const auto [y, x, tall, wide] = window;
  bilinear({first, true, columns * channels, stride}, across.part(flipped ? how.width - x - wide : x, wide),
           down.part(upside_down ? how.height - y - tall : y, tall), how.before, after, out);
  return true;
}

}  // namespace

// Loads image i from a path or (`are_paths` 0) from `sizes[i]` bytes. The central `share` of its height and
// width is resized to `height` times `width` pixels of float32. The pixels of window i (top, left, height,
// width) are written to `out[i]`, after the operations of `after[i]`, mirrored if bit 1 (left and right) or 2
// (top and bottom) of `mirrored[i]` is set. `failed[i]` is set if the image cannot be loaded, including for
// lack of memory.
extern "C" void meshflow_images(const char* const* texts, const int64_t* sizes, int64_t count,
                                int are_paths, const JpegOptions* options, double share,
                                int64_t height, int64_t width, const int64_t (*windows)[4],
                                const Steps* before, const Steps* after, const uint8_t* mirrored,
                                float* const* out, uint8_t* failed) noexcept {
  const How how{*options, share, height, width, *before};
  Room room;
  for (int64_t i = 0; i < count; ++i)
    failed[i] = meshflow::guarded(1, [&] {
      const unsigned char* data = reinterpret_cast<const unsigned char*>(texts[i]);
      int64_t bytes = sizes[i];
      if (are_paths) {
        if (!read_file(texts[i], options->limit, &room.contents)) return 1;
        data = room.contents.data();
        bytes = room.contents.size();
      }
      return load(data, bytes, how, windows[i], after[i], mirrored[i], &room.pixels, out[i]) ? 0 : 1;
    });
}
