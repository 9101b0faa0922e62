// Convolutions between an image with many channels and one with at most four, which oneDNN computes as if these were
// sixteen: the outputs of generators and segmentations.

#pragma once

#include <cstddef>
#include <cstdint>

namespace meshflow {

// Sizes, and strides in elements; channels are contiguous (stride 1) in both images. The position of the wide image for
// position i of the narrow one and position k of the kernel is (i * step + offset + k * tap) / part, if it is an integer.
struct Narrow {
  int64_t batch, channels, features;     // channels of the wide image and of the narrow one
  int64_t height, width, rows, columns;  // of the wide image; of the narrow one
  int64_t kernel[2], step[2], offset[2], tap[2], part[2];
  int64_t wide[3], narrow[3];            // strides: batch, y, x
  int64_t weights[4];                    // strides: y, x, channel, feature
  bool halves;                           // bfloat16 instead of float32
};

// Whether the code supports the processor and these channels.
bool suits(const Narrow& sizes);

// narrow[n, i, f] = sum over k, c of wide[n, position(i, k), c] weights[k, c, f].
void convolve(const Narrow& sizes, const void* wide, const void* weights, void* narrow, char* scratch, int threads);
size_t scratch_bytes(const Narrow& sizes);

// weights[k, c, f] = sum over n, i of wide[n, position(i, k), c] narrow[n, i, f]; all parts are 1. The bits do not depend
// on the number of threads.
void differentiate(const Narrow& sizes, const void* wide, const void* narrow, void* weights, char* scratch, int threads);
size_t gradient_scratch_bytes(const Narrow& sizes);

}  // namespace meshflow
