// Attention in tiles for the namespace of an instruction set (every_width.h).

// Products: C[rows, vectors] (+)= A B for units; `a` has strides of rows and of steps of the sum.
#define DEFINE_PRODUCT(Name, attributes, multiply)                                                                  \
  struct Name {                                                                                                     \
    template <int rows, int vectors>                                                                                \
    attributes static void tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step,      \
                                float* c, int64_t c_row, int64_t depth, bool add) {                                 \
      Vector sums[rows][vectors];                                                                                   \
      _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i)                                                        \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) sums[i][j] =                                    \
          add ? load(c + i * c_row + j * kLanes) : Vector{};                                                        \
      for (int64_t p = 0; p < depth; ++p, a += a_step, b += b_step) {                                               \
        Vector right[vectors];                                                                                      \
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) right[j] = load(b + j * kLanes);                  \
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i) {                                                    \
          Vector left = constant(a[i * a_row]);                                                                     \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) sums[i][j] = multiply(left, right[j], sums[i][j]); \
        }                                                                                                           \
      }                                                                                                             \
      _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i)                                                        \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) store(c + i * c_row + j * kLanes, sums[i][j]);  \
    }                                                                                                               \
  };
DEFINE_PRODUCT(FloatProduct, , multiply_add)
#if LANES == 16
#define MULTIPLY_PAIRS(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
DEFINE_PRODUCT(PairProduct, FOR_PAIRS, MULTIPLY_PAIRS)
#undef MULTIPLY_PAIRS
#else
using PairProduct = FloatProduct;  // not used
#endif
#undef DEFINE_PRODUCT

// Columns of a packed panel: as many vectors as six rows of sums leave registers for.
constexpr int64_t kMaxVectors = kRegisters == 32 ? 4 : 2, kPanel = kMaxVectors * kLanes;

using Tile = void (*)(const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t, int64_t, bool);

template <typename Product, int rows>
constexpr Tile kOfRows[4] = {Product::template tile<rows, 1>, Product::template tile<rows, 2>,
                             Product::template tile<rows, std::min<int>(kMaxVectors, 3)>,
                             Product::template tile<rows, std::min<int>(kMaxVectors, 4)>};
template <typename Product>
constexpr const Tile* kTiles[6] = {kOfRows<Product, 1>, kOfRows<Product, 2>, kOfRows<Product, 3>,
                                   kOfRows<Product, 4>, kOfRows<Product, 5>, kOfRows<Product, 6>};

struct Left {
  const float* units;
  int64_t row, step;
};
// Panels of columns: distance of panels, and of steps of the sum.
struct Right {
  const float* units;
  int64_t panel, step;
};

// C[rows, columns] (+)= A B; `columns` is a multiple of kLanes.
template <typename Product>
void multiply(Left a, Right b, float* c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth, bool add) {
  // The part of the rows and of the depth that matrix tiles compute.
  int64_t whole = 0, deep = 0;
  if (std::is_same_v<Product, PairProduct> && !std::is_same_v<Product, FloatProduct> && a.step == 1 && can_multiply_tiles()) {
    deep = depth / kTileSide * kTileSide;
    whole = deep ? rows / kTileSide * kTileSide : 0;
  }
  for (int64_t n = 0; n < columns; n += kPanel, b.units += b.panel) {
    int64_t vectors = std::min(kPanel, columns - n) / kLanes;
    for (int64_t m = 0; m < whole; m += kTileSide)
      multiply_on_tiles(a.units + m * a.row, a.row, b.units, b.step, deep, c + m * c_row + n, c_row, vectors, add);
    for (int64_t m = 0, count; m < rows; m += count) {
      const int64_t done = m < whole ? deep : 0;
      count = std::min<int64_t>(6, (done ? whole : rows) - m);
      if (done < depth)
        kTiles<Product>[count - 1][vectors - 1](a.units + m * a.row + done * a.step, a.row, a.step, b.units + done * b.step, b.step,
                                                c + m * c_row + n, c_row, depth - done, add || done);
    }
  }
}

// Rounds to bfloat16 as the instructions that multiply pairs read it: numbers below the normal ones are zero.
INLINE auto round_for_pairs(Vector value) {
#if LANES == 16
  __m256i halves;
  // The instruction is a part of AVX512-BF16, which only PairProduct is compiled for.
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value));
  return halves;
