"""Meshflow's oneDNN, another version of it, and Meshflow's own kernels, on the shapes of the other benchmarks.

    python -m venv .venv-onednn && .venv-onednn/bin/pip install onednn==2026.1.0
    python benchmarks/onednn_versions.py --peer-library .venv-onednn/lib/libdnnl.so.3

A C++ program, compiled with the headers of Meshflow's oneDNN and linked with Meshflow's own convolutions, runs in three
processes: with Meshflow's library, with the peer, and with Meshflow's own kernels. All live through the run and measure
in turns. Prints tables of medians and appends them to RESULTS.md; `--json FILE` writes every round. The spread is half the
distance of the quartiles in percent of the median, for the way that spreads most. On a busy machine, begin the command
with `chrt -r 1`.

One thread is a process that is bound to one core, because the runtime of the peer (SYCL, TBB) has no setting for it.
With more, the threads that compute are bound to different cores: on a busy machine Linux otherwise wakes all of them on one.
The time includes the reordering of weights that Meshflow performs in each call during training.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KERNELS = HERE.parent / "src" / "meshflow" / "kernels"
DTYPES = ("float32", "bfloat16")
FUSED = "with an epilogue"
SOURCE = r"""
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "kernel.h"
#include "own.h"

using namespace meshflow;
using dnnl::algorithm;
using dnnl::prop_kind;
constexpr double kSeconds = 0.01;  // of a measurement
const auto any = memory::format_tag::any;

// Strides of an array whose dimensions are in memory in this order.
memory::desc plain(const Dims& dims, Type type, const std::vector<int>& order) {
  Dims strides(dims.size());
  int64_t size = 1;
  for (size_t i = order.size(); i-- > 0; size *= dims[order[i]]) strides[order[i]] = size;
  return memory::desc(dims, type, strides);
}

struct Shape {
  Type type;
  int64_t batch, height, width, channels, features, kernel, stride, groups;
  Dims strides, none{0, 0}, low, high;
  memory::desc x, w, y;

  Shape(Type type, const std::vector<int64_t>& n)
      : type(type), batch(n[0]), height(n[1]), width(n[2]), channels(n[3]), features(n[4]), kernel(n[5]), stride(n[6]),
        groups(n[7]), strides{stride, stride} {
    int64_t rows = (height + stride - 1) / stride, columns = (width + stride - 1) / stride;
    int64_t down = std::max<int64_t>(0, (rows - 1) * stride + kernel - height);
    int64_t across = std::max<int64_t>(0, (columns - 1) * stride + kernel - width);
    low = {down / 2, across / 2}, high = {down - down / 2, across - across / 2};
    x = plain({batch, channels, height, width}, type, {0, 2, 3, 1});
    y = plain({batch, features, rows, columns}, type, {0, 2, 3, 1});
    w = groups == 1 ? plain({features, channels, kernel, kernel}, type, {2, 3, 1, 0})
                    : plain({groups, features / groups, channels / groups, kernel, kernel}, type, {3, 4, 2, 0, 1});
  }
};

// The steps of an epilogue by their initials: scale, add, plus, relu, gelu.
std::vector<EpilogueOp> steps(const std::string& names) {
  std::map<char, EpilogueOp> ops{{'s', EpilogueOp::kScale}, {'a', EpilogueOp::kAdd}, {'p', EpilogueOp::kPlus},
                                 {'r', EpilogueOp::kRelu}, {'g', EpilogueOp::kGeluTanh}};
  std::vector<EpilogueOp> found;
  for (char c : names) found.push_back(ops.at(c));
  return found;
}

EpilogueOps epilogue(const std::string& names, Type type) {
  EpilogueOps ops;
  ops.steps = steps(names);
  for (auto step : ops.steps)
    ops.types.push_back(reads_vector(step) ? Type::f32 : reads_array(step) ? type : Type::undef);
  return ops;
}

