// Convolutions with few channels for the namespace of an instruction set (every_width.h).
//
// Sums of vectors of channels of the wide image, multiplied by weights (rows of the narrow image) or by numbers of
// the narrow image (its weights).

constexpr int64_t kTasks = 32;
constexpr int64_t kWindow = kRegisters == 32 ? 16 : 12;  // vectors of a window's row

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t padded(const Narrow& s) { return up(s.channels, kLanes) * kLanes; }
inline int64_t taps(const Narrow& s) { return s.kernel[0] * s.kernel[1]; }

// The position of the wide image, or -1.
inline int64_t position(const Narrow& s, int axis, int64_t i, int64_t k) {
  int64_t at = i * s.step[axis] + s.offset[axis] + k * s.tap[axis], size = axis ? s.width : s.height;
  if (at < 0 || at % s.part[axis]) return -1;
  at /= s.part[axis];
  return at < size ? at : -1;
}

// Computes `count` positions of a row, `s.part[1]` apart; `zeros` replace positions outside of the image.
template <int count, int features, typename T>
void convolve_positions(const Narrow& s, const T* image, const T* zeros, const float* weights, int64_t y, int64_t x,
                        T* row) {
  Vector sums[count][features];
  for (auto& sum : sums)
    for (auto& part : sum) part = Vector{};
  const int64_t channels = padded(s), there = std::min<int64_t>(count, up(s.columns - x, s.part[1]));
  for (int64_t ky = 0; ky < s.kernel[0]; ++ky) {
    const int64_t from_y = position(s, 0, y, ky);
    if (from_y < 0) continue;
    for (int64_t kx = 0; kx < s.kernel[1]; ++kx) {
      // If positions of the wide image are `part` apart, neighbors are neighbors there.
      int64_t at = x * s.step[1] + s.offset[1] + kx * s.tap[1];
      if (s.part[1] > 1) {
        if (at % s.part[1]) continue;
        at /= s.part[1];
      }
      const int64_t last = at + (there - 1) * s.step[1];
      if (last < 0 || at >= s.width) continue;
      const T* from[count];
      const T* first = image + from_y * s.wide[1] + at * s.wide[2];
      if (at >= 0 && last < s.width && there == count) {
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i) from[i] = first + i * s.step[1] * s.wide[2];
      } else {
        for (int i = 0; i < count; ++i) {
          const int64_t one = at + i * s.step[1];
          from[i] = i < there && one >= 0 && one < s.width ? first + i * s.step[1] * s.wide[2] : zeros;
        }
      }
      const float* w = weights + (ky * s.kernel[1] + kx) * features * channels;
      for (int64_t c = 0; c < s.channels; c += kLanes) {
        const Lanes mask = lanes(s.channels - c);
        Vector factors[features];
#pragma GCC unroll 4
        for (int f = 0; f < features; ++f) factors[f] = load(w + f * channels + c);
#pragma GCC unroll 8
        for (int i = 0; i < count; ++i) {
          const Vector value = load(from[i] + c, mask);
#pragma GCC unroll 4
          for (int f = 0; f < features; ++f) sums[i][f] = multiply_add(value, factors[f], sums[i][f]);
        }
      }
    }
  }
  for (int i = 0; i < there; ++i)
    for (int f = 0; f < features; ++f) narrow(sum_lanes(sums[i][f]), row + (x + i * s.part[1]) * s.narrow[2] + f);
}

template <int features, typename T>
void convolve_row(const Narrow& s, const T* wide, const T* zeros, const float* weights, int64_t number, T* result) {
  constexpr int count = kRegisters == 32 ? (features > 2 ? 4 : 8) : features > 3 ? 2 : features > 1 ? 4 : 8;
  const int64_t n = number / s.rows, y = number % s.rows;
  T* row = result + n * s.narrow[0] + y * s.narrow[1];
  for (int64_t phase = 0; phase < s.part[1]; ++phase)
    for (int64_t x = phase; x < s.columns; x += count * s.part[1])
      convolve_positions<count, features>(s, wide + n * s.wide[0], zeros, weights, y, x, row);
}

