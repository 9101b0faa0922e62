// Boundary between our code and callers through ctypes: no exception passes.

#pragma once

namespace meshflow {

// Returns the result of the body, or `otherwise` if it throws.
template <typename Result, typename Body>
Result guarded(Result otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

// The same without a result.
template <typename Body>
void guarded(Body body) noexcept {
  try {
    body();
  } catch (...) {
  }
}

}  // namespace meshflow
