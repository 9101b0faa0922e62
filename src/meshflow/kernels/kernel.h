// Implementation of a descriptor: a oneDNN primitive or our own code, with its operands.

#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "epilogue.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "team.h"

namespace meshflow {

using dnnl::memory;
using Dims = memory::dims;
using Type = memory::data_type;

inline dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// kFlipped: a forward convolution with a flipped kernel; only supported by our own code.
enum Computation { kForward = 0, kInputGradient = 1, kKernelGradient = 2, kMatmul = 3, kFlipped = 4, kColumns = 5 };

struct Operand {
  int argument;
  memory::desc user, inner;
  bool output;
  dnnl::reorder reorder;
  size_t offset = 0;
};

// Maximum number of cached kernels, and of cached oneDNN objects in each thread, which bounds memory for ever
// new shapes.
constexpr size_t kKeptKernels = 1024;

struct Kernel {
  // Unique id, because addresses are reused.
  uint64_t number = 0;
  dnnl::primitive primitive;
  std::vector<Operand> operands;
  memory::desc scratchpad;
  size_t scratch_offset = 0, scratch_bytes = 0;
  std::string implementation;
  // Our code instead of oneDNN's primitive: buffers, packed weights or null, scratch memory.
  std::function<void(const std::vector<void*>&, const char*, char*)> own;
  // Packs weights (operand 1) to the layout that the computation reads; whether the caller passes packed
  // weights.
  std::function<void(const void*, char*)> pack;
  size_t packed_bytes = 0;
  bool packed = false;
  // Whether the calling thread computes it with single-threaded code, because waking other threads would take
  // longer.
  bool on_caller = false;
  // Whether the threads of oneDNN's primitive do not wait for each other.
  bool is_independent = false;

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

  // Makes the computation read packed weights.
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
  void set_primitive(const Descriptor& descriptor, dnnl::primitive made) {
    primitive = made;
    implementation = descriptor.impl_info_str();
    scratchpad = descriptor.scratchpad_desc();
    scratch_offset = reserve(scratchpad.get_size());
  }

  void run(const std::vector<void*>& buffers) const {
    if (!on_caller) return Team::get().run([&] { run(buffers, Team::get().scratch(scratch_bytes)); });
    static thread_local Scratch mine;
    SingleThread guard;
    run(buffers, mine.get(scratch_bytes));
  }

  void run(const std::vector<void*>& buffers, char* scratch) const {
    if (own) return own(buffers, packed ? static_cast<const char*>(buffers[1]) : nullptr, scratch);
    // Created once per thread, because creation takes longer than a small product.
    static thread_local std::unordered_map<uint64_t, Bound> bound;
    auto found = bound.find(number);
    if (found == bound.end()) {
      if (bound.size() >= kKeptKernels) bound.clear();
      found = bound.try_emplace(number, *this).first;
    }
    Independent threads(is_independent);
    found->second.run(*this, buffers, scratch);
  }

 private:
  // oneDNN's objects for the operands' addresses.
  struct Bound {
    dnnl::stream stream{cpu()};
    std::vector<memory> users, inners;
    memory pad;
    std::vector<dnnl_exec_arg_t> arguments;

    explicit Bound(const Kernel& kernel) : pad(kernel.scratchpad, cpu(), nullptr) {
      for (const Operand& operand : kernel.operands) {
        users.emplace_back(operand.user, cpu(), nullptr);
        inners.push_back(operand.user == operand.inner ? users.back() : memory(operand.inner, cpu(), nullptr));
        arguments.push_back({operand.argument, inners.back().get()});
      }
      arguments.push_back({DNNL_ARG_SCRATCHPAD, pad.get()});
    }

    void run(const Kernel& kernel, const std::vector<void*>& buffers, char* scratch) {
      const auto& operands = kernel.operands;
      for (size_t i = 0; i < operands.size(); ++i) {
        users[i].set_data_handle(buffers[i]);
        if (operands[i].user == operands[i].inner) continue;
        inners[i].set_data_handle(scratch + operands[i].offset);
        if (!operands[i].output) operands[i].reorder.execute(stream, users[i], inners[i]);
      }
      pad.set_data_handle(scratch + kernel.scratch_offset);
      dnnl::error::wrap_c_api(
          dnnl_primitive_execute(kernel.primitive.get(), stream.get(), arguments.size(), arguments.data()),
          "could not execute a primitive");
      for (size_t i = 0; i < operands.size(); ++i)
        if (operands[i].output && operands[i].user != operands[i].inner)
          operands[i].reorder.execute(stream, inners[i], users[i]);
      stream.wait();
    }
  };
};

// Epilogue of a descriptor and its operands: buffers from the third.
struct EpilogueOps {
  std::vector<EpilogueOp> steps;
  std::vector<Type> types;

  EpilogueOps() = default;
  EpilogueOps(Reader& descriptor, const std::vector<Type>& all) {
    for (int64_t count = descriptor.next(); count > 0; --count) steps.push_back(static_cast<EpilogueOp>(descriptor.next()));
    size_t operand = 2;
    for (auto step : steps) {
      bool reads = reads_vector(step) || reads_array(step);
      types.push_back(reads ? all.at(operand++) : Type::undef);
      if (reads_vector(step) && types.back() != Type::f32)
        throw std::invalid_argument("vectors of steps must be float32");
    }
  }

  bool empty() const { return steps.empty(); }

  // Adds the operands to a kernel, in order.
  void describe(Kernel& kernel, const memory::desc& result) const {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (types[i] == Type::undef) continue;
      memory::desc operand(result.get_dims(), types[i], result.get_strides());
      if (reads_vector(steps[i])) operand = memory::desc({result.get_dims()[1]}, types[i], Dims{1});
      kernel.operands.push_back({0, operand, operand, false});
    }
  }

  Epilogue read(const std::vector<void*>& buffers) const {
    Epilogue epilogue;
    auto number = [](Type t) {
      return t == Type::bf16 ? Number::kBfloat : t == Type::f16 ? Number::kHalf : Number::kFloat;
    };
    size_t operand = 2;
    for (size_t i = 0; i < steps.size(); ++i)
      epilogue.push_back({steps[i], number(types[i]), types[i] == Type::undef ? nullptr : buffers[operand++]});
    return epilogue;
  }
};

inline dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

inline bool slow(const std::string& implementation) {
  return implementation.rfind("ref", 0) == 0 || implementation.find("gemm:ref") == 0;
}

}  // namespace meshflow