// The same by oneDNN, whose ReLU turns NaN into zero.
dnnl::primitive_attr with_epilogue(const std::string& names, const memory::desc& y, Kernel& kernel) {
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops ops;
  Dims vector(y.get_dims().size(), 1);
  vector[1] = y.get_dims()[1];
  int index = 0;
  for (auto step : steps(names)) {
    memory::desc operand = reads_vector(step) ? plain(vector, Type::f32, vector.size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 2, 3, 1}) : y;
    if (step == EpilogueOp::kRelu) {
      ops.append_eltwise(algorithm::eltwise_relu, 0, 0);
    } else if (step == EpilogueOp::kGeluTanh) {
      ops.append_eltwise(algorithm::eltwise_gelu_tanh, 0, 0);
    } else {
      ops.append_binary(step == EpilogueOp::kScale ? algorithm::binary_mul : algorithm::binary_add, operand);
      kernel.operands.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(index) | DNNL_ARG_SRC_1, operand, operand, false, {}, 0});
    }
    ++index;
  }
  attr.set_post_ops(ops);
  return attr;
}

Kernel convolution(const std::string& kind, Shape s, const std::string& names, bool own) {
  Kernel kernel;
  if (own) {
    EpilogueOps ops = epilogue(names, s.type);
    Dims one{1, 1};
    bool made = false;
    if (kind == "data") {
      // A forward convolution of the gradient with the flipped kernel.
      Dims low{s.kernel - 1 - s.low[0], s.kernel - 1 - s.low[1]}, wd = s.w.get_dims(), ws = s.w.get_strides();
      std::swap(wd[0], wd[1]), std::swap(ws[0], ws[1]);
      if (s.groups == 1 && s.stride == 1)
        made = by_winograd(kernel, false, s.y, memory::desc(wd, s.type, ws), s.x, s.strides, s.none, low, ops, true);
    } else if (s.groups == 1) {
      made = by_winograd(kernel, kind == "weights", s.x, s.w, s.y, s.strides, s.none, s.low, ops, false);
    }
    if (!made) throw std::invalid_argument("none");
    return kernel;
  }
  memory::desc w(s.w.get_dims(), s.type, any);
  auto direct = algorithm::convolution_direct;
  // As in onednn.cc: first the caller's layouts of images, then oneDNN's.
  for (bool inner : {false, true}) {
    memory::desc x = inner ? memory::desc(s.x.get_dims(), s.type, any) : s.x;
    memory::desc y = inner ? memory::desc(s.y.get_dims(), s.type, any) : s.y;
    kernel = Kernel();
    try {
      dnnl::primitive_attr attr = with_epilogue(names, s.y, kernel);
      dnnl::convolution_forward::primitive_desc d(cpu(), prop_kind::forward_training, direct, x, w, y, s.strides, s.none,
                                                  s.low, s.high, attr);
      if (kind == "forward") {
        if (!inner && slow(d.impl_info_str())) continue;
        kernel.add(DNNL_ARG_SRC, s.x, d.src_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, s.w, d.weights_desc(), false);
        kernel.add(DNNL_ARG_DST, s.y, d.dst_desc(), true);
        kernel.set_primitive(d, dnnl::convolution_forward(d));
      } else if (kind == "data") {
        dnnl::convolution_backward_data::primitive_desc b(cpu(), direct, x, w, y, s.strides, s.none, s.low, s.high, d, attr);
        if (!inner && slow(b.impl_info_str())) continue;
        kernel.add(DNNL_ARG_DIFF_DST, s.y, b.diff_dst_desc(), false);
        kernel.add(DNNL_ARG_WEIGHTS, s.w, b.weights_desc(), false);
        kernel.add(DNNL_ARG_DIFF_SRC, s.x, b.diff_src_desc(), true);
        kernel.set_primitive(b, dnnl::convolution_backward_data(b));
      } else {
        dnnl::convolution_backward_weights::primitive_desc b(cpu(), direct, x, w, y, s.strides, s.none, s.low, s.high, d, attr);
        if (!inner && slow(b.impl_info_str())) continue;
        kernel.add(DNNL_ARG_SRC, s.x, b.src_desc(), false);
        kernel.add(DNNL_ARG_DIFF_DST, s.y, b.diff_dst_desc(), false);
        kernel.add(DNNL_ARG_DIFF_WEIGHTS, s.w, b.diff_weights_desc(), true);
        kernel.set_primitive(b, dnnl::convolution_backward_weights(b));
      }
      return kernel;
    } catch (const dnnl::error&) {
      if (inner) throw;
    }
  }
  return kernel;
}

