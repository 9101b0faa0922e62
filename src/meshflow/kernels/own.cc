#include "own.h"

#include <algorithm>

#include "amx.h"
#include "cpus.h"
#include "blocked.h"
#include "columns.h"
#include "depthwise.h"
#include "narrow.h"
#include "panels.h"
#include "winograd.h"

namespace meshflow {

constexpr int64_t kMinRows = 512;  // of a result per thread

bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue,
              bool flipped) {
  if (!may_use_tiles()) return false;
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || xs[1] != 1 || ys[1] != 1) return false;
  bool wide_kernel = w.get_data_type() == Type::f32;
  if (x.get_data_type() != Type::bf16 || (w.get_data_type() != Type::bf16 && !wide_kernel)) return false;
  if (y.get_data_type() != Type::bf16 && y.get_data_type() != Type::f32) return false;
  // From the last position to the first.
  int64_t size = wide_kernel ? 4 : 2, way = flipped ? -1 : 1;
  int64_t last = flipped ? (wd[2] - 1) * ws[2] + (wd[3] - 1) * ws[3] : 0;
  Convolution sizes{
      xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {wd[2], wd[3]}, {strides[0], strides[1]},
      {dilations[0] + 1, dilations[1] + 1}, {low[0], low[1]}, {xs[0], xs[2], xs[3]},
      {ys[0], ys[2], ys[3]}, {way * ws[2], way * ws[3], ws[1], ws[0]}, y.get_data_type() == Type::f32, wide_kernel};
  if (!suits(sizes, !epilogue.empty())) return false;
  kernel.operands = {{0, x, x, false}, {0, w, w, false}};
  epilogue.describe(kernel, y);
  kernel.operands.push_back({0, y, y, true});
  int threads = max_threads();
  kernel.scratch_bytes = scratch_bytes(sizes, threads);
  kernel.implementation = emulated_tiles ? "meshflow:amx:emulated" : "meshflow:amx";
  kernel.packed_bytes = packed_bytes(sizes);
  kernel.pack = [=](const void* weights, char* packed) {
    pack(sizes, static_cast<const char*>(weights) + last * size, packed, threads);
  };
  kernel.own = [=](const std::vector<void*>& buffers, const char* packed, char* scratch) {
    const void* weights = static_cast<const char*>(buffers[1]) + last * size;
    run(sizes, buffers[0], weights, packed, epilogue.read(buffers), buffers.back(), scratch, threads);
  };
  return true;
}

bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const memory::desc* bias) {
  if (!may_use_tiles()) return false;
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || xs[1] != 1 || ys[1] != 1 || ws[0] != 1) return false;
  if (x.get_data_type() != Type::bf16 || y.get_data_type() != Type::bf16) return false;
  if (w.get_data_type() != Type::bf16 && w.get_data_type() != Type::f32) return false;
  if (bias && bias->get_data_type() != w.get_data_type()) return false;
  KernelGradient sizes{
      xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {wd[2], wd[3]}, {strides[0], strides[1]},
      {dilations[0] + 1, dilations[1] + 1}, {low[0], low[1]}, {xs[0], xs[2], xs[3]},
      {ys[0], ys[2], ys[3]}, {ws[2], ws[3], ws[1]}, w.get_data_type() == Type::f32};
  int threads = max_threads();
  if (!suits(sizes, threads)) return false;
  kernel.operands = {{0, x, x, false}, {0, y, y, false}, {0, w, w, true}};
  if (bias) kernel.operands.push_back({0, *bias, *bias, true});
  kernel.scratch_bytes = scratch_bytes(sizes, threads);
  kernel.implementation = emulated_tiles ? "meshflow:amx:emulated" : "meshflow:amx";
  bool biased = bias;
  kernel.own = [sizes, threads, biased](const std::vector<void*>& buffers, const char*, char* scratch) {
    run(sizes, buffers[0], buffers[1], buffers[2], biased ? buffers[3] : nullptr, scratch, threads);
  };
  return true;
}

