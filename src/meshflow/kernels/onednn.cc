// XLA FFI handler that runs convolutions and matrix products with oneDNN.
//
// A call contains its geometry as one list of integers (the "descriptor", written by descriptors.py): the
// computation, and logical dimensions and strides of every operand. A primitive is created once per
// descriptor and element types, and cached. Layouts other than the caller's are reordered in scratch memory.

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "guard.h"
#include "handler.h"
#include "kernel.h"
#include "own.h"

namespace {

using namespace meshflow;

// Added to a computation: only its weights are packed; or it reads packed weights, and the code of their
// original type follows its descriptor.
enum Packing { kPack = 16, kPacked = 32 };
// Added to a computation that the calling thread performs without others.
constexpr int64_t kInline = 64;
// Bits above: the required implementation, as `fingerprint` of its name; 0 for the first fast one.
constexpr int kCodeShift = 8;

uint32_t fingerprint(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (unsigned char c : name) hash = (hash ^ c) * 16777619u;
  return hash;
}

// Advances to the required implementation; returns false if there is none.
template <typename Descriptor>
bool settled(Descriptor& d, uint32_t code) {
  while (code && fingerprint(d.impl_info_str()) != code)
    if (!d.next_impl()) return false;
  return true;
}

// Maximum elements of an array, and maximum stride: products of a few sizes fit into 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 48;
// Maximum stride, dilation or padding of a window.
constexpr int64_t kMaxWindow = int64_t{1} << 24;
// Maximum sizes of an axis: oneDNN computes with 32 bits, and with products of sizes in convolutions.
constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1, kMaxConvolutionSize = int64_t{1} << 24;

memory::desc described(const Dims& dims, Type type, const Dims& strides, int64_t limit) {
  int64_t count = 1;
  for (int64_t size : dims) {
    if (size < 1 || size > limit || size > kMaxElements / count) throw std::invalid_argument("the size of an operand is not supported");
    count *= size;
  }
  for (int64_t stride : strides)
    if (stride < 0 || stride > kMaxElements) throw std::invalid_argument("the stride of an operand is not supported");
  return memory::desc(dims, type, strides);
}

// Convolutions: descriptor = computation, spatial rank, groups, then dims and strides of image, kernel and
// result, the strides, dilations (minus one) and paddings, whether the gradient of a bias is computed, and
// the epilogue.
void convolution(Kernel& kernel, int64_t computation, uint32_t code, Reader& descriptor, const std::vector<Type>& types) {
  bool flipped = computation == kFlipped;
  if (flipped) computation = kForward;
  if (computation < kForward || computation > kKernelGradient) throw std::invalid_argument("unknown computation");
  const size_t n = descriptor.next();
  if (n < 1 || n > 3) throw std::invalid_argument("a convolution has one to three spatial dimensions");
  size_t grouped = descriptor.next() > 1;
  Dims x_dims = descriptor.list(n + 2), x_strides = descriptor.list(n + 2);
  Dims w_dims = descriptor.list(n + 2 + grouped), w_strides = descriptor.list(n + 2 + grouped);
  Dims y_dims = descriptor.list(n + 2), y_strides = descriptor.list(n + 2);
  Dims strides = descriptor.list(n), dilations = descriptor.list(n), low = descriptor.list(n), high = descriptor.list(n);
  for (const Dims& values : {strides, dilations, low, high})
    for (int64_t value : values)
      if (value < 0 || value > kMaxWindow) throw std::invalid_argument("the window of a convolution is not supported");
  if (std::count(strides.begin(), strides.end(), 0)) throw std::invalid_argument("the stride of a window is zero");
  bool bias = descriptor.next();
  EpilogueOps epilogue(descriptor, types);

  // Order of the buffers: forward x, w, operands of the epilogue, y; gradients y', w, x' and x, y', w',
  // (bias').
  size_t count = types.size();
  if (count < 3u + bias) throw std::invalid_argument("a convolution has more operands");
  Type x_type = computation == kInputGradient ? types[2] : types[0];
  Type w_type = computation == kKernelGradient ? types[2] : types[1];
  Type y_type = computation == kForward ? types[count - 1]
                : computation == kInputGradient ? types[0] : types[1];
  memory::desc x = described(x_dims, x_type, x_strides, kMaxConvolutionSize);
  memory::desc w = described(w_dims, w_type, w_strides, kMaxConvolutionSize);
  memory::desc y = described(y_dims, y_type, y_strides, kMaxConvolutionSize);
  memory::desc b;
  if (bias) b = memory::desc({y_dims[1]}, types[3], Dims{1});

  bool gradient = computation == kKernelGradient, forward = computation == kForward;
  auto taken = [&](bool made) {
    if (!made || !code || fingerprint(kernel.implementation) == code) return made;
    kernel = Kernel();
    return false;
  };
  if (!grouped && !bias && !flipped && epilogue.empty() &&
      taken(by_narrow(kernel, computation, x, w, y, strides, dilations, low)))
    return;
  if (grouped && !bias && (forward || gradient) &&
      taken(by_depthwise(kernel, gradient, x, w, y, strides, dilations, low, epilogue, flipped)))
    return;
  if (!grouped && !bias && (forward || gradient) &&
      taken(by_winograd(kernel, gradient, x, w, y, strides, dilations, low, epilogue, flipped)))
    return;
  if (gradient && !grouped && taken(by_tiles(kernel, x, w, y, strides, dilations, low, bias ? &b : nullptr))) return;
  if (forward && !grouped && taken(by_tiles(kernel, x, w, y, strides, dilations, low, epilogue, flipped))) return;
  if (flipped || !epilogue.empty()) throw std::invalid_argument("there is no fast code with this epilogue");
  auto by_own_windows = [&] { return !grouped && !bias && taken(by_windows(kernel, gradient, x, w, y, strides, dilations, low)); };
  // oneDNN does not know the name.
  if (code == fingerprint("meshflow:windows") && (forward || gradient) && by_own_windows()) return;
  auto copies_windows = [](auto& d) { return std::strstr(d.impl_info_str(), "gemm:jit") != nullptr; };
  auto any = memory::format_tag::any;
  memory::desc any_w(w_dims, w_type, any);
  auto direct = dnnl::algorithm::convolution_direct;
  // First try the caller's layouts of images; if oneDNN has only slow code for these, its own layouts.
  for (bool own : {false, true}) {
    memory::desc dx = own ? memory::desc(x_dims, x_type, any) : x;
    memory::desc dy = own ? memory::desc(y_dims, y_type, any) : y;
    dnnl::primitive_attr attr = attributes();
    try {
      if (computation == kForward) {
        dnnl::convolution_forward::primitive_desc d(
            cpu(), dnnl::prop_kind::forward_training, direct, dx, any_w, dy, strides, dilations, low, high, attr);
        if (!settled(d, code)) continue;
        if (copies_windows(d) && by_own_windows()) return;
        if (!own && slow(d.impl_info_str())) continue;
        kernel.add(DNNL_ARG_SRC, x, d.src_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, w, d.weights_desc(), false);
        kernel.add(DNNL_ARG_DST, y, d.dst_desc(), true);
        kernel.set_primitive(d, dnnl::convolution_forward(d));
        kernel.is_independent = true;
        return;
      }
      dnnl::convolution_forward::primitive_desc hint(
          cpu(), dnnl::prop_kind::forward_training, direct, memory::desc(x_dims, x_type, any), any_w,
          memory::desc(y_dims, y_type, any), strides, dilations, low, high);
      if (computation == kInputGradient) {
        dnnl::convolution_backward_data::primitive_desc d(cpu(), direct, dx, any_w, dy, strides,
                                                          dilations, low, high, hint, attr);
        // oneDNN prefers code for strides that takes 50 times as long for single channels of bfloat16.
        bool depthwise = grouped && w_dims[1] * w_dims[2] == 1;
        while (depthwise && std::strstr(d.impl_info_str(), "_strided") && d.next_impl()) continue;
        if (!own && slow(d.impl_info_str())) continue;
        kernel.add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, w, d.weights_desc(), false);
        kernel.add(DNNL_ARG_DIFF_SRC, x, d.diff_src_desc(), true);
        kernel.set_primitive(d, dnnl::convolution_backward_data(d));
        kernel.is_independent = true;
        return;
      }
      dnnl::convolution_backward_weights::primitive_desc d(cpu(), direct, dx, any_w, b, dy, strides,
                                                           dilations, low, high, hint, attr);
      if (copies_windows(d) && by_own_windows()) return;
      if (!own && slow(d.impl_info_str())) continue;
      kernel.add(DNNL_ARG_SRC, x, d.src_desc(), false);
      kernel.add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
      kernel.add(DNNL_ARG_DIFF_WEIGHTS, w, d.diff_weights_desc(), true);
      if (bias) kernel.add(DNNL_ARG_DIFF_BIAS, b, b, true);
      kernel.set_primitive(d, dnnl::convolution_backward_weights(d));
      // Other code sums the parts of the threads while it is computed.
      kernel.is_independent = std::strstr(d.impl_info_str(), "jit_dw") != nullptr;
      return;
    } catch (const dnnl::error&) {
      if (own) throw;
      kernel = Kernel();
    }
  }
  throw std::invalid_argument("there is no code as asked for");
}

