// Epilogues on vectors of 16 sums, for files compiled for AVX-512.

#pragma once

#include <immintrin.h>

#include <cstdint>

#include "epilogue.h"

namespace meshflow {
namespace {

// Loads 16 values as float32; zeros for masked ones.
inline __m512 read(Number type, const void* from, int64_t at, __mmask16 there) {
  if (type == Number::kFloat) return _mm512_maskz_loadu_ps(there, static_cast<const float*>(from) + at);
  __m256i narrow = _mm256_maskz_loadu_epi16(there, static_cast<const uint16_t*>(from) + at);
  if (type == Number::kHalf) return _mm512_cvtph_ps(narrow);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline __m512 constant(float value) { return _mm512_set1_ps(value); }

// c[0] + c[1] x + ...
template <int count>
inline __m512 polynomial(const float (&c)[count], __m512 x) {
  __m512 sum = constant(c[count - 1]);
#pragma GCC unroll 16
  for (int i = count - 2; i >= 0; --i) sum = _mm512_fmadd_ps(sum, x, constant(c[i]));
  return sum;
}

inline __m512 exponential(__m512 x) {
  // If one of the operands is NaN, the instruction returns the second.
  x = _mm512_min_ps(constant(89), _mm512_max_ps(constant(-105), x));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, constant(1.44269504f)), 0);
  // The logarithm of 2 in two parts, so that n times the first is exact.
  __m512 rest = _mm512_fnmadd_ps(n, constant(0.693359375f), x);
  rest = _mm512_fnmadd_ps(n, constant(-2.12194440e-4f), rest);
  static constexpr float terms[] = {1, 1, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720};
  return _mm512_scalef_ps(polynomial(terms, rest), n);
}

inline __m512 gelu(__m512 x) {
  // The complementary error function at z >= 0 is exp(-z^2) times a smooth function of t, approximated by a
  // polynomial with a relative error of 1.3e-7, so that large negative inputs remain accurate.
  static constexpr float terms[] = {0.225675866f, 0.225669593f, 0.207842723f, 0.168541819f, 0.141432166f,
                                    -0.00560925622f, 0.169087648f, -0.182902932f, 0.0502625182f};
  __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), constant(0.707106781f));
  __m512 t = _mm512_div_ps(constant(1), _mm512_fmadd_ps(z, constant(0.4f), constant(1)));
  __m512 power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(z, z)));
  __m512 half = _mm512_mul_ps(_mm512_mul_ps(constant(0.5f), power), _mm512_mul_ps(t, polynomial(terms, t)));
  __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mul_ps(x, _mm512_mask_mov_ps(_mm512_sub_ps(constant(1), half), negative, half));
}

inline __m512 gelu_tanh(__m512 x) {
  // (1 + tanh u) / 2 is 1 / (1 + exp(-2 u)).
  __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), constant(0.044715f), constant(1));
  __m512 power = exponential(_mm512_mul_ps(_mm512_mul_ps(x, inner), constant(-1.595769122f)));
  return _mm512_div_ps(x, _mm512_add_ps(constant(1), power));
}

// Applies the operations to neighboring features of a result.
//
// feature: index of the first; at: its offset in arrays of the result's shape.
template <int count>
inline void complete(const Epilogue& parts, __m512 (&v)[count], const __mmask16 (&there)[count], int64_t feature,
                     int64_t at) {
  for (const Part& part : parts) {
    auto each = [&](auto&& change) {
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) change(v[i], i);
    };
    auto vector = [&](int i) {
      return _mm512_maskz_loadu_ps(there[i], static_cast<const float*>(part.operand) + feature + 16 * i);
    };
    auto array = [&](int i) { return read(part.type, part.operand, at + 16 * i, there[i]); };
    switch (part.op) {
      case EpilogueOp::kAdd: each([&](__m512& x, int i) { x = _mm512_add_ps(x, vector(i)); }); break;
      case EpilogueOp::kScale: each([&](__m512& x, int i) { x = _mm512_mul_ps(x, vector(i)); }); break;
      case EpilogueOp::kPlus: each([&](__m512& x, int i) { x = _mm512_add_ps(x, array(i)); }); break;
      case EpilogueOp::kReluMask:
        each([&](__m512& x, int i) {
          x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(array(i), _mm512_setzero_ps(), _CMP_GT_OQ), x);
        });
        break;
      // If one of the operands is NaN, the instruction returns the second.
      case EpilogueOp::kRelu: each([&](__m512& x, int) { x = _mm512_max_ps(_mm512_setzero_ps(), x); }); break;
      case EpilogueOp::kGelu: each([&](__m512& x, int) { x = gelu(x); }); break;
      case EpilogueOp::kGeluTanh: each([&](__m512& x, int) { x = gelu_tanh(x); }); break;
    }
  }
}

}  // namespace
}  // namespace meshflow