bool by_winograd(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                 const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || wd[2] != 3 || wd[3] != 3 || xs[1] != 1 || ys[1] != 1) return false;
  for (auto& operand : {x, w, y})
    if (operand.get_data_type() != Type::f32) return false;
  if (strides != Dims{1, 1} || dilations != Dims{0, 0}) return false;
  // From the last position to the first.
  int64_t way = flipped ? -1 : 1, last = flipped ? 2 * ws[2] + 2 * ws[3] : 0;
  Winograd sizes{xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {low[0], low[1]},
                           {xs[0], xs[2], xs[3]}, {ys[0], ys[2], ys[3]}, {way * ws[2], way * ws[3], ws[1], ws[0]}};
  int threads = max_threads();
  if (!(gradient ? differentiates(sizes, threads) : suits(sizes))) return false;
  kernel.operands = {{0, x, x, false}, {0, gradient ? y : w, gradient ? y : w, false}};
  epilogue.describe(kernel, y);
  kernel.operands.push_back({0, gradient ? w : y, gradient ? w : y, true});
  kernel.scratch_bytes = gradient ? gradient_scratch_bytes(sizes, threads)
                                  : scratch_bytes(sizes, threads);
  kernel.implementation = "meshflow:winograd";
  if (gradient) {
    kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
      auto floats = [&](int i) { return static_cast<float*>(buffers[i]); };
      differentiate(sizes, floats(0), floats(1), floats(2), scratch, threads);
    };
    return true;
  }
  kernel.packed_bytes = packed_bytes(sizes);
  kernel.pack = [=](const void* weights, char* packed) {
    pack(sizes, static_cast<const float*>(weights) + last, packed, threads);
  };
  kernel.own = [=](const std::vector<void*>& buffers, const char* packed, char* scratch) {
    auto floats = [](void* buffer) { return static_cast<float*>(buffer); };
    convolve(sizes, floats(buffers[0]), floats(buffers[1]) + last, packed, epilogue.read(buffers),
             floats(buffers.back()), scratch, threads);
  };
  return true;
}

bool by_narrow(Kernel& kernel, int64_t computation, const memory::desc& x, const memory::desc& w, const memory::desc& y,
               const Dims& strides, const Dims& dilations, const Dims& low) {
  // The gradient of an image takes the kernel's positions from the last to the first.
  const bool back = computation == kInputGradient;
  const memory::desc &wide = back ? y : x, &few = back ? x : y;
  Dims xd = wide.get_dims(), wd = w.get_dims(), yd = few.get_dims();
  Dims xs = wide.get_strides(), ws = w.get_strides(), ys = few.get_strides();
  const size_t rank = strides.size();
  if (rank > 2 || xs[1] != 1 || ys[1] != 1) return false;
  const Type type = x.get_data_type();
  if (type != Type::f32 && type != Type::bf16) return false;
  for (auto& operand : {w, y})
    if (operand.get_data_type() != type) return false;
  // One spatial dimension is a row.
  auto at = [rank](const Dims& values, int axis, int64_t missing) { return rank == 2 || axis ? values[values.size() - 2 + axis] : missing; };
  Narrow sizes{xd[0], xd[1], yd[1], at(xd, 0, 1), at(xd, 1, 1), at(yd, 0, 1), at(yd, 1, 1)};
  for (int i = 0; i < 2; ++i) {
    const int64_t stride = i || rank == 2 ? strides[rank - 2 + i] : 1, before = i || rank == 2 ? low[rank - 2 + i] : 0;
    const int64_t dilation = (i || rank == 2 ? dilations[rank - 2 + i] : 0) + 1;
    sizes.kernel[i] = at(wd, i, 1);
    sizes.step[i] = back ? 1 : stride, sizes.part[i] = back ? stride : 1;
    sizes.offset[i] = back ? before : -before, sizes.tap[i] = back ? -dilation : dilation;
    sizes.wide[1 + i] = at(xs, i, 0), sizes.narrow[1 + i] = at(ys, i, 0), sizes.weights[i] = at(ws, i, 0);
  }
  sizes.wide[0] = xs[0], sizes.narrow[0] = ys[0];
  sizes.weights[2] = ws[back ? 0 : 1], sizes.weights[3] = ws[back ? 1 : 0];
  sizes.halves = type == Type::bf16;
  // oneDNN multiplies pairs of bfloat16 at once.
  if (!suits(sizes) || (sizes.halves && sizes.features > 2 && computation != kKernelGradient)) return false;
  // With AVX2, oneDNN's gradient of a float32 kernel is as fast from three channels on.
  if (computation == kKernelGradient && !sizes.halves && sizes.features > 2 && !has(Level::kAvx512)) return false;
  const int threads = max_threads();
  kernel.implementation = "meshflow:narrow";
  if (computation == kKernelGradient) {
    kernel.operands = {{0, x, x, false}, {0, y, y, false}, {0, w, w, true}};
    kernel.scratch_bytes = gradient_scratch_bytes(sizes);
    kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
      differentiate(sizes, buffers[0], buffers[1], buffers[2], scratch, threads);
    };
    return true;
  }
  kernel.operands = {{0, wide, wide, false}, {0, w, w, false}, {0, few, few, true}};
  kernel.scratch_bytes = scratch_bytes(sizes);
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
    convolve(sizes, buffers[0], buffers[1], buffers[2], scratch, threads);
  };
  return true;
}

