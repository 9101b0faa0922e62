// Float32 convolutions with 3 x 3 kernels and the gradients of these kernels, by Winograd's minimal
// filtering.

#pragma once

#include <cstddef>
#include <cstdint>

#include "epilogue.h"

namespace meshflow {

// Sizes, and strides in elements; channels are contiguous (stride 1) in image and result.
struct Winograd {
  int64_t batch, channels, features;  // of the image; of the result
  int64_t height, width, rows, columns;  // of the image; of the result
  int64_t low[2];                     // leading padding
  int64_t image[3], result[3];        // strides: batch, y, x
  int64_t kernel[4];                  // strides: y, x, in, out
};

// Returns whether the code supports the processor and these channels; for the gradient also whether it is
// faster for these sizes.
bool suits(const Winograd& sizes);
bool differentiates(const Winograd& sizes, int threads);

// Transform of a kernel: its size, and the conversion from the caller's layout.
size_t packed_bytes(const Winograd& sizes);
void pack(const Winograd& sizes, const float* kernel, char* packed, int threads);

// result[n, i, j, k] = epilogue(sum over y, x, c of image[n, i + y - low, j + x - low, c] kernel[y, x, c,
// k]). `packed` is a packed (transformed) kernel or null. The bits do not depend on the number of threads.
void convolve(const Winograd& sizes, const float* image, const float* kernel, const char* packed,
              const Epilogue& epilogue, float* result, char* scratch, int threads);

size_t scratch_bytes(const Winograd& sizes, int threads);

// kernel[y, x, c, k] = sum over n, i, j of image[n, i + y - low, j + x - low, c] result[n, i, j, k]. The bits
// do not depend on the number of threads.
void differentiate(const Winograd& sizes, const float* image, const float* result, float* kernel,
                   char* scratch, int threads);

size_t gradient_scratch_bytes(const Winograd& sizes, int threads);

}  // namespace meshflow