// n: batch, rows, terms, columns, whether the left and the right matrix are transposed in memory.
Kernel product(Type type, const std::vector<int64_t>& n, const std::string& names, bool own) {
  auto matrix = [&](int64_t rows, int64_t columns, bool transposed) {
    if (n[0] == 1) return plain({rows, columns}, type, transposed ? std::vector<int>{1, 0} : std::vector<int>{0, 1});
    return plain({n[0], rows, columns}, type, transposed ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1, 2});
  };
  memory::desc a = matrix(n[1], n[2], n[4]), b = matrix(n[2], n[3], n[5]), c = matrix(n[1], n[3], false);
  Kernel kernel;
  if (own) {
    if (names.empty() || !by_rows(kernel, a, b, c, epilogue(names, type))) throw std::invalid_argument("none");
    return kernel;
  }
  dnnl::primitive_attr attr = with_epilogue(names, c, kernel);
  dnnl::matmul::primitive_desc d(cpu(), a, b, c, attr);
  kernel.add(DNNL_ARG_SRC, a, a, false);
  kernel.add(DNNL_ARG_WEIGHTS, b, b, false);
  kernel.add(DNNL_ARG_DST, c, c, true);
  kernel.set_primitive(d, dnnl::matmul(d));
  return kernel;
}

// n: batch, height, width, channels, window, stride.
Kernel pool(const std::string& kind, Type type, const std::vector<int64_t>& n) {
  Shape s(type, {n[0], n[1], n[2], n[3], n[3], n[4], n[5], 1});
  auto how = kind.find("max") == 0 ? algorithm::pooling_max : algorithm::pooling_avg_exclude_padding;
  Dims window{s.kernel, s.kernel};
  dnnl::pooling_forward::primitive_desc d(cpu(), prop_kind::forward_training, how, s.x, s.y, s.strides, window, s.none, s.low,
                                          s.high, attributes());
  Kernel kernel;
  auto add = [&](int argument, const memory::desc& desc, bool output) {
    if (desc.get_size()) kernel.operands.push_back({argument, desc, desc, output, {}, 0});
  };
  if (kind.find("gradient") == std::string::npos) {
    add(DNNL_ARG_SRC, s.x, false), add(DNNL_ARG_DST, s.y, true), add(DNNL_ARG_WORKSPACE, d.workspace_desc(), true);
    kernel.set_primitive(d, dnnl::pooling_forward(d));
  } else {
    dnnl::pooling_backward::primitive_desc b(cpu(), how, s.x, s.y, s.strides, window, s.none, s.low, s.high, d, attributes());
    add(DNNL_ARG_DIFF_SRC, s.x, true), add(DNNL_ARG_DIFF_DST, s.y, false), add(DNNL_ARG_WORKSPACE, d.workspace_desc(), false);
    kernel.set_primitive(b, dnnl::pooling_backward(b));
  }
  return kernel;
}

