// XLA FFI handlers for rows of a table by index: read, written in place, and summed over equal indices. XLA's
// code processes single elements, and computes a row's address again for each.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "handler.h"
#include "table_rows.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::add_row;
using meshflow::fetch;
using meshflow::for_every_cpu;
using meshflow::handled;
using meshflow::length;
using meshflow::Numbers;
using meshflow::Places;
using meshflow::Rows;
using meshflow::rows_of;
using meshflow::run;
using meshflow::Wrong;

// Reads rows of a table; an index out of range reads the nearest row or, with `fills`, NaN.
INLINE void gather_loop(const Rows& table, const Numbers& numbers, const Rows& out, bool fills, int64_t begin,
                        int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    fetch(table, numbers, i, end, false);
    const int64_t number = numbers[i], there = std::clamp<int64_t>(number, 0, table.count - 1);
    if (fills && number != there)
      // With all bits set, every float type is NaN.
      std::memset(out[i], 0xff, out.width);
    else
      std::memcpy(out[i], table[there], out.width);
  }
}

// Writes rows to a table or adds them to it, in order; rows with an index out of range are ignored.
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

// Sums the rows of each index, stored at its first occurrence; zeros elsewhere, and indices after the end of
// the table.
template <typename Number>
INLINE void sum_loop(const Numbers& numbers, const Rows& rows, const Rows& sums, Number* different, int64_t last) {
  Places places(numbers.count);
  for (int64_t i = 0; i < numbers.count; ++i) {
    // All indices after the last row are equivalent, because they have no row.
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
    // XLA passes operand and result in the same memory, or copies of it.
    if (before.data != after.data) std::memcpy(after.data, before.data, before.count * before.width);
    constexpr auto loop = for_every_cpu<scatter_columns>;
    // Threads process columns, so that each row is written in the order of its updates.
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
