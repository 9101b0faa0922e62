// A task computes some rows of up to kBlock channels. It copies the rows of the image that it reads, with their padding and as
// float32, to a ring of rows in the first-level cache.

#include "depthwise.h"

#include "cpus.h"
#include "team.h"

#if !defined(MESHFLOW_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9

#include <algorithm>

#pragma GCC target("avx512f,avx512bw,avx512vl,fma")

#include "epilogue_vectors.h"
#include "floats.h"

namespace meshflow {
namespace {

constexpr int64_t kLanes = 16, kBlock = 2 * kLanes, kTasks = 32;
constexpr int64_t kColumns = 64;             // of a result that are computed together
constexpr int64_t kMaxScratch = 512 << 10;   // bytes of a thread
constexpr int64_t kMaxWindow = 1 << 10;      // size, dilation and stride of a kernel
constexpr int64_t kMinColumns = 8;           // of a convolution's result; narrower images consist mostly of padding

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline __mmask16 lanes(int64_t left) { return left >= kLanes ? 0xffff : left <= 0 ? 0 : (1 << left) - 1; }

inline __m512 load(const float* from, __mmask16 there) { return read(Number::kFloat, from, 0, there); }
inline __m512 load(const bfloat16* from, __mmask16 there) { return read(Number::kBfloat, from, 0, there); }

inline void store(float* to, __mmask16 there, __m512 value) { _mm512_mask_storeu_ps(to, there, value); }
inline void store(bfloat16* to, __mmask16 there, __m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_or_epi32(rounded, none, bits, _mm512_set1_epi32(0x400000));
  _mm256_mask_storeu_epi16(to, there, _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
}

inline int64_t blocks(const Depthwise& s) { return up(s.channels, kBlock); }
inline int64_t taps(const Depthwise& s) { return s.kernel[0] * s.kernel[1]; }
inline int64_t tile_columns(const Depthwise& s) { return std::min(s.columns, kColumns); }
inline int64_t tiles(const Depthwise& s) { return up(s.columns, tile_columns(s)); }
// Rows of the ring, and positions of one.
inline int64_t span(const Depthwise& s) { return (s.kernel[0] - 1) * s.tap[0] + 1; }
inline int64_t ring_columns(const Depthwise& s) { return (tile_columns(s) - 1) * s.step[1] + (s.kernel[1] - 1) * s.tap[1] + 1; }
// Floats of a thread: the ring, the weights or their sums, a row of the result.
inline int64_t thread_floats(const Depthwise& s) {
  return (span(s) * ring_columns(s) + taps(s) + tile_columns(s)) * kBlock;
}

// The rows of the result in parts, so that there are about kTasks tasks of a computation with `others` other tasks.
inline int64_t row_parts(const Depthwise& s, int64_t others) {
  return std::clamp<int64_t>(up(kTasks, others), 1, up(s.rows, 2 * s.kernel[0]));
}

// A block of channels and a tile of columns of an image, and their ring.
template <typename T>
struct Ring {
  const Depthwise& s;
  const T* image;
  int64_t channel, first_column, count;
  __mmask16 there[2];
  float* rows;
  int64_t next = 0;  // the first row that is not copied yet

  Ring(const Depthwise& s, const T* image, int64_t n, int64_t block, int64_t tile, float* rows)
      : s(s), image(image + n * s.image[0] + block * kBlock), channel(block * kBlock), first_column(tile * tile_columns(s)),
        count(std::min(tile_columns(s), s.columns - first_column)), rows(rows) {
    for (int v = 0; v < 2; ++v) there[v] = lanes(s.channels - channel - v * kLanes);
  }

  float* row(int64_t y) const { return rows + (y + s.low[0]) % span(s) * ring_columns(s) * kBlock; }

  // Makes the rows available that row i of the result reads.
  void advance(int64_t i, bool restarts) {
    const int64_t first = i * s.step[0] - s.low[0];
    if (restarts || next < first) next = first;
    for (; next < first + span(s); ++next) copy(next);
  }

  // Copies neighboring positions, `step` elements apart.
  template <typename From>
  void copy(const From* from, int64_t step, int64_t positions, float* to) const {
    for (int64_t p = 0; p < positions; ++p, from += step, to += kBlock)
      for (int v = 0; v < 2; ++v) _mm512_storeu_ps(to + v * kLanes, load(from + v * kLanes, there[v]));
  }

  void copy(int64_t y) const {
    const int64_t width = (count - 1) * s.step[1] + (s.kernel[1] - 1) * s.tap[1] + 1, x = first_column * s.step[1] - s.low[1];
    const bool inside = y >= 0 && y < s.height;
    const int64_t begin = inside ? std::clamp<int64_t>(-x, 0, width) : width;
    const int64_t end = inside ? std::clamp<int64_t>(s.width - x, begin, width) : width;
    float* to = row(y);
    std::fill_n(to, begin * kBlock, 0.0f);
    copy(image + y * s.image[1] + (x + begin) * s.image[2], s.image[2], end - begin, to + begin * kBlock);
    std::fill_n(to + end * kBlock, (width - end) * kBlock, 0.0f);
  }
};

// Computes `count` columns of a row of the result.
template <int count, int vectors, typename T>
void convolve_columns(const Ring<T>& ring, const float* weights, int64_t i, int64_t j, const Epilogue& epilogue, T* result, int64_t at) {
  const Depthwise& s = ring.s;
  __m512 sums[count][vectors];
#pragma GCC unroll 8
  for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[p][v] = _mm512_setzero_ps();
  const int64_t step = s.step[1] * kBlock;
  for (int64_t ky = 0; ky < s.kernel[0]; ++ky) {
    const float* row = ring.row(i * s.step[0] - s.low[0] + ky * s.tap[0]) + j * step;
    for (int64_t kx = 0; kx < s.kernel[1]; ++kx, weights += kBlock, row += s.tap[1] * kBlock) {
      __m512 factor[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) factor[v] = _mm512_loadu_ps(weights + v * kLanes);
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          sums[p][v] = _mm512_fmadd_ps(_mm512_loadu_ps(row + p * step + v * kLanes), factor[v], sums[p][v]);
    }
  }
  __mmask16 there[vectors];
  for (int v = 0; v < vectors; ++v) there[v] = ring.there[v];
#pragma GCC unroll 8
  for (int p = 0; p < count; ++p, at += s.result[2]) {
    // A copy, so that the sums remain in registers.
    __m512 values[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) values[v] = sums[p][v];
    if (!epilogue.empty()) complete<vectors>(epilogue, values, there, ring.channel, at);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) store(result + at + v * kLanes, there[v], values[v]);
  }
}

template <int vectors, typename T>
void convolve_row(const Ring<T>& ring, const float* weights, int64_t i, const Epilogue& epilogue, T* result, int64_t at) {
  for (int64_t j = 0; j < ring.count;) {
    const int64_t left = ring.count - j, count = left >= 8 ? 8 : left >= 4 ? 4 : 1;
    (count == 8 ? convolve_columns<8, vectors, T> : count == 4 ? convolve_columns<4, vectors, T> : convolve_columns<1, vectors, T>)(
        ring, weights, i, j, epilogue, result, at);
    j += count, at += count * ring.s.result[2];
  }
}

template <typename T, typename W>
void convolve_as(const Depthwise& s, const T* image, const W* weights, const Epilogue& epilogue, T* result, char* scratch,
                 int threads) {
  const int64_t others = s.batch * blocks(s) * tiles(s), parts = row_parts(s, others);
  in_parts(
      others * parts,
      [&](int64_t task) {
        const int64_t part = task % parts, tile = task / parts % tiles(s);
        const int64_t block = task / parts / tiles(s) % blocks(s), n = task / parts / tiles(s) / blocks(s);
        float* packed = reinterpret_cast<float*>(scratch) + place().thread * thread_floats(s);
        Ring<T> ring(s, image, n, block, tile, packed + taps(s) * kBlock);
        for (int64_t k = 0; k < taps(s); ++k)
          ring.copy(weights + k / s.kernel[1] * s.weights[0] + k % s.kernel[1] * s.weights[1] + ring.channel, 0, 1, packed + k * kBlock);
        const int64_t begin = s.rows * part / parts, end = s.rows * (part + 1) / parts;
        for (int64_t i = begin; i < end; ++i) {
          ring.advance(i, i == begin);
          const int64_t at = n * s.result[0] + i * s.result[1] + ring.first_column * s.result[2] + ring.channel;
          (ring.there[1] ? convolve_row<2, T> : convolve_row<1, T>)(ring, packed, i, epilogue, result, at);
        }
      },
      threads);
}

// Adds the products of a row of the result to the sums of `height` x `width` positions of the kernel.
template <int height, int width, typename T>
void sum_positions(const Ring<T>& ring, const float* numbers, int64_t i, int64_t ky, int64_t kx, int v, float* sums) {
  const Depthwise& s = ring.s;
  __m512 kept[height][width];
  const float* rows[height];
  float* to = sums + (ky * s.kernel[1] + kx) * kBlock + v * kLanes;
#pragma GCC unroll 4
  for (int y = 0; y < height; ++y) {
    rows[y] = ring.row(i * s.step[0] - s.low[0] + (ky + y) * s.tap[0]) + kx * s.tap[1] * kBlock + v * kLanes;
#pragma GCC unroll 8
    for (int x = 0; x < width; ++x) kept[y][x] = _mm512_loadu_ps(to + (y * s.kernel[1] + x) * kBlock);
  }
  const int64_t step = s.step[1] * kBlock, tap = s.tap[1] * kBlock;
  numbers += v * kLanes;
  for (int64_t j = 0; j < ring.count; ++j, numbers += kBlock) {
    const __m512 number = _mm512_loadu_ps(numbers);
#pragma GCC unroll 4
    for (int y = 0; y < height; ++y)
#pragma GCC unroll 8
      for (int x = 0; x < width; ++x)
        kept[y][x] = _mm512_fmadd_ps(_mm512_loadu_ps(rows[y] + j * step + x * tap), number, kept[y][x]);
  }
#pragma GCC unroll 4
  for (int y = 0; y < height; ++y)
#pragma GCC unroll 8
    for (int x = 0; x < width; ++x) _mm512_storeu_ps(to + (y * s.kernel[1] + x) * kBlock, kept[y][x]);
}

template <int width, typename T>
void sum_columns(const Ring<T>& ring, const float* numbers, int64_t i, int64_t kx, float* sums) {
  constexpr int height = width > 5 ? 2 : 3;
  for (int v = 0; v < 2 && ring.there[v]; ++v) {
    int64_t ky = 0;
    for (; ky + height <= ring.s.kernel[0]; ky += height) sum_positions<height, width>(ring, numbers, i, ky, kx, v, sums);
    for (; ky < ring.s.kernel[0]; ++ky) sum_positions<1, width>(ring, numbers, i, ky, kx, v, sums);
  }
}

// Images and parts of their rows, in portions that are summed one after the other; and the number of portions.
inline int64_t gradient_units(const Depthwise& s) { return s.batch * tiles(s) * row_parts(s, s.batch * blocks(s) * tiles(s)); }
inline int64_t gradient_portions(const Depthwise& s) { return std::min(gradient_units(s), up(kTasks, blocks(s))); }

template <typename T, typename W>
void differentiate_as(const Depthwise& s, const T* image, const T* result, W* weights, char* scratch, int threads) {
  const int64_t units = gradient_units(s), portions = gradient_portions(s), parts = units / s.batch / tiles(s), size = taps(s) * kBlock;
  float* totals = reinterpret_cast<float*>(scratch);
  float* own = totals + portions * blocks(s) * size;
  in_parts(
      portions * blocks(s),
      [&](int64_t task) {
        const int64_t block = task / portions, portion = task % portions;
        float *sums = totals + task * size, *rows = own + place().thread * thread_floats(s);
        float* numbers = rows + span(s) * ring_columns(s) * kBlock;
        std::fill_n(sums, size, 0.0f);
        for (int64_t unit = units * portion / portions; unit < units * (portion + 1) / portions; ++unit) {
          const int64_t part = unit % parts, tile = unit / parts % tiles(s), n = unit / parts / tiles(s);
          Ring<T> ring(s, image, n, block, tile, rows);
          const int64_t begin = s.rows * part / parts, end = s.rows * (part + 1) / parts;
          for (int64_t i = begin; i < end; ++i) {
            ring.advance(i, i == begin);
            const int64_t at = n * s.result[0] + i * s.result[1] + ring.first_column * s.result[2] + ring.channel;
            ring.copy(result + at, s.result[2], ring.count, numbers);
            for (int64_t kx = 0; kx < s.kernel[1];) {
              const int64_t left = s.kernel[1] - kx, width = left >= 7 ? 7 : left >= 5 ? 5 : left >= 3 ? 3 : 1;
              (width == 7 ? sum_columns<7, T> : width == 5 ? sum_columns<5, T> : width == 3 ? sum_columns<3, T> : sum_columns<1, T>)(
                  ring, numbers, i, kx, sums);
              kx += width;
            }
          }
        }
      },
      threads);
  for (int64_t c = 0; c < s.channels; c += kLanes)
    for (int64_t k = 0; k < taps(s); ++k) {
      const float* from = totals + (c / kBlock * portions * taps(s) + k) * kBlock + c % kBlock;
      __m512 total = _mm512_loadu_ps(from);
      for (int64_t portion = 1; portion < portions; ++portion) total = _mm512_add_ps(total, _mm512_loadu_ps(from + portion * size));
      store(weights + k / s.kernel[1] * s.weights[0] + k % s.kernel[1] * s.weights[1] + c, lanes(s.channels - c), total);
    }
}

}  // namespace

bool suits(const Depthwise& s, bool gradient) {
  // Products of these sizes fit into 64 bits.
  for (int i = 0; i < 2; ++i)
    if (s.kernel[i] > kMaxWindow || s.tap[i] > kMaxWindow || s.step[i] > kMaxWindow) return false;
  if (!has(Level::kAvx512) || s.channels < kLanes / 2 || taps(s) == 1 || thread_floats(s) * 4 > kMaxScratch) return false;
  // oneDNN's gradient of a dilated kernel in bfloat16 is wrong.
  const bool is_square = s.kernel[0] == 3 && s.kernel[1] == 3, is_dense = s.tap[0] == 1 && s.tap[1] == 1;
  return gradient ? !is_square || !is_dense : !is_square && s.columns >= kMinColumns;
}

size_t scratch_bytes(const Depthwise& s, int threads) { return threads * thread_floats(s) * sizeof(float); }

size_t gradient_scratch_bytes(const Depthwise& s, int threads) {
  return scratch_bytes(s, threads) + gradient_portions(s) * blocks(s) * taps(s) * kBlock * sizeof(float);
}

void convolve(const Depthwise& s, const void* image, const void* weights, const Epilogue& epilogue, void* result, char* scratch,
              int threads) {
  auto as = [&](auto type, auto weight) {
    using T = decltype(type);
    convolve_as(s, static_cast<const T*>(image), static_cast<const decltype(weight)*>(weights), epilogue, static_cast<T*>(result),
                scratch, threads);
  };
  !s.halves ? as(float(), float()) : s.wide_weights ? as(bfloat16(), float()) : as(bfloat16(), bfloat16());
}

void differentiate(const Depthwise& s, const void* image, const void* result, void* weights, char* scratch, int threads) {
  auto as = [&](auto type, auto weight) {
    using T = decltype(type);
    differentiate_as(s, static_cast<const T*>(image), static_cast<const T*>(result), static_cast<decltype(weight)*>(weights),
                     scratch, threads);
  };
  !s.halves ? as(float(), float()) : s.wide_weights ? as(bfloat16(), float()) : as(bfloat16(), bfloat16());
}

}  // namespace meshflow

#else  // for compilers and processors without these instructions

namespace meshflow {
bool suits(const Depthwise&, bool) { return false; }
size_t scratch_bytes(const Depthwise&, int) { return 0; }
size_t gradient_scratch_bytes(const Depthwise&, int) { return 0; }
void convolve(const Depthwise&, const void*, const void*, const Epilogue&, void*, char*, int) {}
void differentiate(const Depthwise&, const void*, const void*, void*, char*, int) {}
}  // namespace meshflow

#endif