// n: steps, batch, features, units. The GRU applies the reset gate after the product, as in Keras.
template <typename Forward, typename Backward>
Kernel recurrent(bool gradient, Type type, const std::vector<int64_t>& n, int64_t gates, int64_t biases) {
  int64_t steps = n[0], batch = n[1], features = n[2], units = n[3];
  memory::desc x = plain({steps, batch, features}, type, {0, 1, 2}), y = plain({steps, batch, units}, type, {0, 1, 2});
  Dims layer{1, 1, features, gates, units}, iter{1, 1, units, gates, units};
  memory::desc w = plain(layer, type, {0, 1, 2, 3, 4}), u = plain(iter, type, {0, 1, 2, 3, 4});
  memory::desc b = plain({1, 1, biases, units}, Type::f32, {0, 1, 2, 3}), any_w(layer, type, any), any_u(iter, type, any), nothing;
  auto direction = dnnl::rnn_direction::unidirectional_left2right;
  Kernel kernel;
  auto d = [&] {
    if constexpr (std::is_same_v<Forward, dnnl::lstm_forward>)
      return typename Forward::primitive_desc(cpu(), prop_kind::forward_training, direction, x, nothing, nothing, any_w, any_u,
                                              b, y, nothing, nothing, attributes());
    else
      return typename Forward::primitive_desc(cpu(), prop_kind::forward_training, direction, x, nothing, any_w, any_u, b, y,
                                              nothing, attributes());
  }();
  memory::desc space = d.workspace_desc();
  if (!gradient) {
    kernel.add(DNNL_ARG_SRC_LAYER, x, x, false);
    kernel.add(DNNL_ARG_WEIGHTS_LAYER, w, d.weights_layer_desc(), false);
    kernel.add(DNNL_ARG_WEIGHTS_ITER, u, d.weights_iter_desc(), false);
    kernel.add(DNNL_ARG_BIAS, b, b, false);
    kernel.add(DNNL_ARG_DST_LAYER, y, y, true);
    kernel.add(DNNL_ARG_WORKSPACE, space, space, true);
    kernel.set_primitive(d, Forward(d));
    return kernel;
  }
  memory::desc dx(x.get_dims(), Type::f32, x.get_strides()), dy(y.get_dims(), Type::f32, y.get_strides());
  memory::desc dw(layer, Type::f32, w.get_strides()), du(iter, Type::f32, u.get_strides());
  memory::desc any_dw(layer, Type::f32, any), any_du(iter, Type::f32, any);
  auto back = [&] {
    if constexpr (std::is_same_v<Forward, dnnl::lstm_forward>)
      return typename Backward::primitive_desc(cpu(), prop_kind::backward, direction, x, nothing, nothing, any_w, any_u, b, y,
                                               nothing, nothing, dx, nothing, nothing, any_dw, any_du, b, dy, nothing,
                                               nothing, d, attributes());
    else
      return typename Backward::primitive_desc(cpu(), prop_kind::backward, direction, x, nothing, any_w, any_u, b, y, nothing,
                                               dx, nothing, any_dw, any_du, b, dy, nothing, d, attributes());
  }();
  kernel.add(DNNL_ARG_SRC_LAYER, x, x, false);
  kernel.add(DNNL_ARG_WEIGHTS_LAYER, w, back.weights_layer_desc(), false);
  kernel.add(DNNL_ARG_WEIGHTS_ITER, u, back.weights_iter_desc(), false);
  kernel.add(DNNL_ARG_BIAS, b, b, false);
  kernel.add(DNNL_ARG_DST_LAYER, y, y, false);
  kernel.add(DNNL_ARG_WORKSPACE, space, space, false);
  kernel.add(DNNL_ARG_DIFF_DST_LAYER, dy, dy, false);
  kernel.add(DNNL_ARG_DIFF_SRC_LAYER, dx, dx, true);
  kernel.add(DNNL_ARG_DIFF_WEIGHTS_LAYER, dw, back.diff_weights_layer_desc(), true);
  kernel.add(DNNL_ARG_DIFF_WEIGHTS_ITER, du, back.diff_weights_iter_desc(), true);
  kernel.add(DNNL_ARG_DIFF_BIAS, b, b, true);
  kernel.set_primitive(back, Backward(back));
  return kernel;
}

// An epilogue as a pass over a result in memory: what XLA does without fusion. n: rows, features.
Kernel pass(Type type, const std::vector<int64_t>& n, const std::string& names) {
  Kernel kernel;
  memory::desc y = plain({n[0], n[1]}, type, {0, 1});
  EpilogueOps ops = epilogue(names, type);
  kernel.operands = {{0, y, y, false}, {0, y, y, true}};
  ops.describe(kernel, y);
  kernel.implementation = "pass";
  kernel.own = [=](const std::vector<void*>& buffers, const char*, char*) {
    auto work = [&](auto* from, auto* to, auto load, auto store) {
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < n[0]; ++i) {
        float row[8192];
        for (int64_t k = 0; k < n[1]; ++k) row[k] = load(from[i * n[1] + k]);
        size_t operand = 2;
        for (auto step : ops.steps) {
          const auto* vector = static_cast<const float*>(reads_vector(step) ? buffers[operand] : nullptr);
          const auto* array = reads_array(step) ? static_cast<decltype(from)>(buffers[operand]) + i * n[1] : from;
          operand += reads_vector(step) || reads_array(step);
          auto each = [&](auto step) {
            for (int64_t k = 0; k < n[1]; ++k) row[k] = step(row[k], k);
          };
          if (step == EpilogueOp::kScale) each([&](float v, int64_t k) { return v * vector[k]; });
          if (step == EpilogueOp::kAdd) each([&](float v, int64_t k) { return v + vector[k]; });
          if (step == EpilogueOp::kPlus) each([&](float v, int64_t k) { return v + load(array[k]); });
          if (step == EpilogueOp::kRelu) each([&](float v, int64_t k) { return v > 0 ? v : 0; });
          if (step == EpilogueOp::kGeluTanh)
            each([&](float v, int64_t k) { return v / (1 + expf(-1.5957691216f * (v + 0.044715f * v * v * v))); });
        }
        for (int64_t k = 0; k < n[1]; ++k) to[i * n[1] + k] = store(row[k]);
      }
    };
    if (type == Type::f32) {
      work(static_cast<const float*>(buffers[0]), static_cast<float*>(buffers[1]), [](float v) { return v; },
           [](float v) { return v; });
    } else {
      work(static_cast<const uint16_t*>(buffers[0]), static_cast<uint16_t*>(buffers[1]),
           [](uint16_t v) { uint32_t bits = uint32_t(v) << 16; float f; std::memcpy(&f, &bits, 4); return f; },
           [](float v) { uint32_t bits; std::memcpy(&bits, &v, 4); return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16); });
    }
  };
  return kernel;
}

