// Depthwise convolutions for the namespace of an instruction set (every_width.h).
//
// A task computes some rows of up to kBlock channels. It copies the rows of the image that it reads, with their padding and as
// float32, to a ring of rows in the first-level cache.

#include "epilogue_vectors.h"

constexpr int64_t kBlock = 2 * kLanes, kTasks = 32;
constexpr int kCount = kRegisters / 4;       // columns that are computed in registers
constexpr int64_t kColumns = 64;             // of a result that are computed together
constexpr int64_t kMaxScratch = 512 << 10;   // bytes of a thread
constexpr int64_t kMinColumns = 8;           // of a convolution's result; narrower images consist mostly of padding

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
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
  Lanes there[2];
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
      for (int v = 0; v < 2; ++v) store(to + v * kLanes, load(from + v * kLanes, there[v]));
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
  Vector sums[count][vectors];
#pragma GCC unroll 8
  for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[p][v] = Vector{};
  const int64_t step = s.step[1] * kBlock;
  for (int64_t ky = 0; ky < s.kernel[0]; ++ky) {
    const float* row = ring.row(i * s.step[0] - s.low[0] + ky * s.tap[0]) + j * step;
    for (int64_t kx = 0; kx < s.kernel[1]; ++kx, weights += kBlock, row += s.tap[1] * kBlock) {
      Vector factor[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) factor[v] = load(weights + v * kLanes);
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          sums[p][v] = multiply_add(load(row + p * step + v * kLanes), factor[v], sums[p][v]);
    }
  }
  Lanes there[vectors];
  for (int v = 0; v < vectors; ++v) there[v] = ring.there[v];
#pragma GCC unroll 8
  for (int p = 0; p < count; ++p, at += s.result[2]) {
    // A copy, so that the sums remain in registers.
    Vector values[vectors];
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
    const int64_t left = ring.count - j, count = left >= kCount ? kCount : left >= kCount / 2 ? kCount / 2 : 1;
    (count == kCount ? convolve_columns<kCount, vectors, T> : count > 1 ? convolve_columns<kCount / 2, vectors, T> : convolve_columns<1, vectors, T>)(
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
          (any(ring.there[1]) ? convolve_row<2, T> : convolve_row<1, T>)(ring, packed, i, epilogue, result, at);
        }
      },
      threads);
}

// Adds the products of a row of the result to the sums of `height` x `width` positions of the kernel.
template <int height, int width, typename T>
void sum_positions(const Ring<T>& ring, const float* numbers, int64_t i, int64_t ky, int64_t kx, int v, float* sums) {
  const Depthwise& s = ring.s;
  Vector kept[height][width];
  const float* rows[height];
  float* to = sums + (ky * s.kernel[1] + kx) * kBlock + v * kLanes;
#pragma GCC unroll 4
  for (int y = 0; y < height; ++y) {
    rows[y] = ring.row(i * s.step[0] - s.low[0] + (ky + y) * s.tap[0]) + kx * s.tap[1] * kBlock + v * kLanes;
#pragma GCC unroll 8
    for (int x = 0; x < width; ++x) kept[y][x] = load(to + (y * s.kernel[1] + x) * kBlock);
  }
  const int64_t step = s.step[1] * kBlock, tap = s.tap[1] * kBlock;
  numbers += v * kLanes;
  for (int64_t j = 0; j < ring.count; ++j, numbers += kBlock) {
    const Vector number = load(numbers);
#pragma GCC unroll 4
    for (int y = 0; y < height; ++y)
#pragma GCC unroll 8
      for (int x = 0; x < width; ++x)
        kept[y][x] = multiply_add(load(rows[y] + j * step + x * tap), number, kept[y][x]);
  }
#pragma GCC unroll 4
  for (int y = 0; y < height; ++y)
#pragma GCC unroll 8
    for (int x = 0; x < width; ++x) store(to + (y * s.kernel[1] + x) * kBlock, kept[y][x]);
}

template <int width, typename T>
void sum_columns(const Ring<T>& ring, const float* numbers, int64_t i, int64_t kx, float* sums) {
  constexpr int height = width > 5 ? 2 : 3;
  for (int v = 0; v < 2 && any(ring.there[v]); ++v) {
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
      Vector total = load(from);
      for (int64_t portion = 1; portion < portions; ++portion) total = total + load(from + portion * size);
      store(weights + k / s.kernel[1] * s.weights[0] + k % s.kernel[1] * s.weights[1] + c, lanes(s.channels - c), total);
    }
}

bool suits(const Depthwise& s, bool gradient) {
  if (s.channels < kLanes / 2 || taps(s) == 1 || thread_floats(s) * 4 > kMaxScratch) return false;
  // oneDNN's gradient of a dilated kernel in bfloat16 is wrong.
  const bool is_square = s.kernel[0] == 3 && s.kernel[1] == 3, is_dense = s.tap[0] == 1 && s.tap[1] == 1;
  // With AVX2, oneDNN's float32 convolutions of any size take 0.6 to 0.9 of this code's time.
  const bool is_faster = LANES == 16 || s.halves;
  return gradient ? !is_square || !is_dense : is_faster && !is_square && s.columns >= kMinColumns;
}

size_t scratch_bytes(const Depthwise& s, int threads) { return threads * thread_floats(s) * sizeof(float); }

size_t gradient_scratch_bytes(const Depthwise& s, int threads) {
  return (threads * thread_floats(s) + gradient_portions(s) * blocks(s) * taps(s) * kBlock) * sizeof(float);
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