// Matrix products: descriptor = rank, then dims and strides of left, right and result, and the epilogue; the
// last two dimensions are the matrix.
void matmul(Kernel& kernel, Reader& descriptor, const std::vector<Type>& types) {
  const size_t n = descriptor.next();
  if (n < 2 || n > DNNL_MAX_NDIMS) throw std::invalid_argument("the rank of a product is not supported");
  if (types.size() < 3) throw std::invalid_argument("a product has more operands");
  Dims a_dims = descriptor.list(n), a_strides = descriptor.list(n);
  Dims b_dims = descriptor.list(n), b_strides = descriptor.list(n);
  Dims c_dims = descriptor.list(n), c_strides = descriptor.list(n);
  EpilogueOps epilogue(descriptor, types);
  memory::desc a = described(a_dims, types[0], a_strides, kMaxSize);
  memory::desc b = described(b_dims, types[1], b_strides, kMaxSize);
  memory::desc c = described(c_dims, types.back(), c_strides, kMaxSize);
  if (!epilogue.empty()) {
    if (n == 2 && by_rows(kernel, a, b, c, epilogue)) return;
    throw std::invalid_argument("there is no fast code with this epilogue");
  }
  if (by_panels(kernel, a, b, c)) return;
  dnnl::matmul::primitive_desc d(cpu(), a, b, c, attributes());
  kernel.add(DNNL_ARG_SRC, a, a, false);
  kernel.add(DNNL_ARG_WEIGHTS, b, b, false);
  kernel.add(DNNL_ARG_DST, c, c, true);
  kernel.set_primitive(d, dnnl::matmul(d));
}

