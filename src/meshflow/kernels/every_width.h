// Includes the file LOOPS in the namespace by_256 with vectors of 8 floats (AVX2), and in by_512 with 16 (AVX-512). VECTORS tells
// whether the compiler can do this.
//
// Compilers use these instructions everywhere in the namespaces, also in plain loops. Functions outside must therefore check the
// processor before they call one inside; BY_WIDTH does so. Standard headers are included outside, because the linker keeps
// one copy of their templates for all processors.

#if !defined(MESHFLOW_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9
#define VECTORS 1

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpus.h"
#include "epilogue.h"
#include "floats.h"
#include "team.h"

#define BY_WIDTH(...) (has(Level::kAvx512) ? by_512::__VA_ARGS__ : by_256::__VA_ARGS__)

namespace meshflow {
namespace {

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace by_256 {
#define LANES 8
#include "vectors.h"
#include LOOPS
#undef LANES
}  // namespace by_256
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma")
namespace by_512 {
#define LANES 16
#include "vectors.h"
#include LOOPS
#undef LANES
}  // namespace by_512
#pragma GCC pop_options

}  // namespace
}  // namespace meshflow

#else
#define VECTORS 0
#endif
