// Products of matrices, and convolutions of images with few channels as such products, in float32 with AVX2. oneDNN multiplies
// matrices whose rows are a multiple of 2 KiB at half of the processor's speed, and copies the windows of these images to a matrix.

#pragma once

#include <cstddef>
#include <cstdint>

namespace meshflow {

// Sizes, and strides in elements. The rows or the columns of the left matrix are contiguous, and the rows of the others.
struct Product {
  int64_t batch, rows, columns, depth;
  int64_t left[3], right[2];  // strides: batch, row, depth; batch, depth
};

// Whether the code is faster than oneDNN's on this processor.
bool suits(const Product& product);

// result[n, i, j] = sum over k of left[n, i, k] right[n, k, j]. The bits do not depend on the number of threads.
void multiply(const Product& product, const float* left, const float* right, float* result, char* scratch, int threads);
size_t scratch_bytes(const Product& product);

// A convolution: sizes, and strides in elements; channels and features are contiguous (stride 1).
struct Windows {
  int64_t batch, channels, features;
  int64_t height, width, rows, columns;  // of the image; of the result
  int64_t kernel[2], step[2], tap[2], low[2];
  int64_t image[3], result[3];           // strides: batch, y, x
  int64_t weights[4];                    // strides: y, x, channel, feature
};

// Whether the processor and the sizes are supported.
bool suits(const Windows& sizes);

// result[n, i, f] = sum over k and c of image[n, i * step + k * tap - low, c] weights[k, c, f].
void convolve(const Windows& sizes, const float* image, const float* weights, float* result, char* scratch, int threads);
size_t scratch_bytes(const Windows& sizes, int threads);

// weights[k, c, f] = sum over n, i of image[n, i * step + k * tap - low, c] result[n, i, f]. The bits do not depend on the
// number of threads.
void differentiate(const Windows& sizes, const float* image, const float* result, float* weights, char* scratch, int threads);
size_t gradient_scratch_bytes(const Windows& sizes, int threads);

}  // namespace meshflow
