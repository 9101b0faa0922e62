// XLA FFI handlers for maxima of windows (max pooling) and their gradients, over arrays [batch, 1 to 3
// spatial dimensions, channels].
//
// oneDNN's maximum loses NaNs, which training with a loss scale must detect; these loops keep them, and
// assign a gradient to the first maximum of its window in reading order.

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpus.h"
#include "floats.h"
#include "guard.h"
#include "handler.h"

namespace {

namespace ffi = xla::ffi;
using meshflow::bfloat16;
using meshflow::for_every_cpu;
using meshflow::handled;
using meshflow::in_parts;
using meshflow::max_threads;
using meshflow::narrow;
using meshflow::place;
using meshflow::Reader;
using meshflow::Team;
using meshflow::wide;

// Whether a float is positive and not NaN: as an integer from 1 to infinity. A float comparison would prevent
// vectorization.
inline uint32_t positive(float value) { return SAME_BITS(uint32_t, value) - 1 < 0x7f800000; }

// Returns the number, or zero if `open` is 0 instead of 1.
inline float masked(float value, uint32_t open) { return SAME_BITS(float, SAME_BITS(uint32_t, value) & (0 - open)); }
inline bfloat16 masked(bfloat16 value, uint32_t open) { return {static_cast<uint16_t>(value.bits & (0 - open))}; }

// Loops over the channels of one position.
template <typename T>
INLINE void take_maximum_loop(const T* __restrict x, float* __restrict best, int64_t n) {
  for (int64_t c = 0; c < n; ++c) {
    float value = wide(x[c]);
    best[c] = (value > best[c]) | (value != value) ? value : best[c];
  }
}
template <typename T>
INLINE void store_loop(const float* __restrict values, T* __restrict y, int64_t n) {
  for (int64_t c = 0; c < n; ++c) narrow(values[c], y + c);
}
template <typename T>
INLINE void add_to_first_loop(const T* __restrict x, const T* __restrict y, const T* __restrict g,
                              uint32_t* __restrict taken, float* __restrict total, int64_t n, uint32_t always) {
  for (int64_t c = 0; c < n; ++c) {
    uint32_t hit = (wide(x[c]) == wide(y[c])) & ~taken[c];
    uint32_t open = hit & (positive(wide(x[c])) | always);
    float share = wide(g[c]);
    total[c] += open ? share : 0.0f;
    taken[c] |= hit;
  }
}
template <typename T>
INLINE void give_to_first_loop(const T* __restrict x, const T* __restrict y, const T* __restrict g,
                               uint32_t* __restrict taken, T* __restrict total, int64_t n, uint32_t always) {
  for (int64_t c = 0; c < n; ++c) {
    uint32_t hit = (wide(x[c]) == wide(y[c])) & ~taken[c];
    uint32_t open = hit & (positive(wide(x[c])) | always);
    total[c] = masked(g[c], open);
    taken[c] |= hit;
  }
}

template <typename T>
constexpr auto take_maximum = for_every_cpu<take_maximum_loop<T>>;
template <typename T>
constexpr auto store = for_every_cpu<store_loop<T>>;
template <typename T>
constexpr auto add_to_first = for_every_cpu<add_to_first_loop<T>>;
template <typename T>
constexpr auto give_to_first = for_every_cpu<give_to_first_loop<T>>;

struct Geometry {
  int64_t batch, channels, image = 1, results = 1;
  bool gated;  // whether the gradient passes only where the image is positive
  std::vector<int64_t> in, out, window, strides, dilations, low;

  Geometry(Reader descriptor, bool gated) : gated(gated) {
    batch = descriptor.next();
    channels = descriptor.next();
    for (auto* part : {&in, &out, &window, &strides, &dilations, &low}) *part = descriptor.list(3);
    bool fits = batch >= 0 && channels > 0;
    for (int i = 0; i < 3; ++i) {
      fits = fits && in[i] > 0 && out[i] > 0 && window[i] > 0 && low[i] >= 0;
      image *= in[i];
      results *= out[i];
    }
    if (!fits) throw std::invalid_argument("the descriptor has a size of nothing");
  }