using Descriptor = std::vector<int64_t>;

Type type_of(char code) {
  return code == 'b' ? Type::bf16 : code == 'h' ? Type::f16 : code == 'u' ? Type::u8 : Type::f32;
}

std::shared_ptr<const Kernel> make(const int64_t* descriptor, size_t size, const std::vector<Type>& types);

// Packs the weights of a computation. The codes of its types, and their number, follow its descriptor.
Kernel packer(Descriptor descriptor) {
  const int64_t count = descriptor.back();
  descriptor.pop_back();
  if (count < 0 || static_cast<size_t>(count) >= descriptor.size())
    throw std::invalid_argument("the descriptor is too short");
  std::vector<Type> types(count);
  for (size_t i = types.size(); i > 0; --i, descriptor.pop_back()) types[i - 1] = type_of(descriptor.back());
  descriptor[0] -= kPack;
  auto of = make(descriptor.data(), descriptor.size(), types);
  if (!of->pack) throw std::invalid_argument("this computation has no packed weights");
  Kernel kernel;
  kernel.on_caller = of->on_caller;
  memory::desc weights = of->operands[1].user, blob({static_cast<int64_t>(of->packed_bytes)}, Type::u8, Dims{1});
  kernel.operands = {{0, weights, weights, false}, {0, blob, blob, true}};
  kernel.own = [of](const std::vector<void*>& buffers, const char*, char*) {
    of->pack(buffers[0], static_cast<char*>(buffers[1]));
  };
  return kernel;
}

Kernel built(Descriptor descriptor, std::vector<Type> types) {
  if (descriptor.empty()) throw std::invalid_argument("the descriptor is too short");
  bool on_caller = descriptor[0] & kInline, packed = descriptor[0] & kPacked;
  auto code = static_cast<uint32_t>(descriptor[0] >> kCodeShift);
  descriptor[0] &= (int64_t{1} << kCodeShift) - 1;
  if (on_caller) descriptor[0] -= kInline;
  if (packed) {
    descriptor[0] -= kPacked;
    if (types.size() < 2) throw std::invalid_argument("the packed weights are missing");
    types[1] = type_of(descriptor.back());
    descriptor.pop_back();
  }
  Kernel kernel;
  Reader reader(descriptor.data(), descriptor.size());
  int64_t computation = reader.next();
  auto choose = [&] {
    if (computation == kMatmul) {
      matmul(kernel, reader, types);
    } else if (computation == kColumns) {
      if (!by_columns(kernel, reader, types)) throw std::invalid_argument("there is no fast code for sums over rows");
    } else {
      convolution(kernel, computation, code, reader, types);
    }
  };
  // Choose with the number of threads that will compute, because the choice of oneDNN depends on it.
  if (on_caller) {
    SingleThread guard;
    choose();
  } else {
    Team::get().run(choose);
  }
  kernel.on_caller = on_caller;
  if (packed) {
    if (!kernel.pack) throw std::invalid_argument("this computation has no packed weights");
    kernel.take_packed();
  }
  return kernel;
}

