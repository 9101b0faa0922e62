// XLA FFI handlers for Adam's update of a variable and its two averages, in place: one pass over memory, and
// no compilation for each shape. Products are fused into sums where XLA's code fuses them. The second one takes
// the gradients of some rows; those of the other rows are zero.

#ifndef MESHFLOW_PORTABLE
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpus.h"
#include "handler.h"
#include "table_rows.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::handled;
using meshflow::has;
using meshflow::in_parts;
using meshflow::Level;
using meshflow::Team;

constexpr int64_t kLeast = 1 << 20;  // elements from which a team of threads is worthwhile
constexpr int64_t kBlock = 1 << 14;  // elements per block of a thread

struct Settings {
  float first, second, rate, epsilon;
};

struct Arrays {
  float* variable;
  const float* gradient;  // null if it is zero
  float *mean, *square;
};

#ifndef MESHFLOW_PORTABLE
FOR_CPU("avx512f") void by_512(const Arrays& a, const Settings& s, int64_t begin, int64_t end) {
  const __m512 first = _mm512_set1_ps(s.first), second = _mm512_set1_ps(s.second), rate = _mm512_set1_ps(s.rate),
               epsilon = _mm512_set1_ps(s.epsilon);
  for (int64_t i = begin; i < end; i += 16) {
    const __mmask16 there = end - i >= 16 ? 0xffff : (1 << (end - i)) - 1;
    const __m512 g = a.gradient ? _mm512_maskz_loadu_ps(there, a.gradient + i) : _mm512_setzero_ps();
    __m512 m = _mm512_maskz_loadu_ps(there, a.mean + i), v = _mm512_maskz_loadu_ps(there, a.square + i);
    m = _mm512_fmadd_ps(_mm512_sub_ps(g, m), first, m);
    v = _mm512_fmadd_ps(_mm512_fmsub_ps(g, g, v), second, v);
    const __m512 step = _mm512_div_ps(_mm512_mul_ps(rate, m), _mm512_add_ps(_mm512_sqrt_ps(v), epsilon));
    const __m512 w = _mm512_sub_ps(_mm512_maskz_loadu_ps(there, a.variable + i), step);
    _mm512_mask_storeu_ps(a.mean + i, there, m);
    _mm512_mask_storeu_ps(a.square + i, there, v);
    _mm512_mask_storeu_ps(a.variable + i, there, w);
  }
}

FOR_CPU("avx2,fma") void by_256(const Arrays& a, const Settings& s, int64_t begin, int64_t end) {
  const __m256 first = _mm256_set1_ps(s.first), second = _mm256_set1_ps(s.second), rate = _mm256_set1_ps(s.rate),
               epsilon = _mm256_set1_ps(s.epsilon);
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t i = begin; i < end; i += 8) {
    const int left = static_cast<int>(std::min<int64_t>(end - i, 8));
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), places);
    const __m256 g = a.gradient ? _mm256_maskload_ps(a.gradient + i, there) : _mm256_setzero_ps();
    __m256 m = _mm256_maskload_ps(a.mean + i, there), v = _mm256_maskload_ps(a.square + i, there);
    m = _mm256_fmadd_ps(_mm256_sub_ps(g, m), first, m);
    v = _mm256_fmadd_ps(_mm256_fmsub_ps(g, g, v), second, v);
    const __m256 step = _mm256_div_ps(_mm256_mul_ps(rate, m), _mm256_add_ps(_mm256_sqrt_ps(v), epsilon));
    const __m256 w = _mm256_sub_ps(_mm256_maskload_ps(a.variable + i, there), step);
    _mm256_maskstore_ps(a.mean + i, there, m);
    _mm256_maskstore_ps(a.square + i, there, v);
    _mm256_maskstore_ps(a.variable + i, there, w);
  }
}

#endif

// Compilers choose which product of an expression they fuse, so the choice is explicit.
INLINE float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

void by_any(const Arrays& a, const Settings& s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float g = a.gradient ? a.gradient[i] : 0;
    const float m = a.mean[i] = multiply_add(g - a.mean[i], s.first, a.mean[i]);
    const float v = a.square[i] = multiply_add(multiply_add(g, g, -a.square[i]), s.second, a.square[i]);
    a.variable[i] -= s.rate * m / (std::sqrt(v) + s.epsilon);
  }
}

void update(const Arrays& arrays, const Settings& settings, int64_t begin, int64_t end) {
#ifndef MESHFLOW_PORTABLE
  if (has(Level::kAvx512)) return by_512(arrays, settings, begin, end);
  if (has(Level::kAvx2) && meshflow::fuses()) return by_256(arrays, settings, begin, end);
#endif
  by_any(arrays, settings, begin, end);
}