Kernel make(const std::string& line, bool own) {
  std::istringstream words(line);
  std::string kind, dtype, names;
  words >> kind >> dtype;
  Type type = dtype == "float32" ? Type::f32 : Type::bf16;
  size_t plus = kind.find('+');
  if (plus != std::string::npos) names = kind.substr(plus + 1), kind = kind.substr(0, plus);
  std::vector<int64_t> n;
  for (int64_t value; words >> value;) n.push_back(value);
  bool gradient = kind.find("gradient") != std::string::npos;
  if (kind == "product") return product(type, n, names, own);
  if (kind == "forward" || kind == "data" || kind == "weights") return convolution(kind, Shape(type, n), names, own);
  if (own) throw std::invalid_argument("none");
  if (kind == "pass") return pass(type, n, names);
  if (kind.find("lstm") == 0) return recurrent<dnnl::lstm_forward, dnnl::lstm_backward>(gradient, type, n, 4, 4);
  if (kind.find("gru") == 0) return recurrent<dnnl::lbr_gru_forward, dnnl::lbr_gru_backward>(gradient, type, n, 3, 4);
  return pool(kind, type, n);
}

void fill(void* data, const memory::desc& desc) {
  static uint32_t state = 1;
  std::memset(data, 0, desc.get_size());
  size_t count = desc.get_size() / (desc.get_data_type() == Type::f32 ? 4 : 2);
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    float value = int32_t(state) * 0x1p-31f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (desc.get_data_type() == Type::f32) static_cast<float*>(data)[i] = value;
    if (desc.get_data_type() == Type::bf16) static_cast<uint16_t*>(data)[i] = bits >> 16;
  }
}

struct Ready {
  Kernel kernel;
  std::vector<void*> buffers;
  Scratch scratch;
  int repeats = 1;

  double seconds() {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) kernel.run(buffers, scratch.get(kernel.scratch_bytes));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
  }
  ~Ready() {
    for (void* buffer : buffers) std::free(buffer);
  }
};

