// A recurrent layer over complete sequences, as its loops see it.

#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpus.h"
#include "tile_products.h"

namespace meshflow {

// The order of `KINDS` in recurrent.py. kGru applies the reset gate after the product, kGruBefore before it.
enum CellKind { kSimple, kLstm, kGru, kGruBefore, kNumKinds };

// Sizes and buffers. Element types are float or bfloat16; optional buffers are null.
struct RecurrentTask {
  int64_t kind, batch, steps, units, gates;
  int64_t features;  // of the inputs; 0 if they are already multiplied by `kernel`
  // Whether the last step is computed first, axes are [time, batch], `y` has all outputs instead of the last,
  // and the output of a masked step is zero.
  bool reverse, time_major, sequences, zeroes;
  const void *kernel, *recurrent, *bias, *keep;
  const uint8_t* mask;
  // Forward. `saved` (the gates), `before` (the states) and `memory` (LSTM: the memory before a step, GRU: the
  // candidate's product) are for the gradient.
  const void *x, *h0, *c0;
  void *y, *h, *c, *saved, *before, *memory;
  // Gradient. `inner` is that of a GRU's product.
  const void *dy, *dh, *dc;
  void *dx, *inner, *dh0, *dc0;

  int64_t row(int64_t b, int64_t t) const { return time_major ? t * batch + b : b * steps + t; }
  bool has_memory() const { return kind == kLstm || kind == kGru; }
};

// A barrier of threads that mostly wait for a short time, so they poll.
class PollingBarrier {
 public:
  void wait(int64_t count);

 private:
  alignas(64) std::atomic<int64_t> arrived_{0};
  alignas(64) std::atomic<int64_t> phase_{0};
};

// The part of a thread: examples and groups of columns.
struct RecurrentPart {
  int64_t first_row, last_row, first_group, last_group;
  // The threads with the same examples, and the index of this one among them.
  PollingBarrier* barrier;
  int64_t threads, member;

  void wait() const { barrier->wait(threads); }
};

// Code for one instruction set.
struct RecurrentLoops {
  int64_t width, row_unit;  // elements of a vector; the multiple of elements in rows
  void (*pack)(const RecurrentTask&, bool backward, int64_t thread, int64_t threads, char*);
  void (*forward)(const RecurrentTask&, const RecurrentPart&, char*);
  void (*backward)(const RecurrentTask&, const RecurrentPart&, char*);
};

// Vectors of a group of columns.
constexpr int64_t kGroup = 4;

// Bytes of memory that the threads share.
int64_t count_recurrent_bytes(const RecurrentTask& task, int64_t row_unit);

// Rows in memory: a matrix tile reads 16, also if fewer examples remain.
inline int64_t count_rows(const RecurrentTask& task) { return task.batch + kTileSide - 1; }

}  // namespace meshflow
