// Shared code of Winograd's convolution and its kernel gradient for the namespace of an instruction set (every_width.h):
// tiles, transforms, products.

constexpr int64_t kPoints = 16, kPanel = 2 * kLanes;
constexpr int64_t kRows = kRegisters == 32 ? 12 : 6;  // of a product whose sums are in registers
constexpr int64_t kSkew = 48;  // prevents the points' rows from mapping to the same cache sets

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Maximum bytes of a block of transformed values.
inline int64_t cache() {
  static const int64_t bytes = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 1 << 20) * 15 / 32;
  return bytes;
}

// Tiles of 2 x 2 positions of the result.
struct Tiles {
  int64_t across, down, count;
  explicit Tiles(const Winograd& s)
      : across(up(s.columns, 2)), down(up(s.rows, 2)), count(s.batch * down * across) {}
};

struct Tile {
  int64_t image, y, x;  // index of the image; the tile's first row and column in the result
  Tile(const Tiles& tiles, int64_t number)
      : image(number / (tiles.down * tiles.across)), y(number / tiles.across % tiles.down * 2),
        x(number % tiles.across * 2) {}
};

// Returns whether vectors are full and products large.
inline bool transforms(const Winograd& s) {
  return s.channels % kLanes == 0 && s.features % kLanes == 0 && s.channels >= 64 && s.features >= 64;
}

// [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1], applied to four values.
inline void difference(const Vector* d, int64_t step, Vector* to) {
  to[0] = d[0] - d[2 * step], to[step] = d[step] + d[2 * step];
  to[2 * step] = d[2 * step] - d[step], to[3 * step] = d[step] - d[3 * step];
}

// Transforms the 4 x 4 tile of the image under a tile, `channels` of them: to[point][channel].
inline void transform_image(const Winograd& s, const float* image, Tile tile, int64_t channels, float* to,
                            int64_t point) {
  const float* from[kPoints];
  for (int64_t p = 0; p < kPoints; ++p) {
    int64_t y = tile.y + p / 4 - s.low[0], x = tile.x + p % 4 - s.low[1];
    bool inside = y >= 0 && y < s.height && x >= 0 && x < s.width;
    from[p] = inside ? image + tile.image * s.image[0] + y * s.image[1] + x * s.image[2] : nullptr;
  }
  for (int64_t c = 0; c < channels; c += kLanes) {
    Vector d[kPoints], columns[kPoints], points[kPoints];
    for (int64_t p = 0; p < kPoints; ++p)
      d[p] = from[p] ? load(from[p] + c) : Vector{};
    for (int64_t x = 0; x < 4; ++x) difference(d + x, 4, columns + x);
    for (int64_t y = 0; y < 4; ++y) difference(columns + 4 * y, 1, points + 4 * y);
    for (int64_t p = 0; p < kPoints; ++p) store(to + p * point + c, points[p]);
  }
}

// sums[rows, kPanel] (+)= left[rows, depth] right[depth, kPanel]; `row` and `column` are the strides of left.
template <int64_t rows, bool add>
inline void multiply(const float* left, int64_t row, int64_t column, const float* right, int64_t depth,
                     float* sums, int64_t line) {
  Vector total[rows][2];
#pragma GCC unroll 12
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < 2; ++j)
      total[i][j] = add ? load(sums + i * line + j * kLanes) : Vector{};
  for (int64_t k = 0; k < depth; ++k, right += kPanel) {
    Vector first = load(right), second = load(right + kLanes);
#pragma GCC unroll 12
    for (int64_t i = 0; i < rows; ++i) {
      Vector value = constant(left[i * row + k * column]);
      total[i][0] = multiply_add(value, first, total[i][0]);
      total[i][1] = multiply_add(value, second, total[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < 2; ++j) store(sums + i * line + j * kLanes, total[i][j]);
}

// The same for any number of rows.
template <bool add>
inline void multiply(int64_t rows, const float* left, int64_t row, int64_t column, const float* right,
                     int64_t depth, float* sums, int64_t line) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    multiply<kRows, add>(left + i * row, row, column, right, depth, sums + i * line, line);
  for (; i + 4 <= rows; i += 4)
    multiply<4, add>(left + i * row, row, column, right, depth, sums + i * line, line);
  for (; i < rows; ++i) multiply<1, add>(left + i * row, row, column, right, depth, sums + i * line, line);
}
