// Division of a kernel's gradient into tasks.

#pragma once

#include <algorithm>
#include <cstdint>

namespace meshflow {

// A grid of blocks over units of 32 channels x 32 features.
struct Blocks {
  int64_t channels, features;  // units per block
  int64_t down, across;        // blocks
  int64_t count() const { return down * across; }
};

// Blocks of at most `most` units, at least one for each thread if there are enough units.
inline Blocks divide(int64_t channels, int64_t features, int64_t most, int threads) {
  auto up = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  int64_t c = up(channels, 32), k = up(features, 32);
  Blocks b{c, k, 1, 1};
  while (b.channels * b.features > 1 && (b.channels * b.features > most || b.count() < threads)) {
    (b.channels >= b.features ? b.channels : b.features) = up(std::max(b.channels, b.features), 2);
    b.down = up(c, b.channels);
    b.across = up(k, b.features);
  }
  return b;
}

}  // namespace meshflow
