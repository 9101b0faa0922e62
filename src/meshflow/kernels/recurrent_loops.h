// Loops of recurrent layers for one instruction set. recurrent.cc includes this file in a namespace for each, with
// these macros: TARGET (attribute of functions), WIDTH (elements of a vector), REGISTERS (number of vector
// registers), PAIRS (1 if products of bfloat16 pairs are an instruction, 2 if matrix tiles compute them).
//
// A step multiplies a tile of states by the weights of all gates of one vector of units, so that gates and states
// follow directly from the tile. Every element is computed in the same order for any number of threads.

typedef float Vector __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t Bits __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t Halves __attribute__((vector_size(WIDTH * 2)));

TARGET INLINE Vector fill(float value) { return value - Vector{}; }

// Loads and stores of the first n elements.
TARGET INLINE Vector load(const float* from, int64_t n = WIDTH) {
  Vector v = {};
  if (n == WIDTH) std::memcpy(&v, from, sizeof v);
  else for (int64_t i = 0; i < n; ++i) v[i] = from[i];
  return v;
}
TARGET INLINE Vector load(const bfloat16* from, int64_t n = WIDTH) {
  Halves h = {};
  if (n == WIDTH) std::memcpy(&h, from, sizeof h);
  else for (int64_t i = 0; i < n; ++i) h[i] = from[i].bits;
  return (Vector)(__builtin_convertvector(h, Bits) << 16);
}
TARGET INLINE Halves round_to_halves(Vector v) {
  Bits bits = (Bits)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(v != v ? (bits >> 16) | 0x40 : rounded, Halves);
}
TARGET INLINE void store(float* to, Vector v, int64_t n = WIDTH) {
  if (n == WIDTH) std::memcpy(to, &v, sizeof v);
  else for (int64_t i = 0; i < n; ++i) to[i] = v[i];
}
TARGET INLINE void store(bfloat16* to, Vector v, int64_t n = WIDTH) {
  Halves h = round_to_halves(v);
  if (n == WIDTH) std::memcpy(to, &h, sizeof h);
  else for (int64_t i = 0; i < n; ++i) to[i].bits = h[i];
}

// 2^n and e^x / 2^n - 1, for |x| <= 88. NaN remains NaN.
struct Exponential {
  Vector power, rest;
};
TARGET INLINE Exponential exponential(Vector x) {
  const Vector round = fill(12582912.0f);
  Vector shifted = x * 1.44269504f + round, n = shifted - round;
  Vector r = x - n * 0.693145752f - n * 1.42860677e-6f;
  // The polynomial with the smallest maximum error, 3e-9, for |r| <= log(2) / 2.
  Vector p = fill(1.39517221e-3f);
  p = p * r + 8.36960133e-3f;
  p = p * r + 4.16661873e-2f;
  p = p * r + 1.66665122e-1f;
  p = p * r + 0.5f;
  return {(Vector)(((Bits)shifted + 127) << 23), p * r * r + r};
}
TARGET INLINE Vector clamp(Vector x, float limit) {
  const Vector low = fill(-limit), high = fill(limit);
  // These instructions return their second operand if it is NaN.
#if defined(MESHFLOW_PORTABLE) || WIDTH == 4
  x = low > x ? low : x;
  return high < x ? high : x;
#elif WIDTH == 8
  return (Vector)_mm256_min_ps((__m256)high, _mm256_max_ps((__m256)low, (__m256)x));
#else
  return (Vector)_mm512_min_ps((__m512)high, _mm512_max_ps((__m512)low, (__m512)x));
#endif
}
TARGET INLINE Vector sigmoid(Vector x) {
  Exponential e = exponential(clamp(-x, 87.0f));
  return 1.0f / (1.0f + (e.rest * e.power + e.power));
}
TARGET INLINE Vector hyperbolic_tangent(Vector x) {
  Exponential e = exponential(clamp(x + x, 40.0f));
  Vector minus_one = e.rest * e.power + (e.power - 1.0f);  // e^2x - 1 without cancellation
  return minus_one / (minus_one + 2.0f);
}