  // Whether every element of the image is in exactly one window.
  bool tiles() const {
    bool whole = true;
    for (int i = 0; i < 3; ++i)
      whole = whole && window[i] == strides[i] && in[i] == out[i] * window[i] && dilations[i] == 1 && low[i] == 0;
    return whole;
  }

  // Calls visit(position in the image) for each element of a window that is inside, in reading order.
  template <typename Visit>
  void elements(int64_t d, int64_t h, int64_t w, Visit visit) const {
    int64_t z = d * strides[0] - low[0];
    for (int64_t i = 0; i < window[0]; ++i, z += dilations[0]) {
      if (z < 0 || z >= in[0]) continue;
      int64_t y = h * strides[1] - low[1];
      for (int64_t j = 0; j < window[1]; ++j, y += dilations[1]) {
        if (y < 0 || y >= in[1]) continue;
        int64_t x = w * strides[2] - low[2];
        for (int64_t k = 0; k < window[2]; ++k, x += dilations[2]) {
          if (x >= 0 && x < in[2]) visit(((z * in[1] + y) * in[2] + x) * channels);
        }
      }
    }
  }
};

// Memory of each thread of a team.
template <typename T>
class ForThreads {
 public:
  explicit ForThreads(int64_t each) : each_((each + 15) / 16 * 16), all_(each_ * max_threads()) {}
  T* mine() { return all_.data() + each_ * place().thread; }

