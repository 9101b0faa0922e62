// What stands between our code and who calls it from C: no exception passes.

#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace meshflow {

// For functions that are called through ctypes: what the body returns, or `otherwise` where it fails.
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

// For handlers of XLA: what the body returns, or the error of what it throws, with the handler's name.
template <typename Body>
xla::ffi::Error handled(const char* name, Body body) noexcept {
  using xla::ffi::Error;
  using xla::ffi::ErrorCode;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, std::string(name) + ": out of memory");
  } catch (const std::exception& error) {
    return Error::Internal(std::string(name) + ": " + error.what());
  } catch (...) {
    return Error::Internal(std::string(name) + ": an unknown error");
  }
}

}  // namespace meshflow