// Operands of products: pairs of bfloat16, or floats that are rounded to the arrays' type.
#if PAIRS
template <typename T> using Part = bfloat16;
#else
template <typename T> using Part = float;
#endif
template <typename T>
TARGET INLINE void store_part(Part<T>* to, Vector v) {
  if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Part<T>, float>)
    v = (Vector)(__builtin_convertvector(round_to_halves(v), Bits) << 16);
  store(to, v);
}
TARGET INLINE void narrow_part(float value, float* to) { *to = value; }
TARGET INLINE void narrow_part(float value, bfloat16* to) { narrow(value, to); }

// Rows of a tile of a product, and the multiple of elements that are summed.
template <int vectors>
constexpr int kTileRows = PAIRS == 2 ? kTileSide : std::min(8, (REGISTERS - vectors - 2) / vectors);
constexpr int64_t kDepth = PAIRS == 2 ? 2 * kTileSide : 2, kRowUnit = std::max<int64_t>(WIDTH, kDepth);

// A tile of a product: rows x k of `a` with k x (vectors * WIDTH) of packed `b`.
template <int vectors, int rows>
TARGET INLINE void multiply_tile(const float* a, int64_t stride, const float* b, int64_t k, float* to) {
  Vector sums[rows][vectors] = {};
  for (int64_t p = 0; p < k; ++p, b += vectors * WIDTH) {
    Vector right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * WIDTH);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      Vector left = fill(a[r * stride + p]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(to + (r * vectors + v) * WIDTH, sums[r][v]);
}
#if PAIRS
template <int vectors, int rows>
TARGET INLINE void multiply_tile(const bfloat16* a, int64_t stride, const bfloat16* b, int64_t k, float* to) {
  if constexpr (PAIRS == 2)
    return multiply_on_tiles(a, stride / 2, b, vectors * WIDTH, k / 2, to, vectors * WIDTH, vectors, false);
  __m512 sums[rows][vectors] = {};
  for (int64_t p = 0; p < k; p += 2, b += 2 * vectors * WIDTH) {
    __m512bh right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + 2 * v * WIDTH);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * stride + p, sizeof pair);
      __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(to + (r * vectors + v) * WIDTH, (Vector)sums[r][v]);
}
#endif

template <int vectors, int rows = kTileRows<vectors>, typename P>
TARGET void multiply(const P* a, int64_t stride, const P* b, int64_t k, float* to, int64_t count) {
  // Matrix tiles also compute the rows after the last.
  if constexpr (rows > 1 && PAIRS != 2)
    if (count < rows) return multiply<vectors, rows - 1>(a, stride, b, k, to, count);
  multiply_tile<vectors, rows>(a, stride, b, k, to);
}

// Packs `vectors` gates of one vector of units, for products with states or inputs: a matrix [rows, gates * units].
template <typename T>
TARGET void pack_gates(const T* from, int64_t rows, int64_t units, int64_t row_size, int64_t n, int64_t k, int64_t vectors, Part<T>* to) {
  auto read = [&](int64_t row, int64_t v) LAMBDA { return row < rows ? load(from + row * row_size + v * units, n) : fill(0); };
  if constexpr (sizeof(Part<T>) == 2) {
    for (int64_t p = 0; p < k; p += 2)
      for (int64_t v = 0; v < vectors; ++v, to += 2 * WIDTH) {
        Bits pairs = ((Bits)read(p, v) >> 16) | (Bits)read(p + 1, v);
        std::memcpy(to, &pairs, sizeof pairs);
      }
  } else {
    for (int64_t p = 0; p < k; ++p)
      for (int64_t v = 0; v < vectors; ++v, to += WIDTH) store(to, read(p, v));
  }
}

