// XLA FFI handlers for rows of a table, by their numbers: read, written in place, and summed where a number is
// given again. XLA's code goes element by element, and finds a row's place anew for each.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cpus.h"
#include "guard.h"
#include "worker.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::for_every_cpu;
using meshflow::handled;
using meshflow::Worker;

constexpr int64_t kTeam = 1 << 22;   // bytes that are worth a team of threads
constexpr int64_t kAhead = 8;        // rows that are fetched before they are needed
constexpr int64_t kFetched = 1 << 9;  // bytes of each of them

struct Wrong : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Row numbers of either width.
struct Numbers {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;
  int64_t count;

  explicit Numbers(const ffi::AnyBuffer& buffer) : count(buffer.element_count()) {
    if (buffer.element_type() == ffi::DataType::S32)
      narrow = static_cast<const int32_t*>(buffer.untyped_data());
    else if (buffer.element_type() == ffi::DataType::S64)
      wide = static_cast<const int64_t*>(buffer.untyped_data());
    else
      throw Wrong("row numbers are neither int32 nor int64");
  }
  INLINE int64_t operator[](int64_t i) const { return narrow != nullptr ? narrow[i] : wide[i]; }
};

// An array of `count` rows of `width` bytes.
struct Rows {
  char* data;
  int64_t count, width;
  INLINE char* operator[](int64_t i) const { return data + i * width; }
};

// An array as rows, of which there are so many.
Rows rows_of(const ffi::AnyBuffer& buffer, int64_t count) {
  const int64_t bytes = buffer.size_bytes();
  if (count < 1 ? bytes != 0 : bytes % count != 0) throw Wrong("an array has other sizes than it should");
  return {static_cast<char*>(buffer.untyped_data()), count, count < 1 ? 0 : bytes / count};
}

int64_t length(const ffi::AnyBuffer& buffer) {
  if (buffer.dimensions().size() == 0) throw Wrong("a table is a scalar");
  return buffer.dimensions()[0];
}

INLINE void fetch(const Rows& table, const Numbers& numbers, int64_t i, int64_t end, bool writes) {
  if (i + kAhead >= end) return;
  const int64_t number = numbers[i + kAhead];
  if (number < 0 || number >= table.count) return;
  const char* row = table[number];
  for (int64_t at = 0; at < std::min(table.width, kFetched); at += 64)
    writes ? __builtin_prefetch(row + at, 1) : __builtin_prefetch(row + at, 0);
}

INLINE void add_row(const char* from, char* to, int64_t bytes) {
  const float* x = reinterpret_cast<const float*>(from);
  float* y = reinterpret_cast<float*>(to);
  for (int64_t i = 0; i < bytes / 4; ++i) y[i] += x[i];
}

// Rows of a table; those of numbers that it has not are the nearest ones, or with `fills` not numbers.
INLINE void gather_loop(const Rows& table, const Numbers& numbers, const Rows& out, bool fills, int64_t begin,
                        int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    fetch(table, numbers, i, end, false);
    const int64_t number = numbers[i], there = std::clamp<int64_t>(number, 0, table.count - 1);
    if (fills && number != there)
      // All bits set: not a number of any float.
      std::memset(out[i], 0xff, out.width);
    else
      std::memcpy(out[i], table[there], out.width);
  }
}

// Rows put into a table or added to it, one after the other; those of numbers that it has not are left out.
INLINE void scatter_loop(const Rows& table, const Numbers& numbers, const Rows& rows, bool adds, int64_t from,
                         int64_t bytes) {
  for (int64_t i = 0; i < numbers.count; ++i) {
    fetch(table, numbers, i, numbers.count, true);
    const int64_t number = numbers[i];
    if (number < 0 || number >= table.count) continue;
    if (adds)
      add_row(rows[i] + from, table[number] + from, bytes);
    else
      std::memcpy(table[number] + from, rows[i] + from, bytes);
  }
}

// Numbers that were met, each with the place of its first row.
class Places {
 public:
  explicit Places(int64_t count) {
    while ((int64_t{1} << bits_) < 2 * count) ++bits_;
    slots_.assign(size_t{1} << bits_, {0, -1});
  }

  // Where a number was met first: at `place` if it is new.
  INLINE int64_t first(int64_t number, int64_t place) {
    // The upper bits of a product with the golden ratio are spread well.
    uint64_t at = (static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15u) >> (64 - bits_);
    for (const uint64_t mask = slots_.size() - 1;; at = (at + 1) & mask) {
      Slot& slot = slots_[at];
      if (slot.place < 0) slot = {number, place};
      if (slot.number == number) return slot.place;
    }
  }

 private:
  struct Slot {
    int64_t number, place;
  };
  int bits_ = 1;
  std::vector<Slot> slots_;
};

