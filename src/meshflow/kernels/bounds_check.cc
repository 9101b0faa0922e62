// XLA FFI handler that checks indices and divisors while a program runs. It returns its operand unchanged, so that
// the operation that uses the operand runs after the check.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "guard.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::handled;

// The first failure that a program with recording checks found, until it is taken.
std::mutex mutex;
std::string failure;
std::atomic<bool> failed{false};

template <typename T>
bool is_outside(T value, int64_t lower, int64_t upper) {
  if constexpr (sizeof(T) == 8 && static_cast<T>(-1) > 0) {
    if (value > static_cast<T>(INT64_MAX)) return true;
  }
  return static_cast<int64_t>(value) < lower || static_cast<int64_t>(value) >= upper;
}

// Returns the offset of the first element outside of the limits of its column, or -1.
template <typename T>
int64_t find_outside(const T* values, int64_t count, ffi::Span<const int64_t> lower, ffi::Span<const int64_t> upper) {
  int64_t columns = lower.size();
  if (columns == 1) {
    bool any = false;
    for (int64_t i = 0; i < count; ++i) any |= is_outside(values[i], lower[0], upper[0]);
    if (!any) return -1;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (is_outside(values[i], lower[i % columns], upper[i % columns])) return i;
  }
  return -1;
}

template <typename T>
int64_t find_zero(const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] == 0) return i;
  }
  return -1;
}

// Replaces the values that are not allowed, so that what a recording program assigns remains finite.
template <typename T>
void replace_outside(T* values, int64_t count, ffi::Span<const int64_t> lower, ffi::Span<const int64_t> upper) {
  int64_t columns = lower.size();
  for (int64_t i = 0; i < count; ++i) {
    if (columns == 0) {
      if (values[i] == 0) values[i] = 1;
    } else if (is_outside(values[i], lower[i % columns], upper[i % columns])) {
      values[i] = static_cast<T>(std::max<int64_t>(lower[i % columns], 0));
    }
  }
}

// The failure is "meshflow_bounds:<offset>:<value>,<value>...:<dimensions>:<description>;".
template <typename T>
std::string describe(const T* values, int64_t offset, int64_t columns, ffi::AnyBuffer x, std::string_view description) {
  int64_t first = offset / columns * columns;
  std::string text = "meshflow_bounds:" + std::to_string(offset) + ":";
  for (int64_t i = first; i < first + columns; ++i) text += (i > first ? "," : "") + std::to_string(values[i]);
  text += ":";
  bool is_first = true;
  for (int64_t size : x.dimensions()) {
    text += (is_first ? "" : ",") + std::to_string(size);
    is_first = false;
  }
  return text + ":" + std::string(description) + ";";
}

ffi::Error execute(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y, ffi::Span<const int64_t> lower,
                   ffi::Span<const int64_t> upper, std::string_view description, bool records, bool replaces) {
  return handled("meshflow_bounds_check", [&]() -> ffi::Error {
    if (x.size_bytes() != y->size_bytes() || lower.size() != upper.size())
      return ffi::Error::InvalidArgument("meshflow_bounds_check: the sizes differ");
    if (x.untyped_data() != y->untyped_data()) std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
    int64_t count = x.element_count(), columns = std::max<int64_t>(lower.size(), 1);
    auto check = [&](auto* values) -> ffi::Error {
      int64_t offset = lower.size() ? find_outside(values, count, lower, upper) : find_zero(values, count);
      if (offset < 0) return ffi::Error::Success();
      std::string text = describe(values, offset, columns, x, description);
      if (!records) return ffi::Error::InvalidArgument(text);
      std::lock_guard<std::mutex> lock(mutex);
      if (!failed.load()) failure = text;
      failed.store(true);
      if (replaces) replace_outside(values, count, lower, upper);
      return ffi::Error::Success();
    };
    void* data = y->untyped_data();
    switch (x.element_type()) {
      case ffi::DataType::S8: return check(static_cast<int8_t*>(data));
      case ffi::DataType::S16: return check(static_cast<int16_t*>(data));
      case ffi::DataType::S32: return check(static_cast<int32_t*>(data));
      case ffi::DataType::S64: return check(static_cast<int64_t*>(data));
      case ffi::DataType::U8: return check(static_cast<uint8_t*>(data));
      case ffi::DataType::U16: return check(static_cast<uint16_t*>(data));
      case ffi::DataType::U32: return check(static_cast<uint32_t*>(data));
      case ffi::DataType::U64: return check(static_cast<uint64_t*>(data));
      default: return ffi::Error::Success();
    }
  });
}

}  // namespace

// Copies the recorded failure to a buffer and forgets it; returns its size, or 0. Without a buffer, only returns 1 if
// there is one.
extern "C" int64_t meshflow_take_bounds_failure(char* text, int64_t size) noexcept {
  if (!failed.load(std::memory_order_acquire)) return 0;
  return meshflow::guarded<int64_t>(0, [&]() -> int64_t {
    if (text == nullptr || size < 1) return 1;
    std::lock_guard<std::mutex> lock(mutex);
    int64_t copied = std::min<int64_t>(size - 1, failure.size());
    std::memcpy(text, failure.data(), copied);
    text[copied] = 0;
    failed.store(false);
    return copied;
  });
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_bounds_check, execute,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<ffi::Span<const int64_t>>("lower")
                                  .Attr<ffi::Span<const int64_t>>("upper")
                                  .Attr<std::string_view>("description")
                                  .Attr<bool>("records")
                                  .Attr<bool>("replaces"));
