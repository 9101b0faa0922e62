// Forward convolutions and products block by block, with an epilogue while the sums are in a cache.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "epilogue.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace meshflow {

// Description of a computation by blocks.
struct Sum {
  // Creates oneDNN's computation of some of the images, or of the rows of a product; may throw.
  struct Block {
    dnnl::primitive primitive;
    dnnl::memory::desc image, kernel, result, scratchpad;
    std::string implementation;
  };
  dnnl::engine engine;
  std::function<Block(int64_t count, dnnl::memory::data_type result, const dnnl::memory::desc& kernel)> make;
  dnnl::memory::desc any;                     // the kernel in a layout of oneDNN's choice
  int64_t count;                              // images or rows
  int64_t places;                             // positions of a result; the features of each are contiguous
  int64_t features;
  size_t image_bytes;                         // bytes between images
  dnnl::memory::desc kernel;                  // the caller's layout; another type is converted
  dnnl::memory::data_type result;
};

// A compiled computation.
struct Blocked {
  std::string implementation;  // empty if the processor is not supported
  size_t scratch_bytes = 0, packed_bytes = 0;
  // The kernel in oneDNN's layout; none if that equals the caller's.
  std::function<void(const void* kernel, char* packed)> pack;
  // A packed kernel, or null.
  std::function<void(const void* image, const void* kernel, const char* packed, const Epilogue& epilogue, void* result,
                     char* scratch)>
      run;
};

// Each thread processes separate blocks.
Blocked in_blocks(const Sum& sum, int threads);

}  // namespace meshflow
