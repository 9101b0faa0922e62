// A tile product adds 16 x 16 sums of 32 products each. Here a tile of the result has 16 neighboring
// positions x 16 features, and the 32 terms are channels: in a packed copy of the image with padded rows, a
// tap of the kernel only shifts the tile that is read.
//
// The width of a row need not be a multiple of 16: several images are packed interleaved by position, until
// 16 neighbors are images times positions. Each task computes rows of such a group. Its packed rows and the
// packed kernels of some panels of 32 features remain in the second-level cache, 32 channels of a kernel in
// the first, and 2 x 2 tiles of sums in registers. Sums are written when all panels are complete, because the
// hardware prefetches neighboring cache lines.

#include "amx.h"
#include "team.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11

#include <algorithm>
#include <cstring>

#include "epilogue.h"
#include "floats.h"

#include "amx_tiles.h"

namespace meshflow {
namespace {

namespace by_512 {
using meshflow::bfloat16;
#define LANES 16
#include "vectors.h"
#include "epilogue_vectors.h"
#undef LANES
}  // namespace by_512

constexpr int64_t kPlace = 64;                                  // bytes of 32 channels of a position
// Maximum bytes of packed rows; more if the kernel exceeds kHeld bytes: then it does not fit in the
// second-level cache and every task reads it from memory.
constexpr int64_t kPacked = 400 << 10, kMorePacked = 1 << 20, kHeld = 2 << 20;
constexpr int64_t kLongSum = 2304;  // terms of a sum
constexpr int64_t kPairs = 2;  // pairs of tiles that share the part of the kernel in the first-level cache
constexpr int64_t kSums = kPairs * 4 * kTile + 128;  // bytes of their sums with 32 features, skewed
// Bytes and maximum number of kernel panels computed for the same tiles before these are written; the panels
// share the second-level cache with the rows.
constexpr int64_t kHeldPanels = 1200 << 10, kMostPanels = 16;

int64_t up(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// The division of the work into tasks.
struct Division {
  int64_t images;            // images per group, interleaved
  int64_t tiles;             // tiles of 16 positions in a row of the result
  int64_t places;            // positions in a packed row
  int64_t rows, packed;      // rows of the result per task, and rows of the image that they read
  int64_t channels, panels;  // blocks of 32
  int64_t together;          // panels computed for the same tiles before writing
  int64_t groups, bands;     // tasks: groups of images x bands of rows

  Division(const Convolution& s, int threads) : channels(up(s.channels, 32)), panels(up(s.features, 32)) {
    double least = 0;
    for (int64_t n : {1, 2, 4, 8, 16}) {
      // Positions of a strided row must be neighbors within one image, or across 16.
      if (n > s.batch || (s.strides[1] > 1 && n > 1 && n < 16)) continue;
      int64_t across = up(s.columns * n, 16);
      double cost = double(across * up(s.batch, n)) / (s.columns * s.batch);
      // Two tiles of one row skip the taps above and below the image together.
      if (across % 2) cost *= 1 + 0.5 * (s.taps[0] - 1) / (s.rows * s.taps[0]);
      if (least == 0 || cost < least * 0.999) least = cost, images = n, tiles = across;
    }
    // Tiles after the last column also read the row.
    int64_t last = up(tiles * 16, images) - 1;
    places = (last * s.strides[1] + (s.taps[1] - 1) * s.dilations[1] + 1) * images;
    groups = up(s.batch, images);
    together = std::clamp<int64_t>(kHeldPanels / panel_bytes(s), 1, kMostPanels);
    int64_t reach = (s.taps[0] - 1) * s.dilations[0] + 1, row = channels * places * kPlace;
    int64_t most = panels * panel_bytes(s) > kHeld ? kMorePacked : kPacked;
    rows = std::clamp<int64_t>((most / row - reach) / s.strides[0] + 1, 1, s.rows);
    rows = std::min(rows, std::max<int64_t>(1, s.rows * groups / threads));
    bands = up(s.rows, rows);
    rows = up(s.rows, bands);
    packed = (rows - 1) * s.strides[0] + reach;
  }

  int64_t panel_bytes(const Convolution& s) const { return channels * s.taps[0] * s.taps[1] * kPair; }
  int64_t plane_bytes() const { return packed * places * kPlace; }
  int64_t band_bytes() const { return up(channels * plane_bytes() + together * kSums, 4096) * 4096; }
  int64_t panels_bytes(const Convolution& s) const { return panels * panel_bytes(s); }
  int64_t kernel_bytes(const Convolution& s) const { return up(panels_bytes(s), 4096) * 4096; }
};

template <typename Tiles>
__m512i load(__mmask32 there, const bfloat16* from) {
  return _mm512_maskz_loadu_epi16(there, from);
}
template <typename Tiles>
__m512i load(__mmask32 there, const float* from) {
  __m512 low = _mm512_maskz_loadu_ps(there, from), high = _mm512_maskz_loadu_ps(there >> 16, from + 16);
  return Tiles::narrow(high, low);
}

// Packs 32 channels x 32 features of a tap: two tiles of 16 channel pairs x 16 features.
template <typename Tiles, typename T>
void pack_tap(const Convolution& s, const T* from, int64_t channels, int64_t features, char* to) {
  __m512i low[16], high[16];
  auto mask = [](int64_t n) -> __mmask32 { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; };
  if (s.kernel[3] == 1) {
    for (int64_t j = 0; j < 16; ++j) {
      const T* row = from + 2 * j * s.kernel[2];
      __m512i even = load<Tiles>(2 * j < channels ? mask(features) : 0, row);
      __m512i odd = load<Tiles>(2 * j + 1 < channels ? mask(features) : 0, row + s.kernel[2]);
      interleave(even, odd, &low[j], &high[j]);
    }
  } else {
    // The channels of a pair are adjacent: a row is a feature.
    for (int64_t j = 0; j < 16; ++j) {
      __mmask32 first = j < features ? mask(channels) : 0, second = j + 16 < features ? mask(channels) : 0;
      low[j] = load<Tiles>(first, from + j * s.kernel[3]);
      high[j] = load<Tiles>(second, from + (j + 16) * s.kernel[3]);
    }
    transpose(low), transpose(high);
  }
  for (int64_t j = 0; j < 16; ++j) {
    _mm512_store_si512(to + 64 * j, low[j]);
    _mm512_store_si512(to + kTile + 64 * j, high[j]);
  }
}

// Packs all taps of 32 channels x 32 features.
template <typename Tiles>
void pack_kernel(const Convolution& s, const Division& d, const void* kernel, char* packed, int threads) {
  in_parts(
      d.panels * d.channels,
      [&](int64_t part) {
        int64_t k = part / d.channels, c = part % d.channels;
        for (int64_t y = 0; y < s.taps[0]; ++y)
          for (int64_t x = 0; x < s.taps[1]; ++x) {
            int64_t at = y * s.kernel[0] + x * s.kernel[1] + c * 32 * s.kernel[2] + k * 32 * s.kernel[3];
            char* to = packed + k * d.panel_bytes(s) + ((c * s.taps[0] + y) * s.taps[1] + x) * kPair;
            int64_t channels = s.channels - c * 32, features = s.features - k * 32;
            if (s.wide_kernel) {
              pack_tap<Tiles>(s, static_cast<const float*>(kernel) + at, channels, features, to);
            } else {
              pack_tap<Tiles>(s, static_cast<const bfloat16*>(kernel) + at, channels, features, to);
            }
          }
      },
      threads);
}

template <typename Tiles>
struct Task {
  const Convolution& s;
  const Division& d;
  const char* kernel;
  const Epilogue& epilogue;
  void* result;
  int64_t first, images, row, rows;  // images of the batch; rows of the result
  char *sums, *packed;

  int64_t top() const { return row * s.strides[0] - s.low[0]; }

  void pack_rows(const bfloat16* image) {
    int64_t columns = d.places / d.images;
    for (int64_t r = 0; r < d.packed; ++r) {
      int64_t y = top() + r;
      char* line = packed + r * d.places * kPlace;
      auto clear = [&](int64_t from, int64_t to) {
        if (from < to)
          for (int64_t c = 0; c < d.channels; ++c)
            std::memset(line + c * d.plane_bytes() + from * d.images * kPlace, 0, (to - from) * d.images * kPlace);
      };
      if (y < 0 || y >= s.height) {
        clear(0, columns);
        continue;
      }
      int64_t begin = std::clamp<int64_t>(s.low[1], 0, columns);
      int64_t end = std::clamp<int64_t>(s.width + s.low[1], begin, columns);
      clear(0, begin), clear(end, columns);
      for (int64_t x = begin; x < end; ++x)
        for (int64_t n = 0; n < d.images; ++n) {
          char* to = line + (x * d.images + n) * kPlace;
          bool there = n < images;
          const bfloat16* from =
              image + (first + (there ? n : 0)) * s.image[0] + y * s.image[1] + (x - s.low[1]) * s.image[2];
          for (int64_t c = 0; c < d.channels; ++c, from += 32, to += d.plane_bytes()) {
            int64_t left = s.channels - c * 32;
            __mmask32 mask = !there ? 0u : left >= 32 ? ~0u : (1u << left) - 1;
            _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, from));
          }
        }
    }
  }

