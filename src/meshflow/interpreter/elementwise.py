"""Rules of elementwise primitives.

16-bit and smaller floating-point numbers are computed in float32 and rounded once, because loops of
NumPy and ml_dtypes for them are slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.interpreter.table import Build, Compute, Equation, HostArray, Writer, rule
from meshflow.kernels import host_math

_PROPERTIES = {
    "is_writer": True,
    "is_elementwise": True,
    "uses_shapes": False,
    "broadcasts": True,
}

FLOAT32 = np.dtype(np.float32)
# Elements of a block. Intermediate values of this size fit into the processor's caches.
BLOCK_SIZE = 1 << 14


def is_small_float(dtype: np.dtype) -> bool:
    """Check whether a floating-point dtype has fewer bits than float32."""
    return dtype.itemsize < 4 and jnp.issubdtype(dtype, np.floating)


def get_compute_dtype(dtype: np.dtype) -> np.dtype:
    """Return float32 for smaller floating-point dtypes, and other dtypes unchanged."""
    return FLOAT32 if is_small_float(dtype) else dtype


def widen(function: Compute, dtype: np.dtype, result: np.dtype | None = None) -> Compute:
    """Return a function that computes in float32 and rounds to `result`, by default `dtype`."""
    result = result or dtype

    def run(*arrays: HostArray) -> HostArray:
        wide = [a.astype(FLOAT32) if a.dtype == dtype else a for a in arrays]
        return function(*wide).astype(result)

    return run


def iterate_blocks(arrays: Sequence[HostArray]) -> Iterator[Sequence[HostArray]]:
    """Yield views of the same elements of several arrays of one shape, a block at a time."""
    if arrays[0].size <= BLOCK_SIZE or not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, arrays[0].size, BLOCK_SIZE):
        yield [a[start : start + BLOCK_SIZE] for a in flat]


def repeat_scalar(x: HostArray, shape: tuple[int, ...]) -> HostArray:
    """Repeat a scalar, with less overhead than `numpy.broadcast_to`."""
    scalar = np.asarray(x)
    view: HostArray = np.ndarray(shape, scalar.dtype, scalar, 0, (0,) * len(shape))
    view.flags.writeable = False
    return view


# These do not round, so that small floating-point numbers need no conversion.
_EXACT = frozenset(["eq_to", "lt_to", "le_to", "nextafter", "select_n"])


def adapt(function: Compute, equation: Equation) -> Compute | Writer:
    """Return a function of the operands' dtype; ufuncs can also write to an array."""
    dtype, result = equation.inputs[-1].dtype, equation.outputs[0].dtype
    if is_small_float(dtype) and equation.name not in _EXACT:
        return widen(function, dtype, result)
    if isinstance(function, np.ufunc):
        return _repeat_operands(Writer(function, _WRITERS.get(function, function)), equation)
    return function


# NumPy repeats rows of at most this number of elements slowly, by one call of its loop for each row.
_MAX_ROW = 32


def can_repeat_rows(operand: Sequence[Any], shape: Sequence[Any]) -> bool:
    """Check whether it is faster to repeat an operand along the second last axis before an elementwise operation.

    Args:
      operand: Shape of the operand, such as that of one number for each channel.
      shape: Shape of the result.
    """
    if len(shape) < 2 or not 1 < shape[-1] <= _MAX_ROW or shape[-2] == 1:
        return False
    if not 0 < len(operand) <= len(shape):
        return False
    is_row = operand[-1] == shape[-1] and all(n == 1 for n in operand[:-1])
    size = shape[-2] * shape[-1]
    return is_row and BLOCK_SIZE >= size >= 2 * _MAX_ROW


def repeat_rows(row: HostArray, shape: Sequence[int]) -> HostArray:
    """Repeat an operand for which `can_repeat_rows` is true; NumPy repeats the result along the other axes."""
    return row.reshape(1, -1).repeat(shape[-2], 0)


