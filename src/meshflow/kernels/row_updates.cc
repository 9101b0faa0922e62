// XLA FFI handler for updates of rows: for each row index the sum of its gradients, the rows of the arrays,
// and the results of an optimizer's rule, in place and in one pass. XLA's code gathers each array, computes,
// and scatters each again.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "elementwise.h"
#include "handler.h"
#include "table_rows.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::copy;
using meshflow::handled;
using meshflow::length;
using meshflow::Numbers;
using meshflow::Program;
using meshflow::Registers;
using meshflow::Rows;
using meshflow::rows_of;
using meshflow::Targets;
using meshflow::Wrong;

// Elements of a register, which remain in the first-level cache from one operation to the next.
constexpr int64_t kTile = 512;

struct Update {
  const Program& program;
  std::vector<Rows> tables;
  std::vector<float> scalars;
  Targets targets;
};

INLINE void fetch_rows(const Update& update, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    for (const Rows& table : update.tables)
      for (int64_t at = 0; at < std::min(table.width, meshflow::kFetched); at += 64)
        __builtin_prefetch(table[update.targets.rows[i].number] + at, 1);
}

// Processes as many rows at a time as a register holds; long rows in parts.
INLINE void update_loop(const Update& update, int64_t begin, int64_t end) {
  const Program& program = update.program;
  const Registers registers(program.registers, kTile);
  for (int64_t i = 0; i < program.scalars; ++i)
    std::fill_n(registers[program.arrays + i], kTile, update.scalars[i]);
  const int64_t most = std::max<int64_t>(1, kTile / update.targets.width), count = update.tables.size();
  auto row = [&](int64_t table, int64_t target, int64_t at) {
    return reinterpret_cast<float*>(update.tables[table][update.targets.rows[target].number]) + at;
  };
  for (int64_t first = begin; first < end; first += most) {
    const int64_t rows = std::min(most, end - first);
    fetch_rows(update, first + rows, std::min(end, first + rows + most));
    for (int64_t at = 0; at < update.targets.width; at += kTile) {
      const int64_t part = std::min(kTile, update.targets.width - at);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t t = 0; t < count; ++t) copy(row(t, first + r, at), registers[t] + r * part, part);
        update.targets.sum(update.targets.rows[first + r], registers[count] + r * part, at, part);
      }
      for (const Program::Step& step : program.steps) compute(step, registers, rows * part);
      for (int64_t t = 0; t < count; ++t)
        for (int64_t r = 0; r < rows; ++r)
          copy(registers[program.results[t]] + r * part, row(t, first + r, at), part);
    }
  }
}

constexpr auto update_rows = &meshflow::Computing<update_loop>::run;

// Operands: row indices, gradients, the arrays, scalars. Results: the arrays, in the same memory or copies of
// it.
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> code) {
  return handled("meshflow_update_rows", [&]() -> ffi::Error {
    const Program program(code.begin(), code.size());
    const size_t tables = results.size();
    if (tables < 1 || program.arrays != static_cast<int64_t>(tables) + 1 || program.results.size() != tables ||
        arguments.size() != 2 + tables + program.scalars)
      throw Wrong("there are not as many arrays as the program has");
    auto given = [&](size_t i) {
      auto found = arguments.get<ffi::AnyBuffer>(i);
      if (i > 0 && found->element_type() != ffi::DataType::F32) throw Wrong("arrays are not float32");
      return *found;
    };
    const Numbers numbers(given(0));
    const Rows gradients = rows_of(given(1), numbers.count);
    std::vector<Rows> updated;
    for (size_t t = 0; t < tables; ++t) {
      const ffi::AnyBuffer before = given(2 + t), after = **results.get<ffi::AnyBuffer>(t);
      const Rows table = rows_of(after, length(after));
      if (before.size_bytes() != after.size_bytes() || table.width != gradients.width ||
          table.count != length(before) || (t > 0 && table.count != updated[0].count))
        throw Wrong("rows are not as long as the table's");
      if (table.data != before.untyped_data()) std::memcpy(table.data, before.untyped_data(), before.size_bytes());
      updated.push_back(table);
    }
    if (gradients.width < 4) return ffi::Error::Success();
    Update update{program, updated, {},
                  {reinterpret_cast<const float*>(gradients.data), gradients.width / 4, numbers, updated[0].count}};
    for (int64_t i = 0; i < program.scalars; ++i)
      update.scalars.push_back(*static_cast<const float*>(given(2 + tables + i).untyped_data()));
    const int64_t rows = update.targets.rows.size(), bytes = rows * update.targets.width * 4;
    meshflow::run<update_rows>(bytes, rows, 256, std::cref(update));
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_update_rows, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("program"));
