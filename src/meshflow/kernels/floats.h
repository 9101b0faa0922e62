// 16-bit floats and their bits, written so that compilers vectorize loops over them.

#pragma once

#include <cstdint>
#include <cstring>

namespace meshflow {

struct bfloat16 {
  uint16_t bits;
};

// Compilers vectorize this, unlike a call of memcpy.
#if defined(__has_builtin)
#if __has_builtin(__builtin_bit_cast)
#define SAME_BITS(type, value) __builtin_bit_cast(type, value)
#endif
#endif
#ifndef SAME_BITS
template <typename To, typename From>
inline To same_bits(From value) {
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
#define SAME_BITS(type, value) same_bits<type>(value)
#endif

inline float wide(float value) { return value; }
inline float wide(bfloat16 value) { return SAME_BITS(float, static_cast<uint32_t>(value.bits) << 16); }
inline void narrow(float value, float* to) { *to = value; }
inline void narrow(float value, bfloat16* to) {
  uint32_t bits = SAME_BITS(uint32_t, value);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40 : rounded);
}

}  // namespace meshflow