int main(int argc, char** argv) {
  bool own = argc > 1;
  std::string line, current;
  std::unique_ptr<Ready> ready;
  uint64_t number = 0;
  while (std::getline(std::cin, line)) {
    if (line == "version") {
      auto v = dnnl_version();
      std::cout << v->major << "." << v->minor << "." << v->patch << std::endl;
      continue;
    }
    try {
      if (line != current) {
        current = line;
        ready = nullptr;
        auto made = std::make_unique<Ready>();
        made->kernel = make(line, own);
        made->kernel.number = ++number;
        for (auto& operand : made->kernel.operands) {
          size_t bytes = (operand.user.get_size() + 4095) / 4096 * 4096;
          made->buffers.push_back(std::aligned_alloc(4096, bytes));
          huge_pages(made->buffers.back(), bytes);
          fill(made->buffers.back(), operand.user);
        }
        ready = std::move(made);
        ready->seconds();
        ready->repeats = std::max(1, int(kSeconds / ready->seconds()));
      }
      if (!ready) throw std::invalid_argument("none");
      std::cout << ready->seconds() << " " << ready->kernel.implementation << std::endl;
    } catch (const std::exception& error) {
      std::cout << "none " << error.what() << std::endl;
    }
  }
}
"""

# Rows, terms, columns of the language model of models.py (16 x 128 tokens), of a feed-forward block and of small layers.
PRODUCTS = (
    *((1, 64, 64, 64, 0, 0), (1, 128, 128, 128, 0, 0), (1, 256, 256, 256, 0, 0), (1, 32, 64, 256, 0, 0), (1, 1024, 1024, 1024, 0, 0)),
    *((1, 2048, 256, 256, 0, 0), (1, 2048, 256, 1024, 0, 0), (1, 2048, 1024, 256, 0, 0), (1, 2048, 256, 8192, 0, 0)),
    *((1, 2048, 1024, 256, 0, 1), (1, 256, 2048, 1024, 1, 0), (64, 128, 64, 128, 0, 1), (64, 128, 128, 64, 0, 0)),
)  # fmt: skip
# Batch, height, width, channels, features, kernel, stride, groups.
CONVOLUTIONS = (
    # The CNN of models.py, a quarter of its batch.
    *((8, 32, 32, 3, 128, 3, 1, 1), (8, 32, 32, 128, 256, 3, 1, 1), (8, 16, 16, 256, 512, 3, 1, 1), (8, 8, 8, 256, 256, 3, 1, 1)),
    # The residual network of models.py, and 1 x 1 kernels of deeper ones.
    *((32, 32, 32, 3, 64, 7, 2, 1), (32, 16, 16, 64, 64, 3, 1, 1), (32, 16, 16, 64, 128, 3, 2, 1), (32, 8, 8, 128, 128, 3, 1, 1)),
    *((32, 4, 4, 256, 256, 3, 1, 1), (32, 16, 16, 64, 128, 1, 2, 1), (8, 32, 32, 64, 256, 1, 1, 1)),
    # Of deployment.py, of small_kernels.py, and one convolution for each channel.
    *((32, 32, 32, 3, 32, 3, 1, 1), (32, 16, 16, 32, 64, 3, 1, 1), (1, 8, 8, 64, 64, 3, 1, 1), (8, 16, 16, 64, 64, 3, 1, 1)),
    *((8, 28, 28, 128, 128, 3, 1, 128),),
)  # fmt: skip
POOLS = ((8, 32, 32, 256, 2, 2), (8, 56, 56, 64, 3, 2))
# Steps, batch, features, units.
RECURRENT = ((100, 32, 64, 64), (32, 32, 256, 256))
# Epilogues: a normalization with known moments and ReLU ("sar"), with a skip connection ("sapr"), bias and GELU ("ag").
FUSED_CONVOLUTIONS = (
    ("sar", (8, 32, 32, 128, 256, 3, 1, 1)),
    ("sar", (32, 16, 16, 64, 64, 3, 1, 1)),
    ("sar", (8, 32, 32, 64, 128, 3, 2, 1)),
    ("sapr", (8, 32, 32, 64, 256, 1, 1, 1)),
    ("sar", (32, 16, 16, 64, 128, 3, 2, 1)),
    ("sar", (32, 16, 16, 32, 64, 3, 1, 1)),
    ("sar", (8, 28, 28, 128, 128, 3, 1, 128)),
    ("sar", (32, 32, 32, 3, 64, 7, 2, 1)),
)
FUSED_PRODUCTS = (("ag", (1, 2048, 256, 1024, 0, 0)), ("ag", (1, 2048, 1024, 4096, 0, 0)))


def list_cases():
    """The cases by group: lines for the program."""
    joined = lambda sizes: " ".join(map(str, sizes))
    groups = {"products": [f"product {d} {joined(n)}" for d in DTYPES for n in PRODUCTS]}
    for kind, title in (
        ("forward", "forward"),
        ("data", "gradients of images"),
        ("weights", "gradients of kernels"),
    ):
        groups[f"convolutions, {title}"] = [
            f"{kind} {d} {joined(n)}" for d in DTYPES for n in CONVOLUTIONS
        ]
    kinds = ("max", "max-gradient", "average", "average-gradient")
    groups["pools"] = [f"{k} {d} {joined(n)}" for k in kinds for d in DTYPES for n in POOLS]
    kinds = ("lstm", "lstm-gradient", "gru", "gru-gradient")
    groups["recurrent layers"] = [
        f"{k} {d} {joined(n)}" for k in kinds for d in DTYPES for n in RECURRENT
    ]
    groups[FUSED] = [f"{kind}+{names} {d} {joined(n)}"
        for d in DTYPES
        for kind, cases in (("forward", FUSED_CONVOLUTIONS), ("product", FUSED_PRODUCTS))
        for names, n in cases]  # fmt: skip
    return groups


def split_fused(case):
    """The lines that compute a fused case in two steps: the computation, and a pass over its result."""
    kind, dtype, *sizes = case.split()
    kind, names = kind.split("+")
    n = list(map(int, sizes))
    rows, features = (
        (n[0] * math.ceil(n[1] / n[6]) * math.ceil(n[2] / n[6]), n[4])
        if kind == "forward"
        else (n[1], n[3])
    )
    return f"{kind} {dtype} {' '.join(sizes)}", f"pass+{names} {dtype} {rows} {features}"


def find_onednn():
    """The folder of Meshflow's oneDNN and the folder of its headers."""
    files = importlib.metadata.files("onednn-cpu-gomp") or []
    library = next(f for f in files if f.name == "libdnnl.so.3").locate().resolve()
    return library, library.parent.parent / "include"