  // Two tiles of positions that are neighbors in the task's order, or the last single one.
  struct Pair {
    const char *a, *b;       // their starts in the packed rows
    int64_t from, to;        // rows of the kernel inside the image
  };

  // Adds the products of 32 channels to the sums of a pair with 32 features.
  template <bool two>
  void add(const Pair& pair, int64_t c, const char* weights, char* sums) {
    int64_t step = s.strides[1] > 1 && d.images == 1 ? s.strides[1] * kPlace : kPlace;
    int64_t across = s.dilations[1] * d.images * kPlace, down = s.dilations[0] * d.places * kPlace;
    // The compiler does not know that loading a tile reads memory.
    __asm__ volatile("" ::: "memory");
    if (c == 0) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    } else {
      Tiles::template load<0>(sums, 64);
      Tiles::template load<1>(sums + kTile, 64);
      if (two) {
        Tiles::template load<2>(sums + 2 * kTile, 64);
        Tiles::template load<3>(sums + 3 * kTile, 64);
      }
    }
    for (int64_t y = pair.from; y < pair.to; ++y) {
      const char* w = weights + y * s.taps[1] * kPair;
      int64_t at = c * d.plane_bytes() + y * down;
      for (int64_t x = 0; x < s.taps[1]; ++x, at += across, w += kPair) {
        Tiles::template load<6>(w, 64);
        Tiles::template load<4>(pair.a + at, step);
        Tiles::template multiply<0, 4, 6>();
        Tiles::template load<7>(w + kTile, 64);
        Tiles::template multiply<1, 4, 7>();
        if (two) {
          Tiles::template load<5>(pair.b + at, step);
          Tiles::template multiply<2, 5, 6>();
          Tiles::template multiply<3, 5, 7>();
        }
      }
    }
    Tiles::template store<0>(sums, 64);
    Tiles::template store<1>(sums + kTile, 64);
    if (two) {
      Tiles::template store<2>(sums + 2 * kTile, 64);
      Tiles::template store<3>(sums + 3 * kTile, 64);
    }
  }

