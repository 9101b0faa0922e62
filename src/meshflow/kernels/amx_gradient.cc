// A tile product adds 16 x 16 sums of 32 products each. Here the 32 terms are 32 images of the batch at one
// position: a tap of the kernel only determines the pairs of positions of image and result, and one packed
// copy of a row serves all taps. oneDNN sums over neighboring positions instead and packs again for each
// shift; this takes half of its time.
//
// A packed position is one tile of 16 channels x 16 image pairs for the image, and of 16 pairs x 16 features
// for the result. Each task computes a block of channels x features of the gradient. Its sums remain in the
// second-level cache while strips of the batch's rows are streamed. The next row is packed in small steps
// between products, because packing waits for memory and products do not.

#include "amx.h"
#include "team.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11

#include <algorithm>
#include <cstring>

#include "blocks.h"

#include "amx_tiles.h"

namespace meshflow {
namespace {

constexpr int64_t kImages = 32;
constexpr int64_t kSegment = 8, kStrip = 8;  // positions with products added at once; positions per strip
constexpr int64_t kTogether = 4;  // pairs of images that are read together
constexpr int64_t kSums = 640 << 10;  // bytes of sums per task: a third of a second-level cache

int64_t pairs(int64_t channels) { return (channels + 31) / 32; }

Blocks blocks(const KernelGradient& s, int threads) {
  int64_t most = std::max<int64_t>(1, kSums / (4 * kTile * s.taps[0] * s.taps[1]));
  return divide(s.channels, s.features, most, threads);
}

// Number of rows of the image that contribute to a row of the result.
int64_t window(const KernelGradient& s) { return (s.taps[0] - 1) * s.dilations[0] + 1; }

// Number of positions of the result in a strip, and of the image that contribute to them. Neighboring strips
// should share only few of the latter.
int64_t strip(const KernelGradient& s) {
  return std::min(s.columns, std::max(kStrip, (s.taps[1] - 1) * s.dilations[1] / s.strides[1]));
}
int64_t met(const KernelGradient& s) {
  return std::min(s.width, (strip(s) - 1) * s.strides[1] + (s.taps[1] - 1) * s.dilations[1] + 1);
}

struct Areas {
  int64_t lines;                       // rows of the image that are buffered: those being read and those being packed
  size_t sums, bias_sums, result, image;  // bytes of one row
  Areas(const KernelGradient& s, const Blocks& b)
      : lines(window(s) + s.strides[0]),
        sums(s.taps[0] * s.taps[1] * b.channels * b.features * 4 * kTile),
        bias_sums(b.features * kPair),
        result(b.features * strip(s) * kPair),
        image(b.channels * met(s) * kPair) {}
  size_t bytes() const { return sums + bias_sums + 2 * result + lines * image; }
};

// Packs a row of positions of up to 32 images, in blocks of 32 channels, in small steps: one step packs a
// pair of tiles for a block and a position, transposed for the image. A tile takes the first four of eight
// channels, the other tile the rest. Few images are read at a time, in contiguous order, because the same
// position of many images would map to the same cache sets.
class Packing {
 public:
  static constexpr int64_t kRounds = 16 / kTogether;

  Packing() = default;
  Packing(bool transposed, const bfloat16* from, int64_t image, int64_t place, int64_t images, int64_t places,
          int64_t blocks, int64_t channels, char* to)
      : transposed_(transposed), from_(from), image_(image), place_(place), images_(images), places_(places),
        blocks_(blocks), channels_(channels), to_(to) {}

  bool done() const { return first_ >= 16 || places_ == 0; }

