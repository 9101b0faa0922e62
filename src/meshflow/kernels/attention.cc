// XLA FFI handler of attention and its gradient, in tiles of the scores, so that memory is linear in the lengths of
// the sequences. The softmax of a row is updated tile by tile (Milakov and Gimelshein 2018, arXiv:1805.02867); the
// gradient recomputes the scores from the maximum and the sum of each row (Dao et al. 2022, arXiv:2205.14135).
//
// Products work on 32-bit units: a float, or a pair of adjacent bfloat16 along the summed dimension, which
// AVX512-BF16 multiplies and adds in float32. Work is split by the shapes only, so results do not depend on the
// number of threads.

#include "cpus.h"

#if !defined(MESHFLOW_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 10

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "floats.h"
#include "handler.h"

#define FOR_FLOATS FOR_CPU("avx512f,avx512bw,avx512vl,avx512dq,fma")
#define FOR_PAIRS FOR_CPU("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")

namespace {

namespace ffi = xla::ffi;
using meshflow::bfloat16;
using meshflow::handled;
using meshflow::has;
using meshflow::in_turns;
using meshflow::Level;
using meshflow::max_threads;
using meshflow::place;
using meshflow::Reader;
using meshflow::Team;

constexpr int64_t kLanes = 16, kPanel = 64;  // floats of a vector; columns of a packed panel
constexpr int64_t kRows = 96, kKeys = 128;   // queries and keys of a tile
constexpr int64_t kSpan = 8 * kRows;         // maximum number of queries of a task of the forward pass
constexpr int64_t kTasks = 16;               // tasks, if there are fewer heads

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

enum Masking { kAdd, kAddEach, kReplace };

// Sizes, options and strides (in elements) of the bias and the mask; the other arrays are [batch, t, heads, size].
struct Sizes {
  int64_t batch, queries, keys, heads, size, values;
  bool causal;
  int64_t masking;
  float scale, fill, factor;  // factor: of the weights that dropout keeps
  int64_t bias[3], mask[3];   // strides of batch, head and query
  uint32_t threshold, bits;   // dropout keeps weights whose random bits are at least the threshold
};

struct Arrays {
  const char *q, *k, *v, *out, *gradient;
  const float *bias;
  const uint8_t *mask, *queries;
  const uint64_t* key;
  float *high, *total;
  char *result[3];
};

// C[rows, 16 vectors] (+)= A B for units; `a` has strides of rows and of steps of the sum.
#define DEFINE_PRODUCT(Name, attributes, multiply)                                                                  \
  struct Name {                                                                                                     \
    template <int rows, int vectors>                                                                                \
    attributes static void tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step,      \
                                float* c, int64_t c_row, int64_t depth, bool add) {                                 \
      __m512 sums[rows][vectors];                                                                                   \
      _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i)                                                        \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) sums[i][j] =                                    \
          add ? _mm512_loadu_ps(c + i * c_row + j * kLanes) : _mm512_setzero_ps();                                  \
      for (int64_t p = 0; p < depth; ++p, a += a_step, b += b_step) {                                               \
        __m512 right[vectors];                                                                                      \
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) right[j] = _mm512_loadu_ps(b + j * kLanes);       \
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i) {                                                    \
          __m512 left = _mm512_set1_ps(a[i * a_row]);                                                               \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) sums[i][j] = multiply(left, right[j], sums[i][j]); \
        }                                                                                                           \
      }                                                                                                             \
      _Pragma("GCC unroll 8") for (int i = 0; i < rows; ++i)                                                        \
          _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j)                                                 \
              _mm512_storeu_ps(c + i * c_row + j * kLanes, sums[i][j]);                                             \
    }                                                                                                               \
  };
#define MULTIPLY_FLOATS(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MULTIPLY_PAIRS(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
DEFINE_PRODUCT(FloatProduct, FOR_FLOATS, MULTIPLY_FLOATS)
DEFINE_PRODUCT(PairProduct, FOR_PAIRS, MULTIPLY_PAIRS)

using Tile = void (*)(const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t, int64_t, bool);

template <typename Product, int rows>
constexpr Tile kOfRows[4] = {Product::template tile<rows, 1>, Product::template tile<rows, 2>,
                             Product::template tile<rows, 3>, Product::template tile<rows, 4>};
