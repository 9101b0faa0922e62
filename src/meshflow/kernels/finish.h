// What is done to the results of convolutions and products while they are written.

#pragma once

#include <cstdint>
#include <vector>

namespace meshflow {

// Steps, in the order in which a plan names them. Vectors have a value for each feature, arrays one for
// each result.
enum class Step : int64_t {
  kAdd = 0,       // a vector (float32) is added
  kScale = 1,     // multiplied by a vector (float32)
  kPlus = 2,      // an array is added
  kGate = 3,      // zero where an array is not positive: the gradient of a ReLU
  kRelu = 4,      // max(result, 0); NaN stays
  kGelu = 5,      // result * Phi(result), by the error function
  kGeluTanh = 6,  // the same by the hyperbolic tangent
};

enum class Number { kFloat, kBfloat, kHalf };

// A step with what it reads.
struct Part {
  Step step;
  Number type;
  const void* operand;
};

using Finish = std::vector<Part>;

inline bool reads_vector(Step step) { return step == Step::kAdd || step == Step::kScale; }
inline bool reads_array(Step step) { return step == Step::kPlus || step == Step::kGate; }

}  // namespace meshflow
