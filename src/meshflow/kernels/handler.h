// Common code of XLA handlers. Only handlers include it, because XLA's headers take longer to parse than most
// files to compile.

#pragma once

#include <exception>
#include <new>
#include <string>

#include "team.h"
#include "xla/ffi/api/ffi.h"

namespace meshflow {

namespace ffi = xla::ffi;

// Returns the result of the body, or an error with the handler's name if it throws.
template <typename Body>
ffi::Error handled(const char* name, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string(name) + ": out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string(name) + ": " + error.what());
  } catch (...) {
    return ffi::Error::Internal(std::string(name) + ": an unknown error");
  }
}

}  // namespace meshflow
