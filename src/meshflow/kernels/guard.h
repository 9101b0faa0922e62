// What stands between our code and who calls it through ctypes: no exception passes.

#pragma once

namespace meshflow {

// What the body returns, or `otherwise` where it fails.
template <typename Result, typename Body>
Result guarded(Result otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

// The same where nothing is returned.
template <typename Body>
void guarded(Body body) noexcept {
  try {
    body();
  } catch (...) {
  }
}

}  // namespace meshflow