def _repeat_operands(writer: Writer, equation: Equation) -> Writer:
    """Repeat operands that are rows, where this is faster; see `can_repeat_rows`."""
    inputs, shape = equation.inputs, equation.outputs[0].shape
    if len(inputs) != 2 or inputs[0].shape == inputs[1].shape or len(shape) < 2:
        return writer
    shapes = [spec.shape for spec in inputs]
    if not all(type(n) is int for s in (*shapes, shape) for n in s):
        return writer
    run, write = writer
    is_row = [can_repeat_rows(s, shape) for s in shapes]
    if is_row == [False, True]:
        return Writer(
            lambda x, row: run(x, repeat_rows(row, shape)),
            lambda x, row, out: write(x, repeat_rows(row, shape), out),
        )
    if is_row == [True, False]:
        return Writer(
            lambda row, x: run(repeat_rows(row, shape), x),
            lambda row, x, out: write(repeat_rows(row, shape), x, out),
        )
    return writer


# NumPy deprecates a result as the third argument of these two.
_WRITERS: dict[Compute, Compute] = {
    np.maximum: lambda x, y, out: np.maximum(x, y, out=out),
    np.minimum: lambda x, y, out: np.minimum(x, y, out=out),
}
# Below this number of elements, filling an array takes longer than it saves.
_MIN_FILLED_SIZE = 1 << 10


def take_extremum(function: np.ufunc, x: HostArray, y: HostArray) -> HostArray:
    """Return `numpy.maximum` or `numpy.minimum` of two arrays of one dtype.

    Their loops for a scalar operand use no vector instructions, so a large array of it is filled.
    """
    if np.ndim(x) == 0:
        x, y = y, x
    if np.ndim(y) or np.size(x) < _MIN_FILLED_SIZE:
        return function(x, y)
    filled: HostArray = np.full(x.shape, y, x.dtype)
    return function(x, filled, out=filled)


def _adapt_extremum(function: np.ufunc, equation: Equation) -> Compute | Writer:
    adapted = adapt(function, equation)
    if not isinstance(adapted, Writer):
        return adapted
    return _repeat_operands(
        Writer(functools.partial(take_extremum, function), _WRITERS[function]), equation
    )


def _register_ufuncs() -> None:
    for name, function in {
        "add": np.add,
        "add_any": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "neg": np.negative,
        "abs": np.absolute,
        "pow": np.power,
        "sqrt": np.sqrt,
        "exp2": np.exp2,
        "expm1": np.expm1,
        "log": np.log,
        "log2": np.log2,
        "log1p": np.log1p,
        "sin": np.sin,
        "cos": np.cos,
        "tan": np.tan,
        "sinh": np.sinh,
        "cosh": np.cosh,
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
        "atan2": np.arctan2,
        "cbrt": np.cbrt,
        "floor": np.floor,
        "ceil": np.ceil,
        "square": np.square,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.bitwise_not,
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "is_finite": np.isfinite,
        "conj": np.conjugate,
        "nextafter": np.nextafter,
    }.items():
        rule(name, **_PROPERTIES)(functools.partial(adapt, function))

    for name, function in {"max": np.maximum, "min": np.minimum}.items():
        rule(name, **_PROPERTIES)(functools.partial(_adapt_extremum, function))


_register_ufuncs()


def define(*names: str) -> Callable[[Callable[[Equation], Compute]], Build]:
    """Register a function that returns the NumPy function of an elementwise equation."""

    def register(choose: Callable[[Equation], Compute]) -> Build:
        return rule(*names, **_PROPERTIES)(lambda e: adapt(choose(e), e))

    return register


def is_integer(dtype: np.dtype) -> bool:
    """Check whether a dtype is an integer type, including those of ml_dtypes."""
    return bool(jnp.issubdtype(dtype, np.integer))


@define("div")
def _divide(equation: Equation) -> Compute:
    dtype = equation.inputs[0].dtype
    if not is_integer(dtype):
        return np.divide
    minus_one = dtype.type(-1) if jnp.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max

    def divide(x: HostArray, y: HostArray) -> HostArray:
        quotient = np.floor_divide(x, y)
        if dtype.kind == "i":
            quotient = quotient + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)))
        return np.where(y == 0, minus_one, quotient).astype(dtype)

    return divide


