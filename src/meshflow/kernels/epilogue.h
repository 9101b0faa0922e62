// What is done to the results of convolutions and products while they are written.

#pragma once

#include <cstdint>
#include <vector>

namespace meshflow {

// What an epilogue is made of, in the order in which a descriptor names it. Vectors have a value for each feature, arrays one for
// each result.
enum class EpilogueOp : int64_t {
  kAdd = 0,       // a vector (float32) is added
  kScale = 1,     // multiplied by a vector (float32)
  kPlus = 2,      // an array is added
  kReluMask = 3,  // zero where an array is not positive: the gradient of a ReLU
  kRelu = 4,      // max(result, 0); NaN stays
  kGelu = 5,      // result * Phi(result), by the error function
  kGeluTanh = 6,  // the same by the hyperbolic tangent
};

enum class Number { kFloat, kBfloat, kHalf };

// One operation of an epilogue with what it reads.
struct Part {
  EpilogueOp op;
  Number type;
  const void* operand;
};

using Epilogue = std::vector<Part>;

inline bool reads_vector(EpilogueOp step) { return step == EpilogueOp::kAdd || step == EpilogueOp::kScale; }
inline bool reads_array(EpilogueOp step) { return step == EpilogueOp::kPlus || step == EpilogueOp::kReluMask; }

}  // namespace meshflow
