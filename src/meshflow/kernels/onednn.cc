// The XLA FFI handler that runs convolutions and matrix products with oneDNN.
//
// A call carries its geometry as one list of integers (the "plan", written by plans.py): which
// computation, logical dimensions and strides of every operand. A primitive is made once per plan
// and element types, and kept. Layouts other than the caller's are reordered into scratch memory.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "amx.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "winograd.h"
#include "worker.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using dnnl::memory;
using Dims = memory::dims;
using Type = memory::data_type;
using meshflow::Reader;
using meshflow::Worker;

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Operand {
  int argument;
  memory::desc user, inner;
  bool output;
  dnnl::reorder reorder;
  size_t offset = 0;
};

struct Kernel {
  dnnl::primitive primitive;
  std::vector<Operand> operands;
  memory::desc scratchpad;
  size_t scratch_offset = 0, scratch_bytes = 0;
  std::string implementation;
  // Instead of oneDNN's primitive: buffers, packed weights or null, scratch memory.
  std::function<void(const std::vector<void*>&, const char*, char*)> own;
  // Weights (operand 1) in the layout that the computation reads, and whether the call brings them like that.
  std::function<void(const void*, char*)> pack;
  size_t packed_bytes = 0;
  bool packed = false;

  void add(int argument, const memory::desc& user, const memory::desc& inner, bool output) {
    Operand operand{argument, user, inner, output, {}, 0};
    if (user != inner) {
      operand.reorder = dnnl::reorder(dnnl::reorder::primitive_desc(
          cpu(), output ? inner : user, cpu(), output ? user : inner));
      operand.offset = reserve(inner.get_size());
    }
    if (argument == DNNL_ARG_WEIGHTS && operand.reorder) {
      packed_bytes = inner.get_size();
      pack = [user, inner, reorder = operand.reorder](const void* from, char* to) mutable {
        dnnl::stream stream(cpu());
        memory source(user, cpu(), const_cast<void*>(from)), target(inner, cpu(), to);
        reorder.execute(stream, source, target);
        stream.wait();
      };
    }
    operands.push_back(operand);
  }

  // Makes the computation take packed weights.
  void take_packed() {
    Operand& weights = operands[1];
    if (own) weights.inner = memory::desc({static_cast<int64_t>(packed_bytes)}, Type::u8, Dims{1});
    weights.user = weights.inner;
    packed = true;
  }

  size_t reserve(size_t bytes) {
    size_t offset = scratch_bytes;
    scratch_bytes += (bytes + 63) / 64 * 64;
    return offset;
  }

  template <typename Descriptor>
  void finish(const Descriptor& descriptor, dnnl::primitive made) {
    primitive = made;
    implementation = descriptor.impl_info_str();
    scratchpad = descriptor.scratchpad_desc();
    scratch_offset = reserve(scratchpad.get_size());
  }

  void run(const std::vector<void*>& buffers) const {
    char* scratch = Worker::get().scratch(scratch_bytes);
    if (own) return own(buffers, packed ? static_cast<const char*>(buffers[1]) : nullptr, scratch);
    dnnl::stream stream(cpu());
    std::unordered_map<int, memory> arguments;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Operand& operand = operands[i];
      memory user(operand.user, cpu(), buffers[i]);
      if (operand.user == operand.inner) {
        arguments[operand.argument] = user;
        continue;
      }
      memory inner(operand.inner, cpu(), scratch + operand.offset);
      if (!operand.output) operand.reorder.execute(stream, user, inner);
      arguments[operand.argument] = inner;
    }
    arguments[DNNL_ARG_SCRATCHPAD] = memory(scratchpad, cpu(), scratch + scratch_offset);
    primitive.execute(stream, arguments);
    for (size_t i = 0; i < operands.size(); ++i) {
      const Operand& operand = operands[i];
      if (operand.output && operand.user != operand.inner) {
        memory user(operand.user, cpu(), buffers[i]);
        operand.reorder.execute(stream, arguments[operand.argument], user);
      }
    }
    stream.wait();
  }
};

