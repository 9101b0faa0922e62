// Convolutions and products by code of our own. Each function says whether it is the faster one and has described
// itself to the kernel.

#pragma once

#include "kernel.h"

namespace meshflow {

// A forward convolution in bfloat16 and its epilogue.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped);

// The gradients of the kernel and a bias, if one is given.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const memory::desc* bias);

// A convolution in float32 with 3 x 3 kernels and its epilogue, or the gradient of its kernel.
bool by_winograd(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                 const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped);

// A forward convolution and its epilogue, some images at a time; with a kernel of one place, some places at a time.
// May throw oneDNN's errors.
bool by_images(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
               const Dims& strides, const Dims& dilations, const Dims& low, const Dims& high, const EpilogueOps& epilogue);

// A product of matrices and its epilogue, some rows at a time. May throw oneDNN's errors.
bool by_rows(Kernel& kernel, const memory::desc& a, const memory::desc& b, const memory::desc& c, const EpilogueOps& epilogue);

}  // namespace meshflow