#else
  return round_to_halves(value);
#endif
}

// Joins halves to pairs, the even ones in the lower bits.
template <typename Halves>
INLINE Vector join(Halves even, Halves odd) {
#if LANES == 16
  return (Vector)_mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
#else
  return (Vector)_mm256_or_si256(_mm256_cvtepu16_epi32(even), _mm256_slli_epi32(_mm256_cvtepu16_epi32(odd), 16));
#endif
}

// Copies between arrays of the caller and units. `T` is the caller's type.
template <typename T, bool pairs>
struct Packing {
  static int64_t units(int64_t n) { return pairs ? (n + 1) / 2 : n; }

  // Rows of units along the features: the left operand of scores.
  static void rows(const T* from, int64_t stride, int64_t count, int64_t size, float* to, int64_t to_row) {
    for (int64_t i = 0; i < count; ++i, from += stride, to += to_row) {
      if constexpr (pairs) {
        std::memcpy(to, from, size * 2);
        if (size & 1) reinterpret_cast<uint16_t*>(to)[size] = 0;
      } else {
        for (int64_t j = 0; j < size; j += kLanes) {
          const Lanes there = lanes(size - j);
          store(to + j, there, load(from + j, there));
        }
      }
    }
  }

  // Units along the rows, features padded to vectors: the right operand of sums over rows.
  static void columns(const T* from, int64_t stride, int64_t count, int64_t size, float* to, int64_t width) {
    for (int64_t i = 0; i < count; i += pairs ? 2 : 1, from += (pairs ? 2 : 1) * stride, to += width) {
      for (int64_t j = 0; j < width; j += kLanes) {
        const Lanes there = lanes(size - j);
        if constexpr (pairs) {
          auto even = load_halves(from + j, there), odd = decltype(even){};
          if (i + 1 < count) odd = load_halves(from + stride + j, there);
          store(to + j, join(even, odd));
        } else {
          store(to + j, load(from + j, there));
        }
      }
    }
  }

  // Transposes rows of units to panels [units][kPanel]; missing columns are 0.
  static void transpose(const float* from, int64_t row, int64_t count, int64_t units, float* to) {
    for (int64_t c = 0; c < up(count, kPanel); c += kLanes) {
      const Lanes there = lanes(count - c);
      float* panel = to + c / kPanel * kPanel * units + c % kPanel;
      for (int64_t p = 0; p < units; ++p) store(panel + p * kPanel, gather(from + c * row + p, row, there));
    }
  }
};

// e^x with an error of about one unit in the last place, or of 5e-5 of the value for bfloat16; NaN stays NaN.
template <bool is_coarse = false>
INLINE Vector exponential(Vector x) {
  // Results below the normal numbers, such as weights of masked scores, are zero: processors need many cycles for them.
  const Lanes vanishes = is_less(x, constant(-87.0f));
  x = larger(constant(-104.0f), x);
  const Vector n = round_to_integer(x * constant(1.44269504f));
  Vector r = subtract_product(n, constant(0.693145752f), x);
  r = subtract_product(n, constant(1.42860677e-6f), r);
  Vector p = constant(4.16666679e-2f);
  if constexpr (!is_coarse) p = multiply_add(multiply_add(constant(1.38889054e-3f), r, constant(8.33333377e-3f)), r, p);
  p = multiply_add(p, r, constant(1.66666657e-1f));
  p = multiply_add(p, r, constant(0.5f));
  p = multiply_add(p, r, constant(1.0f));
  p = keep(~vanishes, multiply_add(p, r, constant(1.0f)));
  return scale_by_power(p, n);
}

