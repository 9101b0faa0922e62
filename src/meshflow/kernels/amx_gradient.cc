// A tile product adds 16 x 16 sums of 32 products each. Here the 32 terms are 32 images of the
// batch at one place: a tap of the kernel then only says which place of the image meets which place
// of the result, and one packed copy of a row serves every tap. oneDNN sums over neighbouring places
// instead and packs again for each shift; this takes half of its time.
//
// Packed, a place is one tile of 16 channels x 16 pairs of images for the image, and of 16 pairs x
// 16 features for the result. Each task owns a block of channels x features of the gradient, whose
// sums stay in the second-level cache while rows of the batch stream by.

#include "amx.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "amx_tiles.h"
#include "blocks.h"

namespace meshflow {
namespace {

constexpr int64_t kImages = 32, kSegment = 8;
constexpr int64_t kTogether = 4;  // pairs of images that are read together
constexpr int64_t kSums = 640 << 10;  // bytes of sums per task: a third of a second-level cache

int64_t pairs(int64_t channels) { return (channels + 31) / 32; }

Blocks blocks(const KernelGradient& s, int threads) {
  int64_t most = std::max<int64_t>(1, kSums / (4 * kTile * s.taps[0] * s.taps[1]));
  return divide(s.channels, s.features, most, threads);
}

// Rows of the image that a row of the result can meet.
int64_t window(const KernelGradient& s) { return (s.taps[0] - 1) * s.dilations[0] + 1; }

struct Scratch {
  size_t sums, result, image;
  Scratch(const KernelGradient& s, const Blocks& b)
      : sums(s.taps[0] * s.taps[1] * b.channels * b.features * 4 * kTile),
        result(b.features * s.columns * kPair),
        image(window(s) * b.channels * s.width * kPair) {}
  size_t bytes() const { return sums + result + image; }
};

// Packs a row of places of up to 32 images, blocks of 32 channels each: a pair of tiles for a block and a
// place, transposed for the image. Few images are read at a time, each from neighbour to neighbour: the
// same place of many images would share sets of every cache.
template <bool transposed>
void pack(const bfloat16* from, int64_t image, int64_t place, int64_t images, int64_t places, int64_t blocks,
          int64_t channels, char* to) {
  for (int64_t first = 0; first < 16; first += kTogether)
    for (int64_t x = 0; x < places; ++x)
      for (int64_t c = 0; c < blocks; ++c) {
        int64_t left = channels - c * 32;
        __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
        char* at = to + (c * places + x) * kPair + 64 * first;
        const bfloat16* row = from + x * place + c * 32 + 2 * first * image;
#pragma GCC unroll 4
        for (int64_t j = 0; j < kTogether; ++j, row += 2 * image, at += 64) {
          __m512i even = _mm512_maskz_loadu_epi16(2 * (first + j) < images ? there : 0, row), low, high;
          __m512i odd = _mm512_maskz_loadu_epi16(2 * (first + j) + 1 < images ? there : 0, row + image);
          interleave(even, odd, &low, &high);
          _mm512_store_si512(at, low);
          _mm512_store_si512(at + kTile, high);
        }
      }
  if (!transposed) return;
  for (int64_t i = 0; i < 2 * places * blocks; ++i, to += kTile) {
    __m512i rows[16];
    for (int64_t j = 0; j < 16; ++j) rows[j] = _mm512_load_si512(to + 64 * j);
    transpose(rows);
    for (int64_t j = 0; j < 16; ++j) _mm512_store_si512(to + 64 * j, rows[j]);
  }
}

// Adds the products of `count` places to 32 x 32 sums.
void multiply(char* sums, const char* image, int64_t step, const char* result, int64_t count) {
  _tile_loadd(0, sums, 64);
  _tile_loadd(1, sums + kTile, 64);
  _tile_loadd(2, sums + 2 * kTile, 64);
  _tile_loadd(3, sums + 3 * kTile, 64);
  for (int64_t i = 0; i < count; ++i, image += step, result += kPair) {
    _tile_loadd(4, image, 64);
    _tile_loadd(6, result, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, result + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, image + kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTile, 64);
  _tile_stored(2, sums + 2 * kTile, 64);
  _tile_stored(3, sums + 3 * kTile, 64);
}

struct Task {
  const KernelGradient& s;
  const Blocks& b;
  const bfloat16 *image, *result;
  void* kernel;
  int64_t c0, k0, channels, features;  // this block, in pairs of tiles
  char *sums, *packed_result, *packed_image;

  Task(const KernelGradient& sizes, const Blocks& blocks, const void* x, const void* y, void* w,
       int64_t number, char* scratch)
      : s(sizes), b(blocks), image(static_cast<const bfloat16*>(x)),
        result(static_cast<const bfloat16*>(y)), kernel(w),
        c0(number / blocks.across * blocks.channels), k0(number % blocks.across * blocks.features),
        channels(std::min(blocks.channels, pairs(sizes.channels) - c0)),
        features(std::min(blocks.features, pairs(sizes.features) - k0)) {
    Scratch parts(s, b);
    sums = scratch;
    packed_result = sums + parts.sums;
    packed_image = packed_result + parts.result;
    std::memset(sums, 0, parts.sums);
  }

  char* sums_of(int64_t y, int64_t x, int64_t c, int64_t k) {
    return sums + (((y * s.taps[1] + x) * b.channels + c) * b.features + k) * 4 * kTile;
  }

  char* image_row(int64_t row) { return packed_image + row % window(s) * b.channels * s.width * kPair; }

  void pack_image(int64_t first, int64_t images, int64_t row) {
    pack<true>(image + first * s.image[0] + row * s.image[1] + c0 * 32, s.image[0], s.image[2], images, s.width,
               channels, s.channels - c0 * 32, image_row(row));
  }

  void pack_result(int64_t first, int64_t images, int64_t row) {
    pack<false>(result + first * s.result[0] + row * s.result[1] + k0 * 32, s.result[0], s.result[2], images,
                s.columns, features, s.features - k0 * 32, packed_result);
  }

  // One row of the result with one row of the image, for one row of the kernel.
  void add(int64_t row, int64_t y) {
    const char* across = image_row(row);
    for (int64_t k = 0; k < features; ++k)
      for (int64_t from = 0; from < s.columns; from += kSegment)
        for (int64_t c = 0; c < channels; ++c)
          for (int64_t x = 0; x < s.taps[1]; ++x) {
            // Places of the result whose place of the image is inside.
            int64_t shift = x * s.dilations[1] - s.low[1], step = s.strides[1];
            int64_t begin = shift >= 0 ? 0 : (-shift + step - 1) / step;
            int64_t end = s.width - shift <= 0 ? 0 : (s.width - shift + step - 1) / step;
            begin = std::max(begin, from);
            end = std::min({end, from + kSegment, s.columns});
            if (begin < end)
              multiply(sums_of(y, x, c, k), across + (c * s.width + begin * step + shift) * kPair, step * kPair,
                       packed_result + (k * s.columns + begin) * kPair, end - begin);
          }
  }

  void write() {
    for (int64_t y = 0; y < s.taps[0]; ++y)
      for (int64_t x = 0; x < s.taps[1]; ++x)
        for (int64_t c = 0; c < 32 * channels && c0 * 32 + c < s.channels; ++c)
          for (int64_t k = 0; k < 2 * features && k0 * 32 + k * 16 < s.features; ++k) {
            const char* tile = sums_of(y, x, c / 32, k / 2) + (c / 16 % 2 * 2 + k % 2) * kTile;
            __m512 values = _mm512_load_ps(tile + c % 16 * 64);
            int64_t at = y * s.kernel[0] + x * s.kernel[1] + (c0 * 32 + c) * s.kernel[2] + k0 * 32 + k * 16;
            int64_t left = s.features - k0 * 32 - k * 16;
            __mmask16 there = left >= 16 ? 0xffff : (1u << left) - 1;
            if (s.wide) {
              _mm512_mask_storeu_ps(static_cast<float*>(kernel) + at, there, values);
            } else {
              _mm256_mask_storeu_epi16(static_cast<bfloat16*>(kernel) + at, there,
                                       (__m256i)_mm512_cvtneps_pbh(values));
            }
          }
  }

  void run() {
    int64_t reach = window(s);
    for (int64_t first = 0; first < s.batch; first += kImages) {
      int64_t images = std::min(kImages, s.batch - first), packed = 0;
      for (int64_t row = 0; row < s.rows; ++row) {
        int64_t top = row * s.strides[0] - s.low[0];
        for (packed = std::max(packed, top); packed < std::min(top + reach, s.height); ++packed)
          pack_image(first, images, packed);
        pack_result(first, images, row);
        for (int64_t y = 0; y < s.taps[0]; ++y) {
          int64_t at = top + y * s.dilations[0];
          if (at >= 0 && at < s.height) add(at, y);
        }
      }
    }
    write();
  }
};

}  // namespace

bool suits(const KernelGradient& s, int threads) {
  // Tiles are full, sums are worth keeping, and every thread has a block.
  bool full = s.channels % 16 == 0 && s.features % 16 == 0 && s.batch >= 24 && (s.batch % 32 == 0 || s.batch % 32 >= 24);
  Blocks b = blocks(s, threads);
  return full && s.taps[0] * s.taps[1] >= 4 && b.count() >= threads && permitted() &&
         Scratch(s, b).bytes() * threads <= size_t(256) << 20;
}

size_t scratch_bytes(const KernelGradient& s, int threads) {
  return Scratch(s, blocks(s, threads)).bytes() * threads;
}

void run(const KernelGradient& s, const void* image, const void* result, void* kernel, char* scratch,
         int threads) {
  Blocks b = blocks(s, threads);
  size_t bytes = Scratch(s, b).bytes();
#pragma omp parallel num_threads(threads)
  {
    TileState state;
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < b.count(); ++number)
      Task(s, b, image, result, kernel, number, scratch + bytes * omp_get_thread_num()).run();
  }
}

}  // namespace meshflow

#else  // a compiler that does not know the tiles

namespace meshflow {
bool suits(const KernelGradient&, int) { return false; }
size_t scratch_bytes(const KernelGradient&, int) { return 0; }
void run(const KernelGradient&, const void*, const void*, void*, char*, int) {}
}  // namespace meshflow

#endif
