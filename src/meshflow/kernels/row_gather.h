// Operations with constants on rows of float32 elements.
#pragma once

#include <cstdint>

// `codes` in the order of `OPERATIONS` in row_gather.py; `values` hold one value each, or (`each`) one for
// every element of a row.
struct Steps {
  int64_t count;
  const int32_t* codes;
  const float* const* values;
  const int32_t* each;
};

// Applies the operations in order to `count` elements of a row, starting at element `at`.
void operate(const Steps& steps, float* x, int64_t at, int64_t count);