  void step() {
    int64_t left = channels_ - c_ * 32;
    __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
    char* tiles = to_ + (c_ * places_ + x_) * kPair;
    char* at = tiles + 64 * first_;
    const bfloat16* row = from_ + x_ * place_ + c_ * 32 + 2 * first_ * image_;
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTogether; ++j, row += 2 * image_, at += 64) {
      __m512i even = _mm512_maskz_loadu_epi16(2 * (first_ + j) < images_ ? there : 0, row);
      __m512i odd = _mm512_maskz_loadu_epi16(2 * (first_ + j) + 1 < images_ ? there : 0, row + image_);
      _mm512_store_si512(at, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(at + kTile, _mm512_unpackhi_epi16(even, odd));
    }
    if (transposed_ && first_ + kTogether == 16) transpose_tile(tiles), transpose_tile(tiles + kTile);
    if (++c_ < blocks_) return;
    c_ = 0;
    if (++x_ < places_) return;
    x_ = 0, first_ += kTogether;
  }

 private:
  bool transposed_ = false;
  const bfloat16* from_ = nullptr;
  int64_t image_ = 0, place_ = 0, images_ = 0, places_ = 0, blocks_ = 0, channels_ = 0;
  char* to_ = nullptr;
  int64_t first_ = 0, x_ = 0, c_ = 0;  // the next image pairs, position and block
};

// Adds the products of `count` positions to 32 x 32 sums.
template <typename Tiles>
void multiply(char* sums, const char* image, int64_t step, const char* result, int64_t count) {
  Tiles::template load<0>(sums, 64);
  Tiles::template load<1>(sums + kTile, 64);
  Tiles::template load<2>(sums + 2 * kTile, 64);
  Tiles::template load<3>(sums + 3 * kTile, 64);
  for (int64_t i = 0; i < count; ++i, image += step, result += kPair) {
    Tiles::template load<4>(image, 64);
    Tiles::template load<6>(result, 64);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template load<7>(result + kTile, 64);
    Tiles::template multiply<1, 4, 7>();
    Tiles::template load<5>(image + kTile, 64);
    Tiles::template multiply<2, 5, 6>();
    Tiles::template multiply<3, 5, 7>();
  }
  Tiles::template store<0>(sums, 64);
  Tiles::template store<1>(sums + kTile, 64);
  Tiles::template store<2>(sums + 2 * kTile, 64);
  Tiles::template store<3>(sums + 3 * kTile, 64);
}

// Sums `count` positions of 32 features, as products with a tile with ones in its first row.
template <typename Tiles>
void add_up(char* bias_sums, const char* result, int64_t count) {
  alignas(64) static const auto ones = [] {
    struct { bfloat16 values[512] = {}; } tile;
    std::fill(tile.values, tile.values + 32, 0x3f80);
    return tile;
  }();
  Tiles::template load<0>(bias_sums, 64);
  Tiles::template load<1>(bias_sums + kTile, 64);
  Tiles::template load<4>(ones.values, 64);
  for (int64_t i = 0; i < count; ++i, result += kPair) {
    Tiles::template load<6>(result, 64);
    Tiles::template load<7>(result + kTile, 64);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template multiply<1, 4, 7>();
  }
  Tiles::template store<0>(bias_sums, 64);
  Tiles::template store<1>(bias_sums + kTile, 64);
}

template <typename Tiles>
struct Task {
  const KernelGradient& s;
  const Blocks& b;
  const bfloat16 *image, *result;
  void *kernel, *bias;
  int64_t c0, k0, channels, features;  // this block, in pairs of tiles
  Areas parts;
  char *sums, *bias_sums, *results, *images;
  int64_t first = 0, count = 0;  // images of the batch
  int64_t begin = 0, end = 0;    // columns of the strip
  int64_t left = 0, places = 0;  // positions of the image that contribute to them
  Packing packing;
  int64_t packed = 0, until = 0;  // rows of the image: the next one to pack, and the end

