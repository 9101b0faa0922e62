// Convolutions and products by our own code. Each function returns whether it is faster, and if so sets up
// the kernel.

#pragma once

#include "kernel.h"

namespace meshflow {

// A forward convolution in bfloat16 with its epilogue.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped);

// The gradients of the kernel and, optionally, a bias.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const memory::desc* bias);

// A float32 convolution with 3 x 3 kernels and its epilogue, or the gradient of its kernel.
bool by_winograd(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                 const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped);

// A convolution with at most four channels of its result, the gradient of its kernel, or the gradient of an image with so
// few channels, in one or two spatial dimensions.
bool by_narrow(Kernel& kernel, int64_t computation, const memory::desc& x, const memory::desc& w, const memory::desc& y,
               const Dims& strides, const Dims& dilations, const Dims& low);

// A convolution of each channel with its own kernel and its epilogue, or the gradient of the kernel, in one or two spatial
// dimensions.
bool by_depthwise(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                  const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped);

// A matrix product with its epilogue, some rows at a time. May throw oneDNN's errors.
bool by_rows(Kernel& kernel, const memory::desc& a, const memory::desc& b, const memory::desc& c, const EpilogueOps& epilogue);

// A float32 convolution whose windows oneDNN copies to a matrix, or the gradient of its kernel, in one or two spatial dimensions.
bool by_windows(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                const Dims& strides, const Dims& dilations, const Dims& low);

// A float32 product of matrices with aliased rows.
bool by_panels(Kernel& kernel, const memory::desc& a, const memory::desc& b, const memory::desc& c);

// Sums over rows, or of each row: descriptor = rows, columns, terms, whether of each row.
bool by_columns(Kernel& kernel, Reader& descriptor, const std::vector<Type>& types);

}  // namespace meshflow
