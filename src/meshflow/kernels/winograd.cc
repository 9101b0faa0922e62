// Winograd's F(2 x 2, 3 x 3): computes a 2 x 2 tile of the result from a 4 x 4 tile of the image with 16
// products per channel instead of 36 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
// 2015, section 4.1). The transforms only add and halve, so the result is as accurate as the sum by
// definition; larger tiles would not be.
//
// Tiles are processed in blocks that fit in the second-level cache: transform, sixteen matrix products,
// inverse transform.

#include "winograd.h"

#define LOOPS "winograd_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool suits(const Winograd& s) { return has(Level::kAvx2) && BY_WIDTH(suits(s)); }
size_t scratch_bytes(const Winograd& s, int threads) { return BY_WIDTH(scratch_bytes(s, threads)); }
size_t packed_bytes(const Winograd& s) { return BY_WIDTH(packed_bytes(s)); }
void pack(const Winograd& s, const float* kernel, char* packed, int threads) { BY_WIDTH(pack(s, kernel, packed, threads)); }
void convolve(const Winograd& s, const float* image, const float* kernel, const char* packed, const Epilogue& epilogue,
              float* result, char* scratch, int threads) {
  BY_WIDTH(convolve(s, image, kernel, packed, epilogue, result, scratch, threads));
}
#else
bool suits(const Winograd&) { return false; }
size_t scratch_bytes(const Winograd&, int) { return 0; }
size_t packed_bytes(const Winograd&) { return 0; }
void pack(const Winograd&, const float*, char*, int) {}
void convolve(const Winograd&, const float*, const float*, const char*, const Epilogue&, float*, char*, int) {}
#endif

}  // namespace meshflow