  // Writes the sums of a tile with some panels: complete positions, because contiguous writes are faster.
  void write(const char* sums, int64_t number, int64_t panel, int64_t panels) {
    // The 16 positions are some columns, each of all images of the group.
    int64_t across = 16 / d.images, y = row + number / d.tiles, x = number % d.tiles * across;
    int64_t at = first * s.result[0] + y * s.result[1] + x * s.result[2];
    across = std::min(across, s.columns - x);
    for (int64_t i = 0; i < across; ++i)
      for (int64_t n = 0; n < images; ++n)
        for (int64_t p = 0; p < panels; ++p)
          write(sums + p * kSums + (i * d.images + n) * 64, panel + p, at + i * s.result[2] + n * s.result[0]);
  }

  // Writes 32 features of a position.
  void write(const char* sums, int64_t panel, int64_t at) {
    int64_t left = s.features - panel * 32;
    __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
    __m512 v[2] = {_mm512_load_ps(sums), _mm512_load_ps(sums + kTile)};
    at += panel * 32;
    by_512::complete<2>(epilogue, v, {static_cast<__mmask16>(there), static_cast<__mmask16>(there >> 16)}, panel * 32, at);
    if (s.wide) {
      float* to = static_cast<float*>(result) + at;
      _mm512_mask_storeu_ps(to, there, v[0]);
      _mm512_mask_storeu_ps(to + 16, there >> 16, v[1]);
    } else {
      bfloat16* to = static_cast<bfloat16*>(result) + at;
      _mm512_mask_storeu_epi16(to, there, Tiles::narrow(v[1], v[0]));
    }
  }

  // Rows of the kernel that are inside the image, for a row of the result.
  void meets(int64_t y, int64_t* from, int64_t* to) const {
    int64_t at = y * s.strides[0] - s.low[0], step = s.dilations[0];
    *from = std::clamp<int64_t>(up(std::max<int64_t>(-at, 0), step), 0, s.taps[0]);
    *to = std::clamp<int64_t>(s.height > at ? up(s.height - at, step) : 0, *from, s.taps[0]);
  }

  const char* start(int64_t tile) const {
    int64_t y = tile / d.tiles, place = tile % d.tiles * 16;
    int64_t column = place / d.images * s.strides[1] * d.images + place % d.images;
    return packed + (y * s.strides[0] * d.places + column) * kPlace;
  }