@define("rem")
def _take_remainder(equation: Equation) -> Compute:
    if not is_integer(equation.inputs[0].dtype):
        return np.fmod
    return lambda x, y: np.where(y == 0, x, np.fmod(x, y))


@define("sign")
def _take_sign(equation: Equation) -> Compute:
    if equation.inputs[0].dtype.kind == "c":
        return lambda x: np.where(x == 0, 0, x / np.absolute(x))
    if jnp.issubdtype(equation.inputs[0].dtype, np.floating):
        return lambda x: np.where(x == 0, x, np.sign(x))  # XLA preserves the sign of zero.
    return np.sign


@define("rsqrt")
def _take_reciprocal_root(equation: Equation) -> Compute:
    return lambda x: np.reciprocal(np.sqrt(x))


def _compute_logistic(x: HostArray, out: HostArray | None = None) -> HostArray:
    y = np.negative(x, out)
    one = y.dtype.type(1)
    if not isinstance(y, np.ndarray):
        return one / (one + np.exp(y))
    np.exp(y, y)
    np.add(y, one, y)
    return np.divide(one, y, y)


# The functions of `host_math` by NumPy.
_FLOAT_FUNCTIONS: dict[str, Compute] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "logistic": _compute_logistic,
}


@rule(*_FLOAT_FUNCTIONS, **_PROPERTIES)
def _compute_float_function(equation: Equation) -> Compute | Writer:
    function, dtype = _FLOAT_FUNCTIONS[equation.name], equation.inputs[0].dtype
    if is_small_float(dtype):
        return widen(function, dtype)
    if dtype != FLOAT32:
        return Writer(function, function)
    name = equation.name

    def run(x: HostArray, out: HostArray | None = None) -> HostArray:
        compiled = host_math.find_float_function(name)
        is_large = isinstance(x, np.ndarray) and x.size >= host_math.MIN_ELEMENTS
        if compiled is None or not is_large:
            return function(x, out)
        # The bits of results do not depend on the order of elements in memory.
        x = np.ascontiguousarray(x)
        if out is not None and out.flags.c_contiguous:
            compiled(x, out)
            return out
        result = np.empty(x.shape, FLOAT32)
        compiled(x, result)
        if out is None:
            return result
        out[...] = result
        return out

    return Writer(run, run)


@define("integer_pow")
def _raise_to_integer(equation: Equation) -> Compute:
    exponent = equation.params["y"]
    if exponent == 2:
        return np.square

    def run(x: HostArray) -> HostArray:
        power, base, n = None, x, abs(exponent)
        while n:
            if n & 1:
                power = base if power is None else power * base
            n >>= 1
            base = base * base if n else base
        if power is None:
            return np.ones_like(x)
        return np.reciprocal(power) if exponent < 0 else +power

    return run


@define("round")
def _round(equation: Equation) -> Compute:
    if equation.params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return np.rint

    def round_away(x: HostArray) -> HostArray:
        truncated = np.trunc(x)
        return np.where(np.abs(x - truncated) >= 0.5, truncated + np.copysign(1, x), truncated)

    return lambda x: round_away(x).astype(x.dtype)


@rule("select_n", **_PROPERTIES)
def _select(equation: Equation) -> Compute | Writer:
    if equation.inputs[0].dtype == np.bool_ and len(equation.inputs) == 3:
        select = make_selection(equation.outputs[0].dtype)
        return Writer(select, select)
    return lambda which, *cases: np.choose(which.astype(np.intp), cases)


