// XLA FFI handler for running sums along a dimension of an array [outer, length, inner]. XLA's code makes a
// pass over the array for each doubling of the length; this makes one pass, and totals have 64 bits.

#include <algorithm>
#include <string>

#include "floats.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::bfloat16;
using meshflow::handled;
using meshflow::in_parts;
using meshflow::narrow;
using meshflow::Reader;
using meshflow::SingleThread;
using meshflow::Team;
using meshflow::wide;

constexpr int64_t kColumns = 64;     // columns that are summed together
constexpr int64_t kRows = 4;         // rows summed together for one column, because additions of a row are sequential
constexpr int64_t kLeast = 1 << 16;  // elements from which a team of threads is worthwhile

// Sums `count` lines that are `apart` elements apart, each with `length` elements that are `step` apart.
template <typename T, int64_t most>
void lines(const T* x, T* y, int64_t count, int64_t apart, int64_t length, int64_t step) {
  double totals[most] = {};
  for (int64_t i = 0; i < length; ++i, x += step, y += step) {
    for (int64_t c = 0; c < count; ++c) {
      totals[c] += wide(x[c * apart]);
      narrow(static_cast<float>(totals[c]), y + c * apart);
    }
  }
}

template <typename T>
void running_sums(const T* x, T* y, int64_t outer, int64_t length, int64_t inner, bool reverse) {
  int64_t first = reverse ? (length - 1) * inner : 0, step = reverse ? -inner : inner;
  int64_t rows = inner == 1 ? kRows : 1, blocks = (inner + kColumns - 1) / kColumns;
  in_parts((outer + rows - 1) / rows * blocks, [&](int64_t part) {
    int64_t row = part / blocks * rows, block = part % blocks;
    int64_t at = row * length * inner + block * kColumns + first;
    int64_t columns = std::min(kColumns, inner - block * kColumns);
    if (inner == 1 && outer - row >= kRows) {
      lines<T, kRows>(x + at, y + at, kRows, length, length, step);
    } else if (inner == 1) {
      for (int64_t r = 0; r < outer - row; ++r) lines<T, 1>(x + at + r * length, y + at + r * length, 1, 1, length, step);
    } else {
      lines<T, kColumns>(x + at, y + at, columns, 1, length, step);
    }
  });
}

ffi::Error wrong(const std::string& what) { return ffi::Error::InvalidArgument("meshflow_running_sums: " + what); }

// Descriptor: outer, length, inner, and whether to start at the last element.
ffi::Error execute(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y, ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_running_sums", [&]() -> ffi::Error {
    Reader reader(descriptor.begin(), descriptor.size());
    int64_t outer = reader.next(), length = reader.next(), inner = reader.next();
    bool reverse = reader.next() != 0;
    int64_t size = outer * length * inner;
    if (outer < 1 || length < 1 || inner < 1) return wrong("the descriptor has no sizes");
    if (static_cast<int64_t>(x.element_count()) < size || static_cast<int64_t>(y->element_count()) < size)
      return wrong("an operand is smaller than its descriptor says");
    auto type = x.element_type();
    if (type != y->element_type() || (type != ffi::DataType::F32 && type != ffi::DataType::BF16))
      return wrong("the types are not both float32 or both bfloat16");
    auto task = [&] {
      auto run = [&](auto* from, auto* to) { running_sums(from, to, outer, length, inner, reverse); };
      type == ffi::DataType::F32
          ? run(static_cast<const float*>(x.untyped_data()), static_cast<float*>(y->untyped_data()))
          : run(static_cast<const bfloat16*>(x.untyped_data()), static_cast<bfloat16*>(y->untyped_data()));
    };
    if (size >= kLeast) {
      Team::get().run(task);
    } else {
      SingleThread alone;
      task();
    }
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    meshflow_running_sums, execute,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("descriptor"));