// Packs `vectors` vectors of units for products with gradients of `gates` gates: columns of the transposed matrix.
template <typename T>
TARGET void pack_units(const T* from, int64_t units, int64_t row_size, int64_t count, int64_t width, int64_t gates, int64_t vectors, Part<T>* to) {
  constexpr int64_t pair = sizeof(Part<T>) == 2 ? 2 : 1;
  std::memset(to, 0, gates * width * vectors * WIDTH * sizeof *to);
  for (int64_t column = 0; column < count; ++column)
    for (int64_t g = 0; g < gates; ++g)
      for (int64_t u = 0; u < units; ++u)
        narrow_part(wide(from[column * row_size + g * units + u]),
                    to + (((g * width + u) / pair * vectors * WIDTH) + column) * pair + (g * width + u) % pair);
}

// As `multiply`, for a number of vectors that varies.
template <typename P>
TARGET void multiply_group(int64_t vectors, const P* a, int64_t stride, const P* b, int64_t k, float* to, int64_t count) {
  constexpr int rows = kTileRows<kGroup>;
  if (vectors == 4) return multiply<4, rows>(a, stride, b, k, to, count);
  if (vectors == 3) return multiply<3, rows>(a, stride, b, k, to, count);
  if (vectors == 2) return multiply<2, rows>(a, stride, b, k, to, count);
  multiply<1, rows>(a, stride, b, k, to, count);
}

TARGET INLINE int64_t round_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor * divisor; }

// Addresses in the shared memory; `count_recurrent_bytes` is their sum. Rows have `width` elements, of which those
// after the units are zero.
template <typename T>
struct Layout {
  int64_t width, blocks, groups, inputs_width, inputs_k;
  Part<T>*weights, *input_weights, *operand[2], *product, *inputs[2];
  float *h, *c, *direct;
  int64_t* first;

  TARGET Layout(const RecurrentTask& p, char* memory) {
    width = round_up(p.units, kRowUnit), blocks = (p.units + WIDTH - 1) / WIDTH, groups = (blocks + kGroup - 1) / kGroup;
    auto take = [&](int64_t count) { float* at = reinterpret_cast<float*>(memory); memory += count * 4; return at; };
    weights = reinterpret_cast<Part<T>*>(take(p.gates * width * width));
    inputs_width = round_up(p.features, kRowUnit), inputs_k = round_up(p.features, kDepth);
    const int64_t batch = count_rows(p);
    input_weights = reinterpret_cast<Part<T>*>(take(p.gates * width * inputs_width));
    for (auto& part : inputs) part = reinterpret_cast<Part<T>*>(take(batch * inputs_width));
    for (auto& part : operand) part = reinterpret_cast<Part<T>*>(take(batch * p.gates * width));
    product = reinterpret_cast<Part<T>*>(take(batch * width));
    h = take(batch * width), c = take(batch * width), direct = take(batch * width);
    first = reinterpret_cast<int64_t*>(take(2 * p.batch));
  }
};

// Packs the recurrent weights for products with states or, for the gradient, with gradients of gates: every
// `threads`-th part of them. A GRU that resets states before their product has the candidate's weights apart.
template <typename T>
TARGET void pack_weights(const RecurrentTask& p, bool backward, int64_t thread, int64_t threads, char* memory) {
  const int64_t units = p.units, row_size = p.gates * units, k = round_up(units, kDepth), early = p.kind == kGruBefore ? 2 : p.gates;
  const T* recurrent = static_cast<const T*>(p.recurrent);
  Layout<T> to(p, memory);
  const int64_t width = to.width;
  if (!backward) {
    for (int64_t block = thread; block < to.blocks; block += threads) {
      const int64_t u = block * WIDTH, n = std::min<int64_t>(WIDTH, units - u);
      pack_gates(recurrent + u, units, units, row_size, n, k, early, to.weights + block * early * k * WIDTH);
      if (p.features)
        pack_gates(static_cast<const T*>(p.kernel) + u, p.features, units, row_size, n, to.inputs_k, early,
                   to.input_weights + block * early * to.inputs_k * WIDTH);
      if (early < p.gates)
        pack_gates(recurrent + 2 * units + u, units, units, row_size, n, k, 1, to.weights + (to.blocks * 2 + block) * k * WIDTH);
    }
    return;
  }
  for (int64_t group = thread; group < to.groups; group += threads) {
    const int64_t column = group * kGroup * WIDTH, count = std::min(kGroup * WIDTH, units - column);
    const int64_t vectors = std::min(kGroup, to.blocks - group * kGroup);
    const T* from = recurrent + column * row_size;
    pack_units(from, units, row_size, count, width, early, vectors, to.weights + early * width * column);
    if (early < p.gates)
      pack_units(from + early * units, units, row_size, count, width, 1, vectors, to.weights + (early * width + column) * width);
  }
}