// The rows of each number, summed in their order where it was met first; elsewhere zeros, and numbers past the table's end.
template <typename Number>
INLINE void sum_loop(const Numbers& numbers, const Rows& rows, const Rows& sums, Number* different, int64_t last) {
  Places places(numbers.count);
  for (int64_t i = 0; i < numbers.count; ++i) {
    // All numbers past the last row are one, which has no row either.
    const int64_t number = std::min(numbers[i], last), place = places.first(number, i);
    if (place == i) {
      different[i] = static_cast<Number>(number);
      std::memcpy(sums[i], rows[i], rows.width);
    } else {
      different[i] = static_cast<Number>(last + 1 + i);
      std::memset(sums[i], 0, rows.width);
      add_row(rows[i], sums[place], rows.width);
    }
  }
}

template <auto loop, typename... Parts>
void run(int64_t bytes, int64_t size, int64_t block, Parts... parts) {
  if (bytes < kTeam) return loop(parts..., 0, size);
  Worker::get().run([&] {
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < size; begin += block) loop(parts..., begin, std::min(size, begin + block));
  });
}

INLINE void scatter_columns(const Rows& table, const Numbers& numbers, const Rows& rows, bool adds, int64_t begin,
                            int64_t end) {
  scatter_loop(table, numbers, rows, adds, begin, end - begin);
}

ffi::Error gather(ffi::AnyBuffer table, ffi::AnyBuffer indices, ffi::Result<ffi::AnyBuffer> result, bool fills) {
  return handled("meshflow_gather_rows", [&]() -> ffi::Error {
    const Numbers numbers(indices);
    const Rows from = rows_of(table, length(table)), to = rows_of(*result, numbers.count);
    if (from.width != to.width || from.count < 1) throw Wrong("rows are not as long as the table's");
    constexpr auto loop = for_every_cpu<gather_loop>;
    run<loop>(to.count * to.width, to.count, 64, from, numbers, to, fills);
    return ffi::Error::Success();
  });
}

ffi::Error scatter(ffi::AnyBuffer table, ffi::AnyBuffer indices, ffi::AnyBuffer updates,
                   ffi::Result<ffi::AnyBuffer> result, bool adds) {
  return handled("meshflow_scatter_rows", [&]() -> ffi::Error {
    const Numbers numbers(indices);
    const Rows before = rows_of(table, length(table)), after = rows_of(*result, length(*result)),
               rows = rows_of(updates, numbers.count);
    if (before.count != after.count || before.width != after.width || rows.width != after.width)
      throw Wrong("rows are not as long as the table's");
    if (adds && (table.element_type() != ffi::DataType::F32 || updates.element_type() != ffi::DataType::F32))
      throw Wrong("numbers that are added are not float32");
    // XLA gives operand and result the same memory, or copies of it.
    if (before.data != after.data) std::memcpy(after.data, before.data, before.count * before.width);
    constexpr auto loop = for_every_cpu<scatter_columns>;
    // Threads take columns: each row is written in the order of its updates.
    const int64_t columns = std::max<int64_t>(64, (rows.width / 2 + 63) / 64 * 64);
    run<loop>(rows.count * rows.width, rows.width, columns, after, numbers, rows, adds);
    return ffi::Error::Success();
  });
}

ffi::Error sum(ffi::Buffer<ffi::F32> gradient, ffi::AnyBuffer indices, ffi::Result<ffi::AnyBuffer> different,
               ffi::Result<ffi::Buffer<ffi::F32>> sums, int64_t last) {
  return handled("meshflow_sum_rows", [&]() -> ffi::Error {
    const Numbers numbers(indices);
    auto rows = [&](const ffi::Buffer<ffi::F32>& buffer) -> Rows {
      if (buffer.dimensions().size() == 0 || buffer.dimensions()[0] != numbers.count)
        throw Wrong("there are not as many rows as numbers");
      const int64_t bytes = buffer.element_count() * 4;
      return {reinterpret_cast<char*>(buffer.typed_data()), numbers.count, bytes / std::max<int64_t>(1, numbers.count)};
    };
    const Rows from = rows(gradient), to = rows(*sums);
    if (static_cast<int64_t>(different->element_count()) != numbers.count || from.width != to.width ||
        different->element_type() != indices.element_type())
      throw Wrong("the results have other sizes or types than the operands");
    if (numbers.narrow != nullptr)
      for_every_cpu<sum_loop<int32_t>>(numbers, from, to, static_cast<int32_t*>(different->untyped_data()), last);
    else
      for_every_cpu<sum_loop<int64_t>>(numbers, from, to, static_cast<int64_t*>(different->untyped_data()), last);
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    meshflow_gather_rows, gather,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<bool>("fills"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_scatter_rows, scatter,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("adds"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_sum_rows, sum,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("last"));