 private:
  int64_t each_;
  std::vector<T> all_;
};

template <typename T>
void maximum(const Geometry& g, const T* x, T* y) {
  int64_t rows = g.batch * g.out[0] * g.out[1], n = g.channels;
  ForThreads<float> bests(n);
  in_parts(rows, [&](int64_t row) {
    float* best = bests.mine();
    int64_t h = row % g.out[1], d = row / g.out[1] % g.out[0], b = row / g.out[1] / g.out[0];
    const T* image = x + b * g.image * n;
    for (int64_t w = 0; w < g.out[2]; ++w) {
      std::fill_n(best, n, -std::numeric_limits<float>::infinity());
      g.elements(d, h, w, [&](int64_t place) { take_maximum<T>(image + place, best, n); });
      store<T>(best, y + (row * g.out[2] + w) * n, n);
    }
  });
}

// Without overlap, gradients need not be summed.
template <typename T>
void gradient_of_tiles(const Geometry& g, const T* x, const T* y, const T* dy, T* dx) {
  int64_t rows = g.batch * g.out[0] * g.out[1], n = g.channels;
  ForThreads<uint32_t> all_taken(n);
  in_parts(rows, [&](int64_t row) {
    uint32_t* taken = all_taken.mine();
    int64_t h = row % g.out[1], d = row / g.out[1] % g.out[0], image = row / g.out[1] / g.out[0] * g.image * n;
    for (int64_t w = 0; w < g.out[2]; ++w) {
      int64_t place = (row * g.out[2] + w) * n;
      std::fill_n(taken, n, 0u);
      g.elements(d, h, w, [&](int64_t inside) {
        give_to_first<T>(x + image + inside, y + place, dy + place, taken, dx + image + inside, n, !g.gated);
      });
    }
  });
}

// Sums gradients of an image in float32; each image is processed by one thread.
template <typename T>
void gradient(const Geometry& g, const T* x, const T* y, const T* dy, T* dx) {
  int64_t n = g.channels, size = g.image * n;
  ForThreads<float> totals(size);
  ForThreads<uint32_t> all_taken(n);
  in_parts(g.batch, [&](int64_t b) {
    float* total = totals.mine();
    uint32_t* taken = all_taken.mine();
    std::fill_n(total, size, 0.0f);
    for (int64_t at = 0; at < g.results; ++at) {
      int64_t w = at % g.out[2], h = at / g.out[2] % g.out[1], d = at / g.out[2] / g.out[1];
      int64_t place = (b * g.results + at) * n;
      std::fill_n(taken, n, 0u);
      g.elements(d, h, w, [&](int64_t inside) {
        add_to_first<T>(x + b * size + inside, y + place, dy + place, taken,
                        total + inside, n, !g.gated);
      });
    }
    store<T>(total, dx + b * size, size);
  });
}

template <typename T>
void pool(const Geometry& g, const std::vector<void*>& buffers) {
  auto at = [&](size_t i) { return static_cast<T*>(buffers[i]); };
  if (buffers.size() == 2) {
    maximum<T>(g, at(0), at(1));
  } else if (g.tiles()) {
    gradient_of_tiles<T>(g, at(0), at(1), at(2), at(3));
  } else {
    gradient<T>(g, at(0), at(1), at(2), at(3));
  }
}

void run(const Geometry& geometry, bool is_single, const std::vector<void*>& buffers) {
  Team::get().run([&] {
    if (is_single) {
      pool<float>(geometry, buffers);
    } else {
      pool<bfloat16>(geometry, buffers);
    }
  });
}

// From x, its windows' maxima; from x, these and their gradients, the gradient of x.
template <bool gated>
ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   ffi::Span<const int64_t> descriptor) {
  return handled("meshflow_pooling", [&]() -> ffi::Error {
    Geometry geometry(Reader(descriptor.begin(), descriptor.size()), gated);
    std::vector<ffi::AnyBuffer> given;
    for (size_t i = 0; i < arguments.size(); ++i)
      given.push_back(arguments.get<ffi::AnyBuffer>(i).value());
    for (size_t i = 0; i < results.size(); ++i)
      given.push_back(*results.get<ffi::AnyBuffer>(i).value());
    if (results.size() != 1 || (given.size() != 2 && given.size() != 4))
      return ffi::Error::InvalidArgument("meshflow_pooling: the descriptor has another number of operands");
    std::vector<void*> buffers;
    auto type = given[0].element_type();
    for (size_t i = 0; i < given.size(); ++i) {
      size_t places = i == 0 || i == 3 ? geometry.image : geometry.results;
      if (given[i].element_count() < places * geometry.batch * geometry.channels)
        return ffi::Error::InvalidArgument("meshflow_pooling: operand " + std::to_string(i) +
                                           " is smaller than its descriptor says");
      if (given[i].element_type() != type)
        return ffi::Error::InvalidArgument("meshflow_pooling: the operands have different types");
      buffers.push_back(given[i].untyped_data());
    }
    if (type != ffi::DataType::F32 && type != ffi::DataType::BF16)
      return ffi::Error::InvalidArgument("meshflow_pooling: the type is not float32 or bfloat16");
    run(geometry, type == ffi::DataType::F32, buffers);
    return ffi::Error::Success();
  });
}

template <bool gated>
int run_descriptor(const int64_t* descriptor, int64_t size, const char* types, void* const* buffers) noexcept {
  return meshflow::guarded(1, [&] {
    run(Geometry(Reader(descriptor, size), gated), *types == 'f', std::vector<void*>(buffers, buffers + std::strlen(types)));
    return 0;
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_pooling, execute<false>,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));

// The gradient of max pooling fused with that of the preceding ReLU: zero where x is not positive.
XLA_FFI_DEFINE_HANDLER_SYMBOL(meshflow_gated_pooling, execute<true>,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("descriptor"));

// Run a descriptor without XLA, on the operands and results at `buffers`; return 0 on success.
extern "C" int meshflow_pooling_run(const int64_t* descriptor, int64_t size, const char* types, void* const* buffers) noexcept {
  return run_descriptor<false>(descriptor, size, types, buffers);
}
extern "C" int meshflow_gated_pooling_run(const int64_t* descriptor, int64_t size, const char* types, void* const* buffers) noexcept {
  return run_descriptor<true>(descriptor, size, types, buffers);
}