// Calls use(column of the units, number of columns that exist) for the vectors of the thread's columns.
#define FOR_BLOCKS(block)                                                                                             \
  for (int64_t block = part.first_group * kGroup, u = block * WIDTH; block < part.last_group * kGroup && u < p.units; \
       ++block, u += WIDTH)

// Sets `first` to the first step of each example that is not masked.
template <typename T>
TARGET void find_first_steps(const RecurrentTask& p, const RecurrentPart& part, Layout<T>& to) {
  if (part.first_group != 0) return;
  for (int64_t b = part.first_row; b < part.last_row; ++b) {
    int64_t s = 0;
    while (p.mask && s < p.steps && !p.mask[p.row(b, p.reverse ? p.steps - 1 - s : s)]) ++s;
    to.first[b] = s;
  }
}

// Clears the elements of operands after the units that no vector of units covers.
template <typename T>
TARGET void clear_ends(const RecurrentTask& p, const RecurrentPart& part, Layout<T>& to, bool backward) {
  const int64_t end = round_up(p.units, WIDTH), bytes = (to.width - end) * sizeof(Part<T>), rows = backward ? p.gates : 1;
  if (bytes == 0 || part.first_group != 0) return;
  for (int64_t row = part.first_row * rows; row < part.last_row * rows; ++row) {
    for (auto* operand : to.operand) std::memset(operand + row * to.width + end, 0, bytes);
    if (!backward) std::memset(to.product + row * to.width + end, 0, bytes);
  }
}

// Copies the inputs of a step to rows without gaps.
template <typename T>
TARGET void read_inputs(const RecurrentTask& p, const RecurrentPart& part, Layout<T>& to, int64_t s) {
  if (!p.features || s == p.steps) return;
  for (int64_t b = part.first_row + part.member; b < part.last_row; b += part.threads) {
    const T* from = static_cast<const T*>(p.x) + p.row(b, p.reverse ? p.steps - 1 - s : s) * p.features;
    for (int64_t i = 0; i < to.inputs_width; i += WIDTH)
      store_part<T>(to.inputs[s % 2] + b * to.inputs_width + i, load(from + i, std::min<int64_t>(WIDTH, p.features - i)));
  }
}

template <typename T>
TARGET INLINE Vector read_keep(const RecurrentTask& p, int64_t b, int64_t u, int64_t n) {
  return p.keep ? load(static_cast<const T*>(p.keep) + b * p.units + u, n) : fill(1);
}

// Multiplies the thread's rows by packed columns, and calls each use(row, its sums) for the rows of a tile. Two
// short loops are faster than a long one, because the processor computes several of their iterations at once.
template <int max_rows, typename Multiply, typename P, typename... Uses>
TARGET INLINE void multiply_rows(const RecurrentPart& part, int64_t vectors, Multiply multiply, const P* a, int64_t stride,
                                 const P* b, int64_t k, Uses... uses) {
  alignas(64) float tile[kTileSide * kGroup * WIDTH];
  for (int64_t start = part.first_row; start < part.last_row; start += max_rows) {
    const int64_t count = std::min<int64_t>(max_rows, part.last_row - start);
    multiply(a + start * stride, stride, b, k, tile, count);
    auto visit = [&](auto use) LAMBDA {
      for (int64_t r = 0; r < count; ++r) use(start + r, tile + r * vectors * WIDTH);
    };
    (visit(uses), ...);
  }
}