// Words of the Philox generator with four words and ten rounds, in the order of their indices.
struct Random {
  uint64_t low, high, key;

#if LANES == 16
  using Words = __m512i;
  static Words fill(uint32_t x) { return _mm512_set1_epi32(x); }
  static Words read(const uint32_t* from) { return _mm512_loadu_si512(from); }
  // Blocks of the lanes, so that the words are in order after they are interleaved in each quarter.
  static Words number() { return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }
  static Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
  static Lanes is_at_least(Words a, Words b) { return _mm512_cmpge_epu32_mask(a, b); }
  static Words choose(Lanes first, Words a, Words b) { return _mm512_mask_blend_epi32(first, b, a); }
  static void multiply(Words x, uint32_t factor, Words* low, Words* high) {
    Words f = _mm512_set1_epi64(factor);
    Words even = _mm512_mul_epu32(x, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  }
  static void interleave(Words a, Words b, Words c, Words d, uint32_t* to) {
    Words ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    Words ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab, cd));
    _mm512_storeu_si512(to + 16, _mm512_unpackhi_epi64(ab, cd));
    _mm512_storeu_si512(to + 32, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(to + 48, _mm512_unpackhi_epi64(ab_high, cd_high));
  }
#else
  using Words = __m256i;
  static Words fill(uint32_t x) { return _mm256_set1_epi32(x); }
  static Words read(const uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  // Blocks of the lanes, so that the words are in order after they are interleaved in each half.
  static Words number() { return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); }
  static Words add(Words a, Words b) { return _mm256_add_epi32(a, b); }
  static Lanes is_at_least(Words a, Words b) { return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a); }
  static Words choose(Lanes first, Words a, Words b) { return _mm256_blendv_epi8(b, a, first); }
  static void multiply(Words x, uint32_t factor, Words* low, Words* high) {
    Words f = _mm256_set1_epi64x(factor);
    Words even = _mm256_mul_epu32(x, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), f);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  }
  static void interleave(Words a, Words b, Words c, Words d, uint32_t* to) {
    Words ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    Words ab_high = _mm256_unpackhi_epi32(a, b), cd_high = _mm256_unpackhi_epi32(c, d);
    auto at = [to](int i) { return reinterpret_cast<__m256i*>(to) + i; };
    _mm256_storeu_si256(at(0), _mm256_unpacklo_epi64(ab, cd));
    _mm256_storeu_si256(at(1), _mm256_unpackhi_epi64(ab, cd));
    _mm256_storeu_si256(at(2), _mm256_unpacklo_epi64(ab_high, cd_high));
    _mm256_storeu_si256(at(3), _mm256_unpackhi_epi64(ab_high, cd_high));
  }
#endif

  // The words of kLanes blocks, from block `first`.
  void blocks(uint64_t first, uint32_t* to) const {
    const uint64_t start = low + first, next = high + (start < low);
    const uint32_t lower = static_cast<uint32_t>(start), upper = start >> 32;
    Words a = add(fill(lower), number());
    // Lanes without a carry.
    const Lanes same = is_at_least(a, fill(lower));
    Words b = choose(same, fill(upper), fill(upper + 1));
    const bool wraps = upper == 0xffffffff;
    Words c = choose(wraps ? same : all_lanes(), fill(static_cast<uint32_t>(next)), fill(static_cast<uint32_t>(next + 1)));
    Words d = choose(wraps ? same : all_lanes(), fill(next >> 32), fill((next + 1) >> 32));
    uint32_t k0 = static_cast<uint32_t>(key), k1 = key >> 32;
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      Words left_low, left_high, right_low, right_high;
      multiply(a, 0xD2511F53, &left_low, &left_high);
      multiply(c, 0xCD9E8D57, &right_low, &right_high);
      a = right_high ^ b ^ fill(k0);
      c = left_high ^ d ^ fill(k1);
      b = right_low, d = left_low;
    }
    interleave(a, b, c, d, to);
  }
};

// The lanes of zero bytes; lanes that are not there may be any.
INLINE Lanes find_zeros(const uint8_t* from, Lanes there) {
#if LANES == 16
  return _mm_cmpeq_epi8_mask(_mm_maskz_loadu_epi8(there, from), _mm_setzero_si128());
#else
  uint64_t bytes = 0;
  std::memcpy(&bytes, from, __builtin_popcount(as_bits(there)));
  return _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)), _mm256_setzero_si256());
#endif
}

// Scores of a head: masks, bias and dropout of a row of a tile.
struct Head {
  const Sizes& s;
  int64_t batch, head;
  const float* bias;
  const uint8_t *mask, *queries;
  Random random;
  bool drops;