// kTurned: a forward one with its kernel turned round; by code of our own only.
enum Computation { kForward = 0, kInputGradient = 1, kKernelGradient = 2, kMatmul = 3, kTurned = 4 };
// Added to a computation: its weights are packed and nothing else is done; it takes packed weights, and the
// code of their type is behind its plan.
enum Packing { kPack = 16, kPacked = 32 };
// kGate: zero where another tensor is not positive; by code of our own only.
enum Epilogue { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kGate = 4 };

dnnl::primitive_attr attributes(int64_t epilogue, const memory::desc* residual) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops ops;
  if (residual) ops.append_binary(dnnl::algorithm::binary_add, *residual);
  if (epilogue == kRelu) ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
  if (epilogue == kGelu) ops.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0, 0);
  if (epilogue == kGeluTanh) ops.append_eltwise(dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
  attr.set_post_ops(ops);
  return attr;
}

bool slow(const std::string& implementation) {
  return implementation.rfind("ref", 0) == 0 || implementation.find("gemm:ref") == 0;
}

// A convolution with what follows it by code of our own, where that is faster; says whether it is.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, int64_t epilogue,
              const memory::desc* bias, bool turned) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || xs[1] != 1 || ys[1] != 1) return false;
  bool wide_kernel = w.get_data_type() == Type::f32;
  if (x.get_data_type() != Type::bf16 || (w.get_data_type() != Type::bf16 && !wide_kernel)) return false;
  if (y.get_data_type() != Type::bf16 && y.get_data_type() != Type::f32) return false;
  if (bias && bias->get_data_type() != Type::f32) return false;
  if (epilogue != kNone && epilogue != kRelu && epilogue != kGate) return false;
  // From the last place to the first.
  int64_t size = wide_kernel ? 4 : 2, way = turned ? -1 : 1;
  int64_t last = turned ? (wd[2] - 1) * ws[2] + (wd[3] - 1) * ws[3] : 0;
  meshflow::Convolution sizes{
      xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {wd[2], wd[3]}, {strides[0], strides[1]},
      {dilations[0] + 1, dilations[1] + 1}, {low[0], low[1]}, {xs[0], xs[2], xs[3]},
      {ys[0], ys[2], ys[3]}, {way * ws[2], way * ws[3], ws[1], ws[0]}, y.get_data_type() == Type::f32, wide_kernel,
      static_cast<meshflow::Finish>(epilogue)};
  if (!meshflow::suits(sizes, bias)) return false;
  kernel.operands = {{0, x, x, false}, {0, w, w, false}};
  if (bias) kernel.operands.push_back({0, *bias, *bias, false});
  bool gated = epilogue == kGate;
  if (gated) {
    memory::desc gate(yd, Type::bf16, ys);
    kernel.operands.push_back({0, gate, gate, false});
  }
  kernel.operands.push_back({0, y, y, true});
  int threads = omp_get_max_threads();
  kernel.scratch_bytes = meshflow::scratch_bytes(sizes, threads);
  kernel.implementation = "meshflow:amx";
  bool biased = bias;
  kernel.packed_bytes = meshflow::packed_bytes(sizes);
  kernel.pack = [=](const void* weights, char* packed) {
    meshflow::pack(sizes, static_cast<const char*>(weights) + last * size, packed, threads);
  };
  kernel.own = [=](const std::vector<void*>& buffers, const char* packed, char* scratch) {
    const float* added = biased ? static_cast<const float*>(buffers[2]) : nullptr;
    const void* gate = gated ? buffers[2 + biased] : nullptr;
    const void* weights = static_cast<const char*>(buffers[1]) + last * size;
    meshflow::run(sizes, buffers[0], weights, packed, added, gate, buffers.back(), scratch, threads);
  };
  return true;
}

