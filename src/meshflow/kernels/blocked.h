// Forward convolutions and products block by block, with an epilogue while a cache holds their sums.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "epilogue.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace meshflow {

// What a computation in blocks is made of.
struct Sum {
  // oneDNN's computation of some of the images, or of the rows of a product; may throw.
  struct Block {
    dnnl::primitive primitive;
    dnnl::memory::desc image, kernel, result, scratchpad;
    std::string implementation;
  };
  dnnl::engine engine;
  std::function<Block(int64_t count, dnnl::memory::data_type result, const dnnl::memory::desc& kernel)> make;
  dnnl::memory::desc any;                     // the kernel in a layout of oneDNN's choice
  int64_t count;                              // images or rows
  int64_t places;                             // of a result: features lie together at each
  int64_t features;
  size_t image_bytes;                         // from an image to the next
  dnnl::memory::desc kernel;                  // as the caller has it; one of another type is converted
  dnnl::memory::data_type result;
};

// How it is run.
struct Blocked {
  std::string implementation;  // empty when the processor has no code for it
  size_t scratch_bytes = 0, packed_bytes = 0;
  // The kernel in the layout of oneDNN's choice; none where that is the caller's.
  std::function<void(const void* kernel, char* packed)> pack;
  // A kernel that was packed before is taken from there (else null).
  std::function<void(const void* image, const void* kernel, const char* packed, const Epilogue& epilogue, void* result,
                     char* scratch)>
      run;
};

// Each thread takes blocks of its own.
Blocked in_blocks(const Sum& sum, int threads);

}  // namespace meshflow
