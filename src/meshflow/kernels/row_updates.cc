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
using meshflow::Places;
using meshflow::Program;
using meshflow::Registers;
using meshflow::Rows;
using meshflow::rows_of;
using meshflow::Wrong;

// Elements of a register, which remain in the first-level cache from one operation to the next.
constexpr int64_t kTile = 512;

// A row that is updated, and the index of its first gradient.
struct Target {
  int64_t number, first;
};

struct Update {
  const Program& program;
  std::vector<Rows> tables;
  std::vector<float> scalars;
  const float* gradients;
  int64_t width;  // elements of a row
  std::vector<Target> targets;
  // For each gradient the next one of the same row, or -1; empty if all rows are unique.
  std::vector<int64_t> next;
};

// Finds the rows that are updated, and their gradients.
void find_targets(Update& update, const Numbers& numbers, int64_t rows) {
  Places places(numbers.count);
  std::vector<int64_t> last;
  for (int64_t i = 0; i < numbers.count; ++i) {
    // Negative indices count from the end; indices after the last row are ignored.
    const int64_t number = numbers[i] < 0 ? numbers[i] + rows : numbers[i];
    if (number < 0 || number >= rows) continue;
    const int64_t first = places.first(number, i);
    if (first == i) {
      update.targets.push_back({number, i});
      continue;
    }
    if (last.empty()) {
      update.next.assign(numbers.count, -1);
      last.assign(numbers.count, -1);
    }
    update.next[last[first] < 0 ? first : last[first]] = i;
    last[first] = i;
  }
}

INLINE void sum_gradients(const Update& update, const Target& target, float* to, int64_t at, int64_t count) {
  copy(update.gradients + target.first * update.width + at, to, count);
  if (update.next.empty()) return;
  for (int64_t i = update.next[target.first]; i >= 0; i = update.next[i]) {
    const float* more = update.gradients + i * update.width + at;
    for (int64_t j = 0; j < count; ++j) to[j] += more[j];
  }
}

INLINE void fetch_rows(const Update& update, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    for (const Rows& table : update.tables)
      for (int64_t at = 0; at < std::min(table.width, meshflow::kFetched); at += 64)
        __builtin_prefetch(table[update.targets[i].number] + at, 1);
}

// Processes as many rows at a time as a register holds; long rows in parts.
INLINE void update_loop(const Update& update, int64_t begin, int64_t end) {
  const Program& program = update.program;
  const Registers registers(program.registers, kTile);
  for (int64_t i = 0; i < program.scalars; ++i)
    std::fill_n(registers[program.arrays + i], kTile, update.scalars[i]);
  const int64_t most = std::max<int64_t>(1, kTile / update.width), count = update.tables.size();
  auto row = [&](int64_t table, int64_t target, int64_t at) {
    return reinterpret_cast<float*>(update.tables[table][update.targets[target].number]) + at;
  };
  for (int64_t first = begin; first < end; first += most) {
    const int64_t rows = std::min(most, end - first);
    fetch_rows(update, first + rows, std::min(end, first + rows + most));
    for (int64_t at = 0; at < update.width; at += kTile) {
      const int64_t part = std::min(kTile, update.width - at);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t t = 0; t < count; ++t) copy(row(t, first + r, at), registers[t] + r * part, part);
        sum_gradients(update, update.targets[first + r], registers[count] + r * part, at, part);
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
    Update update{program, {}, {}, reinterpret_cast<const float*>(gradients.data), gradients.width / 4, {}, {}};
    for (size_t t = 0; t < tables; ++t) {
      const ffi::AnyBuffer before = given(2 + t), after = **results.get<ffi::AnyBuffer>(t);
      const Rows table = rows_of(after, length(after));
      if (before.size_bytes() != after.size_bytes() || table.width != gradients.width ||
          table.count != length(before) || (t > 0 && table.count != update.tables[0].count))
        throw Wrong("rows are not as long as the table's");
      if (table.data != before.untyped_data()) std::memcpy(table.data, before.untyped_data(), before.size_bytes());
      update.tables.push_back(table);
    }
    for (int64_t i = 0; i < program.scalars; ++i)
      update.scalars.push_back(*static_cast<const float*>(given(2 + tables + i).untyped_data()));
    if (update.width < 1) return ffi::Error::Success();
    find_targets(update, numbers, update.tables[0].count);
    const int64_t bytes = update.targets.size() * update.width * 4;
    meshflow::run<update_rows>(bytes, update.targets.size(), 256, std::cref(update));
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_update_rows, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("program"));
