// Instruction set extensions of the processor, limited by the environment.

#include "cpus.h"

#include <algorithm>

#ifndef MESHFLOW_PORTABLE
#include "oneapi/dnnl/dnnl.h"
#endif

namespace meshflow {
namespace {

#ifdef MESHFLOW_PORTABLE
Level found() { return Level::kPlain; }
void limit_onednn(Level) {}
#else
Level found() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Level::kPlain;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return Level::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Level::kAvx512;
  unsigned a = 7, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  bool tiles = (d >> 24 & 1) && (d >> 22 & 1);
  return tiles ? Level::kTiles : Level::kBfloat16;
}

dnnl_cpu_isa_t onednn(Level limit) {
  switch (limit) {
    case Level::kPlain: return dnnl_cpu_isa_sse41;
    case Level::kAvx2: return dnnl_cpu_isa_avx2;
    case Level::kAvx512: return dnnl_cpu_isa_avx512_core;
    case Level::kBfloat16: return dnnl_cpu_isa_avx512_core_bf16;
    default: return dnnl_cpu_isa_default;
  }
}

void limit_onednn(Level limit) { dnnl_set_max_cpu_isa(onednn(limit)); }
#endif

}  // namespace

Level level = found();
bool emulated_tiles = false;

}  // namespace meshflow

// Limits the extensions in use, including those of oneDNN; must be called first. Returns the level in effect.
//
// limit: a level, or -1 for none.
extern "C" int meshflow_limit(int limit, int emulate) noexcept {
  using namespace meshflow;
  if (limit >= 0) {
    level = std::min(found(), static_cast<Level>(limit));
    limit_onednn(static_cast<Level>(limit));
  }
  emulated_tiles = emulate && has(Level::kAvx512);
  return static_cast<int>(level);
}
