// What computations on the processor's matrix tiles (AMX) share; for files that GCC compiles.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace meshflow {
namespace {

using bfloat16 = uint16_t;

constexpr int64_t kTile = 1024, kPair = 2 * kTile;  // bytes of a tile of 16 rows; of two

// Whether the processor has tiles for bfloat16 and the system lets this process use them.
inline bool permitted() {
  static const bool granted = [] {
    if (!__builtin_cpu_supports("avx512bf16")) return false;
    unsigned a = 7, b, c = 0, d;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    bool tiles = (d >> 24 & 1) && (d >> 22 & 1);
    // Linux hands out the tiles' 8 KiB of state on request: ARCH_REQ_XCOMP_PERM for XTILEDATA.
    return tiles && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  }();
  return granted;
}

struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t width[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t height[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// All eight tiles with 16 rows of 64 bytes while this lives; oneDNN keeps a configuration of its own in
// each thread.
class TileState {
 public:
  TileState() {
    _tile_storeconfig(&before_);
    // The compiler believes that the instruction reads eight bytes, and may leave out stores to the others.
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

// The same in memory: quarters of rows are put together while they are read, which shuffles less.
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