  Task(const KernelGradient& sizes, const Blocks& blocks, const void* x, const void* y, void* w, void* bias_gradient,
       int64_t number, char* scratch)
      : s(sizes), b(blocks), image(static_cast<const bfloat16*>(x)),
        result(static_cast<const bfloat16*>(y)), kernel(w), bias(bias_gradient),
        c0(number / blocks.across * blocks.channels), k0(number % blocks.across * blocks.features),
        channels(std::min(blocks.channels, pairs(sizes.channels) - c0)),
        features(std::min(blocks.features, pairs(sizes.features) - k0)), parts(sizes, blocks), sums(scratch),
        bias_sums(sums + parts.sums), results(bias_sums + parts.bias_sums), images(results + 2 * parts.result) {
    if (c0 > 0) bias = nullptr;  // computed by another task
    std::memset(sums, 0, parts.sums + parts.bias_sums);
  }

  char* sums_of(int64_t y, int64_t x, int64_t c, int64_t k) {
    return sums + (((y * s.taps[1] + x) * b.channels + c) * b.features + k) * 4 * kTile;
  }

  int64_t top(int64_t row) const { return row * s.strides[0] - s.low[0]; }
  char* image_row(int64_t row) { return images + row % parts.lines * parts.image; }
  char* result_row(int64_t row) { return results + row % 2 * parts.result; }

  // Starts to pack the rows that a row of the result needs.
  void begin_packing(int64_t row) {
    const bfloat16* from = result + first * s.result[0] + row * s.result[1] + begin * s.result[2] + k0 * 32;
    packing = Packing(false, from, s.result[0], s.result[2], count, end - begin, features, s.features - k0 * 32,
                      result_row(row));
    packed = std::max(packed, top(row)), until = std::min(top(row) + window(s), s.height);
  }

  // Packs one step; returns whether there was anything to pack.
  bool pack() {
    while (packing.done()) {
      if (packed >= until) return false;
      const bfloat16* from = image + first * s.image[0] + packed * s.image[1] + left * s.image[2] + c0 * 32;
      packing = Packing(true, from, s.image[0], s.image[2], count, places, channels, s.channels - c0 * 32,
                        image_row(packed));
      ++packed;
    }
    packing.step();
    return true;
  }

  // Multiplies one row of the result by one row of the image, for one row of the kernel; packs `steps` steps
  // with each segment.
  void add(int64_t row, int64_t y, int64_t steps) {
    const char *across = image_row(top(row) + y * s.dilations[0]), *down = result_row(row);
    for (int64_t k = 0; k < features; ++k)
      for (int64_t from = begin; from < end; from += kSegment)
        for (int64_t c = 0; c < channels; ++c)
          for (int64_t x = 0; x < s.taps[1]; ++x) {
            // Positions of the result for which the position of the image is inside.
            int64_t shift = x * s.dilations[1] - s.low[1], step = s.strides[1];
            int64_t inside = shift >= 0 ? 0 : (-shift + step - 1) / step;
            int64_t outside = s.width - shift <= 0 ? 0 : (s.width - shift + step - 1) / step;
            inside = std::max(inside, from);
            outside = std::min({outside, from + kSegment, end});
            for (int64_t i = 0; i < steps && pack(); ++i) {}
            if (inside < outside)
              multiply<Tiles>(sums_of(y, x, c, k), across + (c * places + inside * step + shift - left) * kPair,
                              step * kPair, down + (k * (end - begin) + inside - begin) * kPair, outside - inside);
          }
  }

  // Processes the strip's columns for some images.
  void add_strip() {
    left = std::clamp<int64_t>(begin * s.strides[1] - s.low[1], 0, s.width);
    int64_t right = (end - 1) * s.strides[1] + (s.taps[1] - 1) * s.dilations[1] + 1 - s.low[1];
    places = std::clamp<int64_t>(right, left, s.width) - left;
    packed = 0;
    begin_packing(0);
    for (int64_t row = 0; row < s.rows; ++row) {
      while (pack()) {}
      until = packed;
      if (row + 1 < s.rows) begin_packing(row + 1);
      int64_t segments = features * channels * s.taps[0] * s.taps[1] * ((end - begin + kSegment - 1) / kSegment);
      int64_t work = features * (end - begin) + std::max<int64_t>(until - packed, 0) * channels * places;
      int64_t steps = (work * Packing::kRounds + segments - 1) / segments;
      for (int64_t k = 0; bias && k < features; ++k)
        add_up<Tiles>(bias_sums + k * kPair, result_row(row) + k * (end - begin) * kPair, end - begin);
      for (int64_t y = 0; y < s.taps[0]; ++y) {
        int64_t at = top(row) + y * s.dilations[0];
        if (at >= 0 && at < s.height) add(row, y, steps);
      }
    }
  }

