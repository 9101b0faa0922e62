// Gradient of a 3 x 3 kernel by the transposed transforms of F(2 x 2, 3 x 3): with the tile of the image and
// the tile of the result's gradient transformed to sixteen points, it is a sum of outer products over the
// tiles, transformed to nine taps once at the end.
//
// Each task computes a block of channels x features; its sums remain in the second-level cache.

#include "winograd.h"

#include "blocks.h"

#define LOOPS "winograd_gradient_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool differentiates(const Winograd& s, int threads) { return has(Level::kAvx2) && BY_WIDTH(differentiates(s, threads)); }
size_t gradient_scratch_bytes(const Winograd& s, int threads) { return BY_WIDTH(gradient_scratch_bytes(s, threads)); }
void differentiate(const Winograd& s, const float* image, const float* result, float* kernel, char* scratch, int threads) {
  BY_WIDTH(differentiate(s, image, result, kernel, scratch, threads));
}
#else
bool differentiates(const Winograd&, int) { return false; }
size_t gradient_scratch_bytes(const Winograd&, int) { return 0; }
void differentiate(const Winograd&, const float*, const float*, float*, char*, int) {}
#endif

}  // namespace meshflow