// The gradients of the kernel and a bias by code of our own, where that is faster; says whether it is.
bool by_tiles(Kernel& kernel, const memory::desc& x, const memory::desc& w, const memory::desc& y,
              const Dims& strides, const Dims& dilations, const Dims& low, const memory::desc* bias) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || xs[1] != 1 || ys[1] != 1 || ws[0] != 1) return false;
  if (x.get_data_type() != Type::bf16 || y.get_data_type() != Type::bf16) return false;
  if (w.get_data_type() != Type::bf16 && w.get_data_type() != Type::f32) return false;
  if (bias && bias->get_data_type() != w.get_data_type()) return false;
  meshflow::KernelGradient sizes{
      xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {wd[2], wd[3]}, {strides[0], strides[1]},
      {dilations[0] + 1, dilations[1] + 1}, {low[0], low[1]}, {xs[0], xs[2], xs[3]},
      {ys[0], ys[2], ys[3]}, {ws[2], ws[3], ws[1]}, w.get_data_type() == Type::f32};
  int threads = omp_get_max_threads();
  if (!meshflow::suits(sizes, threads)) return false;
  kernel.operands = {{0, x, x, false}, {0, y, y, false}, {0, w, w, true}};
  if (bias) kernel.operands.push_back({0, *bias, *bias, true});
  kernel.scratch_bytes = meshflow::scratch_bytes(sizes, threads);
  kernel.implementation = "meshflow:amx";
  bool biased = bias;
  kernel.own = [sizes, threads, biased](const std::vector<void*>& buffers, const char*, char* scratch) {
    meshflow::run(sizes, buffers[0], buffers[1], buffers[2], biased ? buffers[3] : nullptr, scratch, threads);
  };
  return true;
}

// A convolution with 3 x 3 kernels or their gradient by code of our own, where that is faster; says
// whether it is.
bool by_winograd(Kernel& kernel, bool gradient, const memory::desc& x, const memory::desc& w, const memory::desc& y,
                 const Dims& strides, const Dims& dilations, const Dims& low) {
  Dims xd = x.get_dims(), wd = w.get_dims(), yd = y.get_dims();
  Dims xs = x.get_strides(), ws = w.get_strides(), ys = y.get_strides();
  if (xd.size() != 4 || wd.size() != 4 || wd[2] != 3 || wd[3] != 3 || xs[1] != 1 || ys[1] != 1) return false;
  for (auto& operand : {x, w, y})
    if (operand.get_data_type() != Type::f32) return false;
  if (strides != Dims{1, 1} || dilations != Dims{0, 0}) return false;
  meshflow::Winograd sizes{xd[0], xd[1], yd[1], xd[2], xd[3], yd[2], yd[3], {low[0], low[1]},
                           {xs[0], xs[2], xs[3]}, {ys[0], ys[2], ys[3]}, {ws[2], ws[3], ws[1], ws[0]}};
  int threads = omp_get_max_threads();
  if (!(gradient ? meshflow::differentiates(sizes, threads) : meshflow::suits(sizes))) return false;
  kernel.operands = {{0, x, x, false}, {0, gradient ? y : w, gradient ? y : w, false},
                     {0, gradient ? w : y, gradient ? w : y, true}};
  kernel.scratch_bytes = gradient ? meshflow::gradient_scratch_bytes(sizes, threads)
                                  : meshflow::scratch_bytes(sizes, threads);
  kernel.implementation = "meshflow:winograd";
  if (gradient) {
    kernel.own = [=](const std::vector<void*>& buffers, const char*, char* scratch) {
      auto floats = [&](int i) { return static_cast<float*>(buffers[i]); };
      meshflow::differentiate(sizes, floats(0), floats(1), floats(2), scratch, threads);
    };
    return true;
  }
  kernel.packed_bytes = meshflow::packed_bytes(sizes);
  kernel.pack = [=](const void* weights, char* packed) {
    meshflow::pack(sizes, static_cast<const float*>(weights), packed, threads);
  };
  kernel.own = [=](const std::vector<void*>& buffers, const char* packed, char* scratch) {
    auto floats = [](void* buffer) { return static_cast<float*>(buffer); };
    meshflow::convolve(sizes, floats(buffers[0]), floats(buffers[1]), packed, floats(buffers.back()), scratch,
                       threads);
  };
  return true;
}

