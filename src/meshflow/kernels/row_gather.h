// Operations with constants on rows of float32 numbers.
#pragma once

#include <cstdint>

// `codes` in the order of `OPERATIONS` in row_gather.py; `values` hold one number each, or (`each`) one for every
// number of a row.
struct Steps {
  int64_t count;
  const int32_t* codes;
  const float* const* values;
  const int32_t* each;
};

// Does them, one after the other, on `count` numbers of a row from number `at` on.
void operate(const Steps& steps, float* x, int64_t at, int64_t count);