bool by_depthwise(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                  const Dims& strides, const Dims& dilations, const Dims& low, const EpilogueOps& epilogue, bool flipped) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  const size_t rank = strides.size();
  if (rank > 2 || xs[1] != 1 || ys[1] != 1 || ws[0] != 1 || wd[1] != 1 || wd[2] != 1) return false;
  if (wd[0] != xd[1] || yd[1] != xd[1] || yd[0] != xd[0]) return false;
  const Type type = x.get_data_type(), weight = w.get_data_type();
  if ((type != Type::f32 && type != Type::bf16) || y.get_data_type() != type) return false;
  if (weight != Type::f32 && weight != type) return false;
  // One spatial dimension is a row.
  auto at = [rank](const Dims& values, int axis, int64_t missing) { return rank == 2 || axis ? values[values.size() - 2 + axis] : missing; };
  auto of = [rank](const Dims& values, int axis, int64_t missing) { return rank == 2 ? values[axis] : axis ? values[0] : missing; };
  Depthwise sizes{xd[0], xd[1], at(xd, 0, 1), at(xd, 1, 1), at(yd, 0, 1), at(yd, 1, 1)};
  int64_t last = 0;  // from the last position to the first
  for (int i = 0; i < 2; ++i) {
    sizes.kernel[i] = at(wd, i, 1), sizes.step[i] = of(strides, i, 1), sizes.tap[i] = of(dilations, i, 0) + 1, sizes.low[i] = of(low, i, 0);
    sizes.image[1 + i] = at(xs, i, 0), sizes.result[1 + i] = at(ys, i, 0), sizes.weights[i] = at(ws, i, 0);
    if (!flipped) continue;
    last += (sizes.kernel[i] - 1) * sizes.weights[i];
    sizes.weights[i] = -sizes.weights[i];
  }
  sizes.image[0] = xs[0], sizes.result[0] = ys[0];
  sizes.halves = type == Type::bf16, sizes.wide_weights = weight == Type::f32;
  if (!suits(sizes, gradient)) return false;
  const int threads = max_threads();
  kernel.implementation = "meshflow:depthwise";
  kernel.operands = {{0, x, x, false}, {0, gradient ? y : w, gradient ? y : w, false}};
  epilogue.describe(kernel, y);
  kernel.operands.push_back({0, gradient ? w : y, gradient ? w : y, true});
  kernel.scratch_bytes = gradient ? gradient_scratch_bytes(sizes, threads) : scratch_bytes(sizes, threads);
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
    if (gradient) return differentiate(sizes, buffers[0], buffers[1], buffers[2], scratch, threads);
    const void* weights = static_cast<const char*>(buffers[1]) + last * static_cast<int64_t>(memory::data_type_size(weight));
    convolve(sizes, buffers[0], weights, epilogue.read(buffers), buffers.back(), scratch, threads);
  };
  return true;
}