template <int kind, typename T>
TARGET void forward_loop(const RecurrentTask& p, const RecurrentPart& part, char* memory) {
  constexpr int gates = kind == kSimple ? 1 : kind == kLstm ? 4 : 3;
  const int64_t units = p.units, row_size = gates * units;
  Layout<T> to(p, memory);
  const T *x = static_cast<const T*>(p.x), *bias = static_cast<const T*>(p.bias), *recurrent = static_cast<const T*>(p.recurrent);
  T *y = static_cast<T*>(p.y), *saved = static_cast<T*>(p.saved), *before = static_cast<T*>(p.before), *kept = static_cast<T*>(p.memory);
  const int64_t k = round_up(units, kDepth), stride = to.width;
  // A GRU that resets states before their product computes the candidate later.
  constexpr int early = kind == kGruBefore ? 2 : gates;

  const TileUse tiles(PAIRS == 2);
  find_first_steps(p, part, to);
  clear_ends(p, part, to, false);
  read_inputs(p, part, to, 0);
  for (int64_t b = part.first_row; b < part.last_row; ++b)
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * stride + u;
      const Vector h = load(static_cast<const T*>(p.h0) + b * units + u, n);
      store(to.h + at, h);
      if (kind == kLstm) store(to.c + at, load(static_cast<const T*>(p.c0) + b * units + u, n));
      store_part<T>(to.operand[0] + at, p.keep ? h * read_keep<T>(p, b, u, n) : h);
    }
  part.wait();

  for (int64_t s = 0; s < p.steps; ++s) {
    const int64_t t = p.reverse ? p.steps - 1 - s : s, ahead = p.reverse ? std::max<int64_t>(0, t - 1) : std::min(t + 1, p.steps - 1);
    const Part<T>* from = to.operand[s % 2];
    Part<T>* next = to.operand[(s + 1) % 2];
    read_inputs(p, part, to, s + 1);
    if constexpr (kind == kGruBefore) {
      // Update gates replace `direct`, reset states are the operand of the candidate.
      FOR_BLOCKS(block) {
        const int64_t n = std::min<int64_t>(WIDTH, units - u);
        multiply_rows<kTileRows<2>>(part, 2, multiply<2, kTileRows<2>, Part<T>>, from, stride, to.weights + block * 2 * k * WIDTH, k, [&](int64_t b, float* sum) LAMBDA {
          const int64_t row = p.row(b, t), at = b * stride + u;
          Vector in[2];
          for (int g = 0; g < 2; ++g) {
            in[g] = load(x + row * row_size + g * units + u, n) + load(sum + g * WIDTH);
            if (bias) in[g] += load(bias + g * units + u, n);
            in[g] = sigmoid(in[g]);
          }
          store(to.direct + at, in[0]);
          store_part<T>(to.product + at, in[1] * load(to.h + at) * read_keep<T>(p, b, u, n));
          if (saved) store(saved + row * row_size + u, in[0], n), store(saved + row * row_size + units + u, in[1], n);
        });
      }
      part.wait();
      from = to.product;
    }
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u);
      constexpr int vectors = kind == kGruBefore ? 1 : gates;
      const Part<T>* weights = to.weights + (kind == kGruBefore ? to.blocks * 2 + block : block * vectors) * k * WIDTH;
      Vector offsets[gates], inner_offset = fill(0);
      for (int g = 0; g < gates; ++g) offsets[g] = bias ? load(bias + g * units + u, n) : fill(0);
      if (kind == kGru && bias) {
        for (int g = 0; g < 2; ++g) offsets[g] += load(bias + row_size + g * units + u, n);
        inner_offset = load(bias + row_size + 2 * units + u, n);
      }
      alignas(64) float inputs[kTileSide * kGroup * WIDTH];
      auto product = [&](const Part<T>* a, int64_t a_stride, const Part<T>* b, int64_t length, float* tile, int64_t count) LAMBDA {
        multiply<vectors>(a, a_stride, b, length, tile, count);
        if (p.features)
          multiply<vectors>(to.inputs[s % 2] + (a - from) / a_stride * to.inputs_width, to.inputs_width,
                            to.input_weights + block * vectors * to.inputs_k * WIDTH, to.inputs_k, inputs, count);
      };
      multiply_rows<kTileRows<vectors>>(part, vectors, product, from, stride, weights, k, [&](int64_t b, float* sum) LAMBDA {
        const int64_t row = p.row(b, t), at = b * stride + u;
        const T* in = x + row * row_size + u;
        // The next step's row is far away in arrays [batch, time].
        if (!p.features)
          for (int g = 0; g < gates; ++g) __builtin_prefetch(x + p.row(b, ahead) * row_size + g * units + u);
        auto input = [&](int g) LAMBDA {
          return p.features ? load(inputs + ((b - part.first_row) % kTileRows<vectors> * vectors + g) * WIDTH) : load(in + g * units, n);
        };
        auto gate = [&](int g, int v) LAMBDA { return input(g) + offsets[g] + load(sum + v * WIDTH); };
        auto save = [&](int g, Vector value) LAMBDA { if (saved) store(saved + row * row_size + g * units + u, value, n); };
        auto save_memory = [&](Vector value) LAMBDA { if (kept) store(kept + row * units + u, value, n); };
        if constexpr (kind == kSimple) {
          store(sum, gate(0, 0));
        } else if constexpr (kind == kLstm) {
          const Vector in_gate = sigmoid(gate(0, 0)), forget = sigmoid(gate(1, 1)), candidate = hyperbolic_tangent(gate(2, 2)), output = sigmoid(gate(3, 3));
          const Vector c = load(to.c + at);
          save(0, in_gate), save(1, forget), save(2, candidate), save(3, output), save_memory(c);
          store(sum, output), store(sum + WIDTH, forget * c + in_gate * candidate);
        } else if constexpr (kind == kGru) {
          const Vector update = sigmoid(gate(0, 0)), reset = sigmoid(gate(1, 1)), inner = load(sum + 2 * WIDTH) + inner_offset;
          save(0, update), save(1, reset), save_memory(inner);
          store(sum, update), store(sum + WIDTH, input(2) + offsets[2] + reset * inner);
        } else {
          store(sum, gate(2, 0));
        }
      }, [&](int64_t b, float* sum) LAMBDA {
        const int64_t row = p.row(b, t), at = b * stride + u;
        const bool is_kept = !p.mask || p.mask[row];
        const Vector old = load(to.h + at);
        auto save = [&](int g, Vector value) LAMBDA { if (saved) store(saved + row * row_size + g * units + u, value, n); };
        Vector h;
        if constexpr (kind == kSimple) {
          h = hyperbolic_tangent(load(sum));
          save(0, h);
        } else if constexpr (kind == kLstm) {
          const Vector new_c = load(sum + WIDTH);
          h = load(sum) * hyperbolic_tangent(new_c);
          if (is_kept) store(to.c + at, new_c);
        } else {
          const Vector update = kind == kGru ? load(sum) : load(to.direct + at);
          const Vector candidate = hyperbolic_tangent(load(kind == kGru ? sum + WIDTH : sum));
          h = update * old + (1.0f - update) * candidate;
          save(2, candidate);
        }
        if (before) store(before + row * units + u, old, n);
        if (!is_kept) h = old;
        const Vector result = is_kept || !(p.zeroes || s < to.first[b]) ? h : fill(0);
        if (p.sequences) store(y + p.row(b, s) * units + u, result, n);
        else if (s + 1 == p.steps) store(y + b * units + u, result, n);
        store(to.h + at, h);
        store_part<T>(next + at, p.keep ? h * read_keep<T>(p, b, u, n) : h);
      });
    }
    part.wait();
  }
  for (int64_t b = part.first_row; b < part.last_row; ++b)
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * stride + u;
      store(static_cast<T*>(p.h) + b * units + u, load(to.h + at), n);
      if (kind == kLstm) store(static_cast<T*>(p.c) + b * units + u, load(to.c + at), n);
    }
}

