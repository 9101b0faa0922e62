// Products block by block, with an epilogue while the sums are in a cache.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "epilogue.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace meshflow {

// Description of a product by blocks.
struct Sum {
  // Creates oneDNN's computation of some of the rows; may throw.
  struct Block {
    dnnl::primitive primitive;
    dnnl::memory::desc left, right, result, scratchpad;
    std::string implementation;
  };
  dnnl::engine engine;
  std::function<Block(int64_t count, dnnl::memory::data_type result, const dnnl::memory::desc& right)> make;
  dnnl::memory::desc any;                     // the right matrix in a layout of oneDNN's choice
  int64_t count;                              // rows
  int64_t features;                           // columns of the result, which are contiguous
  size_t row_bytes;                           // bytes between rows of the left matrix
  dnnl::memory::desc right;                   // the caller's layout; another type is converted
  dnnl::memory::data_type result;
};

// A compiled computation.
struct Blocked {
  std::string implementation;  // empty if the processor is not supported
  size_t scratch_bytes = 0, packed_bytes = 0;
  // The right matrix in oneDNN's layout; none if that equals the caller's.
  std::function<void(const void* right, char* packed)> pack;
  // A packed right matrix, or null.
  std::function<void(const void* left, const void* right, const char* packed, const Epilogue& epilogue, void* result,
                     char* scratch)>
      run;
};

// Each thread processes separate blocks.
Blocked in_blocks(const Sum& sum, int threads);

}  // namespace meshflow