// Convolutions: plan = computation, spatial rank, groups, then dims and strides of image, kernel and
// result, the strides, dilations (minus one) and paddings, epilogue, bias?, residual?.
void convolution(Kernel& kernel, int64_t computation, Reader& plan, const std::vector<Type>& types) {
  bool turned = computation == kTurned;
  if (turned) computation = kForward;
  size_t n = plan.next();
  size_t grouped = plan.next() > 1;
  Dims x_dims = plan.list(n + 2), x_strides = plan.list(n + 2);
  Dims w_dims = plan.list(n + 2 + grouped), w_strides = plan.list(n + 2 + grouped);
  Dims y_dims = plan.list(n + 2), y_strides = plan.list(n + 2);
  Dims strides = plan.list(n), dilations = plan.list(n), low = plan.list(n), high = plan.list(n);
  int64_t epilogue = plan.next();
  bool bias = plan.next(), residual = plan.next();

  // The buffers' order: forward x, w, (bias), (residual or gate), y; gradients y', w, x' and x, y', w', (bias').
  size_t count = types.size();
  Type x_type = computation == kInputGradient ? types[2] : types[0];
  Type w_type = computation == kKernelGradient ? types[2] : types[1];
  Type y_type = computation == kForward ? types[count - 1]
                : computation == kInputGradient ? types[0] : types[1];
  memory::desc x(x_dims, x_type, x_strides), w(w_dims, w_type, w_strides), y(y_dims, y_type, y_strides);
  memory::desc b;
  if (bias) b = memory::desc({y_dims[1]}, types[computation == kForward ? 2 : 3], Dims{1});

  bool plain = !grouped && !bias && !residual && !turned && epilogue == kNone;
  bool gradient = computation == kKernelGradient;
  if (plain && computation != kInputGradient && by_winograd(kernel, gradient, x, w, y, strides, dilations, low)) return;
  if (gradient && !grouped && by_tiles(kernel, x, w, y, strides, dilations, low, bias ? &b : nullptr)) return;
  if (computation == kForward && !grouped && !residual &&
      by_tiles(kernel, x, w, y, strides, dilations, low, epilogue, bias ? &b : nullptr, turned))
    return;
  if (epilogue == kGate || turned)
    throw std::invalid_argument("neither a gate nor a turned kernel is fused into this convolution");
  auto any = memory::format_tag::any;
  memory::desc any_w(w_dims, w_type, any);
  auto direct = dnnl::algorithm::convolution_direct;
  // First with the caller's layouts of images; if oneDNN has only slow code for these, with its own.
  for (bool own : {false, true}) {
    memory::desc dx = own ? memory::desc(x_dims, x_type, any) : x;
    memory::desc dy = own ? memory::desc(y_dims, y_type, any) : y;
    dnnl::primitive_attr attr = attributes(epilogue, residual ? &y : nullptr);
    try {
      if (computation == kForward) {
        dnnl::convolution_forward::primitive_desc d(
            cpu(), dnnl::prop_kind::forward_training, direct, dx, any_w, b, dy, strides, dilations,
            low, high, attr);
        if (!own && slow(d.impl_info_str())) continue;
        kernel.add(DNNL_ARG_SRC, x, d.src_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, w, d.weights_desc(), false);
        if (bias) kernel.add(DNNL_ARG_BIAS, b, b, false);
        if (residual)
          kernel.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, y, y, false);
        kernel.add(DNNL_ARG_DST, y, d.dst_desc(), true);
        kernel.finish(d, dnnl::convolution_forward(d));
        return;
      }
      dnnl::convolution_forward::primitive_desc hint(
          cpu(), dnnl::prop_kind::forward_training, direct, memory::desc(x_dims, x_type, any), any_w,
          memory::desc(y_dims, y_type, any), strides, dilations, low, high);
      if (computation == kInputGradient) {
        dnnl::convolution_backward_data::primitive_desc d(cpu(), direct, dx, any_w, dy, strides,
                                                          dilations, low, high, hint, attr);
        if (!own && slow(d.impl_info_str())) continue;
        kernel.add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, w, d.weights_desc(), false);
        kernel.add(DNNL_ARG_DIFF_SRC, x, d.diff_src_desc(), true);
        kernel.finish(d, dnnl::convolution_backward_data(d));
        return;
      }
      dnnl::convolution_backward_weights::primitive_desc d(cpu(), direct, dx, any_w, b, dy, strides,
                                                           dilations, low, high, hint, attr);
      if (!own && slow(d.impl_info_str())) continue;
      kernel.add(DNNL_ARG_SRC, x, d.src_desc(), false);
      kernel.add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
      kernel.add(DNNL_ARG_DIFF_WEIGHTS, w, d.diff_weights_desc(), true);
      if (bias) kernel.add(DNNL_ARG_DIFF_BIAS, b, b, true);
      kernel.finish(d, dnnl::convolution_backward_weights(d));
      return;
    } catch (const dnnl::error&) {
      if (own) throw;
      kernel = Kernel();
    }
  }
}