template <int kind, typename T>
TARGET void backward_loop(const RecurrentTask& p, const RecurrentPart& part, char* memory) {
  constexpr int gates = kind == kSimple ? 1 : kind == kLstm ? 4 : 3;
  const int64_t units = p.units, row_size = gates * units;
  Layout<T> to(p, memory);
  const T *recurrent = static_cast<const T*>(p.recurrent), *dy = static_cast<const T*>(p.dy);
  const T *saved = static_cast<const T*>(p.saved), *before = static_cast<const T*>(p.before), *kept = static_cast<const T*>(p.memory);
  T *dx = static_cast<T*>(p.dx), *inner = static_cast<T*>(p.inner);
  const int64_t width = to.width, stride = gates * width;
  // A GRU that resets states before their product multiplies the candidate's gradient first.
  constexpr int late = kind == kGruBefore ? 2 : gates;

  const TileUse tiles(PAIRS == 2);
  find_first_steps(p, part, to);
  clear_ends(p, part, to, true);
  for (int64_t b = part.first_row; b < part.last_row; ++b)
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * width + u;
      store(to.h + at, load(static_cast<const T*>(p.dh) + b * units + u, n));
      if (kind == kLstm) store(to.c + at, load(static_cast<const T*>(p.dc) + b * units + u, n));
    }
  part.wait();

  for (int64_t s = p.steps - 1; s >= 0; --s) {
    const int64_t t = p.reverse ? p.steps - 1 - s : s, ahead = p.reverse ? std::min(t + 1, p.steps - 1) : std::max<int64_t>(0, t - 1);
    Part<T>* slopes = to.operand[s % 2];
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u);
      for (int64_t b = part.first_row; b < part.last_row; ++b) {
        const int64_t row = p.row(b, t), at = b * width + u, later = p.row(b, ahead);
        for (int g = 0; g < gates; ++g) __builtin_prefetch(saved + later * row_size + g * units + u);
        if (kept) __builtin_prefetch(kept + later * units + u);
        auto emit = [&](int g, Vector value) LAMBDA {
          store_part<T>(slopes + b * stride + g * width + u, value);
          store(dx + row * row_size + g * units + u, value, n);
          if (kind == kGru && g < 2) store(inner + row * row_size + g * units + u, value, n);
        };
        auto gate = [&](int g) LAMBDA { return load(saved + row * row_size + g * units + u, n); };
        Vector dh = load(to.h + at), dout = fill(0);
        if (p.sequences) dout = load(dy + p.row(b, s) * units + u, n);
        else if (s + 1 == p.steps) dout = load(dy + b * units + u, n);
        if (p.mask && !p.mask[row]) {
          if (!(p.zeroes || s < to.first[b])) dh += dout;
          for (int g = 0; g < gates; ++g) emit(g, fill(0));
          if (kind == kGru) store(inner + row * row_size + 2 * units + u, fill(0), n);
          store(to.direct + at, dh);
          continue;
        }
        dh += dout;
        if constexpr (kind == kSimple) {
          const Vector output = gate(0);
          emit(0, dh * (1.0f - output * output));
          store(to.direct + at, fill(0));
        } else if constexpr (kind == kLstm) {
          const Vector input = gate(0), forget = gate(1), candidate = gate(2), output = gate(3), c = load(kept + row * units + u, n);
          const Vector tanh_c = hyperbolic_tangent(forget * c + input * candidate);
          const Vector dc = load(to.c + at) + dh * output * (1.0f - tanh_c * tanh_c);
          emit(0, dc * candidate * input * (1.0f - input));
          emit(1, dc * c * forget * (1.0f - forget));
          emit(2, dc * input * (1.0f - candidate * candidate));
          emit(3, dh * tanh_c * output * (1.0f - output));
          store(to.c + at, dc * forget);
          store(to.direct + at, fill(0));
        } else {
          const Vector update = gate(0), candidate = gate(2), old = load(before + row * units + u, n);
          const Vector slope = dh * (1.0f - update) * (1.0f - candidate * candidate);
          emit(0, dh * (old - candidate) * update * (1.0f - update));
          emit(2, slope);
          store(to.direct + at, dh * update);
          if constexpr (kind == kGru) {
            const Vector reset = gate(1);
            emit(1, slope * load(kept + row * units + u, n) * reset * (1.0f - reset));
            store_part<T>(slopes + b * stride + 2 * width + u, slope * reset);
            store(inner + row * row_size + 2 * units + u, slope * reset, n);
          }
        }
      }
    }
    part.wait();
    // Masked examples have no gradients of gates, so their products are zero.
