// Winograd's convolution for the namespace of an instruction set (every_width.h).

#include "epilogue_vectors.h"
#include "winograd_tiles.h"

struct Layout {
  Tiles tiles;
  int64_t block;         // tiles per block
  int64_t line, point;   // transformed image: floats to the next tile, to the next point
  int64_t panels, sums;  // panels of features; floats to the next point's sums
  int64_t kernel;        // floats to the next point of the transformed kernel

  explicit Layout(const Winograd& s)
      : tiles(s), line(s.channels + kLanes), panels(up(s.features, kPanel)) {
    block = cache() / (kPoints * 4 * line) / kRows * kRows;
    block = std::max(kRows, std::min<int64_t>(block, 96));
    // Blocks of one size take equally long.
    block = up(up(tiles.count, up(tiles.count, block)), kRows) * kRows;
    point = block * line + kSkew;
    sums = block * kPanel + kLanes;
    kernel = panels * s.channels * kPanel + kSkew;
  }
  int64_t blocks() const { return up(tiles.count, block); }
  // Blocks are divided into parts of their panels if there are few. Each part transforms the tiles again.
  int64_t parts(int threads) const { return std::min(panels, up(threads, blocks())); }
  size_t kernel_floats() const { return kPoints * kernel; }
  size_t thread_floats() const { return kPoints * (point + sums); }
};

// [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1], applied to three values.
inline void spread(const Vector* g, int64_t step, Vector* to, int64_t to_step) {
  Vector half = constant(0.5f), ends = (g[0] + g[2 * step]) * half, middle = g[step] * half;
  to[0] = g[0], to[to_step] = ends + middle, to[2 * to_step] = ends - middle, to[3 * to_step] = g[2 * step];
}

// Reads kLanes features of as many channels at one position: to[channel], with zeros for features that do not exist.
inline void read_kernel(const Winograd& s, const float* from, int64_t count, Vector (&to)[kLanes]) {
  const Lanes there = lanes(count);
  if (s.kernel[2] == 1) {
    for (int64_t k = 0; k < kLanes; ++k) to[k] = k < count ? load(from + k * s.kernel[3]) : Vector{};
    return transpose(to);
  }
  for (int64_t c = 0; c < kLanes; ++c, from += s.kernel[2])
    to[c] = s.kernel[3] == 1 ? load(from, there) : gather(from, s.kernel[3], there);
}

// Transforms one panel of features of the kernel: transformed[point][panel][channel][feature].
void transform_kernel(const Winograd& s, const Layout& l, const float* kernel, int64_t panel, float* to) {
  to += panel * s.channels * kPanel;
  for (int64_t c = 0; c < s.channels; c += kLanes)
    for (int64_t half = 0; half < kPanel; half += kLanes) {
      const int64_t first = panel * kPanel + half, count = std::clamp<int64_t>(s.features - first, 0, kLanes);
      const float* from = kernel + c * s.kernel[2] + first * s.kernel[3];
      Vector taps[9][kLanes];
      for (int64_t i = 0; i < 9; ++i) read_kernel(s, from + i / 3 * s.kernel[0] + i % 3 * s.kernel[1], count, taps[i]);
      for (int64_t one = 0; one < kLanes; ++one) {
        Vector g[9], rows[12], points[kPoints];
        for (int64_t i = 0; i < 9; ++i) g[i] = taps[i][one];
        for (int64_t x = 0; x < 3; ++x) spread(g + x, 3, rows + x, 3);
        for (int64_t y = 0; y < 4; ++y) spread(rows + 3 * y, 1, points + 4 * y, 1);
        for (int64_t p = 0; p < kPoints; ++p) store(to + p * l.kernel + (c + one) * kPanel + half, points[p]);
      }
    }
}

// [1 1 1 0; 0 1 -1 -1], applied to four values.
inline void add_points(const Vector* m, int64_t step, Vector* to, int64_t to_step) {
  to[0] = m[0] + m[step] + m[2 * step], to[to_step] = m[step] - m[2 * step] - m[3 * step];
}