// Kernels by descriptor and types; beyond the limit, the least recently used one is removed.
class Kernels {
 public:
  static Kernels& get() {
    static auto* kernels = new Kernels();  // never destroyed: handlers may be called at exit
    return *kernels;
  }

  std::shared_ptr<const Kernel> of(const int64_t* descriptor, size_t size, const std::vector<Type>& types) {
    std::string key(reinterpret_cast<const char*>(descriptor), size * sizeof(int64_t));
    for (Type type : types) key.push_back(static_cast<char>(type));
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto found = places_.find(key);
    if (found != places_.end()) {
      latest_.splice(latest_.begin(), latest_, found->second);
      return found->second->second;
    }
    Descriptor numbers(descriptor, descriptor + size);
    bool packs = !numbers.empty() && numbers[0] & kPack;
    auto kernel = std::make_shared<Kernel>(packs ? packer(numbers) : built(numbers, types));
    kernel->number = ++made_;
    latest_.emplace_front(key, kernel);
    places_[key] = latest_.begin();
    if (latest_.size() > kKeptKernels) {
      places_.erase(latest_.back().first);
      latest_.pop_back();
    }
    return kernel;
  }

  // Holds back other threads while the process forks: the child would wait forever for the lock of one of them.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }
  // A lock belongs to a thread of the parent.
  void let_go_in_child() { new (&mutex_) std::recursive_mutex; }

  int64_t kept() {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    return latest_.size();
  }

 private:
  // A kernel that packs weights needs the kernel for which it packs them.
  std::recursive_mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const Kernel>>> latest_;
  std::unordered_map<std::string, decltype(latest_)::iterator> places_;
  uint64_t made_ = 0;
};

const int forks = pthread_atfork([] { Kernels::get().hold(); }, [] { Kernels::get().let_go(); },
                                 [] { Kernels::get().let_go_in_child(); });

std::shared_ptr<const Kernel> make(const int64_t* descriptor, size_t size, const std::vector<Type>& types) {
  return Kernels::get().of(descriptor, size, types);
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
                   ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_onednn", [&]() -> ffi::Error {
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
    auto kernel = make(descriptor.begin(), descriptor.size(), types);
    if (kernel->operands.size() != buffers.size())
      return ffi::Error::InvalidArgument("meshflow_onednn: the descriptor has another number of operands");
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (kernel->operands[i].user.get_size() > sizes[i])
        return ffi::Error::InvalidArgument("meshflow_onednn: operand " + std::to_string(i) +
                                           " is smaller than its descriptor says");
    }
    kernel->run(buffers);
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_onednn, execute,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));

std::shared_ptr<const Kernel> asked(const int64_t* descriptor, int64_t size, const char* types) {
  std::vector<Type> kinds;
  for (const char* t = types; *t; ++t) kinds.push_back(type_of(*t));
  return make(descriptor, size, kinds);
}

// Returns the name of oneDNN's implementation of a descriptor; empty with a message if there is none.
extern "C" int meshflow_onednn_query(const int64_t* descriptor, int64_t size, const char* types,
                                     char* text, int64_t capacity) noexcept {
  text[0] = 0;
  auto say = [&](const char* answer) {
    std::strncpy(text, answer, capacity - 1);
    text[capacity - 1] = 0;
  };
  return guarded(1, [&] {
    try {
      say(asked(descriptor, size, types)->implementation.c_str());
      return 0;
    } catch (const std::exception& error) {
      say(error.what());
      return 1;
    }
  });
}

// Runs the computation of a descriptor without XLA, on the operands and results at `buffers`; returns 0 on success.
extern "C" int meshflow_onednn_run(const int64_t* descriptor, int64_t size, const char* types,
                                   void* const* buffers) noexcept {
  return guarded(1, [&] {
    auto kernel = asked(descriptor, size, types);
    kernel->run(std::vector<void*>(buffers, buffers + kernel->operands.size()));
    return 0;
  });
}

// Returns the bytes of a descriptor's packed weights; 0 if they are not packed or nothing is fast.
extern "C" int64_t meshflow_onednn_packed_bytes(const int64_t* descriptor, int64_t size, const char* types) noexcept {
  return guarded<int64_t>(0, [&] { return asked(descriptor, size, types)->packed_bytes; });
}

// Returns the number of cached kernels.
extern "C" int64_t meshflow_onednn_kept() noexcept {
  return guarded<int64_t>(0, [] { return Kernels::get().kept(); });
}

extern "C" void meshflow_onednn_version(int* parts) noexcept {
  const dnnl_version_t* version = dnnl_version();
  parts[0] = version->major;
  parts[1] = version->minor;
  parts[2] = version->patch;
}