// Matrix products: plan = rank, then dims and strides of left, right and result, epilogue, bias?,
// residual?; the last two dimensions are the matrix.
void matmul(Kernel& kernel, Reader& plan, const std::vector<Type>& types) {
  size_t n = plan.next();
  Dims a_dims = plan.list(n), a_strides = plan.list(n);
  Dims b_dims = plan.list(n), b_strides = plan.list(n);
  Dims c_dims = plan.list(n), c_strides = plan.list(n);
  int64_t epilogue = plan.next();
  bool bias = plan.next(), residual = plan.next();
  memory::desc a(a_dims, types[0], a_strides), b(b_dims, types[1], b_strides);
  memory::desc c(c_dims, types.back(), c_strides), v;
  if (bias) {
    Dims dims(n, 1);
    dims[n - 1] = c_dims[n - 1];
    v = memory::desc(dims, types[2], Dims(n, 1));
  }
  dnnl::primitive_attr attr = attributes(epilogue, residual ? &c : nullptr);
  dnnl::matmul::primitive_desc d(cpu(), a, b, v, c, attr);
  kernel.add(DNNL_ARG_SRC, a, a, false);
  kernel.add(DNNL_ARG_WEIGHTS, b, b, false);
  if (bias) kernel.add(DNNL_ARG_BIAS, v, v, false);
  if (residual) kernel.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, c, c, false);
  kernel.add(DNNL_ARG_DST, c, c, true);
  kernel.finish(d, dnnl::matmul(d));
}

using Plan = std::vector<int64_t>;

Type type_of(char code) {
  return code == 'b' ? Type::bf16 : code == 'h' ? Type::f16 : code == 'u' ? Type::u8 : Type::f32;
}

std::shared_ptr<const Kernel> make(const Plan& plan, const std::vector<Type>& types);

// Packs the weights of a computation. Behind its plan come the codes of its types, and their number.
Kernel packer(Plan plan) {
  std::vector<Type> types(plan.back());
  plan.pop_back();
  if (plan.size() <= types.size()) throw std::invalid_argument("the plan is too short");
  for (size_t i = types.size(); i > 0; --i, plan.pop_back()) types[i - 1] = type_of(plan.back());
  plan[0] -= kPack;
  auto of = make(plan, types);
  if (!of->pack) throw std::invalid_argument("this computation has no packed weights");
  Kernel kernel;
  memory::desc weights = of->operands[1].user, blob({static_cast<int64_t>(of->packed_bytes)}, Type::u8, Dims{1});
  kernel.operands = {{0, weights, weights, false}, {0, blob, blob, true}};
  kernel.own = [of](const std::vector<void*>& buffers, const char*, char*) {
    of->pack(buffers[0], static_cast<char*>(buffers[1]));
  };
  return kernel;
}

Kernel built(Plan plan, std::vector<Type> types) {
  if (plan.empty()) throw std::invalid_argument("the plan is too short");
  bool packed = plan[0] & kPacked;
  if (packed) {
    plan[0] -= kPacked;
    if (types.size() < 2) throw std::invalid_argument("the packed weights are missing");
    types[1] = type_of(plan.back());
    plan.pop_back();
  }
  Kernel kernel;
  Reader reader(plan.data(), plan.size());
  int64_t computation = reader.next();
  // On the worker, as oneDNN divides the work by its number of threads.
  Worker::get().run([&] {
    if (computation == kMatmul) {
      matmul(kernel, reader, types);
    } else {
      convolution(kernel, computation, reader, types);
    }
  });
  if (packed) {
    if (!kernel.pack) throw std::invalid_argument("this computation has no packed weights");
    kernel.take_packed();
  }
  return kernel;
}