#define FOR_GROUPS                                                                   \
  for (int64_t group = part.first_group, vectors = 0;                                \
       vectors = std::min(kGroup, to.blocks - group * kGroup), group < part.last_group; ++group)
#define FOR_VECTORS                                                                  \
  for (int64_t v = 0, u = group * kGroup * WIDTH; v < vectors; ++v, u += WIDTH)
    if constexpr (kind == kGruBefore) {
      FOR_GROUPS {
        auto product = [&](auto... operands) LAMBDA { multiply_group(vectors, operands...); };
        multiply_rows<kTileRows<kGroup>>(part, vectors, product, slopes + 2 * width, stride, to.weights + (late * width + group * kGroup * WIDTH) * width, width, [&](int64_t b, float* sum) LAMBDA {
          const int64_t row = p.row(b, t);
          const bool is_kept = !p.mask || p.mask[row];
          FOR_VECTORS {
            const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * width + u;
            const Vector keep = read_keep<T>(p, b, u, n), reset = load(saved + row * row_size + units + u, n);
            const Vector made = load(sum + v * WIDTH), old = load(before + row * units + u, n) * keep;
            const Vector slope = is_kept ? made * old * reset * (1.0f - reset) : fill(0);
            store_part<T>(slopes + b * stride + width + u, slope);
            store(dx + row * row_size + units + u, slope, n);
            if (is_kept) store(to.direct + at, load(to.direct + at) + made * reset * keep);
          }
        });
      }
      part.wait();
    }
    FOR_GROUPS {
      auto product = [&](auto... operands) LAMBDA { multiply_group(vectors, operands...); };
      multiply_rows<kTileRows<kGroup>>(part, vectors, product, slopes, stride, to.weights + late * width * group * kGroup * WIDTH, late * width, [&](int64_t b, float* sum) LAMBDA {
        const bool is_kept = !p.mask || p.mask[p.row(b, t)];
        FOR_VECTORS {
          const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * width + u;
          const Vector made = p.keep ? load(sum + v * WIDTH) * read_keep<T>(p, b, u, n) : load(sum + v * WIDTH);
          store(to.h + at, is_kept ? load(to.direct + at) + made : load(to.direct + at));
        }
      });
    }
#undef FOR_GROUPS
#undef FOR_VECTORS
  }
  for (int64_t b = part.first_row; b < part.last_row; ++b)
    FOR_BLOCKS(block) {
      const int64_t n = std::min<int64_t>(WIDTH, units - u), at = b * width + u;
      store(static_cast<T*>(p.dh0) + b * units + u, load(to.h + at), n);
      if (kind == kLstm) store(static_cast<T*>(p.dc0) + b * units + u, load(to.c + at), n);
    }
}

#undef FOR_BLOCKS

template <typename T>
inline RecurrentLoops choose(int64_t kind) {
  constexpr RecurrentLoops table[kNumKinds] = {
      {WIDTH, kRowUnit, pack_weights<T>, forward_loop<kSimple, T>, backward_loop<kSimple, T>},
      {WIDTH, kRowUnit, pack_weights<T>, forward_loop<kLstm, T>, backward_loop<kLstm, T>},
      {WIDTH, kRowUnit, pack_weights<T>, forward_loop<kGru, T>, backward_loop<kGru, T>},
      {WIDTH, kRowUnit, pack_weights<T>, forward_loop<kGruBefore, T>, backward_loop<kGruBefore, T>},
  };
  return table[kind];
}
