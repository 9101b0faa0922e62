// The gradient of Winograd's kernel for the namespace of an instruction set (every_width.h).

#include "winograd_tiles.h"

struct Plan {
  Blocks grid;
  int64_t channels, features;           // channels and features of a block
  int64_t tiles, line, image, panel;    // tiles per block; floats to the next tile, point, panel
  int64_t result, sums;                 // floats to the next point

  Plan(const Winograd& s, int threads)
      : grid(divide(s.channels, s.features, cache() / (kPoints * 32 * 32 * 4), threads)),
        channels(grid.channels * 32), features(grid.features * 32), line(channels + kLanes) {
    // The sums use half of the cache, image and result the rest.
    tiles = cache() / (kPoints * 4 * (line + features)) / 4 * 4;
    tiles = std::max<int64_t>(8, std::min<int64_t>(tiles, 96));
    image = tiles * line + kSkew;
    panel = tiles * kPanel;
    result = features / kPanel * panel + kSkew;
    sums = channels * features + kLanes;
  }
  size_t floats() const { return kPoints * (image + result + sums); }
};

// [1 0; 1 1; 1 -1; 0 -1], applied to two values.
inline void spread(const Vector* y, int64_t step, Vector* to, int64_t to_step) {
  to[0] = y[0], to[to_step] = y[0] + y[step];
  to[2 * to_step] = y[0] - y[step], to[3 * to_step] = Vector{} - y[step];
}

// Transforms `features` of a tile of the result, starting with the panel's first: to[panel][point][feature].
void transform_result(const Winograd& s, const Plan& p, const float* result, Tile tile, int64_t features,
                      float* to) {
  const float* from = result + tile.image * s.result[0] + tile.y * s.result[1] + tile.x * s.result[2];
  bool below = tile.y + 1 < s.rows, right = tile.x + 1 < s.columns;
  Vector zero = Vector{};
  for (int64_t k = 0; k < features; k += kLanes) {
    Vector y[4], rows[8], points[kPoints];
    y[0] = load(from + k);
    y[1] = right ? load(from + s.result[2] + k) : zero;
    y[2] = below ? load(from + s.result[1] + k) : zero;
    y[3] = below && right ? load(from + s.result[1] + s.result[2] + k) : zero;
    for (int64_t x = 0; x < 2; ++x) spread(y + x, 2, rows + x, 2);
    for (int64_t i = 0; i < 4; ++i) spread(rows + 2 * i, 1, points + 4 * i, 1);
    for (int64_t i = 0; i < kPoints; ++i)
      store(to + i * p.result + k / kPanel * p.panel + k % kPanel, points[i]);
  }
}

// [1 1/2 1/2 0; 0 1/2 -1/2 0; 0 1/2 1/2 1], applied to four values.
inline void add_points(const Vector* m, int64_t step, Vector* to, int64_t to_step) {
  Vector half = constant(0.5f), both = (m[step] + m[2 * step]) * half;
  to[0] = m[0] + both, to[to_step] = (m[step] - m[2 * step]) * half, to[2 * to_step] = both + m[3 * step];
}

void task(const Winograd& s, const Plan& p, const float* image, const float* result, float* kernel,
          int64_t number, float* scratch) {
  int64_t c0 = number / p.grid.across * p.channels, k0 = number % p.grid.across * p.features;
  int64_t channels = std::min(p.channels, s.channels - c0), features = std::min(p.features, s.features - k0);
  float *left = scratch, *right = left + kPoints * p.image, *sums = right + kPoints * p.result;
  // The last panel may be half empty.
  std::memset(right, 0, (kPoints * (p.result + p.sums)) * sizeof(float));
  Tiles tiles(s);
  for (int64_t first = 0; first < tiles.count; first += p.tiles) {
    int64_t count = std::min(p.tiles, tiles.count - first);
    for (int64_t t = 0; t < count; ++t) {
      Tile tile(tiles, first + t);
      transform_image(s, image + c0, tile, channels, left + t * p.line, p.image);
      transform_result(s, p, result + k0, tile, features, right + t * kPanel);
    }
    for (int64_t i = 0; i < kPoints; ++i)
      for (int64_t k = 0; k < up(features, kPanel); ++k)
        multiply<true>(channels, left + i * p.image, 1, p.line, right + i * p.result + k * p.panel, count,
                       sums + i * p.sums + k * kPanel, p.features);
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = 0; k < features; k += kLanes) {
      Vector points[kPoints], rows[12], taps[9];
      for (int64_t i = 0; i < kPoints; ++i) points[i] = load(sums + i * p.sums + c * p.features + k);
      for (int64_t x = 0; x < 4; ++x) add_points(points + x, 4, rows + x, 4);
      for (int64_t y = 0; y < 3; ++y) add_points(rows + 4 * y, 1, taps + 3 * y, 1);
      float* to = kernel + (c0 + c) * s.kernel[2] + k0 + k;
      for (int64_t i = 0; i < 9; ++i) store(to + i / 3 * s.kernel[0] + i % 3 * s.kernel[1], taps[i]);
    }
}

bool differentiates(const Winograd& s, int threads) {
  Plan p(s, threads);
  return transforms(s) && Tiles(s).count >= 32 && s.kernel[3] == 1 && p.grid.count() >= threads &&
         p.floats() * 4 * threads <= size_t(256) << 20;
}

size_t gradient_scratch_bytes(const Winograd& s, int threads) {
  return Plan(s, threads).floats() * 4 * threads;
}

void differentiate(const Winograd& s, const float* image, const float* result, float* kernel, char* scratch,
                   int threads) {
  Plan p(s, threads);
  in_turns(
      p.grid.count(),
      [&](int64_t number) {
        task(s, p, image, result, kernel, number, reinterpret_cast<float*>(scratch) + place().thread * p.floats());
      },
      threads);
}
