// XLA FFI handler for elementwise updates of large arrays, in one pass over memory. New values that do not
// replace the old ones are written with streaming stores: the caches cannot hold them, and a cache line that
// is written completely need not be read before.

#ifndef MESHFLOW_PORTABLE
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "elementwise.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::copy;
using meshflow::handled;
using meshflow::in_turns;
using meshflow::Program;
using meshflow::Registers;
using meshflow::Team;

constexpr int64_t kTile = 512;         // elements of a register, which remain in the first-level cache
constexpr int64_t kAhead = 2 * kTile;  // elements that are prefetched ahead
constexpr int64_t kBlock = 1 << 16;    // elements per block of a thread
constexpr int64_t kLeast = 1 << 18;    // elements from which a team of threads is worthwhile
constexpr uintptr_t kVector = 16 - 1;  // alignment of streaming stores

struct Update {
  const Program& program;
  std::vector<float*> arrays;
  std::vector<float> scalars;
  // Of each result: the memory of the array it replaces, or new memory.
  std::vector<float*> results;
  std::vector<bool> is_beside;
};

// 16 floats, in as many of the processor's vectors as required.
typedef float Vector __attribute__((vector_size(64)));

INLINE Vector vector_at(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

INLINE void stream(const Vector& vector, float* to) {
#ifdef MESHFLOW_PORTABLE
  std::memcpy(to, &vector, sizeof vector);
#else
  __m128 parts[4];
  std::memcpy(parts, &vector, sizeof vector);
  for (int64_t i = 0; i < 4; ++i) _mm_stream_ps(to + 4 * i, parts[i]);
#endif
}

INLINE void stream(const float* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) stream(vector_at(from + i), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

// Computes a step with a result that no other step needs: with simple operations it is never stored in a
// register block.
INLINE void stream_step(const Program::Step& step, const std::vector<float*>& places, float* to, int64_t count) {
  const float *x = places[step.operands[0]], *y = places[step.operands[1]], *z = places[step.operands[2]];
  switch (count % 16 == 0 ? step.code : -1) {
#define STEP(code, expression)                                                         \
  case meshflow::code:                                                                 \
    for (int64_t i = 0; i < count; i += 16) {                                          \
      const Vector a = vector_at(x + i), b = vector_at(y + i), c = vector_at(z + i);   \
      stream(expression, to + i);                                                      \
    }                                                                                  \
    return;
    STEP(kAdd, a + b)
    STEP(kSubtract, a - b)
    STEP(kMultiplyAdd, a * b + c)
    STEP(kSubtractProduct, c - a * b)
#undef STEP
  }
  compute(step, places, count);
  stream(places[step.result], to, count);
}

INLINE void update_loop(const Update& update, int64_t begin, int64_t end) {
  const Program& program = update.program;
  const int64_t given = program.arrays + program.scalars, last = program.steps.empty() ? -1 : program.steps.back().result;
  const bool has_steps = program.steps.size() > 1;
  const bool streams_last = update.is_beside[0] && program.results[0] == last &&
                            std::count(program.results.begin(), program.results.end(), last) == 1;
  const Registers registers(program.registers - program.arrays, kTile);
  std::vector<float*> places(update.arrays);
  for (int64_t i = program.arrays; i < program.registers; ++i) places.push_back(registers[i - program.arrays]);
  for (int64_t i = program.arrays; i < given; ++i) std::fill_n(places[i], kTile, update.scalars[i - program.arrays]);
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = std::min(kTile, end - at);
    for (int64_t i = 0; i < program.arrays; ++i) {
      places[i] = update.arrays[i] + at;
      // Each step prefetches only its own arrays, so that nothing waits for them.
      for (int64_t ahead = 0; has_steps && ahead < kTile; ahead += 16) __builtin_prefetch(places[i] + kAhead + ahead);
    }
    for (size_t i = 0; i < program.steps.size() - streams_last; ++i) compute(program.steps[i], places, count);
    if (streams_last) stream_step(program.steps.back(), places, update.results[0] + at, count);
    for (size_t i = streams_last; i < update.results.size(); ++i) {
      const float* from = places[program.results[i]];
      float* to = update.results[i] + at;
      if (update.is_beside[i])
        stream(from, to, count);
      else if (from != to)
        copy(from, to, count);
    }
  }
#ifndef MESHFLOW_PORTABLE
  _mm_sfence();
#endif
}

constexpr auto update_part = &meshflow::Computing<update_loop>::run;

void update_whole(const Update& update, int64_t size) {
  if (size < kLeast) return update_part(update, 0, size);
  Team::get().run([&] {
    // Threads take blocks dynamically, because some may wait for a core that other processes use.
    in_turns((size + kBlock - 1) / kBlock,
             [&](int64_t block) { update_part(update, block * kBlock, std::min(size, (block + 1) * kBlock)); });
  });
}

// Operands: the arrays, then the scalars. Results: new values of the first arrays, in their memory or in new
// memory.
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> code) {
  return handled("meshflow_renew", [&]() -> ffi::Error {
    const Program program(code.begin(), code.size());
    if (program.arrays < 1 || results.size() != program.results.size() ||
        results.size() > static_cast<size_t>(program.arrays) ||
        arguments.size() != static_cast<size_t>(program.arrays + program.scalars))
      return ffi::Error::InvalidArgument("meshflow_renew: there are not as many arrays as the program has");
    Update update{program, {}, {}, {}, {}};
    int64_t size = -1;
    bool fits = true;
    auto of_size = [&](const ffi::AnyBuffer& buffer) {
      if (size < 0) size = buffer.element_count();
      fits &= buffer.element_type() == ffi::DataType::F32 && static_cast<int64_t>(buffer.element_count()) == size;
      return static_cast<float*>(buffer.untyped_data());
    };
    for (int64_t i = 0; i < program.arrays; ++i) update.arrays.push_back(of_size(*arguments.get<ffi::AnyBuffer>(i)));
    for (size_t i = 0; i < results.size(); ++i) {
      float* to = of_size(**results.get<ffi::AnyBuffer>(i));
      update.results.push_back(to);
      update.is_beside.push_back(to != update.arrays[i] && !(reinterpret_cast<uintptr_t>(to) & kVector));
    }
    for (int64_t i = 0; i < program.scalars; ++i) {
      const ffi::AnyBuffer scalar = *arguments.get<ffi::AnyBuffer>(program.arrays + i);
      fits &= scalar.element_type() == ffi::DataType::F32 && scalar.element_count() == 1;
      if (fits) update.scalars.push_back(*static_cast<const float*>(scalar.untyped_data()));
    }
    if (!fits) return ffi::Error::InvalidArgument("meshflow_renew: the arrays are not float32 and of one size");
    update_whole(update, size);
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_renew, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("program"));
