// Convolutions of each channel with a kernel of its own, and the gradients of these kernels. oneDNN computes kernels other
// than 3 x 3 at a fraction of the processor's speed.

#pragma once

#include <cstddef>
#include <cstdint>

#include "epilogue.h"

namespace meshflow {

// Sizes, and strides in elements; channels are contiguous (stride 1).
struct Depthwise {
  int64_t batch, channels;
  int64_t height, width, rows, columns;  // of the image; of the result
  int64_t kernel[2], step[2], tap[2], low[2];
  int64_t image[3], result[3];           // strides: batch, y, x
  int64_t weights[2];                    // strides: y, x
  bool halves, wide_weights;             // bfloat16 instead of float32; weights of float32 nevertheless
};

// Whether the code supports the processor, and is faster than oneDNN for these sizes or oneDNN is wrong.
bool suits(const Depthwise& sizes, bool gradient);

// result[n, i, c] = sum over k of image[n, i * step + k * tap - low, c] weights[k, c].
void convolve(const Depthwise& sizes, const void* image, const void* weights, const Epilogue& epilogue, void* result,
              char* scratch, int threads);
size_t scratch_bytes(const Depthwise& sizes, int threads);

// weights[k, c] = sum over n, i of image[n, i * step + k * tap - low, c] result[n, i, c]. The bits do not depend on the number
// of threads.
void differentiate(const Depthwise& sizes, const void* image, const void* result, void* weights, char* scratch, int threads);
size_t gradient_scratch_bytes(const Depthwise& sizes, int threads);

}  // namespace meshflow
