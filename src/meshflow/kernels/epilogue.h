// Epilogues: operations on results of convolutions and products before they are written.

#pragma once

#include <cstdint>
#include <vector>

namespace meshflow {

// Operations in the order of their codes in a descriptor. Vectors have one value per feature, arrays the
// shape of the result.
enum class EpilogueOp : int64_t {
  kAdd = 0,       // adds a vector (float32)
  kScale = 1,     // multiplies by a vector (float32)
  kPlus = 2,      // adds an array
  kReluMask = 3,  // zero where an array is not positive: the gradient of a ReLU
  kRelu = 4,      // max(result, 0); NaN is preserved
  kGelu = 5,      // result * Phi(result), by the error function
  kGeluTanh = 6,  // the same by the hyperbolic tangent
};

enum class Number { kFloat, kBfloat, kHalf };

// One operation of an epilogue with its operand.
struct Part {
  EpilogueOp op;
  Number type;
  const void* operand;
};

using Epilogue = std::vector<Part>;

inline bool reads_vector(EpilogueOp step) { return step == EpilogueOp::kAdd || step == EpilogueOp::kScale; }
inline bool reads_array(EpilogueOp step) { return step == EpilogueOp::kPlus || step == EpilogueOp::kReluMask; }

}  // namespace meshflow
