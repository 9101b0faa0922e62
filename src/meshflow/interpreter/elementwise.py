"""Rules of elementwise primitives.

16-bit and smaller floating-point numbers are computed in float32 and rounded once, because loops of
NumPy and ml_dtypes for them are slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.interpreter.table import Compute, Equation, Writer, rule

_PROPERTIES = {"is_writer": True, "is_elementwise": True, "uses_shapes": False}

FLOAT32 = np.dtype(np.float32)


def is_small_float(dtype: np.dtype) -> bool:
    """Check whether a floating-point dtype has fewer bits than float32."""
    return dtype.itemsize < 4 and jnp.issubdtype(dtype, np.floating)


def widen(function: Compute, dtype: np.dtype, result: np.dtype | None = None) -> Compute:
    """Return a function that computes in float32 and rounds to `result`, by default `dtype`."""
    result = result or dtype

    def run(*arrays: Any) -> Any:
        wide = [a.astype(FLOAT32) if a.dtype == dtype else a for a in arrays]
        return function(*wide).astype(result)

    return run


def adapt(function: Compute, equation: Equation) -> Compute | Writer:
    """Return a function of the operands' dtype; ufuncs can also write to an array."""
    dtype, result = equation.inputs[-1].dtype, equation.outputs[0].dtype
    if is_small_float(dtype):
        return widen(function, dtype, result)
    return Writer(function, function) if isinstance(function, np.ufunc) else function


def _register_ufuncs() -> None:
    for name, function in {
        "add": np.add,
        "add_any": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "neg": np.negative,
        "sqrt": np.sqrt,
        "exp": np.exp,
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
        "tanh": np.tanh,
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
        "population_count": np.bitwise_count,
    }.items():
        rule(name, **_PROPERTIES)(functools.partial(adapt, function))


_register_ufuncs()


def define(*names: str) -> Callable[[Callable[[Equation], Compute]], Any]:
    """Register a function that returns the NumPy function of an elementwise equation."""

    def register(choose: Callable[[Equation], Compute]) -> Any:
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

    def divide(x: Any, y: Any) -> Any:
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


@define("abs")
def _take_absolute(equation: Equation) -> Compute:
    return np.absolute


@define("sign")
def _take_sign(equation: Equation) -> Compute:
    if equation.inputs[0].dtype.kind == "c":
        return lambda x: np.where(x == 0, 0, x / np.absolute(x))
    if jnp.issubdtype(equation.inputs[0].dtype, np.floating):
        return lambda x: np.where(x == 0, x, np.sign(x))  # XLA preserves the sign of zero.
    return np.sign


@define("rsqrt")
def _take_reciprocal_root(equation: Equation) -> Compute:
    def run(x: Any) -> Any:
        return np.reciprocal(np.sqrt(x))

    return run


@define("logistic")
def _compute_logistic(equation: Equation) -> Compute:
    one = np.ones((), equation.inputs[0].dtype)

    def run(x: Any) -> Any:
        y = np.negative(x)
        if not isinstance(y, np.ndarray):
            return one / (one + np.exp(y))
        np.exp(y, y)
        np.add(y, one, y)
        return np.divide(one, y, y)

    return run if not is_small_float(one.dtype) else lambda x: 1 / (1 + np.exp(-x))


@define("pow")
def _raise_to_power(equation: Equation) -> Compute:
    return np.power


@define("integer_pow")
def _raise_to_integer(equation: Equation) -> Compute:
    exponent = equation.params["y"]
    if exponent == 2:
        return np.square

    def run(x: Any) -> Any:
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
    if equation.params["rounding_method"].name == "TO_NEAREST_EVEN":
        return np.rint

    def round_away(x: Any) -> Any:
        truncated = np.trunc(x)
        return np.where(np.abs(x - truncated) >= 0.5, truncated + np.copysign(1, x), truncated)

    return lambda x: round_away(x).astype(x.dtype)


@define("select_n")
def _select(equation: Equation) -> Compute:
    if equation.inputs[0].dtype == np.bool_ and len(equation.inputs) == 3:
        return lambda p, a, b: np.where(p, b, a)
    return lambda which, *cases: np.choose(which.astype(np.intp), cases)


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

        def saturate(x: Any) -> Any:
            x = x.astype(np.float64)
            limited = np.clip(np.trunc(x), float(info.min), float(info.max))
            result = np.where(np.isnan(x), 0, limited).astype(target)
            if info.bits == 64:
                result = np.where(x >= float(info.max), target.type(info.max), result)
            return result

        return saturate
    return lambda x: x.astype(target)