std::shared_ptr<const Kernel> make(const Plan& plan, const std::vector<Type>& types) {
  // One that packs weights asks for the one that it packs them for.
  static std::recursive_mutex mutex;
  static auto* kernels = new std::unordered_map<std::string, std::shared_ptr<const Kernel>>();
  std::string key(reinterpret_cast<const char*>(plan.data()), plan.size() * sizeof(int64_t));
  for (Type type : types) key.push_back(static_cast<char>(type));
  std::lock_guard<std::recursive_mutex> lock(mutex);
  auto found = kernels->find(key);
  if (found != kernels->end()) return found->second;
  bool packs = !plan.empty() && plan[0] & kPack;
  auto kernel = std::make_shared<const Kernel>(packs ? packer(plan) : built(plan, types));
  (*kernels)[key] = kernel;
  return kernel;
}

Type type_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32: return Type::f32;
    case ffi::DataType::BF16: return Type::bf16;
    case ffi::DataType::F16: return Type::f16;
    case ffi::DataType::U8: return Type::u8;  // packed weights
    default: throw std::invalid_argument("the element type is not float32, bfloat16 or float16");
  }
}

ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   ffi::Span<const int64_t> plan) {
  try {
    std::vector<Type> types;
    std::vector<void*> buffers;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto buffer = arguments.get<ffi::AnyBuffer>(i).value();
      types.push_back(type_of(buffer.element_type()));
      buffers.push_back(buffer.untyped_data());
      sizes.push_back(buffer.size_bytes());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      auto buffer = *results.get<ffi::AnyBuffer>(i).value();
      types.push_back(type_of(buffer.element_type()));
      buffers.push_back(buffer.untyped_data());
      sizes.push_back(buffer.size_bytes());
    }
    auto kernel = make(Plan(plan.begin(), plan.end()), types);
    if (kernel->operands.size() != buffers.size())
      return ffi::Error::InvalidArgument("meshflow_onednn: the plan has another number of operands");
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (kernel->operands[i].user.get_size() > sizes[i])
        return ffi::Error::InvalidArgument("meshflow_onednn: operand " + std::to_string(i) +
                                           " is smaller than its plan says");
    }
    Worker::get().run([&] { kernel->run(buffers); });
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("meshflow_onednn: ") + error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_onednn, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("plan"));

std::shared_ptr<const Kernel> asked(const int64_t* plan, int64_t size, const char* types) {
  std::vector<Type> kinds;
  for (const char* t = types; *t; ++t) kinds.push_back(type_of(*t));
  return make(Plan(plan, plan + size), kinds);
}

// The name of the code oneDNN would run for a plan; empty with a message when it has none.
extern "C" int meshflow_onednn_query(const int64_t* plan, int64_t size, const char* types,
                                     char* text, int64_t capacity) {
  std::string answer;
  int status = 0;
  try {
    answer = asked(plan, size, types)->implementation;
  } catch (const std::exception& error) {
    answer = error.what();
    status = 1;
  }
  std::strncpy(text, answer.c_str(), capacity - 1);
  text[capacity - 1] = 0;
  return status;
}

// Bytes of a plan's packed weights; none where they are read as they lie, or nothing is fast.
extern "C" int64_t meshflow_onednn_packed_bytes(const int64_t* plan, int64_t size, const char* types) {
  try {
    return asked(plan, size, types)->packed_bytes;
  } catch (const std::exception&) {
    return 0;
  }
}

extern "C" void meshflow_onednn_set_threads(int threads) { Worker::get().set_threads(threads); }

extern "C" void meshflow_onednn_version(int* parts) {
  const dnnl_version_t* version = dnnl_version();
  parts[0] = version->major;
  parts[1] = version->minor;
  parts[2] = version->patch;
}
