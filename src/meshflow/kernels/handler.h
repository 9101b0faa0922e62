// What handlers of XLA are made with. Only they include it: reading XLA's headers takes longer than compiling most files.

#pragma once

#include <exception>
#include <new>
#include <string>

#include "worker.h"
#include "xla/ffi/api/ffi.h"

namespace meshflow {

namespace ffi = xla::ffi;

// What the body returns, or the error of what it throws, with the handler's name.
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
