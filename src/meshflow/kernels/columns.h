// Sums over the rows of a matrix, or of each row, of its elements or of functions of them: gradients of biases, and the
// statistics and gradients of batch and layer normalization.

#pragma once

#include <cstddef>
#include <cstdint>

namespace meshflow {

// The terms of a sum: x, x y, or (x - y)^2 with a vector y of float32, which has a number for each sum.
enum class Terms : int64_t { kElements = 0, kProducts = 1, kSquares = 2 };

struct Columns {
  int64_t rows, columns;
  Terms terms;
  bool each_row;  // instead of over all rows; not of products, and in float32
  bool x_halves, y_halves, result_halves;  // bfloat16 instead of float32
};

// Whether the code supports the processor.
bool suits(const Columns& sizes);
size_t scratch_bytes(const Columns& sizes);
// The bits do not depend on the number of threads.
void sum(const Columns& sizes, const void* x, const void* y, void* result, char* scratch, int threads);

}  // namespace meshflow
