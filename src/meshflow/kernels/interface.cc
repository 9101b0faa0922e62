// Version of XLA's interface, and the number of threads: what every build of the kernels has.

#include "guard.h"
#include "handler.h"

#define TEXT(macro) TEXT_OF(macro)
#define TEXT_OF(value) #value
// Version of XLA's foreign function interface in the headers: an older XLA rejects these handlers. The build
// reads the text from the file.
extern "C" const char* meshflow_ffi_version() noexcept {
  return "meshflow for XLA FFI " TEXT(XLA_FFI_API_MAJOR) "." TEXT(XLA_FFI_API_MINOR);
}

// Hash of the declarations of all functions like these, which the build computes: Python passes arguments of wrong
// types to a library with another one.
extern "C" const char* meshflow_interface() noexcept { return TEXT(MESHFLOW_INTERFACE); }

extern "C" void meshflow_onednn_set_threads(int threads) noexcept {
  meshflow::guarded([&] { meshflow::Team::get().set_threads(threads); });
}
