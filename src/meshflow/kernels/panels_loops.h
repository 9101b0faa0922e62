// Products of panels for the namespace of an instruction set (every_width.h).

constexpr int64_t kRows = kRegisters == 32 ? 12 : 6;  // of a tile, whose sums are in registers
constexpr int64_t kWidth = 2 * kLanes;                // columns of a panel
constexpr int64_t kDepth = 384;                       // a panel of the right matrix fits in the first-level cache
constexpr int64_t kTaskStrips = 12, kTaskPanels = 8;
constexpr int64_t kMostRows = 4096, kMostPanels = 512;  // that are packed at once
constexpr int64_t kColumns = 480;                       // of a convolution's result that are computed together
constexpr int64_t kPortions = 32;
constexpr int64_t kAliased = 512;  // numbers between places of the same sets of the first-level cache, or a divisor
constexpr int64_t kMaxSums = 1 << 16;                   // elements of a kernel

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Part of a product: rows of the left matrix, one panel of the right one.
struct Tile {
  const float* left;
  int64_t left_row, left_depth;
  const float* right;
  int64_t right_depth;
  float* result;
  int64_t result_row, rows, columns, depth;
  bool adds;  // to the result
};

template <int rows, bool complete>
void multiply_tile(const Tile& t) {
  const Lanes there[2] = {lanes(t.columns), lanes(t.columns - kLanes)};
  Vector sums[rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      sums[i][v] = t.adds ? load(t.result + i * t.result_row + v * kLanes, there[v]) : Vector{};
  const float *left = t.left, *right = t.right;
  for (int64_t k = 0; k < t.depth; ++k, left += t.left_depth, right += t.right_depth) {
    Vector factors[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) factors[v] = complete ? load(right + v * kLanes) : load(right + v * kLanes, there[v]);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vector factor = constant(left[i * t.left_row]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[i][v] = multiply_add(factor, factors[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(t.result + i * t.result_row + v * kLanes, there[v], sums[i][v]);
}

// `complete`: the right matrix has all columns of the panel, the last ones perhaps zeros.
template <bool complete>
void multiply_rows(Tile t) {
  while (t.rows > 0) {
    const int64_t count = t.rows >= kRows ? kRows : t.rows >= 4 ? 4 : t.rows >= 2 ? 2 : 1;
    (count == kRows ? multiply_tile<kRows, complete> : count == 4 ? multiply_tile<4, complete>
                      : count == 2 ? multiply_tile<2, complete> : multiply_tile<1, complete>)(t);
    t.rows -= count, t.left += count * t.left_row, t.result += count * t.result_row;
  }
}

// Rows, columns and depth that are packed at once, in equal parts.
inline int64_t part_size(int64_t size, int64_t most, int64_t unit) { return up(up(size, up(size, most)), unit) * unit; }
inline int64_t rows_at_once(const Product& p) { return part_size(p.rows, kMostRows, kRows); }
inline int64_t panels_at_once(const Product& p) { return part_size(up(p.columns, kWidth), kMostPanels, 1); }
inline int64_t depth_at_once(const Product& p) { return part_size(p.depth, kDepth, 1); }

size_t scratch_bytes(const Product& p) {
  return (rows_at_once(p) + panels_at_once(p) * kWidth) * depth_at_once(p) * sizeof(float);
}

// Columns of the panel that do not exist are zeros.
inline void pack_right(const float* from, int64_t step, int64_t depth, int64_t columns, float* to) {
  const Lanes there[2] = {lanes(columns), lanes(columns - kLanes)};
  for (int64_t k = 0; k < depth; ++k, from += step, to += kWidth)
    for (int v = 0; v < 2; ++v) store(to + v * kLanes, load(from + v * kLanes, there[v]));
}

inline void pack_left(const float* from, int64_t step, int64_t depth, int64_t rows, float* to) {
  int64_t k = 0;
  // The next row overwrites the numbers that are too many.
  for (; rows == kRows && k + 1 < depth; ++k) store(to + k * kRows, load(from + k * step));
  for (; k < depth; ++k) std::copy_n(from + k * step, rows, to + k * kRows);
}

// Adds the product of some rows, columns and depth, or begins with it.
inline void multiply_part(const Product& p, const float* left, const float* right, float* result, int64_t rows, int64_t columns,
                          int64_t depth, bool adds, float* scratch, int threads) {
  const int64_t panels = up(columns, kWidth), strips = up(rows, kRows);
  float *right_panels = scratch, *left_strips = scratch + panels * kWidth * depth;
  // Rows of contiguous numbers are read as they are.
  const bool packs = p.left[2] != 1;
  in_parts(
      panels + (packs ? strips : 0),
      [&](int64_t task) {
        if (task < panels)
          return pack_right(right + task * kWidth, p.right[1], depth, columns - task * kWidth, right_panels + task * kWidth * depth);
        const int64_t first = (task - panels) * kRows;
        pack_left(left + first, p.left[2], depth, std::min(kRows, rows - first), left_strips + first * depth);
      },
      threads);
  // Tasks for all threads, also if there are few rows.
  const int64_t down = up(strips, kTaskStrips), across = std::min(panels, std::max(up(panels, kTaskPanels), up(4 * threads, down)));
  in_turns(
      down * across,
      [&](int64_t task) {
        const int64_t begin = strips * (task / across) / down, end = strips * (task / across + 1) / down;
        const int64_t last = panels * (task % across + 1) / across;
        for (int64_t panel = panels * (task % across) / across; panel < last; ++panel)
          for (int64_t strip = begin; strip < end; ++strip) {
            const int64_t first = strip * kRows;
            const float* numbers = packs ? left_strips + first * depth : left + first * p.left[1];
            multiply_rows<true>({numbers, packs ? 1 : p.left[1], packs ? kRows : 1, right_panels + panel * kWidth * depth, kWidth,
                                 result + first * p.columns + panel * kWidth, p.columns, std::min(kRows, rows - first),
                                 columns - panel * kWidth, depth, adds});
          }
      },
      threads);
}

void multiply(const Product& p, const float* left, const float* right, float* result, char* scratch, int threads) {
  const int64_t rows = rows_at_once(p), columns = panels_at_once(p) * kWidth, depth = depth_at_once(p);
  for (int64_t n = 0; n < p.batch; ++n, left += p.left[0], right += p.right[0], result += p.rows * p.columns)
    for (int64_t j = 0; j < p.columns; j += columns)
      for (int64_t i = 0; i < p.rows; i += rows)
        for (int64_t k = 0; k < p.depth; k += depth)
          multiply_part(p, left + i * p.left[1] + k * p.left[2], right + k * p.right[1] + j, result + i * p.columns + j,
                        std::min(rows, p.rows - i), std::min(columns, p.columns - j), std::min(depth, p.depth - k), k > 0,
                        reinterpret_cast<float*>(scratch), threads);
}

bool suits(const Product& p) {
  if (LANES != 8 || p.columns < kWidth || p.rows < kRows) return false;
  // Rows of the matrices that oneDNN reads together are in the same few sets of the cache.
  return p.right[1] % kAliased == 0 || (p.left[2] != 1 && p.left[2] % kAliased == 0);
}

// The windows of a tile of columns are rows of a matrix that overlap. It has kernel[0] rows of a padded image.
inline int64_t tiles(const Windows& s) { return up(s.columns, kColumns); }
inline int64_t padded_columns(const Windows& s) {
  return (up(s.columns, tiles(s)) - 1) * s.step[1] + (s.kernel[1] - 1) * s.tap[1] + 1;
}
inline int64_t image_floats(const Windows& s) { return s.kernel[0] * padded_columns(s) * s.channels; }
inline int64_t panels(const Windows& s) { return up(s.features, kWidth); }
// Elements of the kernel for each feature.
inline int64_t taps(const Windows& s) { return s.kernel[0] * s.kernel[1] * s.channels; }
// Neighbors in the image that are neighbors in a window, and the parts of a window.
inline int64_t run(const Windows& s) { return s.tap[1] == 1 ? s.kernel[1] * s.channels : s.channels; }
inline int64_t runs(const Windows& s) { return taps(s) / run(s); }
inline int64_t run_start(const Windows& s, int64_t number) {
  const int64_t each = runs(s) / s.kernel[0];
  return (number / each * padded_columns(s) + number % each * s.tap[1]) * s.channels;
}

// Copies the part of the image that the windows of `count` columns of row i read.
inline void copy_windows(const Windows& s, const float* image, int64_t i, int64_t first, int64_t count, float* to) {
  const int64_t width = (count - 1) * s.step[1] + (s.kernel[1] - 1) * s.tap[1] + 1, x = first * s.step[1] - s.low[1];
  for (int64_t ky = 0; ky < s.kernel[0]; ++ky, to += padded_columns(s) * s.channels) {
    const int64_t y = i * s.step[0] + ky * s.tap[0] - s.low[0];
    const bool inside = y >= 0 && y < s.height;
    const int64_t begin = inside ? std::clamp<int64_t>(-x, 0, width) : width;
    const int64_t end = inside ? std::clamp<int64_t>(s.width - x, begin, width) : width;
    std::fill_n(to, begin * s.channels, 0.0f);
    for (int64_t at = begin; at < end; ++at)
      std::copy_n(image + y * s.image[1] + (x + at) * s.image[2], s.channels, to + at * s.channels);
    std::fill_n(to + end * s.channels, (width - end) * s.channels, 0.0f);
  }
}

// A row of the result, or a part of it.
struct Columns {
  int64_t n, i, first, count;
  Columns(const Windows& s, int64_t number)
      : n(number / tiles(s) / s.rows), i(number / tiles(s) % s.rows), first(s.columns * (number % tiles(s)) / tiles(s)),
        count(s.columns * (number % tiles(s) + 1) / tiles(s) - first) {}
  int64_t place(const Windows& s) const { return n * s.result[0] + i * s.result[1] + first * s.result[2]; }
};

// Address of an element of the kernel; `k` counts its taps.
inline int64_t weight_place(const Windows& s, int64_t k) {
  const int64_t position = k / s.channels;
  return position / s.kernel[1] * s.weights[0] + position % s.kernel[1] * s.weights[1] + k % s.channels * s.weights[2];
}

size_t scratch_bytes(const Windows& s, int threads) {
  return (panels(s) * taps(s) * kWidth + threads * image_floats(s)) * sizeof(float);
}

void convolve(const Windows& s, const float* image, const float* weights, float* result, char* scratch, int threads) {
  float *packed = reinterpret_cast<float*>(scratch), *images = packed + panels(s) * taps(s) * kWidth;
  for (int64_t panel = 0; panel < panels(s); ++panel)
    for (int64_t k = 0; k < taps(s); ++k)
      for (int64_t f = 0; f < kWidth; ++f) {
        const int64_t feature = panel * kWidth + f;
        packed[(panel * taps(s) + k) * kWidth + f] = feature < s.features ? weights[weight_place(s, k) + feature * s.weights[3]] : 0;
      }
  in_parts(
      s.batch * s.rows * tiles(s),
      [&](int64_t number) {
        const Columns columns(s, number);
        float* windows = images + place().thread * image_floats(s);
        copy_windows(s, image + columns.n * s.image[0], columns.i, columns.first, columns.count, windows);
        for (int64_t panel = 0; panel < panels(s); ++panel)
          for (int64_t part = 0; part < runs(s); ++part)
            multiply_rows<true>({windows + run_start(s, part), s.step[1] * s.channels, 1,
                                 packed + (panel * taps(s) + part * run(s)) * kWidth, kWidth,
                                 result + columns.place(s) + panel * kWidth, s.result[2], columns.count,
                                 s.features - panel * kWidth, run(s), part > 0});
      },
      threads);
}

inline int64_t portions(const Windows& s) { return std::min(kPortions, s.batch * s.rows * tiles(s)); }

size_t gradient_scratch_bytes(const Windows& s, int threads) {
  return (portions(s) * panels(s) * taps(s) * kWidth + threads * image_floats(s)) * sizeof(float);
}

void differentiate(const Windows& s, const float* image, const float* result, float* weights, char* scratch, int threads) {
  const int64_t units = s.batch * s.rows * tiles(s), size = panels(s) * taps(s) * kWidth, count = portions(s);
  float *totals = reinterpret_cast<float*>(scratch), *images = totals + count * size;
  in_parts(
      count,
      [&](int64_t portion) {
        float *sums = totals + portion * size, *windows = images + place().thread * image_floats(s);
        std::fill_n(sums, size, 0.0f);
        for (int64_t number = units * portion / count; number < units * (portion + 1) / count; ++number) {
          const Columns columns(s, number);
          copy_windows(s, image + columns.n * s.image[0], columns.i, columns.first, columns.count, windows);
          for (int64_t panel = 0; panel < panels(s); ++panel)
            for (int64_t part = 0; part < runs(s); ++part) {
              const Tile tile{windows + run_start(s, part), 1, s.step[1] * s.channels,
                              result + columns.place(s) + panel * kWidth, s.result[2],
                              sums + (panel * taps(s) + part * run(s)) * kWidth, kWidth, run(s),
                              s.features - panel * kWidth, columns.count, true};
              tile.columns >= kWidth ? multiply_rows<true>(tile) : multiply_rows<false>(tile);
            }
        }
      },
      threads);
  for (int64_t portion = 1; portion < count; ++portion)
    for (int64_t i = 0; i < size; i += kLanes) store(totals + i, load(totals + i) + load(totals + portion * size + i));
  for (int64_t k = 0; k < taps(s); ++k)
    for (int64_t f = 0; f < s.features; ++f)
      weights[weight_place(s, k) + f * s.weights[3]] = totals[(f / kWidth * taps(s) + k) * kWidth + f % kWidth];
}

bool suits(const Windows& s) { return LANES == 8 && s.features >= kLanes && taps(s) * panels(s) * kWidth <= kMaxSums; }