template <typename T>
void convolve_as(const Narrow& s, const T* wide, const T* weights, T* narrow, char* scratch, int threads) {
  const int64_t channels = padded(s);
  float *packed = reinterpret_cast<float*>(scratch), *to = packed;
  for (int64_t ky = 0; ky < s.kernel[0]; ++ky)
    for (int64_t kx = 0; kx < s.kernel[1]; ++kx)
      for (int64_t f = 0; f < s.features; ++f)
        for (int64_t c = 0; c < channels; ++c)
          *to++ = c < s.channels ? meshflow::wide(weights[ky * s.weights[0] + kx * s.weights[1] + c * s.weights[2] + f * s.weights[3]])
                                 : 0;
  T* zeros = reinterpret_cast<T*>(to);
  std::fill_n(reinterpret_cast<char*>(zeros), channels * sizeof(T), 0);
  in_parts(
      s.batch * s.rows,
      [&](int64_t number) {
        switch (s.features) {
          case 1: return convolve_row<1>(s, wide, zeros, packed, number, narrow);
          case 2: return convolve_row<2>(s, wide, zeros, packed, number, narrow);
          case 3: return convolve_row<3>(s, wide, zeros, packed, number, narrow);
          default: return convolve_row<4>(s, wide, zeros, packed, number, narrow);
        }
      },
      threads);
}

// Adds a row's products to the sums of one feature, `blocks` vectors of channels and a window's row from `first`.
template <int blocks, typename T>
void sum_row(const Narrow& s, const T* row, const T* numbers, int64_t c, int64_t first, float* sums, int64_t stride) {
  const int64_t count = std::min(kWindow / blocks, s.kernel[1] - first);
  Vector kept[kWindow];
  Lanes there[blocks];
  for (int b = 0; b < blocks; ++b) there[b] = lanes(s.channels - c - b * kLanes);
  for (int64_t k = 0; k < count; ++k)
    for (int b = 0; b < blocks; ++b) kept[k * blocks + b] = load(sums + k * stride + b * kLanes);
  const int64_t shift = s.tap[1] * s.wide[2], step = s.step[1] * s.wide[2];
  row += (s.offset[1] + first * s.tap[1]) * s.wide[2] + c;
  auto add = [&](const T* from, int64_t k, Vector number) {
#pragma GCC unroll 2
    for (int b = 0; b < blocks; ++b)
      kept[k * blocks + b] = multiply_add(load(from + k * shift + b * kLanes, there[b]), number, kept[k * blocks + b]);
  };
  // All positions of the window are inside of the image from `begin` to `end`.
  const int64_t low = s.offset[1] + first * s.tap[1], high = low + (count - 1) * s.tap[1];
  const int64_t begin = std::min(low < 0 ? up(-low, s.step[1]) : 0, s.columns);
  const int64_t end = std::max(begin, std::min(s.columns, s.width > high ? (s.width - 1 - high) / s.step[1] + 1 : 0));
  auto inside = [&](auto fixed) {
    for (int64_t x = begin; x < end; ++x) {
      const Vector number = constant(wide(numbers[x * s.narrow[2]]));
#pragma GCC unroll 16
      for (int64_t k = 0; k < (fixed.value ? fixed.value : count); ++k) add(row + x * step, k, number);
    }
  };
  switch (count) {
    case 1: inside(std::integral_constant<int64_t, 1>()); break;
    case 2: inside(std::integral_constant<int64_t, 2>()); break;
    case 3: inside(std::integral_constant<int64_t, 3>()); break;
    case 4: inside(std::integral_constant<int64_t, 4>()); break;
    case 5: inside(std::integral_constant<int64_t, 5>()); break;
    case 7: inside(std::integral_constant<int64_t, 7>()); break;
    default: inside(std::integral_constant<int64_t, 0>());
  }
  for (int64_t x = 0; x < s.columns; x = x + 1 == begin ? std::max(end, x + 1) : x + 1) {
    if (x >= begin && x < end) continue;
    const Vector number = constant(wide(numbers[x * s.narrow[2]]));
    for (int64_t k = 0; k < count; ++k)
      if (position(s, 1, x, first + k) >= 0) add(row + x * step, k, number);
  }
  for (int64_t k = 0; k < count; ++k)
    for (int b = 0; b < blocks; ++b) store(sums + k * stride + b * kLanes, kept[k * blocks + b]);
}

