#include "depthwise.h"

#define LOOPS "depthwise_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool suits(const Depthwise& s, bool gradient) {
  // Products of these sizes fit into 64 bits.
  constexpr int64_t kMaxWindow = 1 << 10;
  for (int i = 0; i < 2; ++i)
    if (s.kernel[i] > kMaxWindow || s.tap[i] > kMaxWindow || s.step[i] > kMaxWindow) return false;
  return has(Level::kAvx2) && BY_WIDTH(suits(s, gradient));
}
size_t scratch_bytes(const Depthwise& s, int threads) { return BY_WIDTH(scratch_bytes(s, threads)); }
size_t gradient_scratch_bytes(const Depthwise& s, int threads) { return BY_WIDTH(gradient_scratch_bytes(s, threads)); }
void convolve(const Depthwise& s, const void* image, const void* weights, const Epilogue& epilogue, void* result, char* scratch,
              int threads) {
  BY_WIDTH(convolve(s, image, weights, epilogue, result, scratch, threads));
}
void differentiate(const Depthwise& s, const void* image, const void* result, void* weights, char* scratch, int threads) {
  BY_WIDTH(differentiate(s, image, result, weights, scratch, threads));
}
#else
bool suits(const Depthwise&, bool) { return false; }
size_t scratch_bytes(const Depthwise&, int) { return 0; }
size_t gradient_scratch_bytes(const Depthwise&, int) { return 0; }
void convolve(const Depthwise&, const void*, const void*, const Epilogue&, void*, char*, int) {}
void differentiate(const Depthwise&, const void*, const void*, void*, char*, int) {}
#endif

}  // namespace meshflow
