// Which of the processor's vector extensions are used, and how a loop is compiled for several.

#pragma once

namespace meshflow {

// In the order of `LEVELS` in library.py; a level has what those before it have. kAvx512 is with bytes and shorter
// vectors (BW, VL), kBfloat16 with conversions to 16 bits, kTiles with matrix tiles (AMX) for these.
enum class Level { kPlain, kAvx2, kAvx512, kBfloat16, kTiles };

// What the processor has, or less where the environment asks for less.
extern Level level;
// Whether tiles are emulated: for tests of what is done with them, on processors with AVX-512.
extern bool emulated_tiles;

inline bool has(Level wanted) { return level >= wanted; }

// Makes a template of that name, which compiles a loop that is always inlined for several processors.
#define MAKE_FOR_EVERY_CPU(Name, attributes)                                                                      \
  template <auto loop>                                                                                            \
  struct Name;                                                                                                    \
  template <typename Result, typename... Parts, Result (*loop)(Parts...)>                                         \
  struct Name<loop> {                                                                                             \
    __attribute__((target("avx512f"))) attributes static Result by_512(Parts... parts) { return loop(parts...); } \
    __attribute__((target("avx2"))) attributes static Result by_256(Parts... parts) { return loop(parts...); }    \
    attributes static Result by_any(Parts... parts) { return loop(parts...); }                                    \
    static Result run(Parts... parts) {                                                                           \
      return has(Level::kAvx512) ? by_512(parts...) : has(Level::kAvx2) ? by_256(parts...) : by_any(parts...);    \
    }                                                                                                             \
  };

MAKE_FOR_EVERY_CPU(EveryCpu, )

// constexpr auto sum = for_every_cpu<sum_loop>;
template <auto loop>
constexpr auto for_every_cpu = &EveryCpu<loop>::run;

}  // namespace meshflow

#define INLINE inline __attribute__((always_inline))