def make_selection(dtype: np.dtype) -> Compute:
    """Return a function of a predicate, two cases and, if it exists, the array for the result.

    Without a compiled loop, it combines bits, because `numpy.where` has a branch for each element.
    """
    if dtype.itemsize > 8:
        return lambda p, a, b, *outs: np.where(p, b, a)
    compiled = host_math.find_selection() if dtype.itemsize == 4 else None

    def select(p: HostArray, a: HostArray, b: HostArray, out: HostArray | None = None) -> HostArray:
        if p.ndim == 0:
            return np.array(b if p else a)
        if not p.shape == a.shape == b.shape:
            a, b = (repeat_scalar(x, p.shape) if x.ndim == 0 else x for x in (a, b))
            # In place of an unknown size, constants have size 1.
            p, a, b = (p, a, b) if p.shape == a.shape == b.shape else np.broadcast_arrays(p, a, b)
        if (
            compiled is not None
            and p.size >= host_math.MIN_ELEMENTS
            and p.flags.c_contiguous
            and all(x.flags.c_contiguous or not any(x.strides) for x in (a, b))
        ):
            if out is None or not out.flags.c_contiguous:
                out = np.empty(p.shape, dtype)
            compiled(p, a, b, out)
            return out
        return _combine_bits(p, a, b)

    return select


def _combine_bits(p: HostArray, a: HostArray, b: HostArray) -> HostArray:
    integer = np.dtype(f"i{a.dtype.itemsize}")
    out = np.empty(p.shape, integer)
    p, a_bits, b_bits = p.view(np.int8), a.view(integer), b.view(integer)
    if _is_zero(a_bits):
        for p_part, b_part, bits in iterate_blocks([p, b_bits, out]):
            np.negative(p_part, bits)
            np.bitwise_and(bits, b_part, bits)
    elif _is_zero(b_bits):
        for p_part, a_part, bits in iterate_blocks([p, a_bits, out]):
            np.subtract(p_part, _ONE, bits)
            np.bitwise_and(bits, a_part, bits)
    else:
        for p_part, a_part, b_part, bits in iterate_blocks([p, a_bits, b_bits, out]):
            np.negative(p_part, bits)
            np.bitwise_and(bits, np.bitwise_xor(a_part, b_part), bits)
            np.bitwise_xor(bits, a_part, bits)
    return out.view(a.dtype)


_ONE = np.int8(1)


def _is_zero(bits: HostArray) -> bool:
    """Check whether an array of integers repeats one zero, without reading all of it."""
    return not any(bits.strides) and bits.size > 0 and not bits[(0,) * bits.ndim]


@define("clamp")
def _clamp(equation: Equation) -> Compute:
    return lambda low, x, high: np.minimum(np.maximum(x, low), high)


@rule("convert_element_type", uses_shapes=False)
def _convert(equation: Equation) -> Compute:
    return make_conversion(equation.inputs[0].dtype, equation.outputs[0].dtype)


def make_conversion(source: np.dtype, target: np.dtype) -> Compute:
    """Return a function that converts as XLA does: integers saturate, NaN becomes 0."""
    if source == target:
        return lambda x: x
    if source.kind == "c" and target.kind != "c":
        inner = make_conversion(np.empty(0, source).real.dtype, target)
        return lambda x: inner(x.real)
    is_float = jnp.issubdtype(source, np.floating)
    if target == np.bool_:
        return lambda x: x.astype(np.bool_) if not is_float else x != 0
    if is_float and is_integer(target):
        info = jnp.iinfo(target)

        def saturate(x: HostArray) -> HostArray:
            if info.bits >= 32 and info.min:
                # Processors convert NaN and numbers that do not fit to a limit, mostly to this one.
                result = x.astype(target)
                if not np.any((result == info.min) | (result == info.max)):
                    return result
            x = x.astype(np.float64)
            limited = np.clip(np.trunc(x), float(info.min), float(info.max))
            result = np.where(np.isnan(x), 0, limited).astype(target)
            if info.bits == 64:
                result = np.where(x >= float(info.max), target.type(info.max), result)
            return result

        return saturate
    return lambda x: x.astype(target)


