#include "panels.h"

#define LOOPS "panels_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool suits(const Product& p) { return has(Level::kAvx2) && BY_WIDTH(suits(p)); }
size_t scratch_bytes(const Product& p) { return BY_WIDTH(scratch_bytes(p)); }
void multiply(const Product& p, const float* left, const float* right, float* result, char* scratch, int threads) {
  BY_WIDTH(multiply(p, left, right, result, scratch, threads));
}
bool suits(const Windows& s) { return has(Level::kAvx2) && BY_WIDTH(suits(s)); }
size_t scratch_bytes(const Windows& s, int threads) { return BY_WIDTH(scratch_bytes(s, threads)); }
void convolve(const Windows& s, const float* image, const float* weights, float* result, char* scratch, int threads) {
  BY_WIDTH(convolve(s, image, weights, result, scratch, threads));
}
size_t gradient_scratch_bytes(const Windows& s, int threads) { return BY_WIDTH(gradient_scratch_bytes(s, threads)); }
void differentiate(const Windows& s, const float* image, const float* result, float* weights, char* scratch, int threads) {
  BY_WIDTH(differentiate(s, image, result, weights, scratch, threads));
}
#else
bool suits(const Product&) { return false; }
size_t scratch_bytes(const Product&) { return 0; }
void multiply(const Product&, const float*, const float*, float*, char*, int) {}
bool suits(const Windows&) { return false; }
size_t scratch_bytes(const Windows&, int) { return 0; }
void convolve(const Windows&, const float*, const float*, float*, char*, int) {}
size_t gradient_scratch_bytes(const Windows&, int) { return 0; }
void differentiate(const Windows&, const float*, const float*, float*, char*, int) {}
#endif

}  // namespace meshflow
