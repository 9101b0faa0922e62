// Sums over rows, for the namespace of an instruction set (every_width.h).

constexpr int64_t kVectors = 8, kTasks = 32, kRows = 64;

// Tasks of at least kRows rows.
inline int64_t tasks(const Columns& s) { return std::clamp<int64_t>(s.rows / kRows, 1, kTasks); }

// Sums `vectors` vectors of columns, of which the last may be shorter.
template <Terms terms, int vectors, typename X, typename Y>
void sum_rows(const X* x, const Y* y, int64_t rows, int64_t stride, Lanes last, float* to) {
  Vector sums[vectors], centers[vectors];
  // Only the last vector needs lanes.
  auto read = [last](const auto* from, int i) { return i + 1 < vectors ? load(from + i * kLanes) : load(from + i * kLanes, last); };
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    sums[i] = Vector{};
    if (terms == Terms::kSquares) centers[i] = read(y, i);
  }
  for (int64_t row = 0; row < rows; ++row, x += stride) {
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) {
      Vector value = read(x, i);
      if (terms == Terms::kElements) {
        sums[i] = sums[i] + value;
      } else if (terms == Terms::kProducts) {
        sums[i] = multiply_add(value, read(y, i), sums[i]);
      } else {
        value = value - centers[i];
        sums[i] = multiply_add(value, value, sums[i]);
      }
    }
    if (terms == Terms::kProducts) y += stride;
  }
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) i + 1 < vectors ? store(to + i * kLanes, sums[i]) : store(to + i * kLanes, last, sums[i]);
}

template <Terms terms, typename X, typename Y>
void sum_task(const Columns& s, const X* x, const Y* y, int64_t rows, float* to) {
  for (int64_t c = 0; c < s.columns; c += kVectors * kLanes) {
    const int64_t left = std::min(s.columns - c, kVectors * kLanes), vectors = (left + kLanes - 1) / kLanes;
    const Lanes last = lanes(left - (vectors - 1) * kLanes);
    auto of = [&](auto count) { sum_rows<terms, count.value>(x + c, y + c, rows, s.columns, last, to + c); };
    switch (vectors) {
      case 1: of(std::integral_constant<int, 1>()); break;
      case 2: of(std::integral_constant<int, 2>()); break;
      case 3: of(std::integral_constant<int, 3>()); break;
      case 4: of(std::integral_constant<int, 4>()); break;
      case 5: of(std::integral_constant<int, 5>()); break;
      case 6: of(std::integral_constant<int, 6>()); break;
      case 7: of(std::integral_constant<int, 7>()); break;
      default: of(std::integral_constant<int, 8>());
    }
  }
}

template <typename X, typename Y>
void sum_as(const Columns& s, const X* x, const Y* y, float* sums, int threads) {
  const int64_t count = tasks(s);
  in_parts(
      count,
      [&](int64_t task) {
        const int64_t first = s.rows * task / count, rows = s.rows * (task + 1) / count - first;
        const X* from = x + first * s.columns;
        float* to = sums + task * s.columns;
        switch (s.terms) {
          case Terms::kElements: return sum_task<Terms::kElements>(s, from, y, rows, to);
          case Terms::kProducts: return sum_task<Terms::kProducts>(s, from, y + first * s.columns, rows, to);
          case Terms::kSquares: return sum_task<Terms::kSquares>(s, from, y, rows, to);
        }
      },
      threads);
}

// Sums the elements of a row, or the squares of their differences from `center`.
template <Terms terms>
float sum_row(const float* x, float center, int64_t columns) {
  constexpr int vectors = 4;
  Vector sums[vectors], centers = constant(center);
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) sums[i] = Vector{};
  for (int64_t c = 0; c < columns; c += vectors * kLanes)
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const int64_t at = c + i * kLanes, left = columns - at;
      if (left <= 0) break;
      const Lanes there = lanes(left);
      Vector value = load(x + at, there);
      if (terms == Terms::kElements) {
        sums[i] = sums[i] + value;
      } else {
        value = keep(there, value - centers);
        sums[i] = multiply_add(value, value, sums[i]);
      }
    }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void sum_each_row(const Columns& s, const float* x, const float* y, float* result, int threads) {
  const int64_t count = tasks(s);
  in_parts(
      count,
      [&](int64_t task) {
        for (int64_t row = s.rows * task / count; row < s.rows * (task + 1) / count; ++row) {
          const float* from = x + row * s.columns;
          result[row] = s.terms == Terms::kSquares ? sum_row<Terms::kSquares>(from, y[row], s.columns)
                                                   : sum_row<Terms::kElements>(from, 0, s.columns);
        }
      },
      threads);
}

size_t scratch_bytes(const Columns& s) { return tasks(s) * s.columns * sizeof(float); }

void sum(const Columns& s, const void* x, const void* y, void* result, char* scratch, int threads) {
  float* sums = reinterpret_cast<float*>(scratch);
  auto typed = [](bool halves, const void* from, auto use) {
    halves ? use(static_cast<const bfloat16*>(from)) : use(static_cast<const float*>(from));
  };
  if (s.each_row)
    return sum_each_row(s, static_cast<const float*>(x), static_cast<const float*>(y), static_cast<float*>(result), threads);
  typed(s.x_halves, x, [&](auto* x) { typed(s.y_halves, y, [&](auto* y) { sum_as(s, x, y, sums, threads); }); });
  for (int64_t c = 0; c < s.columns; ++c) {
    float total = 0;
    for (int64_t task = 0; task < tasks(s); ++task) total += sums[task * s.columns + c];
    if (s.result_halves) {
      narrow(total, static_cast<bfloat16*>(result) + c);
    } else {
      static_cast<float*>(result)[c] = total;
    }
  }
}