  // Writes 32 sums, which are interleaved by four in a row of two tiles.
  void write(const char* tile, void* to, int64_t at, int64_t left) {
    __m512i a = _mm512_load_si512(tile), b = _mm512_load_si512(tile + kTile);
    __m512 low = (__m512)_mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b);
    __m512 high = (__m512)_mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b);
    __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
    if (s.wide) {
      _mm512_mask_storeu_ps(static_cast<float*>(to) + at, there, low);
      _mm512_mask_storeu_ps(static_cast<float*>(to) + at + 16, there >> 16, high);
    } else {
      _mm512_mask_storeu_epi16(static_cast<bfloat16*>(to) + at, there, Tiles::narrow(high, low));
    }
  }

  void write() {
    for (int64_t k = 0; k < features; ++k) {
      int64_t feature = (k0 + k) * 32;
      if (bias) write(bias_sums + k * kPair, bias, feature, s.features - feature);
      for (int64_t y = 0; y < s.taps[0]; ++y)
        for (int64_t x = 0; x < s.taps[1]; ++x)
          for (int64_t c = 0; c < std::min(32 * channels, s.channels - c0 * 32); ++c) {
            const char* tile = sums_of(y, x, c / 32, k) + c / 4 % 2 * 2 * kTile + (c % 32 / 8 * 4 + c % 4) * 64;
            int64_t at = y * s.kernel[0] + x * s.kernel[1] + (c0 * 32 + c) * s.kernel[2] + feature;
            write(tile, kernel, at, s.features - feature);
          }
    }
  }

  void run() {
    for (first = 0; first < s.batch; first += kImages) {
      count = std::min(kImages, s.batch - first);
      for (begin = 0; begin < s.columns; begin = end) {
        end = std::min(begin + strip(s), s.columns);
        add_strip();
      }
    }
    write();
  }
};

}  // namespace

bool suits(const KernelGradient& s, int threads) {
  // Tiles are full, sums fit in the cache, and every thread has a block.
  bool full = s.channels % 16 == 0 && s.features % 16 == 0 && s.batch >= 24 && (s.batch % 32 == 0 || s.batch % 32 >= 24);
  Blocks b = blocks(s, threads);
  return full && s.taps[0] * s.taps[1] >= 4 && b.count() >= threads && permitted() &&
         Areas(s, b).bytes() * threads <= size_t(256) << 20;
}

size_t scratch_bytes(const KernelGradient& s, int threads) {
  return Areas(s, blocks(s, threads)).bytes() * threads;
}

void run(const KernelGradient& s, const void* image, const void* result, void* kernel, void* bias, char* scratch,
         int threads) {
  Blocks b = blocks(s, threads);
  size_t bytes = Areas(s, b).bytes();
  with_tiles([&](auto tiles) {
    using Tiles = decltype(tiles);
    in_turns<typename Tiles::State>(
        b.count(),
        [&](int64_t number) {
          Task<Tiles>(s, b, image, result, kernel, bias, number, scratch + bytes * place().thread).run();
        },
        threads);
  });
}

}  // namespace meshflow

#pragma GCC pop_options

#else  // for compilers without support for tiles

namespace meshflow {
bool suits(const KernelGradient&, int) { return false; }
size_t scratch_bytes(const KernelGradient&, int) { return 0; }
void run(const KernelGradient&, const void*, const void*, void*, void*, char*, int) {}
}  // namespace meshflow

#endif