@define("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(equation: Equation) -> Compute:
    dtype = equation.inputs[0].dtype
    bits = 8 * dtype.itemsize
    is_left = equation.name == "shift_left"
    is_arithmetic = equation.name == "shift_right_arithmetic"
    work = np.dtype(f"{'i' if is_arithmetic else 'u'}{dtype.itemsize}")
    unsigned = np.dtype(f"u{dtype.itemsize}")
    function = np.left_shift if is_left else np.right_shift

    def run(x: HostArray, y: HostArray) -> HostArray:
        is_inside = y.view(unsigned) < bits
        y = y.view(unsigned)
        shifted = function(x.view(work), np.minimum(y, bits - 1).astype(work))
        if not is_arithmetic and not np.all(is_inside):
            shifted = np.where(is_inside, shifted, work.type(0))
        return shifted.view(dtype)

    return run


@define("population_count")
def _count_bits(equation: Equation) -> Compute:
    dtype = equation.inputs[0].dtype
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return lambda x: np.bitwise_count(x.view(unsigned)).astype(dtype)


@define("clz")
def _count_leading_zeros(equation: Equation) -> Compute:
    dtype = equation.inputs[0].dtype
    bits, unsigned = 8 * dtype.itemsize, np.dtype(f"u{dtype.itemsize}")

    def run(x: HostArray) -> HostArray:
        x = np.array(x).view(unsigned)
        shift = 1
        while shift < bits:
            x = x | (x >> unsigned.type(shift))
            shift *= 2
        return (bits - np.bitwise_count(x)).astype(dtype)

    return run


@define("real", "imag")
def _take_part(equation: Equation) -> Compute:
    return lambda x: np.array(getattr(x, equation.name))


@define("complex")
def _make_complex(equation: Equation) -> Compute:
    dtype = equation.outputs[0].dtype

    def run(x: HostArray, y: HostArray) -> HostArray:
        out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), dtype)
        out.real, out.imag = x, y
        return out

    return run


@define("reduce_precision")
def _reduce_precision(equation: Equation) -> Compute:
    exponent, mantissa = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    dtype = equation.inputs[0].dtype
    is_double = dtype.itemsize == 8
    total, full_exponent = (52, 11) if is_double else (23, 8)
    if exponent >= full_exponent and mantissa >= total:
        return np.array
    unsigned = np.dtype(np.uint64 if is_double else np.uint32)
    bias, limit = (1 << (full_exponent - 1)) - 1, (1 << (exponent - 1)) - 1

    def run(x: HostArray) -> HostArray:
        x = np.asarray(x)
        bits = x.view(unsigned).copy()
        drop = total - mantissa
        if drop > 0:
            last = (bits >> unsigned.type(drop)) & unsigned.type(1)
            bits += last + unsigned.type((1 << (drop - 1)) - 1)
            bits &= ~unsigned.type((1 << drop) - 1)
        sign = bits & unsigned.type(1 << (total + full_exponent))
        magnitude = bits ^ sign
        if exponent < full_exponent:
            high = unsigned.type((bias + limit) << total | ((1 << mantissa) - 1) << max(drop, 0))
            low = unsigned.type((bias - limit + 1) << total)
            infinity = unsigned.type(((1 << full_exponent) - 1) << total)
            magnitude = np.where(magnitude > high, infinity, magnitude)
            magnitude = np.where(magnitude < low, unsigned.type(0), magnitude)
        rounded = (magnitude | sign).view(x.dtype)
        return np.where(np.isnan(x), x, rounded)

    return run


@define("eq_to", "lt_to", "le_to")
def _compare_totally(equation: Equation) -> Compute:
    """Compare by IEEE 754's total order, in which NaN is the largest number."""
    dtype = equation.inputs[0].dtype
    compare = {"eq_to": np.equal, "lt_to": np.less, "le_to": np.less_equal}[equation.name]
    if not jnp.issubdtype(dtype, np.floating):
        return compare
    signed = np.dtype(f"i{dtype.itemsize}")
    limit = np.iinfo(signed).max

    def order(x: HostArray) -> HostArray:
        bits = np.asarray(x).view(signed)
        return np.where(bits < 0, bits ^ limit, bits)

    return lambda x, y: compare(order(x), order(y))


@define("one_minus_square")
def _subtract_square(equation: Equation) -> Compute:
    """Compute 1 - x^2, accurately near |x| = 1."""
    return lambda x: (1 - x) * (1 + x)


@define("polynomial")
def _evaluate_polynomial(equation: Equation) -> Compute:
    def run(x: HostArray, *coefficients: HostArray) -> HostArray:
        return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))

    return run