// Rows that are updated, in ascending order.
struct RowUpdate {
  Arrays arrays;
  Settings settings;
  const meshflow::Targets& targets;
};

void update_rows(const RowUpdate& u, int64_t begin, int64_t end) {
  const int64_t width = u.targets.width;
  std::vector<float> sum(width);
  const auto& rows = u.targets.rows;
  auto target = std::lower_bound(rows.begin(), rows.end(), begin,
                                 [](const meshflow::Target& t, int64_t number) { return t.number < number; });
  for (; target != rows.end() && target->number < end; ++target) {
    update(u.arrays, u.settings, begin * width, target->number * width);
    u.targets.sum(*target, sum.data(), 0, width);
    const int64_t at = target->number * width;
    update({u.arrays.variable + at, sum.data(), u.arrays.mean + at, u.arrays.square + at}, u.settings, 0, width);
    begin = target->number + 1;
  }
  update(u.arrays, u.settings, begin * width, end * width);
}

using Array = ffi::Buffer<ffi::F32>;
using Number = ffi::BufferR0<ffi::F32>;
using Result = ffi::Result<Array>;

// XLA passes operands and results in the same memory, or copies of it.
Arrays in_place(Array variable, Array mean, Array square, Result& new_variable, Result& new_mean,
                Result& new_square) {
  const int64_t size = variable.element_count();
  for (Array* array : {&mean, &square, &*new_variable, &*new_mean, &*new_square})
    if (static_cast<int64_t>(array->element_count()) != size)
      throw std::invalid_argument("the arrays are not of one size");
  auto place = [size](const Array& from, Result& to) {
    if (from.typed_data() != to->typed_data()) std::copy_n(from.typed_data(), size, to->typed_data());
    return to->typed_data();
  };
  return {place(variable, new_variable), nullptr, place(mean, new_mean), place(square, new_square)};
}

ffi::Error execute(Array variable, Array gradient, Array mean, Array square, Number first, Number second, Number rate,
                   Result new_variable, Result new_mean, Result new_square, float epsilon) {
  return handled("meshflow_adam", [&]() -> ffi::Error {
    const int64_t size = variable.element_count();
    if (static_cast<int64_t>(gradient.element_count()) != size)
      throw std::invalid_argument("the gradient has another size");
    Arrays arrays = in_place(variable, mean, square, new_variable, new_mean, new_square);
    arrays.gradient = gradient.typed_data();
    const Settings settings{*first.typed_data(), *second.typed_data(), *rate.typed_data(), epsilon};
    if (size < kLeast) {
      update(arrays, settings, 0, size);
    } else {
      Team::get().run([&] {
        in_parts((size + kBlock - 1) / kBlock, [&](int64_t block) {
          update(arrays, settings, block * kBlock, std::min(size, (block + 1) * kBlock));
        });
      });
    }
    return ffi::Error::Success();
  });
}

ffi::Error execute_rows(Array variable, Array gradient, ffi::AnyBuffer indices, Array mean, Array square, Number first,
                        Number second, Number rate, Result new_variable, Result new_mean, Result new_square,
                        float epsilon) {
  return handled("meshflow_adam_rows", [&]() -> ffi::Error {
    const meshflow::Numbers numbers(indices);
    if (variable.dimensions().size() == 0) throw meshflow::Wrong("a table is a scalar");
    const int64_t count = variable.dimensions()[0], width = count < 1 ? 0 : variable.element_count() / count;
    if (static_cast<int64_t>(gradient.element_count()) != numbers.count * width)
      throw meshflow::Wrong("rows are not as long as the table's");
    const Arrays arrays = in_place(variable, mean, square, new_variable, new_mean, new_square);
    if (width < 1) return ffi::Error::Success();
    const Settings settings{*first.typed_data(), *second.typed_data(), *rate.typed_data(), epsilon};
    meshflow::Targets targets(gradient.typed_data(), width, numbers, count);
    std::sort(targets.rows.begin(), targets.rows.end(),
              [](const meshflow::Target& a, const meshflow::Target& b) { return a.number < b.number; });
    const int64_t block = std::max<int64_t>(1, kBlock / width);
    meshflow::run<update_rows>(count * width * 4, count, block, RowUpdate{arrays, settings, targets});
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_adam, execute,
                              ffi::Ffi::Bind()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Number>()
                                  .Arg<Number>()
                                  .Arg<Number>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_adam_rows, execute_rows,
                              ffi::Ffi::Bind()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Number>()
                                  .Arg<Number>()
                                  .Arg<Number>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Attr<float>("epsilon"));