template <typename Product>
constexpr const Tile* kTiles[6] = {kOfRows<Product, 1>, kOfRows<Product, 2>, kOfRows<Product, 3>,
                                   kOfRows<Product, 4>, kOfRows<Product, 5>, kOfRows<Product, 6>};

struct Left {
  const float* units;
  int64_t row, step;
};
// Panels of 64 columns: distance of panels, and of steps of the sum.
struct Right {
  const float* units;
  int64_t panel, step;
};

// C[rows, columns] (+)= A B; `columns` is a multiple of 16.
template <typename Product>
void multiply(Left a, Right b, float* c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth, bool add) {
  for (int64_t n = 0; n < columns; n += kPanel, b.units += b.panel) {
    int64_t vectors = std::min(kPanel, columns - n) / kLanes;
    for (int64_t m = 0; m < rows; m += 6) {
      int64_t count = std::min<int64_t>(6, rows - m);
      kTiles<Product>[count - 1][vectors - 1](a.units + m * a.row, a.row, a.step, b.units, b.step, c + m * c_row + n,
                                              c_row, depth, add);
    }
  }
}

// Copies between arrays of the caller and units. `T` is the caller's type.
FOR_FLOATS inline __m512 load(const float* x, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
FOR_FLOATS inline __m512 load(const bfloat16* x, __mmask16 lanes) {
  return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x)), 16);
}
FOR_FLOATS inline __m256i round_to_bfloat16(__m512 x) {
  __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
FOR_FLOATS inline void store(float* to, __m512 x, __mmask16 lanes) { _mm512_mask_storeu_ps(to, lanes, x); }
FOR_FLOATS inline void store(bfloat16* to, __m512 x, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(to, lanes, round_to_bfloat16(x));
}
inline __mmask16 first_lanes(int64_t n) { return n >= kLanes ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }

template <typename T, bool pairs>
struct Packing {
  static int64_t units(int64_t n) { return pairs ? (n + 1) / 2 : n; }

  // Rows of units along the features: the left operand of scores.
  FOR_FLOATS static void rows(const T* from, int64_t stride, int64_t count, int64_t size, float* to, int64_t to_row) {
    for (int64_t i = 0; i < count; ++i, from += stride, to += to_row) {
      if constexpr (pairs) {
        std::memcpy(to, from, size * 2);
        if (size & 1) reinterpret_cast<uint16_t*>(to)[size] = 0;
      } else {
        for (int64_t j = 0; j < size; j += kLanes) {
          __mmask16 lanes = first_lanes(size - j);
          _mm512_mask_storeu_ps(to + j, lanes, load(from + j, lanes));
        }
      }
    }
  }

  // Units along the rows, features padded to vectors: the right operand of sums over rows.
  FOR_FLOATS static void columns(const T* from, int64_t stride, int64_t count, int64_t size, float* to, int64_t width) {
    for (int64_t i = 0; i < count; i += pairs ? 2 : 1, from += (pairs ? 2 : 1) * stride, to += width) {
      for (int64_t j = 0; j < width; j += kLanes) {
        __mmask16 lanes = first_lanes(size - j);
        if constexpr (pairs) {
          __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from + j)), odd = _mm512_setzero_si512();
          if (i + 1 < count) odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from + stride + j));
          _mm512_storeu_si512(to + j, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        } else {
          _mm512_storeu_ps(to + j, load(from + j, lanes));
        }
      }
    }
  }

  // Transposes rows of units to panels [units][64]; missing columns are 0.
  FOR_FLOATS static void transpose(const float* from, int64_t row, int64_t count, int64_t units, float* to) {
    __m512i places = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                        _mm512_set1_epi32(row));
    for (int64_t c = 0; c < up(count, kPanel); c += kLanes) {
      __mmask16 lanes = first_lanes(count - c);
      float* panel = to + c / kPanel * kPanel * units + c % kPanel;
      for (int64_t p = 0; p < units; ++p)
        _mm512_storeu_ps(panel + p * kPanel,
                         _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, places, from + c * row + p, 4));
    }
  }
};

