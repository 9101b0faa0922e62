// Products of pairs of bfloat16 on matrix tiles (AMX), for kernels that pack their operands themselves.

#pragma once

#include <cstdint>

namespace meshflow {

// Rows, columns and pairs of a tile.
constexpr int64_t kTileSide = 16;

// Whether the processor has tiles that this process may use, or emulates them, and multiplies pairs without them.
bool can_multiply_tiles();

// Prepares the tiles of this thread during its lifetime, if there are any.
class TileUse {
 public:
  explicit TileUse(bool is_needed = true);
  ~TileUse();

 private:
  alignas(64) char before_[64];
  bool restores_;
};

// c[16 rows, 16 vectors] (+)= a b, where `vectors` is at most 4 and `depth`, a number of pairs, a multiple of 16. The strides of rows are
// in units of 4 bytes: a pair or a float. A row of b has a pair for each column.
void multiply_on_tiles(const void* a, int64_t a_row, const void* b, int64_t b_row, int64_t depth, float* c, int64_t c_row,
                       int64_t vectors, bool add);

}  // namespace meshflow
