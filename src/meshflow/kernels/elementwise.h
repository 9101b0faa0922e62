// Programs of elementwise float32 functions (elementwise.py), computed block by block in registers in memory.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "cpus.h"
#include "team.h"

namespace meshflow {

// The order of elementwise.py. On processors without fused multiply-add, the product and the sum are both
// rounded.
enum Operation { kAdd, kSubtract, kMultiply, kDivide, kMax, kMin, kNegate, kAbsolute, kRoot, kMultiplyAdd, kMultiplySubtract, kSubtractProduct };

// The encoding of `Program.packed`. Arrays have the first registers, scalars the next ones; steps never write
// to these.
struct Program {
  struct Step {
    int64_t code, result, operands[3];
  };
  int64_t registers, arrays, scalars;
  std::vector<int64_t> results;
  std::vector<Step> steps;

  Program(const int64_t* data, size_t size) {
    Reader reader(data, size);
    registers = reader.next(), arrays = reader.next(), scalars = reader.next();
    const int64_t made = reader.next(), count = reader.next();
    auto place = [&] {
      const int64_t found = reader.next();
      if (found < 0 || found >= registers) throw std::invalid_argument("a program has no such register");
      return found;
    };
    if (arrays < 0 || scalars < 0 || registers < arrays + scalars) throw std::invalid_argument("a program is not one");
    for (int64_t i = 0; i < made; ++i) results.push_back(place());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t code = reader.next();
      steps.push_back({code, place(), {place(), place(), place()}});
      if (steps.back().result < arrays + scalars) throw std::invalid_argument("a step writes where an operand is");
    }
  }
};

// Memory for blocks of `size` elements.
class Registers {
 public:
  Registers(int64_t count, int64_t size) : size_((size + 15) / 16 * 16) {
    memory_.reset(static_cast<float*>(std::aligned_alloc(64, std::max<int64_t>(1, count) * size_ * sizeof(float))));
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  INLINE float* operator[](int64_t number) const { return memory_.get() + number * size_; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  int64_t size_;
  std::unique_ptr<float, Free> memory_;
};

INLINE void copy(const float* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) std::memcpy(to + i, from + i, 64);
  for (; i < count; ++i) to[i] = from[i];
}

// Computes a step for `count` elements; `registers` holds the addresses of the registers.
template <typename Addresses>
INLINE void compute(const Program::Step& step, const Addresses& registers, int64_t count) {
  const float *x = registers[step.operands[0]], *y = registers[step.operands[1]], *z = registers[step.operands[2]];
  float* out = registers[step.result];
  switch (step.code) {
// A result may replace an operand.
#define STEP(code, expression)                  \
  case code:                                    \
    _Pragma("GCC ivdep")                        \
    for (int64_t i = 0; i < count; ++i) {       \
      const float a = x[i], b = y[i], c = z[i]; \
      out[i] = expression;                      \
    }                                           \
    return;
    STEP(kAdd, a + b)
    STEP(kSubtract, a - b)
    STEP(kMultiply, a * b)
    STEP(kDivide, a / b)
    // NaN is preserved.
    STEP(kMax, a > b || a != a ? a : b)
    STEP(kMin, a < b || a != a ? a : b)
    STEP(kNegate, -a)
    STEP(kAbsolute, __builtin_fabsf(a))
    STEP(kRoot, __builtin_sqrtf(a))
    STEP(kMultiplyAdd, a * b + c)
    STEP(kMultiplySubtract, a * b - c)
    STEP(kSubtractProduct, c - a * b)
#undef STEP
  }
}

// Compiles an inlined loop over programs for several processors.
template <auto loop>
struct Computing;
template <typename... Parts, void (*loop)(Parts...)>
struct Computing<loop> {
  FOR_CPU("avx512f,fma") static void by_512(Parts... parts) { loop(parts...); }
  FOR_CPU("avx2,fma") static void by_256(Parts... parts) { loop(parts...); }
  static void by_any(Parts... parts) { loop(parts...); }
  static void run(Parts... parts) {
    const auto chosen = !fuses() ? by_any : has(Level::kAvx512) ? by_512 : has(Level::kAvx2) ? by_256 : by_any;
    chosen(parts...);
  }
};

}  // namespace meshflow