// e^x with an error of about one unit in the last place; NaN stays NaN.
FOR_FLOATS inline __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(1.38889054e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.33333377e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.16666679e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.66666657e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// Words of the Philox generator with four words and ten rounds, in the order of their indices.
struct Random {
  uint64_t low, high, key;

  FOR_FLOATS static void multiply(__m512i x, uint32_t factor, __m512i* low, __m512i* high) {
    __m512i f = _mm512_set1_epi64(factor);
    __m512i even = _mm512_mul_epu32(x, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  }

  // The words of sixteen blocks, from block `first`.
  FOR_FLOATS void blocks(uint64_t first, uint32_t* to) const {
    uint64_t start = low + first, next = high + (start < low);
    // Lane 4 i + k has block 4 k + i, so that the interleaved words are in order.
    __m512i base = _mm512_set1_epi32(static_cast<uint32_t>(start));
    __m512i a = _mm512_add_epi32(base, _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __mmask16 carry = _mm512_cmplt_epu32_mask(a, base);
    uint32_t upper = start >> 32;
    __m512i b = _mm512_mask_add_epi32(_mm512_set1_epi32(upper), carry, _mm512_set1_epi32(upper), _mm512_set1_epi32(1));
    __mmask16 wraps = upper == 0xffffffff ? carry : 0;
    __m512i c = _mm512_mask_blend_epi32(wraps, _mm512_set1_epi32(static_cast<uint32_t>(next)),
                                        _mm512_set1_epi32(static_cast<uint32_t>(next + 1)));
    __m512i d = _mm512_mask_blend_epi32(wraps, _mm512_set1_epi32(next >> 32), _mm512_set1_epi32((next + 1) >> 32));
    uint32_t k0 = static_cast<uint32_t>(key), k1 = key >> 32;
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      __m512i left_low, left_high, right_low, right_high;
      multiply(a, 0xD2511F53, &left_low, &left_high);
      multiply(c, 0xCD9E8D57, &right_low, &right_high);
      a = _mm512_xor_si512(_mm512_xor_si512(right_high, b), _mm512_set1_epi32(k0));
      c = _mm512_xor_si512(_mm512_xor_si512(left_high, d), _mm512_set1_epi32(k1));
      b = right_low, d = left_low;
    }
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab, cd));
    _mm512_storeu_si512(to + 16, _mm512_unpackhi_epi64(ab, cd));
    _mm512_storeu_si512(to + 32, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(to + 48, _mm512_unpackhi_epi64(ab_high, cd_high));
  }
};

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

  // Scales and masks sixteen scores from `key`; lanes outside of `lanes` become minus infinity. Sets `hidden` to the
  // masked ones.
  FOR_FLOATS inline __m512 adjust(__m512 x, int64_t query, int64_t key, __mmask16 lanes, __mmask16* hidden) const {
    x = _mm512_mul_ps(x, _mm512_set1_ps(s.scale));
    if (bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, bias + query * s.bias[2] + key));
    __mmask16 masked = 0, later = 0;
    if (mask) masked = _mm_cmpeq_epi8_mask(_mm_maskz_loadu_epi8(lanes, mask + query * s.mask[2] + key), _mm_setzero_si128());
    if (queries && !queries[query]) masked = 0xffff;
    if (s.causal) later = ~first_lanes(query + 1 - key);
    __m512 fill = _mm512_set1_ps(s.fill);
    *hidden = masked | later;
    if (s.masking == kReplace) {
      x = _mm512_mask_blend_ps(masked | later, x, fill);
    } else if (s.masking == kAdd) {
      x = _mm512_mask_add_ps(x, masked | later, x, fill);
    } else {
      x = _mm512_mask_add_ps(x, masked, x, fill);
      x = _mm512_mask_add_ps(x, later, x, fill);
    }
    return _mm512_mask_blend_ps(lanes, _mm512_set1_ps(-std::numeric_limits<float>::infinity()), x);
  }

  // Bits for `count` keys of a query: which weights dropout keeps.
  FOR_FLOATS void draw(int64_t query, int64_t key, int64_t count, __mmask16* kept) const {
    uint64_t first = static_cast<uint64_t>(index(query)) * s.keys + key;
    uint32_t words[kKeys + 2 * kPanel];
    for (int64_t i = 0; i < static_cast<int64_t>(first & 3) + count; i += 64) random.blocks((first >> 2) + i / 4, words + i);
    __m512i bits = _mm512_set1_epi32(s.bits), threshold = _mm512_set1_epi32(s.threshold);
    for (int64_t i = 0; i < count; i += kLanes)
      kept[i / kLanes] = _mm512_cmpge_epu32_mask(
          _mm512_and_si512(_mm512_loadu_si512(words + (first & 3) + i), bits), threshold);
  }
};