  Head(const Sizes& s, const Arrays& x, int64_t batch, int64_t head)
      : s(s), batch(batch), head(head), bias(x.bias), mask(x.mask), queries(x.queries), random{}, drops(x.key) {
    if (bias) bias += batch * s.bias[0] + head * s.bias[1];
    if (mask) mask += batch * s.mask[0] + head * s.mask[1];
    if (queries) queries += batch * s.queries;
    if (drops) random = {x.key[0], x.key[1], x.key[2]};
  }

  int64_t offset(int64_t query) const { return (batch * s.queries + query) * s.heads + head; }  // of a row
  int64_t index(int64_t query) const { return (batch * s.heads + head) * s.queries + query; }   // of its statistics

  // Whether causal attention masks all of a tile.
  bool hides(int64_t query, int64_t rows, int64_t key) const { return s.causal && key > query + rows - 1; }

  bool is_plain(int64_t query, int64_t key, int64_t count) const {
    return !bias && !mask && !queries && count == kKeys && !(s.causal && key + count - 1 > query);
  }

  // Scales and masks scores from `key`; lanes outside of `there` become minus infinity. Sets `hidden` to the
  // masked ones.
  INLINE Vector adjust(Vector x, int64_t query, int64_t key, Lanes there, Lanes* hidden) const {
    x = x * constant(s.scale);
    if (bias) x = x + load(bias + query * s.bias[2] + key, there);
    Lanes masked{}, later{};
    if (mask) masked = find_zeros(mask + query * s.mask[2] + key, there);
    if (queries && !queries[query]) masked = all_lanes();
    if (s.causal) later = ~lanes(query + 1 - key);
    const Vector fill = constant(s.fill);
    *hidden = masked | later;
    if (s.masking == kReplace) {
      x = choose(*hidden, fill, x);
    } else if (s.masking == kAdd) {
      x = choose(*hidden, x + fill, x);
    } else {
      x = choose(masked, x + fill, x);
      x = choose(later, x + fill, x);
    }
    return choose(there, x, constant(-std::numeric_limits<float>::infinity()));
  }

  // Bits for `count` keys of a query: which weights dropout keeps.
  void draw(int64_t query, int64_t key, int64_t count, Lanes* kept) const {
    uint64_t first = static_cast<uint64_t>(index(query)) * s.keys + key;
    uint32_t words[kKeys + 128];
    for (int64_t i = 0; i < static_cast<int64_t>(first & 3) + count; i += 4 * kLanes) random.blocks((first >> 2) + i / 4, words + i);
    for (int64_t i = 0; i < count; i += kLanes)
      kept[i / kLanes] = Random::is_at_least(Random::read(words + (first & 3) + i) & Random::fill(s.bits), Random::fill(s.threshold));
  }
};

template <typename T, bool pairs>
struct Forward {
  using Pack = Packing<T, pairs>;
  using Product = std::conditional_t<pairs, PairProduct, FloatProduct>;

  const Sizes& s;
  int64_t span, units, width;
  float *q, *rows, *k, *v, *scores, *sums, *high, *total;

  Forward(const Sizes& s, Memory memory, int64_t* needed = nullptr)
      : s(s), span(choose_span(s)), units(Pack::units(s.size)), width(up(s.values, kLanes)) {
    q = memory.take(span * units);
    rows = memory.take(kKeys * units);
    k = memory.take(kKeys * units);
    v = memory.take(Pack::units(kKeys) * width);
    scores = memory.take(kRows * kKeys);
    sums = memory.take(span * width);
    high = memory.take(span), total = memory.take(span);
    if (needed) *needed = memory.used();
  }