def compile_program(folder, library, headers):
    """Compile the program; return its path."""
    source, program = folder / "program.cc", folder / "program"
    source.write_text(SOURCE)
    names = ("own", "winograd", "winograd_gradient", "blocked", "cpus", "amx", "amx_gradient")
    own = [KERNELS / f"{name}.cc" for name in names if (KERNELS / f"{name}.cc").exists()]
    common = [
        "g++",
        "-O3",
        "-std=c++17",
        "-fopenmp",
        "-fno-math-errno",
        "-w",
        f"-I{KERNELS}",
        f"-isystem{headers}",
    ]
    objects = [folder / f"{file.stem}.o" for file in own]
    for file, made in zip(own, objects, strict=True):
        subprocess.run([*common, "-c", file, "-o", made], check=True)
    # Only the pass uses this file's own code, which XLA compiles for the processor as well.
    extra = ["-march=native", "-fno-trapping-math", "-ffast-math"]
    subprocess.run([*common, *extra, source, *objects, library, "-o", program], check=True)
    return program


class Way:
    """A process of the program."""

    def __init__(self, program, library, threads, own=False):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "ONEDNN_VERBOSE": "none",
            "LD_LIBRARY_PATH": str(library.parent),
        }
        # The CPU driver, which OpenCL's loader does not find by itself.
        driver = library.parent / "libintelocl.so"
        if driver.exists():
            environment["OCL_ICD_FILENAMES"] = str(driver)
        elif threads > 1:
            # Only here: TBB would count the cores to which OpenMP binds the first thread.
            environment["OMP_PROC_BIND"] = "true"
        bound = ["taskset", "-c", "0"] if threads == 1 else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(
            [*bound, program, *(["own"] if own else [])], env=environment, **pipes
        )
        if driver.exists() and threads > 1:
            self.bind_threads(threads)

    def bind_threads(self, threads):
        """Bind the computing threads, which are the busiest, to different cores."""
        for _ in range(100):
            self.ask("product float32 1 1024 1024 1024 0 0")
        used = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            # User and system time follow the name in parentheses, at its 12th and 13th field.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            used.append((int(fields[11]) + int(fields[12]), int(task.name)))
        for core, (_, thread) in enumerate(sorted(used, reverse=True)[:threads]):
            os.sched_setaffinity(thread, {core})

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def measure(self, line):
        """Return seconds and the name of the implementation, or None."""
        seconds, _, name = self.ask(line).partition(" ")
        return None if seconds in ("none", "") else (float(seconds), name)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure_case(ways, case, rounds):
    """Every round of a case by way, all ways in turns, and the implementations."""
    times, names = {}, {}
    for _ in range(rounds):
        for way, process in ways.items():
            found = None if way in names and names[way] is None else process.measure(case)
            names[way] = found and found[1]
            if found:
                times.setdefault(way, []).append(found[0])
    return times, names


def measure_fused(ways, case, rounds):
    """The same for a fused case: each oneDNN with a pass after it, and with its own fusion ("post-ops")."""
    fused, names = measure_case(ways, case, rounds)
    main, then = (measure_case(ways, part, rounds)[0] for part in split_fused(case))
    # The pass does not depend on oneDNN.
    add_pass = lambda times: [a + b for a, b in zip(times, then["ours"], strict=True)]
    times = {way: add_pass(main[way]) for way in ("ours", "peer")}
    times |= {f"{way} post-ops": fused[way] for way in ("ours", "peer") if way in fused}
    return times | ({"own": fused["own"]} if "own" in fused else {}), names


