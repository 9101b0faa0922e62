// Instruction set extensions in use, and compilation of a loop for several of them. The build defines
// MESHFLOW_PORTABLE for processors other than x86-64, to omit x86 instructions and oneDNN.

#pragma once

namespace meshflow {

// The order of `ISA_LEVELS` in library.py; each level includes the previous ones. kAvx2 includes fused multiply-add and conversions
// of 16-bit floats (FMA, F16C), as all such processors do; kAvx512 bytes, 64-bit products and shorter vectors (BW, DQ, VL); kBfloat16
// products of bfloat16; kTiles matrix tiles (AMX) for these.
enum class Level { kPlain, kAvx2, kAvx512, kBfloat16, kTiles };

// The extensions of the processor, maybe limited by the environment.
extern Level level;
// Whether tiles are emulated: for tests on processors with AVX-512 but without AMX.
extern bool emulated_tiles;

inline bool has(Level wanted) { return level >= wanted; }
// Whether code for matrix tiles may be called: compilers use AVX-512 in all of it.
inline bool may_use_tiles() { return has(Level::kTiles) || emulated_tiles; }

// Compiles a function for these extensions. Portable builds never call it.
#ifdef MESHFLOW_PORTABLE
#define FOR_CPU(extensions)
#else
#define FOR_CPU(extensions) __attribute__((target(extensions)))
#endif

// Whether fused multiply-add may be chosen while the program runs.
inline bool fuses() {
#ifdef MESHFLOW_PORTABLE
  return false;
#else
  static const bool supported = __builtin_cpu_supports("fma");
  return supported;
#endif
}

// Defines a template with this name, which compiles an inlined loop for several processors.
#define MAKE_FOR_EVERY_CPU(Name, attributes)                                                                      \
  template <auto loop>                                                                                            \
  struct Name;                                                                                                    \
  template <typename Result, typename... Parts, Result (*loop)(Parts...)>                                         \
  struct Name<loop> {                                                                                             \
    FOR_CPU("avx512f") attributes static Result by_512(Parts... parts) { return loop(parts...); }                 \
    FOR_CPU("avx2") attributes static Result by_256(Parts... parts) { return loop(parts...); }                    \
    attributes static Result by_any(Parts... parts) { return loop(parts...); }                                    \
    static Result run(Parts... parts) {                                                                           \
      return has(Level::kAvx512) ? by_512(parts...) : has(Level::kAvx2) ? by_256(parts...) : by_any(parts...);    \
    }                                                                                                             \
  };

MAKE_FOR_EVERY_CPU(EveryCpu, )

// Lets the other thread of a core continue while this one polls.
inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

// constexpr auto sum = for_every_cpu<sum_loop>;
template <auto loop>
constexpr auto for_every_cpu = &EveryCpu<loop>::run;

}  // namespace meshflow

#define INLINE inline __attribute__((always_inline))