bool by_windows(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                const Dims& strides, const Dims& dilations, const Dims& low) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  const size_t rank = strides.size();
  if (rank > 2 || xs[1] != 1 || ys[1] != 1 || wd.size() != rank + 2) return false;
  if (wd[0] != yd[1] || wd[1] != xd[1] || yd[0] != xd[0]) return false;
  for (auto& operand : {x, w, y})
    if (operand.get_data_type() != Type::f32) return false;
  // One spatial dimension is a row.
  auto at = [rank](const Dims& values, int axis, int64_t missing) { return rank == 2 || axis ? values[values.size() - 2 + axis] : missing; };
  auto of = [rank](const Dims& values, int axis, int64_t missing) { return rank == 2 ? values[axis] : axis ? values[0] : missing; };
  Windows sizes{xd[0], xd[1], yd[1], at(xd, 0, 1), at(xd, 1, 1), at(yd, 0, 1), at(yd, 1, 1)};
  for (int i = 0; i < 2; ++i) {
    sizes.kernel[i] = at(wd, i, 1), sizes.step[i] = of(strides, i, 1), sizes.tap[i] = of(dilations, i, 0) + 1, sizes.low[i] = of(low, i, 0);
    sizes.image[1 + i] = at(xs, i, 0), sizes.result[1 + i] = at(ys, i, 0), sizes.weights[i] = at(ws, i, 0);
  }
  sizes.image[0] = xs[0], sizes.result[0] = ys[0];
  sizes.weights[2] = ws[1], sizes.weights[3] = ws[0];
  if (!suits(sizes)) return false;
  const int threads = max_threads();
  kernel.implementation = "meshflow:windows";
  kernel.operands = {{0, x, x, false}, {0, gradient ? y : w, gradient ? y : w, false}, {0, gradient ? w : y, gradient ? w : y, true}};
  kernel.scratch_bytes = gradient ? gradient_scratch_bytes(sizes, threads) : scratch_bytes(sizes, threads);
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
    auto floats = [&](int i) { return static_cast<float*>(buffers[i]); };
    if (gradient) return differentiate(sizes, floats(0), floats(1), floats(2), scratch, threads);
    convolve(sizes, floats(0), floats(1), floats(2), scratch, threads);
  };
  return true;
}

bool by_panels(Kernel& kernel, const memory::desc& a, const memory::desc& b, const memory::desc& c) {
  Dims ad = a.get_dims(), bd = b.get_dims(), cd = c.get_dims(), as = a.get_strides(), bs = b.get_strides();
  const size_t n = cd.size();
  if (n > 3) return false;
  for (auto& operand : {a, b, c})
    if (operand.get_data_type() != Type::f32) return false;
  const int64_t batch = n == 3 ? cd[0] : 1, rows = cd[n - 2], columns = cd[n - 1], depth = ad[n - 1];
  if (ad[n - 2] != rows || bd[n - 2] != depth || bd[n - 1] != columns) return false;
  if (n == 3 && (ad[0] != batch || bd[0] != batch)) return false;
  if (c.get_strides() != (n == 3 ? Dims{rows * columns, columns, 1} : Dims{columns, 1})) return false;
  if ((as[n - 2] != 1 && as[n - 1] != 1) || as[n - 1] == 0 || bs[n - 1] != 1) return false;
  Product product{batch, rows, columns, depth,
                  {n == 3 ? as[0] : 0, as[n - 2], as[n - 1]}, {n == 3 ? bs[0] : 0, bs[n - 2]}};
  if (!suits(product)) return false;
  const int threads = max_threads();
  kernel.implementation = "meshflow:panels";
  kernel.operands = {{0, a, a, false}, {0, b, b, false}, {0, c, c, true}};
  kernel.scratch_bytes = scratch_bytes(product);
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
    auto floats = [&](int i) { return static_cast<float*>(buffers[i]); };
    multiply(product, floats(0), floats(1), floats(2), scratch, threads);
  };
  return true;
}