  Pair pair(int64_t tile, bool two) const {
    int64_t from, to, other, end;
    meets(row + tile / d.tiles, &from, &to);
    meets(row + (tile + two) / d.tiles, &other, &end);
    return {start(tile), start(tile + two), std::min(from, other), std::max(to, end)};
  }

  void run(const bfloat16* image) {
    pack_rows(image);
    Pair pairs[kPairs];
    int64_t count = rows * d.tiles;
    for (int64_t panel = 0; panel < d.panels; panel += d.together)
      for (int64_t first = 0; first < count; first += 2 * kPairs) {
        int64_t tiles = std::min(2 * kPairs, count - first), panels = std::min(d.together, d.panels - panel);
        for (int64_t i = 0; i < tiles; i += 2) pairs[i / 2] = pair(first + i, i + 1 < tiles);
        for (int64_t p = 0; p < panels; ++p)
          for (int64_t c = 0; c < d.channels; ++c) {
            const char* weights = kernel + (panel + p) * d.panel_bytes(s) + c * s.taps[0] * s.taps[1] * kPair;
            for (int64_t i = 0; i < tiles; i += 2) {
              char* to = sums + p * kSums + i * 2 * kTile;
              i + 1 < tiles ? add<true>(pairs[i / 2], c, weights, to) : add<false>(pairs[i / 2], c, weights, to);
            }
          }
        for (int64_t i = 0; i < tiles; ++i) write(sums + i * 2 * kTile, first + i, panel, panels);
      }
  }
};

}  // namespace

bool suits(const Convolution& s, bool has_epilogue) {
  // Packing and writing dominate for short sums, which pay off only if an epilogue is fused.
  bool alone = !has_epilogue && s.strides[0] * s.strides[1] == 1;
  if (alone && s.channels * s.taps[0] * s.taps[1] < kLongSum) return false;
  bool wide = s.channels >= 32 && s.features >= 32 && (s.channels % 32 == 0 || s.channels >= 96);
  return wide && (s.kernel[2] == 1 || s.kernel[3] == 1) && s.taps[0] * s.taps[1] >= 2 && permitted() &&
         Division(s, 1).band_bytes() <= kMorePacked;
}

size_t scratch_bytes(const Convolution& s, int threads) {
  Division d(s, threads);
  return d.kernel_bytes(s) + d.band_bytes() * threads;
}

size_t packed_bytes(const Convolution& s) { return Division(s, 1).panels_bytes(s); }

void pack(const Convolution& s, const void* kernel, char* packed, int threads) {
  Division d(s, threads);
  with_tiles([&](auto tiles) {
    pack_kernel<decltype(tiles)>(s, d, kernel, packed, threads);
  });
}

void run(const Convolution& s, const void* image, const void* kernel, const char* packed, const Epilogue& epilogue,
         void* result, char* scratch, int threads) {
  Division d(s, threads);
  char* bands = scratch + d.kernel_bytes(s);
  const char* panels = packed ? packed : scratch;
  with_tiles([&](auto tiles) {
    using Tiles = decltype(tiles);
    if (!packed) pack_kernel<Tiles>(s, d, kernel, scratch, threads);
    in_turns<typename Tiles::State>(
        d.groups * d.bands,
        [&](int64_t number) {
          int64_t first = number / d.bands * d.images, row = number % d.bands * d.rows;
          char* own = bands + d.band_bytes() * place().thread;
          Task<Tiles>{s, d, panels, epilogue, result, first, std::min(d.images, s.batch - first), row,
                      std::min(d.rows, s.rows - row), own, own + d.together * kSums}
              .run(static_cast<const uint16_t*>(image));
        },
        threads);
  });
}

bool multiply_tile(const void* left, const void* right, float* sums) {
  if (!permitted()) return false;
  with_tiles([&](auto tiles) {
    using Tiles = decltype(tiles);
    typename Tiles::State state;
    __asm__ volatile("" ::: "memory");
    Tiles::template load<0>(sums, 64);
    Tiles::template load<1>(left, 64);
    Tiles::template load<2>(right, 64);
    Tiles::template multiply<0, 1, 2>();
    Tiles::template store<0>(sums, 64);
  });
  return true;
}

}  // namespace meshflow

#pragma GCC pop_options

#else  // for compilers without support for tiles

namespace meshflow {
bool suits(const Convolution&, bool) { return false; }
bool multiply_tile(const void*, const void*, float*) { return false; }
size_t scratch_bytes(const Convolution&, int) { return 0; }
size_t packed_bytes(const Convolution&) { return 0; }
void pack(const Convolution&, const void*, char*, int) {}
void run(const Convolution&, const void*, const void*, const char*, const Epilogue&, void*, char*, int) {}
}  // namespace meshflow

#endif
