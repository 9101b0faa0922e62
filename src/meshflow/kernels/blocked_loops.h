// Epilogues of blocks for the namespace of an instruction set (every_width.h).

#include "epilogue_vectors.h"

inline void write(Number type, void* to, int64_t at, Lanes there, Vector value) {
  if (type == Number::kFloat) return store(static_cast<float*>(to) + at, there, value);
  store_halves(static_cast<uint16_t*>(to) + at, there, type == Number::kBfloat ? round_to_halves(value) : round_to_float16(value));
}

// Applies the epilogue to some rows; `at` is the index of the first.
void apply_epilogue(const Epilogue& parts, Number type, const float* sums, int64_t rows, int64_t features, int64_t at,
                   void* result) {
  for (int64_t p = 0; p < rows; ++p, sums += features)
    for (int64_t k = 0; k < features; k += 4 * kLanes) {
      Vector v[4];
      Lanes there[4];
      int64_t to = (at + p) * features + k;
      for (int64_t i = 0; i < 4; ++i) {
        there[i] = lanes(features - k - kLanes * i);
        v[i] = load(sums + k + kLanes * i, there[i]);
      }
      complete<4>(parts, v, there, k, to);
      for (int64_t i = 0; i < 4; ++i) write(type, result, to + kLanes * i, there[i], v[i]);
    }
}