bool by_rows(Kernel& kernel, const memory::desc& a, const memory::desc& b, const memory::desc& c, const EpilogueOps& epilogue) {
  Dims a_strides = a.get_strides(), c_strides = c.get_strides();
  int64_t rows = a.get_dims()[0], depth = a.get_dims()[1], columns = c.get_dims()[1];
  int threads = max_threads();
  // oneDNN's ordinary products read the right matrix without packing, so packing must cost less than the
  // saved pass.
  if (rows < std::max<int64_t>(depth, kMinRows * threads)) return false;
  if (a_strides[1] != 1 || c_strides != Dims{columns, 1}) return false;
  Type type = a.get_data_type();
  Sum sum{cpu()};
  sum.any = memory::desc(b.get_dims(), type, memory::format_tag::any);
  sum.make = [=](int64_t count, Type result, const memory::desc& weights) {
    dnnl::matmul::primitive_desc d(cpu(), memory::desc({count, depth}, type, a_strides), weights,
                                   memory::desc({count, columns}, result, c_strides), attributes());
    return Sum::Block{dnnl::matmul(d), d.src_desc(), d.weights_desc(), d.dst_desc(), d.scratchpad_desc(),
                      d.impl_info_str()};
  };
  sum.count = rows, sum.features = columns;
  sum.row_bytes = a_strides[0] * memory::data_type_size(type);
  sum.right = b, sum.result = c.get_data_type();
  Blocked blocks = in_blocks(sum, threads);
  if (blocks.implementation.empty() || slow(blocks.implementation)) return false;
  kernel.operands = {{0, a, a, false}, {0, b, b, false}};
  epilogue.describe(kernel, c);
  kernel.operands.push_back({0, c, c, true});
  kernel.scratch_bytes = blocks.scratch_bytes;
  kernel.implementation = "meshflow:blocked:" + blocks.implementation;
  kernel.packed_bytes = blocks.packed_bytes;
  kernel.pack = blocks.pack;
  kernel.own = [=](const std::vector<void*>& buffers, const char* packed, char* scratch) {
    blocks.run(buffers[0], buffers[1], packed, epilogue.read(buffers), buffers.back(), scratch);
  };
  return true;
}

bool by_columns(Kernel& kernel, Reader& descriptor, const std::vector<Type>& types) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t rows = descriptor.next(), columns = descriptor.next(), terms = descriptor.next();
  const bool each_row = descriptor.next();
  if (rows < 1 || columns < 1 || rows > kMost / columns) throw std::invalid_argument("the size of an operand is not supported");
  if (terms < 0 || terms > static_cast<int64_t>(Terms::kSquares)) throw std::invalid_argument("unknown terms");
  const Terms of = static_cast<Terms>(terms);
  const size_t count = of == Terms::kElements ? 2 : 3;
  if (types.size() != count) throw std::invalid_argument("a sum has another number of operands");
  for (Type type : types)
    if (type != Type::f32 && type != Type::bf16) return false;
  if (of == Terms::kSquares && types[1] != Type::f32) return false;
  if (each_row && (of == Terms::kProducts || types[0] != Type::f32 || types.back() != Type::f32)) return false;
  Columns sizes{rows, columns, of, each_row, types[0] == Type::bf16, count == 3 && types[1] == Type::bf16, types.back() == Type::bf16};
  if (!suits(sizes)) return false;
  for (size_t i = 0; i < count; ++i) {
    const bool matrix = i == 0 || (i == 1 && of == Terms::kProducts);
    memory::desc operand({matrix ? rows * columns : each_row ? rows : columns}, types[i], Dims{1});
    kernel.operands.push_back({0, operand, operand, i + 1 == count});
  }
  kernel.scratch_bytes = scratch_bytes(sizes);
  kernel.implementation = "meshflow:columns";
  const int threads = max_threads();
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
    sum(sizes, buffers[0], count == 3 ? buffers[1] : nullptr, buffers.back(), scratch, threads);
  };
  return true;
}

}  // namespace meshflow

// For tests: sums += left * right for one tile; returns 0 if there are no tiles.
extern "C" int meshflow_tile_product(const void* left, const void* right, float* sums) noexcept {
  return meshflow::may_use_tiles() && meshflow::multiply_tile(left, right, sums);
}