  // Updates the softmax of a tile's rows, and stores their weights in place of the scores.
  void weigh(const Head& head, int64_t query, int64_t local, int64_t rows, int64_t key, int64_t count) {
    bool plain = head.is_plain(query, key, count);
    int64_t vectors = (count + kLanes - 1) / kLanes;
    Vector scale = constant(s.scale);
    const float infinity = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows; ++i) {
      float* x = scores + i * kKeys;
      Vector most = constant(-infinity);
      Lanes hidden;
      // Rounded scores are stored: an exact product in the exponential below could exceed the maximum, and differ from the gradient's.
      for (int64_t j = 0; j < vectors; ++j) {
        Vector y = load(x + j * kLanes);
        y = plain ? y * scale
                  : head.adjust(y, query + i, key + j * kLanes, lanes(count - j * kLanes), &hidden);
        store(x + j * kLanes, y);
        most = larger(most, y);
      }
      float before = high[local + i], now = std::max(before, find_largest(most));
      float shift = now == -infinity ? 0 : now;
      Vector by = constant(shift), sum = Vector{};
      Lanes kept[kKeys / kLanes];
      if (head.drops) head.draw(query + i, key, count, kept);
      for (int64_t j = 0; j < vectors; ++j) {
        Vector p = exponential<pairs>(load(x + j * kLanes) - by);
        sum = sum + p;
        if (head.drops) p = keep(kept[j], p);
        if constexpr (pairs) {
          store_halves(reinterpret_cast<uint16_t*>(x) + j * kLanes, all_lanes(), round_for_pairs(p));
        } else {
          store(x + j * kLanes, p);
        }
      }
      float old = before == now ? 1 : exponential(constant(before - shift))[0];
      total[local + i] = total[local + i] * old + sum_lanes(sum);
      high[local + i] = now;
      if (old != 1) {
        float* to = sums + (local + i) * width;
        for (int64_t j = 0; j < width; j += kLanes)
          store(to + j, load(to + j) * constant(old));
      }
    }
  }

  void run(const Arrays& x, int64_t batch, int64_t n, int64_t first) {
    Head head(s, x, batch, n);
    const int64_t span = std::min(this->span, s.queries - first), stride = s.heads * s.size, v_stride = s.heads * s.values;
    auto of = [](const char* array, int64_t offset) { return reinterpret_cast<const T*>(array) + offset; };
    Pack::rows(of(x.q, head.offset(first) * s.size), stride, span, s.size, q, units);
    std::fill(sums, sums + span * width, 0.0f);
    std::fill(high, high + span, -std::numeric_limits<float>::infinity());
    std::fill(total, total + span, 0.0f);
    // The second pass adds the tiles after the diagonal to rows without a visible key.
    for (int pass = 0; pass < (s.causal ? 2 : 1); ++pass) {
      bool needed[kSpan / kRows];
      for (int64_t i = 0; i < span; i += kRows) {
        needed[i / kRows] = !pass;
        for (int64_t r = i; pass && r < std::min(i + kRows, span); ++r) needed[i / kRows] |= high[r] < s.fill / 2;
      }
      if (!std::any_of(needed, needed + (span + kRows - 1) / kRows, [](bool b) { return b; })) break;
      for (int64_t key = 0; key < s.keys; key += kKeys) {
        if (!pass && head.hides(first, span, key)) break;
        int64_t count = std::min(kKeys, s.keys - key), start = (batch * s.keys + key) * s.heads + n;
        Pack::rows(of(x.k, start * s.size), stride, count, s.size, rows, units);
        Pack::transpose(rows, units, count, units, k);
        Pack::columns(of(x.v, start * s.values), v_stride, count, s.values, v, width);
        for (int64_t i = 0; i < span; i += kRows) {
          int64_t height = std::min(kRows, span - i);
          if (!needed[i / kRows] || head.hides(first + i, height, key) != (pass == 1)) continue;
          multiply<Product>({q + i * units, units, 1}, {k, kPanel * units, kPanel}, scores, kKeys, height, kKeys, units, false);
          weigh(head, first + i, i, height, key, count);
          multiply<Product>({scores, kKeys, 1}, {v, kPanel, width}, sums + i * width, width, height, width,
                            Pack::units(count), true);
        }
      }
    }
    for (int64_t i = 0; i < span; ++i) {
      x.high[head.index(first + i)] = high[i];
      x.total[head.index(first + i)] = std::log(total[i]);
      T* to = reinterpret_cast<T*>(x.result[0]) + head.offset(first + i) * s.values;
      Vector by = constant(s.factor / total[i]);
      for (int64_t j = 0; j < s.values; j += kLanes)
        store(to + j, lanes(s.values - j), load(sums + i * width + j) * by);
    }
  }
};

