#include "narrow.h"

#define LOOPS "narrow_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool suits(const Narrow& s) { return has(Level::kAvx2) && BY_WIDTH(suits(s)); }
size_t scratch_bytes(const Narrow& s) { return BY_WIDTH(scratch_bytes(s)); }
size_t gradient_scratch_bytes(const Narrow& s) { return BY_WIDTH(gradient_scratch_bytes(s)); }
void convolve(const Narrow& s, const void* wide, const void* weights, void* narrow, char* scratch, int threads) {
  BY_WIDTH(convolve(s, wide, weights, narrow, scratch, threads));
}
void differentiate(const Narrow& s, const void* wide, const void* narrow, void* weights, char* scratch, int threads) {
  BY_WIDTH(differentiate(s, wide, narrow, weights, scratch, threads));
}
#else
bool suits(const Narrow&) { return false; }
size_t scratch_bytes(const Narrow&) { return 0; }
size_t gradient_scratch_bytes(const Narrow&) { return 0; }
void convolve(const Narrow&, const void*, const void*, void*, char*, int) {}
void differentiate(const Narrow&, const void*, const void*, void*, char*, int) {}
#endif

}  // namespace meshflow
