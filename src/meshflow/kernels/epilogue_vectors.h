// Epilogues on vectors of sums, for the namespace of an instruction set (vectors.h).

// Loads values as float32; zeros for lanes that are not there.
INLINE Vector read(Number type, const void* from, int64_t at, Lanes there) {
  if (type == Number::kFloat) return load(static_cast<const float*>(from) + at, there);
  const auto halves = load_halves(static_cast<const uint16_t*>(from) + at, there);
  return type == Number::kHalf ? widen_float16(halves) : widen(halves);
}

// c[0] + c[1] x + ...
template <int count>
INLINE Vector polynomial(const float (&c)[count], Vector x) {
  Vector sum = constant(c[count - 1]);
#pragma GCC unroll 16
  for (int i = count - 2; i >= 0; --i) sum = multiply_add(sum, x, constant(c[i]));
  return sum;
}

INLINE Vector exponential(Vector x) {
  // If one of the operands is NaN, the instruction returns the second.
  x = smaller(constant(89), larger(constant(-105), x));
  Vector n = round_to_integer(x * constant(1.44269504f));
  // The logarithm of 2 in two parts, so that n times the first is exact.
  Vector rest = subtract_product(n, constant(0.693359375f), x);
  rest = subtract_product(n, constant(-2.12194440e-4f), rest);
  static constexpr float terms[] = {1, 1, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720};
  return scale_by_power(polynomial(terms, rest), n);
}

INLINE Vector gelu(Vector x) {
  // The complementary error function at z >= 0 is exp(-z^2) times a smooth function of t, approximated by a
  // polynomial with a relative error of 1.3e-7, so that large negative inputs remain accurate.
  static constexpr float terms[] = {0.225675866f, 0.225669593f, 0.207842723f, 0.168541819f, 0.141432166f,
                                    -0.00560925622f, 0.169087648f, -0.182902932f, 0.0502625182f};
  Vector z = absolute(x) * constant(0.707106781f);
  Vector t = constant(1) / multiply_add(z, constant(0.4f), constant(1));
  Vector power = exponential(Vector{} - z * z);
  Vector half = constant(0.5f) * power * (t * polynomial(terms, t));
  return x * choose(is_less(x, Vector{}), half, constant(1) - half);
}

INLINE Vector gelu_tanh(Vector x) {
  // (1 + tanh u) / 2 is 1 / (1 + exp(-2 u)).
  Vector inner = multiply_add(x * x, constant(0.044715f), constant(1));
  Vector power = exponential(x * inner * constant(-1.595769122f));
  return x / (constant(1) + power);
}

// Applies the operations to neighboring features of a result.
//
// feature: index of the first; at: its offset in arrays of the result's shape.
template <int count>
inline void complete(const Epilogue& parts, Vector (&v)[count], const Lanes (&there)[count], int64_t feature,
                     int64_t at) {
  for (const Part& part : parts) {
    auto each = [&](auto&& change) {
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) change(v[i], i);
    };
    auto vector = [&](int i) {
      return load(static_cast<const float*>(part.operand) + feature + kLanes * i, there[i]);
    };
    auto array = [&](int i) { return read(part.type, part.operand, at + kLanes * i, there[i]); };
    switch (part.op) {
      case EpilogueOp::kAdd: each([&](Vector& x, int i) { x = x + vector(i); }); break;
      case EpilogueOp::kScale: each([&](Vector& x, int i) { x = x * vector(i); }); break;
      case EpilogueOp::kPlus: each([&](Vector& x, int i) { x = x + array(i); }); break;
      case EpilogueOp::kReluMask:
        each([&](Vector& x, int i) { x = keep(is_less(Vector{}, array(i)), x); });
        break;
      // If one of the operands is NaN, the instruction returns the second.
      case EpilogueOp::kRelu: each([&](Vector& x, int) { x = larger(Vector{}, x); }); break;
      case EpilogueOp::kGelu: each([&](Vector& x, int) { x = gelu(x); }); break;
      case EpilogueOp::kGeluTanh: each([&](Vector& x, int) { x = gelu_tanh(x); }); break;
    }
  }
}