template <typename T, bool pairs>
struct Backward {
  using Pack = Packing<T, pairs>;
  using Product = std::conditional_t<pairs, PairProduct, FloatProduct>;

  const Sizes& s;
  int64_t units, v_units, width, v_width;
  // Left and right operands of queries and gradients of values, their products, and gradients of queries.
  float *q, *q_right, *g, *g_right, *slope, *dq;
  bool* hidden;
  // Operands of a block of keys, a tile of weights and of gradients of scores, and gradients of keys and values.
  float *rows, *k, *k_right, *v, *weights, *scores, *transposed, *dk, *dv;

  Backward(const Sizes& s, Memory memory, int64_t* needed = nullptr)
      : s(s), units(Pack::units(s.size)), v_units(Pack::units(s.values)), width(up(s.size, kLanes)), v_width(up(s.values, kLanes)) {
    q_right = memory.take(Pack::units(s.queries) * width);
    g_right = memory.take(Pack::units(s.queries) * v_width);
    q = pairs ? memory.take(s.queries * units) : q_right;
    g = pairs ? memory.take(s.queries * v_units) : g_right;
    slope = memory.take(s.queries);
    dq = memory.take(s.queries * width);
    hidden = reinterpret_cast<bool*>(memory.take(s.queries / kRows + 1));
    rows = memory.take(kKeys * std::max(units, v_units));
    k = memory.take(kKeys * units), v = memory.take(kKeys * v_units);
    k_right = memory.take(Pack::units(kKeys) * width);
    weights = memory.take(kRows * kKeys), scores = memory.take(kRows * kKeys);
    transposed = pairs ? memory.take(kRows / 2 * kKeys) : nullptr;
    dk = memory.take(kKeys * width), dv = memory.take(kKeys * v_width);
    if (needed) *needed = memory.used();
  }

  // Computes the weights from the scores, and the gradients of the scores from those of the weights.
  void differentiate(const Head& head, const Arrays& x, int64_t query, int64_t rows, int64_t key, int64_t count) {
    bool plain = head.is_plain(query, key, count);
    int64_t vectors = (count + kLanes - 1) / kLanes;
    Vector scale = constant(s.scale), factor = constant(s.factor);
    for (int64_t i = 0; i < rows; ++i) {
      float *w = weights + i * kKeys, *ds = scores + i * kKeys;
      Vector high = constant(x.high[head.index(query + i)]), total = constant(x.total[head.index(query + i)]);
      Vector by = constant(slope[query + i]);
      Lanes kept[kKeys / kLanes], hidden{};
      if (head.drops) head.draw(query + i, key, count, kept);
      for (int64_t j = 0; j < vectors; ++j) {
        Vector y = load(w + j * kLanes), dy = load(ds + j * kLanes);
        y = plain ? y * scale
                  : head.adjust(y, query + i, key + j * kLanes, lanes(count - j * kLanes), &hidden);
        Vector p = exponential<pairs>(y - high - total), dropped = p;
        if (head.drops) {
          dropped = keep(kept[j], p * factor);
          dy = keep(kept[j], dy * factor);
        }
        dy = p * (dy - by) * scale;
        // Columns after the last key may be NaN.
        Lanes there = lanes(count - j * kLanes);
        if (s.masking == kReplace) there &= ~hidden;
        dy = keep(there, dy);
        store(w + j * kLanes, dropped);
        store(ds + j * kLanes, dy);
      }
    }
  }

  // Converts a tile to pairs along the queries, and transposes it: the rows are keys.
  static void pair_rows(const float* tile, int64_t rows, int64_t count, float* to) {
    for (int64_t i = 0; i < rows; i += 2 * kLanes)
      for (int64_t j = 0; j < count; j += kLanes) {
        Vector units[kLanes];
        for (int64_t r = 0; r < kLanes; ++r) {
          auto half = [&](int64_t row) { return round_for_pairs(row < rows ? load(tile + row * kKeys + j) : Vector{}); };
          units[r] = join(half(i + 2 * r), half(i + 2 * r + 1));
        }
        transpose(units);
        for (int64_t r = 0; r < kLanes; ++r) store(to + (j + r) * (kRows / 2) + i / 2, units[r]);
      }
  }