void transform_back(const Winograd& s, const Layout& l, const float* sums, const Epilogue& epilogue, Tile tile,
                    int64_t panel, float* result) {
  int64_t at = tile.image * s.result[0] + tile.y * s.result[1] + tile.x * s.result[2] + panel * kPanel;
  int64_t high = std::min<int64_t>(2, s.rows - tile.y), wide = std::min<int64_t>(2, s.columns - tile.x);
  for (int64_t k = 0; k < kPanel && panel * kPanel + k < s.features; k += kLanes) {
    Vector m[kPoints], rows[8], values[4];
    for (int64_t p = 0; p < kPoints; ++p) m[p] = load(sums + p * l.sums + k);
    for (int64_t x = 0; x < 4; ++x) add_points(m + x, 4, rows + x, 4);
    for (int64_t y = 0; y < 2; ++y) add_points(rows + 4 * y, 1, values + 2 * y, 1);
    for (int64_t y = 0; y < high; ++y)
      for (int64_t x = 0; x < wide; ++x) {
        int64_t place = at + y * s.result[1] + x * s.result[2] + k;
        Vector v[1] = {values[2 * y + x]};
        if (!epilogue.empty()) complete<1>(epilogue, v, {all_lanes()}, panel * kPanel + k, place);
        store(result + place, v[0]);
      }
  }
}

// Computes the panels from `begin` to `end` of a block of tiles.
void block(const Winograd& s, const Layout& l, const float* image, const float* kernel, const Epilogue& epilogue,
           float* result, int64_t first, int64_t begin, int64_t end, float* scratch) {
  float *transformed = scratch, *sums = scratch + kPoints * l.point;
  int64_t count = std::min(l.block, l.tiles.count - first);
  for (int64_t t = 0; t < count; ++t)
    transform_image(s, image, Tile(l.tiles, first + t), s.channels, transformed + t * l.line, l.point);
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t p = 0; p < kPoints; ++p)
      multiply<false>(count, transformed + p * l.point, l.line, 1,
                      kernel + p * l.kernel + panel * s.channels * kPanel, s.channels, sums + p * l.sums, kPanel);
    for (int64_t t = 0; t < count; ++t)
      transform_back(s, l, sums + t * kPanel, epilogue, Tile(l.tiles, first + t), panel, result);
  }
}

bool suits(const Winograd& s) {
  // Also for few tiles, for which the kernel's transform hardly pays off: a shard of an image must have the
  // same bits as the full image.
  return transforms(s);
}

size_t scratch_bytes(const Winograd& s, int threads) {
  Layout l(s);
  return 4 * (l.kernel_floats() + threads * l.thread_floats());
}

size_t packed_bytes(const Winograd& s) { return 4 * Layout(s).kernel_floats(); }

void pack(const Winograd& s, const float* kernel, char* packed, int threads) {
  Layout l(s);
  in_parts(
      l.panels,
      [&](int64_t panel) { transform_kernel(s, l, kernel, panel, reinterpret_cast<float*>(packed)); },
      threads);
}

void convolve(const Winograd& s, const float* image, const float* kernel, const char* packed,
              const Epilogue& epilogue, float* result, char* scratch, int threads) {
  Layout l(s);
  float* own = reinterpret_cast<float*>(scratch);
  const float* transformed = packed ? reinterpret_cast<const float*>(packed) : own;
  float* rest = own + l.kernel_floats();
  if (!packed) in_parts(l.panels, [&](int64_t panel) { transform_kernel(s, l, kernel, panel, own); }, threads);
  const int64_t parts = l.parts(threads);
  in_turns(
      l.blocks() * parts,
      [&](int64_t number) {
        const int64_t part = number % parts;
        block(s, l, image, transformed, epilogue, result, number / parts * l.block, l.panels * part / parts,
              l.panels * (part + 1) / parts, rest + place().thread * l.thread_floats());
      },
      threads);
}
