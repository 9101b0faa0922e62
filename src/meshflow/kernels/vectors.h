// Vectors of LANES floats. every_width.h includes this file once for each instruction set, in a namespace of its own.

constexpr int64_t kLanes = LANES;

#if LANES == 16

constexpr int kRegisters = 32;
using Vector = __m512;
using Lanes = __mmask16;

INLINE Vector constant(float value) { return _mm512_set1_ps(value); }

// The first `count` lanes.
INLINE Lanes lanes(int64_t count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1; }
INLINE Lanes all_lanes() { return 0xffff; }
INLINE bool any(Lanes lanes) { return lanes; }
INLINE Lanes is_less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
// Zeros for lanes that are not there.
INLINE Vector load(const float* from, Lanes there) { return _mm512_maskz_loadu_ps(there, from); }
INLINE __m256i load_halves(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
INLINE __m256i load_halves(const void* from, Lanes there) { return _mm256_maskz_loadu_epi16(there, from); }
INLINE Vector widen(__m256i halves) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)); }
INLINE Vector widen_float16(__m256i halves) { return _mm512_cvtph_ps(halves); }
INLINE void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
INLINE void store(float* to, Lanes there, Vector value) { _mm512_mask_storeu_ps(to, there, value); }
INLINE void store_halves(void* to, Lanes there, __m256i halves) { _mm256_mask_storeu_epi16(to, there, halves); }

// Rounds to the nearest bfloat16; NaN remains NaN.
INLINE __m256i round_to_halves(Vector value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_or_epi32(rounded, none, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}
INLINE __m256i round_to_float16(Vector value) { return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

INLINE Vector choose(Lanes first, Vector a, Vector b) { return _mm512_mask_blend_ps(first, b, a); }
INLINE Vector keep(Lanes there, Vector value) { return _mm512_maskz_mov_ps(there, value); }
INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vector subtract_product(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
// If one of the operands is NaN, the result is the second.
INLINE Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
INLINE Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }
INLINE Vector absolute(Vector value) { return _mm512_abs_ps(value); }
INLINE Vector round_to_integer(Vector value) { return _mm512_roundscale_ps(value, 0); }
INLINE Vector scale_by_power(Vector value, Vector exponent) { return _mm512_scalef_ps(value, exponent); }
INLINE float sum_lanes(Vector value) { return _mm512_reduce_add_ps(value); }
INLINE float find_largest(Vector value) { return _mm512_reduce_max_ps(value); }

// Reads numbers `step` apart.
INLINE Vector gather(const float* from, int64_t step, Lanes there) {
  const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(static_cast<int>(step)));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, places, from, 4);
}

INLINE void transpose(Vector (&rows)[kLanes]) {
  Vector other[kLanes];
  for (int i = 0; i < 16; i += 2)
    other[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]), other[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  auto doubles = [&](int i) { return _mm512_castps_pd(other[i]); };
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(doubles(i + j), doubles(i + j + 2)));
      rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(doubles(i + j), doubles(i + j + 2)));
    }
  // Quarter q of row 4 i + j is column 4 q + j of rows 4 i to 4 i + 3.
  for (int j = 0; j < 4; ++j) {
    Vector even[2], odd[2];
    for (int i = 0; i < 2; ++i) {
      even[i] = _mm512_shuffle_f32x4(rows[8 * i + j], rows[8 * i + 4 + j], 0x88);
      odd[i] = _mm512_shuffle_f32x4(rows[8 * i + j], rows[8 * i + 4 + j], 0xdd);
    }
    other[j] = _mm512_shuffle_f32x4(even[0], even[1], 0x88), other[8 + j] = _mm512_shuffle_f32x4(even[0], even[1], 0xdd);
    other[4 + j] = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88), other[12 + j] = _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = other[i];
}

#else

constexpr int kRegisters = 16;
using Vector = __m256;
using Lanes = __m256i;

INLINE Vector constant(float value) { return _mm256_set1_ps(value); }

// The first `count` lanes.
INLINE Lanes lanes(int64_t count) {
  const int64_t there = count >= 8 ? 8 : count <= 0 ? 0 : count;
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(there)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE Lanes all_lanes() { return _mm256_set1_epi32(-1); }
INLINE int as_bits(Lanes lanes) { return _mm256_movemask_ps(_mm256_castsi256_ps(lanes)); }
INLINE bool any(Lanes lanes) { return as_bits(lanes); }
INLINE Lanes is_less(Vector a, Vector b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
// Zeros for lanes that are not there.
INLINE Vector load(const float* from, Lanes there) { return _mm256_maskload_ps(from, there); }
INLINE __m128i load_halves(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
// Lanes that are there precede the others.
INLINE __m128i load_halves(const void* from, Lanes there) {
  const int bits = as_bits(there);
  if (bits == 0xff) return load_halves(from);
  __m128i halves = _mm_setzero_si128();
  std::memcpy(&halves, from, 2 * __builtin_popcount(bits));
  return halves;
}
INLINE Vector widen(__m128i halves) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)); }
INLINE Vector widen_float16(__m128i halves) { return _mm256_cvtph_ps(halves); }
INLINE void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
// Stores with lanes are slow on some processors.
INLINE void store(float* to, Lanes there, Vector value) {
  as_bits(there) == 0xff ? _mm256_storeu_ps(to, value) : _mm256_maskstore_ps(to, there, value);
}
INLINE void store_halves(void* to, Lanes there, __m128i halves) {
  const int bits = as_bits(there);
  bits == 0xff ? _mm_storeu_si128(static_cast<__m128i*>(to), halves) : (void)std::memcpy(to, &halves, 2 * __builtin_popcount(bits));
}

// Rounds to the nearest bfloat16; NaN remains NaN.
INLINE __m128i round_to_halves(Vector value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
  const __m256 all = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(all), 16);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08));
}
INLINE __m128i round_to_float16(Vector value) { return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

INLINE Vector choose(Lanes first, Vector a, Vector b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first)); }
INLINE Vector keep(Lanes there, Vector value) { return _mm256_and_ps(_mm256_castsi256_ps(there), value); }
INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector subtract_product(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
// If one of the operands is NaN, the result is the second.
INLINE Vector larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }
INLINE Vector smaller(Vector a, Vector b) { return _mm256_min_ps(a, b); }
INLINE Vector absolute(Vector value) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value); }
INLINE Vector round_to_integer(Vector value) { return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// For integer exponents whose halves are exponents of normal numbers. Two factors, because the power may be too small for one.
INLINE Vector scale_by_power(Vector value, Vector exponent) {
  const __m256i whole = _mm256_cvtps_epi32(exponent), half = _mm256_srai_epi32(whole, 1);
  auto power = [](__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); };
  return value * power(half) * power(_mm256_sub_epi32(whole, half));
}
INLINE float sum_lanes(Vector value) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float find_largest(Vector value) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Reads numbers `step` apart.
INLINE Vector gather(const float* from, int64_t step, Lanes there) {
  const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i places = _mm256_mullo_epi32(numbers, _mm256_set1_epi32(static_cast<int>(step)));
  return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, places, _mm256_castsi256_ps(there), 4);
}

INLINE void transpose(Vector (&rows)[kLanes]) {
  Vector pairs[kLanes], fours[kLanes];
  for (int i = 0; i < 8; i += 2)
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]), pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

#endif

INLINE Vector load(const bfloat16* from) { return widen(load_halves(from)); }
INLINE Vector load(const bfloat16* from, Lanes there) { return widen(load_halves(from, there)); }
INLINE void store(bfloat16* to, Lanes there, Vector value) { store_halves(to, there, round_to_halves(value)); }