  // Converts a tile to pairs along the keys, in place.
  static void pair_columns(float* tile, int64_t rows, int64_t count) {
    for (int64_t i = 0; i < rows; ++i, tile += kKeys)
      for (int64_t j = 0; j < count; j += kLanes)
        store_halves(reinterpret_cast<uint16_t*>(tile) + j, all_lanes(), round_for_pairs(load(tile + j)));
  }

  static const T* as(const char* array, int64_t offset) { return reinterpret_cast<const T*>(array) + offset; }

  static void write(const float* from, int64_t from_row, int64_t rows, int64_t size, T* to, int64_t stride) {
    for (int64_t i = 0; i < rows; ++i, from += from_row, to += stride)
      for (int64_t j = 0; j < size; j += kLanes) store(to + j, lanes(size - j), load(from + j));
  }

  // Packs all queries of a head.
  void prepare(const Head& head, const Arrays& x) {
    const int64_t stride = s.heads * s.size, v_stride = s.heads * s.values;
    const T *queries = as(x.q, head.offset(0) * s.size), *gradient = as(x.gradient, head.offset(0) * s.values);
    const T* out = as(x.out, head.offset(0) * s.values);
    Pack::columns(queries, stride, s.queries, s.size, q_right, width);
    Pack::columns(gradient, v_stride, s.queries, s.values, g_right, v_width);
    if (pairs) {
      Pack::rows(queries, stride, s.queries, s.size, q, units);
      Pack::rows(gradient, v_stride, s.queries, s.values, g, v_units);
    }
    std::fill(dq, dq + s.queries * width, 0.0f);
    for (int64_t i = 0; i < s.queries; ++i) {
      Vector sum = Vector{};
      for (int64_t j = 0; j < s.values; j += kLanes) {
        const Lanes there = lanes(s.values - j);
        sum = multiply_add(load(gradient + i * v_stride + j, there), load(out + i * v_stride + j, there), sum);
      }
      slope[i] = sum_lanes(sum);
      if (i % kRows == 0) hidden[i / kRows] = false;
      hidden[i / kRows] |= x.high[head.index(i)] < s.fill / 2;
    }
  }

  // Computes gradients of keys from `begin` to `end` and of their values, and their part of those of the queries.
  void run(const Arrays& x, int64_t batch, int64_t n, int64_t begin, int64_t end, float* part) {
    Head head(s, x, batch, n);
    prepare(head, x);
    const int64_t stride = s.heads * s.size, v_stride = s.heads * s.values;
    const int64_t q_row = pairs ? units : width, g_row = pairs ? v_units : v_width, step = pairs ? 2 : 1;
    for (int64_t key = begin; key < end; key += kKeys) {
      int64_t count = std::min(kKeys, end - key), start = (batch * s.keys + key) * s.heads + n, columns = up(count, kLanes);
      const T *keys = as(x.k, start * s.size), *values = as(x.v, start * s.values);
      Pack::rows(keys, stride, count, s.size, rows, units);
      Pack::transpose(rows, units, count, units, k);
      Pack::columns(keys, stride, count, s.size, k_right, width);
      Pack::rows(values, v_stride, count, s.values, rows, v_units);
      Pack::transpose(rows, v_units, count, v_units, v);
      std::fill(dk, dk + kKeys * width, 0.0f);
      std::fill(dv, dv + kKeys * v_width, 0.0f);
      for (int64_t i = 0; i < s.queries; i += kRows) {
        int64_t height = std::min(kRows, s.queries - i);
        if (head.hides(i, height, key) && !hidden[i / kRows]) continue;
        multiply<Product>({q + i * q_row, q_row, 1}, {k, kPanel * units, kPanel}, weights, kKeys, height, columns, units, false);
        multiply<Product>({g + i * g_row, g_row, 1}, {v, kPanel * v_units, kPanel}, scores, kKeys, height, columns, v_units, false);
        differentiate(head, x, i, height, key, count);
        // With pairs, one buffer holds first the weights and then the gradients of the scores.
        const float *left = weights, *left_scores = scores;
        int64_t depth = Pack::units(height);
        if (pairs) {
          pair_rows(weights, height, columns, transposed);
          pair_rows(scores, height, columns, weights);
          pair_columns(scores, height, columns);
          left = transposed, left_scores = weights;
        }
        const int64_t left_row = pairs ? kRows / 2 : 1, left_step = pairs ? 1 : kKeys;
        multiply<Product>({left, left_row, left_step}, {g_right + i / step * v_width, kPanel, v_width}, dv, v_width, count, v_width, depth, true);
        multiply<Product>({left_scores, left_row, left_step}, {q_right + i / step * width, kPanel, width}, dk, width, count, width, depth, true);
        multiply<Product>({scores, kKeys, 1}, {k_right, kPanel, width}, dq + i * width, width, height, width, Pack::units(count), true);
      }
      write(dk, width, count, s.size, reinterpret_cast<T*>(x.result[1]) + start * s.size, stride);
      write(dv, v_width, count, s.values, reinterpret_cast<T*>(x.result[2]) + start * s.values, v_stride);
    }
    if (part) {
      std::copy(dq, dq + s.queries * width, part);
    } else {
      write(dq, width, s.queries, s.size, reinterpret_cast<T*>(x.result[0]) + head.offset(0) * s.size, stride);
    }
  }