template <typename T>
void differentiate_as(const Narrow& s, const T* wide, const T* narrow, T* weights, char* scratch, int threads) {
  const int64_t channels = padded(s), size = taps(s) * s.features * channels, rows = s.batch * s.rows;
  const int64_t tasks = std::min(kTasks, rows);
  float* sums = reinterpret_cast<float*>(scratch);
  in_parts(
      tasks,
      [&](int64_t task) {
        float* own = sums + task * size;
        std::fill_n(own, size, 0.0f);
        for (int64_t number = rows * task / tasks; number < rows * (task + 1) / tasks; ++number) {
          const int64_t n = number / s.rows, y = number % s.rows;
          for (int64_t ky = 0; ky < s.kernel[0]; ++ky) {
            const int64_t from_y = position(s, 0, y, ky);
            if (from_y < 0) continue;
            const T* row = wide + n * s.wide[0] + from_y * s.wide[1];
            for (int64_t f = 0; f < s.features; ++f) {
              const T* numbers = narrow + n * s.narrow[0] + y * s.narrow[1] + f;
              for (int64_t c = 0; c < s.channels;) {
                const bool two = c + kLanes < s.channels;
                const int64_t window = two ? kWindow / 2 : kWindow;
                for (int64_t first = 0; first < s.kernel[1]; first += window) {
                  float* to = own + ((ky * s.kernel[1] + first) * s.features + f) * channels + c;
                  two ? sum_row<2>(s, row, numbers, c, first, to, s.features * channels)
                      : sum_row<1>(s, row, numbers, c, first, to, s.features * channels);
                }
                c += two ? 2 * kLanes : kLanes;
              }
            }
          }
        }
      },
      threads);
  for (int64_t task = 1; task < tasks; ++task)
    for (int64_t i = 0; i < size; i += kLanes)
      store(sums + i, load(sums + i) + load(sums + task * size + i));
  for (int64_t k = 0; k < taps(s); ++k)
    for (int64_t f = 0; f < s.features; ++f)
      for (int64_t c = 0; c < s.channels; ++c)
        meshflow::narrow(sums[(k * s.features + f) * channels + c],
                         weights + k / s.kernel[1] * s.weights[0] + k % s.kernel[1] * s.weights[1] + c * s.weights[2] +
                             f * s.weights[3]);
}

bool suits(const Narrow& s) {
  // With one position, oneDNN is as fast.
  return s.features <= 4 && s.channels >= kLanes && taps(s) > 1;
}

size_t scratch_bytes(const Narrow& s) { return (taps(s) * s.features + 1) * padded(s) * sizeof(float); }

size_t gradient_scratch_bytes(const Narrow& s) {
  return std::min(kTasks, s.batch * s.rows) * taps(s) * s.features * padded(s) * sizeof(float);
}

void convolve(const Narrow& s, const void* wide, const void* weights, void* narrow, char* scratch, int threads) {
  auto as = [&](auto type) {
    using T = decltype(type);
    convolve_as(s, static_cast<const T*>(wide), static_cast<const T*>(weights), static_cast<T*>(narrow), scratch, threads);
  };
  s.halves ? as(bfloat16()) : as(float());
}

void differentiate(const Narrow& s, const void* wide, const void* narrow, void* weights, char* scratch, int threads) {
  auto as = [&](auto type) {
    using T = decltype(type);
    differentiate_as(s, static_cast<const T*>(wide), static_cast<const T*>(narrow), static_cast<T*>(weights), scratch, threads);
  };
  s.halves ? as(bfloat16()) : as(float());
}
