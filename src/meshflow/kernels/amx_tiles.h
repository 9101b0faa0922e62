// Shared code for computations on matrix tiles (AMX), for files compiled by GCC.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "cpus.h"

// Files include this header last, because the linker keeps one copy of each inline function for all processors, and restore
// the options at their end, where the compiler defines the templates in use.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace meshflow {
namespace {

using bfloat16 = uint16_t;

constexpr int64_t kTile = 1024, kPair = 2 * kTile;  // bytes of a tile of 16 rows; of two

// Returns whether there are bfloat16 tiles that the system lets this process use, or emulated ones.
inline bool permitted() {
  // Linux grants the 8 KiB of tile state on request: ARCH_REQ_XCOMP_PERM for XTILEDATA.
  static const bool granted = has(Level::kTiles) && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return emulated_tiles || granted;
}

struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t width[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t height[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures all eight tiles with 16 rows of 64 bytes during its lifetime; oneDNN has a separate
// configuration in each thread.
class TileState {
 public:
  TileState() {
    _tile_storeconfig(&before_);
    // The compiler assumes that the instruction reads eight bytes, and may remove stores to the others.
    static constexpr Configuration ours{};
    _tile_loadconfig(&ours);
  }
  ~TileState() {
    if (before_.palette) {
      _tile_loadconfig(&before_);
    } else {
      _tile_release();
    }
  }

 private:
  Configuration before_;
};

// The processor's eight tiles. GCC's macros do not accept template parameters as tile numbers. The compiler
// does not know that loading a tile reads memory.
struct Tiles {
  using State = TileState;

  template <int tile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  template <int tile>
  static void load(const void* from, int64_t step) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(tile));
  }
  template <int tile>
  static void store(void* to, int64_t step) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(step), "i"(tile) : "memory");
  }
  // sums += left right: 16 x 16 sums of 16 pairs.
  template <int sums, int left, int right>
  static void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
  }

  static __m512i narrow(__m512 high, __m512 low) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
};

// The same in memory, with AVX-512 without 16-bit float instructions, bit by bit equal.
struct EmulatedTiles {
  struct State {
    State() {}
    ~State() {}
  };

  alignas(64) static inline thread_local char tiles[8][kTile];

  template <int tile>
  static void zero() {
    std::memset(tiles[tile], 0, kTile);
  }
  template <int tile>
  static void load(const void* from, int64_t step) {
    for (int64_t i = 0; i < 16; ++i) std::memcpy(tiles[tile] + 64 * i, static_cast<const char*>(from) + i * step, 64);
  }
  template <int tile>
  static void store(void* to, int64_t step) {
    for (int64_t i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(to) + i * step, tiles[tile] + 64 * i, 64);
  }
  template <int sums, int left, int right>
  static void multiply() {
    multiply(tiles[sums], tiles[left], tiles[right]);
  }

  // First and second values of pairs are summed separately, then together, then added; subnormal numbers are
  // flushed to zero. Not inlined: the compiler does not know that the result depends on the control register.
  __attribute__((noinline)) static void multiply(char* sums, const char* left, const char* right) {
    unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~0x6000u) | 0x8040);
    const __m512i second = _mm512_set1_epi32(0xffff0000);
    for (int64_t i = 0; i < 16; ++i) {
      __m512 firsts = _mm512_setzero_ps(), seconds = _mm512_setzero_ps();
      for (int64_t k = 0; k < 16; ++k) {
        int pair;
        std::memcpy(&pair, left + 64 * i + 4 * k, 4);
        __m512i a = _mm512_set1_epi32(pair), b = _mm512_load_si512(right + 64 * k);
        firsts = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(a, 16), (__m512)_mm512_slli_epi32(b, 16), firsts);
        seconds = _mm512_fmadd_ps((__m512)_mm512_and_si512(a, second), (__m512)_mm512_and_si512(b, second), seconds);
      }
      __m512 total = _mm512_add_ps(_mm512_load_ps(sums + 64 * i), _mm512_add_ps(firsts, seconds));
      _mm512_store_ps(sums + 64 * i, total);
    }
    _mm_setcsr(before);
  }

  // Rounded to nearest even; NaN is preserved.
  static __m256i narrow(__m512 value) {
    __m512i bits = (__m512i)value, high = _mm512_srli_epi32(bits, 16);
    __m512i last = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    __m512i rounded = _mm512_srli_epi32(up, 16);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
    __mmask16 small = _mm512_cmplt_epu32_mask(_mm512_slli_epi32(bits, 1), _mm512_set1_epi32(0x01000000));
    rounded = _mm512_mask_and_epi32(rounded, small, high, _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(rounded);
  }
  static __m512i narrow(__m512 high, __m512 low) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrow(low)), narrow(high), 1);
  }
};

// Calls use(tiles) with the available implementation.
template <typename Use>
void with_tiles(Use use) {
  emulated_tiles ? use(EmulatedTiles()) : use(Tiles());
}

// Two rows of 32 values as two rows of 16 pairs.
inline void interleave(__m512i even, __m512i odd, __m512i* low, __m512i* high) {
  alignas(64) static const auto places = [] {
    struct { uint16_t low[32], high[32]; } p;
    for (int i = 0; i < 16; ++i) {
      p.low[2 * i] = i, p.low[2 * i + 1] = 32 + i;
      p.high[2 * i] = 16 + i, p.high[2 * i + 1] = 48 + i;
    }
    return p;
  }();
  *low = _mm512_permutex2var_epi16(even, _mm512_load_si512(places.low), odd);
  *high = _mm512_permutex2var_epi16(even, _mm512_load_si512(places.high), odd);
}

// Rows of 16 pairs as columns.
inline void transpose(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// The same in memory: quarters of rows are combined while they are read, which needs fewer shuffles.
inline void transpose_tile(char* tile) {
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    // Quarter i / 4 of four rows, four apart.
    const char* at = tile + i % 4 * 64 + i / 4 * 16;
    auto quarter = [&](int row) { return _mm_load_si128(reinterpret_cast<const __m128i*>(at + row * 64)); };
    r[i] = _mm512_castsi128_si512(quarter(0));
    r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x00f0, quarter(4));
    r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x0f00, quarter(8));
    r[i] = _mm512_mask_broadcast_i32x4(r[i], 0xf000, quarter(12));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    _mm512_store_si512(tile + i * 64, _mm512_unpacklo_epi64(a, c));
    _mm512_store_si512(tile + i * 64 + 64, _mm512_unpackhi_epi64(a, c));
    _mm512_store_si512(tile + i * 64 + 128, _mm512_unpacklo_epi64(b, d));
    _mm512_store_si512(tile + i * 64 + 192, _mm512_unpackhi_epi64(b, d));
  }
}

}  // namespace
}  // namespace meshflow
