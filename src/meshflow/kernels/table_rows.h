// Rows of tables and their indices, as handlers receive them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cpus.h"
#include "handler.h"

namespace meshflow {

constexpr int64_t kTeam = 1 << 22;    // bytes from which a team of threads is worthwhile
constexpr int64_t kAhead = 8;         // rows that are prefetched ahead
constexpr int64_t kFetched = 1 << 9;  // bytes that are prefetched of each row

struct Wrong : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Row indices of either width.
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

// View of an array as `count` rows.
inline Rows rows_of(const ffi::AnyBuffer& buffer, int64_t count) {
  const int64_t bytes = buffer.size_bytes();
  if (count < 1 ? bytes != 0 : bytes % count != 0) throw Wrong("an array has other sizes than it should");
  return {static_cast<char*>(buffer.untyped_data()), count, count < 1 ? 0 : bytes / count};
}

inline int64_t length(const ffi::AnyBuffer& buffer) {
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

// Hash table of indices, each with the position of its first row.
class Places {
 public:
  explicit Places(int64_t count) {
    while ((int64_t{1} << bits_) < 2 * count) ++bits_;
    slots_.assign(size_t{1} << bits_, {0, -1});
  }

  // Returns the position of an index's first occurrence: `place` if it is new.
  INLINE int64_t first(int64_t number, int64_t place) {
    // The upper bits of a product with the golden ratio are well distributed.
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

// A row that has gradients, and the index of its first one.
struct Target {
  int64_t number, first;
};

// The rows of a table that have gradients.
struct Targets {
  const float* gradients;
  int64_t width;  // elements of a row
  std::vector<Target> rows;
  // For each gradient the next one of the same row, or -1; empty if all rows are unique.
  std::vector<int64_t> next;

  Targets(const float* gradients, int64_t width, const Numbers& numbers, int64_t count)
      : gradients(gradients), width(width) {
    Places places(numbers.count);
    std::vector<int64_t> last;
    for (int64_t i = 0; i < numbers.count; ++i) {
      // Negative indices count from the end; indices after the last row are ignored.
      const int64_t number = numbers[i] < 0 ? numbers[i] + count : numbers[i];
      if (number < 0 || number >= count) continue;
      const int64_t first = places.first(number, i);
      if (first == i) {
        rows.push_back({number, i});
        continue;
      }
      if (last.empty()) {
        next.assign(numbers.count, -1);
        last.assign(numbers.count, -1);
      }
      next[last[first] < 0 ? first : last[first]] = i;
      last[first] = i;
    }
  }

  // Sums `count` elements of a row's gradients, from the element `at`.
  INLINE void sum(const Target& target, float* to, int64_t at, int64_t count) const {
    std::copy_n(gradients + target.first * width + at, count, to);
    if (next.empty()) return;
    for (int64_t i = next[target.first]; i >= 0; i = next[i]) {
      const float* more = gradients + i * width + at;
      for (int64_t j = 0; j < count; ++j) to[j] += more[j];
    }
  }
};

template <auto loop, typename... Parts>
void run(int64_t bytes, int64_t size, int64_t block, Parts... parts) {
  if (bytes < kTeam) return loop(parts..., 0, size);
  Team::get().run([&] {
    in_parts((size + block - 1) / block,
             [&](int64_t i) { loop(parts..., i * block, std::min(size, (i + 1) * block)); });
  });
}

}  // namespace meshflow