def divide(medians, way, other):
    """The text of a ratio."""
    known = way in medians and other in medians
    return f"{medians[way] / medians[other]:.2f}" if known else "-"


def spread(times):
    """Half the distance of the quartiles, in percent of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return 50 * (high - low) / middle


def format_row(case, times, fused):
    """The row of a case, and its medians."""
    medians = {way: statistics.median(values) for way, values in times.items()}
    columns = ["ours", "peer", *(["ours post-ops", "peer post-ops"] if fused else []), "own"]
    cells = [f"{medians[way] * 1e6:.4g}" if way in medians else "-" for way in columns]
    pairs = (("peer", "ours"), ("own", "ours"), ("own", "peer"))
    cells += [divide(medians, *pair) for pair in pairs]
    cells.append(f"{max(map(spread, times.values())):.0f}" if times else "-")
    return f"| {case} | {' | '.join(cells)} |", medians


def format_table(titles, rows):
    """The lines of a table."""
    return ["", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *rows]


def run_group(ways, group, cases, options, every):
    """The rows of a group, and the ratios of both versions by dtype; appends the rounds to `every`."""
    fused, rows, ratios = group == FUSED, [], {}
    for case in cases:
        measure = measure_fused if fused else measure_case
        times, names = measure(ways, case, options.rounds)
        row, medians = format_row(case, times, fused)
        rows.append(row)
        print(row, flush=True)
        every.append({"group": group, "case": case, "implementations": names, "rounds": times})
        if "ours" in medians and "peer" in medians:
            ratios.setdefault(case.split()[1], []).append(medians["peer"] / medians["ours"])
    return rows, ratios


def run(program, library, options, every):
    """The lines of the tables for one number of threads after the other."""
    lines = []
    for threads in (2, 1):
        libraries = (("ours", library), ("peer", options.peer_library.resolve()), ("own", library))
        ways = {way: Way(program, path, threads, way == "own") for way, path in libraries}
        ours, peer = (f"oneDNN {ways[way].ask('version')}" for way in ("ours", "peer"))
        number, summary = f"{threads} thread{'s' if threads > 1 else ''}", []
        for group, every_case in list_cases().items():
            cases = [case for case in every_case if options.only in case]
            known = len(every)
            rows, ratios = run_group(ways, group, cases, options, every)
            for record in every[known:]:
                record["threads"] = threads
            parts = [ours, peer]
            if group == FUSED:
                parts = [
                    f"{ours}, then a pass",
                    f"{peer}, then a pass",
                    f"post-ops of {ours}",
                    f"post-ops of {peer}",
                ]
            titles = [
                "case",
                *parts,
                "own",
                f"{peer} / {ours}",
                f"own / {ours}",
                f"own / {peer}",
                "spread, %",
            ]
            if rows:
                lines += ["", f"{number}: {group}", *format_table(titles, rows)]
            for dtype, found in ratios.items():
                mean = statistics.geometric_mean(found)
                summary.append(
                    f"| {group} | {dtype} | {len(found)} | {mean:.2f} | {min(found):.2f} | {max(found):.2f} |"
                )
        titles = ["group", "dtype", "cases", "geometric mean", "least", "most"]
        lines += ["", f"{number}: {peer} / {ours}", *format_table(titles, summary)]
        for process in ways.values():
            process.close()
    return lines


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer-library", type=Path, required=True, help="libdnnl.so.3 of the other version"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases with this in their line")
    parser.add_argument("--json", type=Path, help="file for every round")
    parser.add_argument("--note", default="", help="description of the machine")
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    library, headers = find_onednn()
    every = []
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(Path(folder), library, headers)
        lines = run(program, library, options, every)
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(every, indent=1))
    if not options.no_record:
        machine = options.note or platform.processor() or platform.machine()
        stamp = f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores, {options.rounds} rounds in turns"
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(
                f"\n## Versions of oneDNN, microseconds ({stamp})\n" + "\n".join(lines) + "\n"
            )


if __name__ == "__main__":
    main()
