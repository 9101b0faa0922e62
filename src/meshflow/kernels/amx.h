// Two-dimensional convolutions in bfloat16 and the gradients of their kernels, on matrix tiles (AMX).

#pragma once

#include <cstddef>
#include <cstdint>

#include "epilogue.h"

namespace meshflow {

// Sizes, and strides in elements; channels are contiguous (stride 1) in image and result.
struct Convolution {
  int64_t batch, channels, features;               // of the image; of the result
  int64_t height, width, rows, columns;            // of the image; of the result
  int64_t taps[2], strides[2], dilations[2], low[2];  // extent of the kernel, strides, dilations, leading padding
  int64_t image[3], result[3];                     // strides: batch, y, x
  int64_t kernel[4];                               // strides: y, x, in, out; one of the last two is 1
  bool wide, wide_kernel;                          // whether the result is float32; whether the kernel is float32
};

// Returns whether this code supports the processor and is faster for these sizes.
//
// has_epilogue: whether an epilogue is fused.
bool suits(const Convolution& sizes, bool has_epilogue);

// For tests: sums += left * right for one tile. Returns false if the system grants no tiles.
bool multiply_tile(const void* left, const void* right, float* sums);

size_t scratch_bytes(const Convolution& sizes, int threads);

// Packing of a kernel: its size, and the conversion from the caller's layout.
size_t packed_bytes(const Convolution& sizes);
void pack(const Convolution& sizes, const void* kernel, char* packed, int threads);

// result[n, i, j, k] = epilogue(sum over y, x, c of image[n, i s + y d - low, j s + x d - low, c] kernel[y,
// x, c, k]). The image is bfloat16, and so is the kernel (float32 is rounded); sums are float32. `packed` is
// a packed kernel or null. The bits do not depend on the number of threads.
void run(const Convolution& sizes, const void* image, const void* kernel, const char* packed, const Epilogue& epilogue,
         void* result, char* scratch, int threads);

// Sizes, and strides in elements; channels are contiguous (stride 1) in every operand.
struct KernelGradient {
  int64_t batch, channels, features;               // of the image; of the result
  int64_t height, width, rows, columns;            // of the image; of the result
  int64_t taps[2], strides[2], dilations[2], low[2];  // extent of the kernel, strides, dilations, leading padding
  int64_t image[3], result[3], kernel[3];          // strides: batch, y, x; the same; y, x, in channel
  bool wide;                                       // whether the kernel's gradient is float32
};

// Returns whether this code supports the processor and is faster for these sizes.
bool suits(const KernelGradient& sizes, int threads);

size_t scratch_bytes(const KernelGradient& sizes, int threads);

// kernel[y, x, c, k] = sum over n, i, j of image[n, i s + y d - low, j s + x d - low, c] result[n, i, j, k];
// bias[k] (with the kernel's type, or null) = sum over n, i, j of result[n, i, j, k]. Images and results are
// bfloat16, sums float32. The bits do not depend on the number of threads.
void run(const KernelGradient& sizes, const void* image, const void* result, void* kernel, void* bias,
         char* scratch, int threads);

}  // namespace meshflow