  // Sums the parts of a head's gradient of queries in the order of the keys.
  void sum_parts(const Arrays& x, int64_t batch, int64_t n, const float* parts, int64_t count) {
    std::copy(parts, parts + s.queries * width, dq);
    for (int64_t c = 1; c < count; ++c)
      for (int64_t i = 0; i < s.queries * width; i += kLanes)
        store(dq + i, load(dq + i) + load(parts + c * s.queries * width + i));
    int64_t offset = (batch * s.queries * s.heads + n) * s.size;
    write(dq, width, s.queries, s.size, reinterpret_cast<T*>(x.result[0]) + offset, s.heads * s.size);
  }
};

template <typename Pass>
int64_t count_floats(const Sizes& s) {
  int64_t needed;
  Pass(s, Memory(nullptr), &needed);
  return needed;
}

template <typename T, bool pairs>
void attend(const Sizes& s, const Arrays& x) {
  using Pass = Forward<T, pairs>;
  int64_t length = choose_span(s), spans = (s.queries + length - 1) / length, floats = count_floats<Pass>(s);
  float* memory = reinterpret_cast<float*>(Team::get().scratch(max_threads() * floats * 4));
  // The spans with the most keys start first.
  in_turns(s.batch * s.heads * spans, [&](int64_t i) {
    const TileUse tiles(pairs);
    int64_t head = i % (s.batch * s.heads), span = spans - 1 - i / (s.batch * s.heads);
    Pass(s, Memory(memory + place().thread * floats)).run(x, head / s.heads, head % s.heads, span * length);
  });
}

template <typename T, bool pairs>
void differentiate(const Sizes& s, const Arrays& x) {
  using Pass = Backward<T, pairs>;
  int64_t heads = s.batch * s.heads, blocks = (s.keys + kKeys - 1) / kKeys;
  int64_t parts = std::min(std::max<int64_t>(1, kTasks / heads), blocks), floats = count_floats<Pass>(s);
  int64_t part_floats = parts > 1 ? s.queries * up(s.size, kLanes) : 0;
  float* memory = reinterpret_cast<float*>(Team::get().scratch((max_threads() * floats + heads * parts * part_floats) * 4));
  float* sums = memory + max_threads() * floats;
  in_turns(heads * parts, [&](int64_t i) {
    const TileUse tiles(pairs);
    int64_t head = i % heads, part = i / heads;
    int64_t begin = part * blocks / parts * kKeys, end = std::min((part + 1) * blocks / parts * kKeys, s.keys);
    Pass(s, Memory(memory + place().thread * floats))
        .run(x, head / s.heads, head % s.heads, begin, end, parts > 1 ? sums + (head * parts + part) * part_floats : nullptr);
  });
  if (parts == 1) return;
  in_turns(heads, [&](int64_t head) {
    Pass(s, Memory(memory + place().thread * floats))
        .sum_parts(x, head / s.heads, head % s.heads, sums + head * parts * part_floats, parts);
  });
}