// Memory of a task.
class Memory {
 public:
  float* take(int64_t floats) {
    float* found = memory_ ? memory_ + used_ : nullptr;
    used_ += up(floats, kLanes);
    return found;
  }
  int64_t used() const { return used_; }
  explicit Memory(float* memory) : memory_(memory) {}

 private:
  float* memory_;
  int64_t used_ = 0;
};

// Queries of a task of the forward pass: each task packs all keys, but there must be enough tasks.
int64_t choose_span(const Sizes& s) {
  int64_t parts = (kTasks + s.batch * s.heads - 1) / (s.batch * s.heads);
  return std::min(kSpan, up((s.queries + parts - 1) / parts, kRows));
}

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
  FOR_FLOATS void weigh(const Head& head, int64_t query, int64_t local, int64_t rows, int64_t key, int64_t count) {
    bool plain = head.is_plain(query, key, count);
    int64_t vectors = (count + kLanes - 1) / kLanes;
    __m512 scale = _mm512_set1_ps(s.scale);
    const float infinity = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows; ++i) {
      float* x = scores + i * kKeys;
      __m512 most = _mm512_set1_ps(-infinity);
      __mmask16 hidden;
      for (int64_t j = 0; j < vectors; ++j) {
        __m512 y = _mm512_loadu_ps(x + j * kLanes);
        y = plain ? _mm512_mul_ps(y, scale)
                  : head.adjust(y, query + i, key + j * kLanes, first_lanes(count - j * kLanes), &hidden);
        _mm512_storeu_ps(x + j * kLanes, y);
        most = _mm512_max_ps(most, y);
      }
      float before = high[local + i], now = std::max(before, _mm512_reduce_max_ps(most));
      float shift = now == -infinity ? 0 : now;
      __m512 by = _mm512_set1_ps(shift), sum = _mm512_setzero_ps();
      __mmask16 kept[kKeys / kLanes];
      if (head.drops) head.draw(query + i, key, count, kept);
      for (int64_t j = 0; j < vectors; ++j) {
        __m512 p = exponential(_mm512_sub_ps(_mm512_loadu_ps(x + j * kLanes), by));
        sum = _mm512_add_ps(sum, p);
        if (head.drops) p = _mm512_maskz_mov_ps(kept[j], p);
        if constexpr (pairs) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(x) + j, round_to_bfloat16(p));
        } else {
          _mm512_storeu_ps(x + j * kLanes, p);
        }
      }
      float old = _mm512_cvtss_f32(exponential(_mm512_set1_ps(before - shift)));
      total[local + i] = total[local + i] * old + _mm512_reduce_add_ps(sum);
      high[local + i] = now;
      if (old != 1) {
        float* to = sums + (local + i) * width;
        for (int64_t j = 0; j < width; j += kLanes)
          _mm512_storeu_ps(to + j, _mm512_mul_ps(_mm512_loadu_ps(to + j), _mm512_set1_ps(old)));
      }
    }
  }

  FOR_FLOATS void run(const Arrays& x, int64_t batch, int64_t n, int64_t first) {
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
      __m512 by = _mm512_set1_ps(s.factor / total[i]);
      for (int64_t j = 0; j < s.values; j += kLanes)
        store(to + j, _mm512_mul_ps(_mm512_loadu_ps(sums + i * width + j), by), first_lanes(s.values - j));
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
  FOR_FLOATS void differentiate(const Head& head, const Arrays& x, int64_t query, int64_t rows, int64_t key, int64_t count) {
    bool plain = head.is_plain(query, key, count);
    int64_t vectors = (count + kLanes - 1) / kLanes;
    __m512 scale = _mm512_set1_ps(s.scale), factor = _mm512_set1_ps(s.factor);
    for (int64_t i = 0; i < rows; ++i) {
      float *w = weights + i * kKeys, *ds = scores + i * kKeys;
      __m512 high = _mm512_set1_ps(x.high[head.index(query + i)]), total = _mm512_set1_ps(x.total[head.index(query + i)]);
      __m512 by = _mm512_set1_ps(slope[query + i]);
      __mmask16 kept[kKeys / kLanes], hidden = 0;
      if (head.drops) head.draw(query + i, key, count, kept);
      for (int64_t j = 0; j < vectors; ++j) {
        __m512 y = _mm512_loadu_ps(w + j * kLanes), dy = _mm512_loadu_ps(ds + j * kLanes);
        y = plain ? _mm512_mul_ps(y, scale)
                  : head.adjust(y, query + i, key + j * kLanes, first_lanes(count - j * kLanes), &hidden);
        __m512 p = exponential(_mm512_sub_ps(_mm512_sub_ps(y, high), total)), dropped = p;
        if (head.drops) {
          dropped = _mm512_maskz_mul_ps(kept[j], p, factor);
          dy = _mm512_maskz_mul_ps(kept[j], dy, factor);
        }
        dy = _mm512_mul_ps(_mm512_mul_ps(p, _mm512_sub_ps(dy, by)), scale);
        // Columns after the last key may be NaN.
        __mmask16 lanes = first_lanes(count - j * kLanes);
        if (s.masking == kReplace) lanes &= ~hidden;
        dy = _mm512_maskz_mov_ps(lanes, dy);
        _mm512_storeu_ps(w + j * kLanes, dropped);
        _mm512_storeu_ps(ds + j * kLanes, dy);
      }
    }
  }

  // Converts a tile to pairs along the queries.
  FOR_FLOATS static void pair_rows(const float* tile, int64_t rows, int64_t count, float* to) {
    for (int64_t i = 0; i < rows; i += 2, to += kKeys)
      for (int64_t j = 0; j < count; j += kLanes) {
        __m512i even = _mm512_cvtepu16_epi32(round_to_bfloat16(_mm512_loadu_ps(tile + i * kKeys + j))), odd = _mm512_setzero_si512();
        if (i + 1 < rows) odd = _mm512_cvtepu16_epi32(round_to_bfloat16(_mm512_loadu_ps(tile + (i + 1) * kKeys + j)));
        _mm512_storeu_si512(to + j, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
  }

  // Converts a tile to pairs along the keys, in place.
  FOR_FLOATS static void pair_columns(float* tile, int64_t rows, int64_t count) {
    for (int64_t i = 0; i < rows; ++i, tile += kKeys)
      for (int64_t j = 0; j < count; j += kLanes)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile) + j / kLanes, round_to_bfloat16(_mm512_loadu_ps(tile + j)));
  }

  static const T* as(const char* array, int64_t offset) { return reinterpret_cast<const T*>(array) + offset; }

  FOR_FLOATS static void write(const float* from, int64_t from_row, int64_t rows, int64_t size, T* to, int64_t stride) {
    for (int64_t i = 0; i < rows; ++i, from += from_row, to += stride)
      for (int64_t j = 0; j < size; j += kLanes) store(to + j, _mm512_loadu_ps(from + j), first_lanes(size - j));
  }

  // Packs all queries of a head.
  FOR_FLOATS void prepare(const Head& head, const Arrays& x) {
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
      __m512 sum = _mm512_setzero_ps();
      for (int64_t j = 0; j < s.values; j += kLanes) {
        __mmask16 lanes = first_lanes(s.values - j);
        sum = _mm512_fmadd_ps(load(gradient + i * v_stride + j, lanes), load(out + i * v_stride + j, lanes), sum);
      }
      slope[i] = _mm512_reduce_add_ps(sum);
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
        multiply<Product>({left, 1, kKeys}, {g_right + i / step * v_width, kPanel, v_width}, dv, v_width, count, v_width, depth, true);
        multiply<Product>({left_scores, 1, kKeys}, {q_right + i / step * width, kPanel, width}, dk, width, count, width, depth, true);
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
  FOR_FLOATS void sum_parts(const Arrays& x, int64_t batch, int64_t n, const float* parts, int64_t count) {
    std::copy(parts, parts + s.queries * width, dq);
    for (int64_t c = 1; c < count; ++c)
      for (int64_t i = 0; i < s.queries * width; i += kLanes)
        _mm512_storeu_ps(dq + i, _mm512_add_ps(_mm512_loadu_ps(dq + i), _mm512_loadu_ps(parts + c * s.queries * width + i)));
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

ffi::Error wrong(const std::string& reason) {
  return ffi::Error::InvalidArgument("meshflow_attention: " + reason);
}

float read_float(Reader& reader) {
  return SAME_BITS(float, static_cast<uint32_t>(reader.next()));
}

// Descriptor: backward; batch, queries, keys, heads, sizes of keys and values; causal, masking; scale, fill value and
// factor of dropout as bits of floats; whether there are a bias, a mask, a mask of queries and a key of dropout; strides of
// the bias and the mask; threshold and bits of dropout. From queries, keys, values, and those of the bias (float32), the
// mask, the mask of queries [batch, queries] (bool) and the key (int64 [3]) that exist: the values, and the maximum of each row of scores and the logarithm of
// the sum of its exponentials relative to it, [batch, heads, queries]. From the same, these results and a gradient of
// the values: gradients of queries, keys and values.
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_attention", [&]() -> ffi::Error {
    Reader reader(descriptor.begin(), descriptor.size());
    bool backward = reader.next();
    Sizes s;
    for (int64_t* size : {&s.batch, &s.queries, &s.keys, &s.heads, &s.size, &s.values})
      if ((*size = reader.next()) < 1) return wrong("a size is not positive");
    s.causal = reader.next(), s.masking = reader.next();
    s.scale = read_float(reader), s.fill = read_float(reader), s.factor = read_float(reader);
    bool biased = reader.next(), masked = reader.next(), hides = reader.next(), drops = reader.next();
    for (int64_t& stride : s.bias) stride = reader.next();
    for (int64_t& stride : s.mask) stride = reader.next();
    s.threshold = reader.next(), s.bits = reader.next();
    size_t count = 3 + biased + masked + hides + drops + 4 * backward, at = 0;
    if (arguments.size() != count || results.size() != 3) return wrong("the descriptor has another number of operands");
    auto type = arguments.get<ffi::AnyBuffer>(0).value().element_type();
    if (type != ffi::DataType::F32 && type != ffi::DataType::BF16) return wrong("the queries are neither float32 nor bfloat16");
    bool valid = true;
    auto check = [&](const ffi::AnyBuffer& buffer, ffi::DataType expected, int64_t least) {
      valid &= buffer.element_type() == expected && static_cast<int64_t>(buffer.element_count()) >= least;
      return static_cast<char*>(buffer.untyped_data());
    };
    auto take = [&](ffi::DataType expected, int64_t least) {
      return check(arguments.get<ffi::AnyBuffer>(at++).value(), expected, least);
    };
    int64_t rows = s.batch * s.heads * s.queries, key_rows = s.batch * s.heads * s.keys;
    auto extent = [&](const int64_t* strides) {
      return (s.batch - 1) * strides[0] + (s.heads - 1) * strides[1] + (s.queries - 1) * strides[2] + s.keys;
    };
    Arrays x{};
    x.q = take(type, rows * s.size), x.k = take(type, key_rows * s.size), x.v = take(type, key_rows * s.values);
    if (biased) x.bias = reinterpret_cast<const float*>(take(ffi::DataType::F32, extent(s.bias)));
    if (masked) x.mask = reinterpret_cast<const uint8_t*>(take(ffi::DataType::PRED, extent(s.mask)));
    if (hides) x.queries = reinterpret_cast<const uint8_t*>(take(ffi::DataType::PRED, s.batch * s.queries));
    if (drops) x.key = reinterpret_cast<const uint64_t*>(take(ffi::DataType::S64, 3));
    auto give = [&](int i, ffi::DataType expected, int64_t least) {
      return check(*results.get<ffi::AnyBuffer>(i).value(), expected, least);
    };
    x.result[0] = give(0, type, rows * (backward ? s.size : s.values));
    if (backward) {
      x.out = take(type, rows * s.values);
      x.high = reinterpret_cast<float*>(take(ffi::DataType::F32, rows));
      x.total = reinterpret_cast<float*>(take(ffi::DataType::F32, rows));
      x.gradient = take(type, rows * s.values);
      x.result[1] = give(1, type, key_rows * s.size), x.result[2] = give(2, type, key_rows * s.values);
    } else {
      x.high = reinterpret_cast<float*>(give(1, ffi::DataType::F32, rows));
      x.total = reinterpret_cast<float*>(give(2, ffi::DataType::F32, rows));
    }
    if (!valid) return wrong("an operand has another type, or is smaller than the descriptor says");
    if (!has(Level::kAvx512)) return wrong("the processor has no AVX-512");
    Team::get().run([&] {
      if (type == ffi::DataType::F32) return backward ? differentiate<float, false>(s, x) : attend<float, false>(s, x);
      if (has(Level::kBfloat16)) return backward ? differentiate<bfloat16, true>(s, x) : attend<bfloat16, true>(s, x);
      backward ? differentiate<bfloat16, false>(s, x) : attend<bfloat16, false>(s, x);
    });
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_attention, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));

#endif
