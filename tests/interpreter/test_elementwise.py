"""Elementwise primitives on corner values of each dtype, next to XLA."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from interpreter.comparison import check
from meshflow.interpreter.elementwise import make_selection

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]

ANY_UNARY = [lax.neg, lax.sign, lax.square]
FLOAT_UNARY = [
    *(lax.exp, lax.exp2, lax.expm1, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.logistic),
    *(lax.sin, lax.cos, lax.tan, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh, lax.tanh),
    *(lax.asinh, lax.acosh, lax.atanh, lax.floor, lax.ceil, lax.is_finite, lax.erf, lax.erfc),
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    *(lambda x, n=n: lax.integer_pow(x, n) for n in (-3, -1, 0, 1, 2, 3, 7)),
    lambda x: lax.reduce_precision(x, 5, 7),
]
# XLA's digamma at the pole at 0 depends on its version.
SPECIAL = [
    *(lax.cbrt, lax.lgamma, lax.erf_inv, lax.bessel_i0e, lax.bessel_i1e),
    lambda x: lax.digamma(jnp.where(x == 0, jnp.ones_like(x), x)),
]
ANY_BINARY = [lax.add, lax.sub, lax.mul]
ORDERED_BINARY = [
    lax.max,
    lax.min,
    lax.div,
    lax.rem,
    lax.lt,
    lax.le,
    lax.gt,
    lax.ge,
    lax.eq,
    lax.ne,
]
FLOAT_BINARY = [lax.atan2, lax.nextafter, lax.pow]
INTEGER_BINARY = [
    *(lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor),
    *(lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic),
]
INTEGER_UNARY = [lax.bitwise_not, lax.population_count, lax.clz, lambda x: lax.integer_pow(x, 3)]


def make_values(dtype):
    if dtype.kind == "b":
        return np.array([False, True])
    if jnp.issubdtype(dtype, np.complexfloating):
        return np.array([0, 1, -1, 2 + 3j, -0.5 - 2j, 1j, -3j], dtype)
    if jnp.issubdtype(dtype, np.floating):
        info = jnp.finfo(dtype)
        values = [0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3, 40.0, float(info.max), np.inf]
        return np.array([*values, *(-v for v in values), np.nan, float(info.tiny)]).astype(dtype)
    info = jnp.iinfo(dtype)
    low = [-128, -7, -2, -1] if info.min else []
    return np.array([*low, 0, 1, 2, 3, 5, 7, 31, 63, 100, info.min, info.max], dtype)


def make_pairs(dtype):
    values = make_values(dtype)
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *COMPLEX, "bool"])
def test_unary(dtype):
    if dtype == "bool":
        functions = [lax.bitwise_not]
    else:
        functions = ANY_UNARY + ([] if dtype.startswith("u") else [lax.abs])
        functions += FLOAT_UNARY if dtype in FLOATS else INTEGER_UNARY if dtype in INTEGERS else []
    if dtype in COMPLEX:
        functions += [lax.exp, lax.log, lax.sin, lax.tanh, lax.sqrt, lax.real, lax.imag, lax.conj]
    check(lambda x: [f(x) for f in functions], make_values(jnp.dtype(dtype)))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *COMPLEX])
def test_binary(dtype):
    functions = list(ANY_BINARY)
    functions += [lax.div, lax.eq, lax.ne] if dtype in COMPLEX else ORDERED_BINARY
    functions += FLOAT_BINARY if dtype in FLOATS else INTEGER_BINARY if dtype in INTEGERS else []
    if dtype in COMPLEX:
        x, y = make_pairs(jnp.dtype(dtype))
        check(lambda x, y: [f(x, y) for f in functions], x[y != 0], y[y != 0])
    else:
        check(lambda x, y: [f(x, y) for f in functions], *make_pairs(jnp.dtype(dtype)))


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool", "complex64", "float8_e4m3fn"])
def test_conversion(source):
    targets = [*FLOATS, *INTEGERS, "bool", *(COMPLEX if source != "float8_e4m3fn" else ())]
    values = make_values(jnp.dtype(source))
    if source in FLOATS:
        # XLA does not define conversions of numbers out of range to small unsigned integers.
        values = np.array([0, 0.5, 1.5, 2.5, 100.7, -0.0, -0.7]).astype(jnp.dtype(source))
    if source == "complex64":
        targets = COMPLEX
    check(lambda x: [lax.convert_element_type(x, t) for t in targets], values)


@pytest.mark.parametrize("source", FLOATS)
def test_conversion_saturates(source):
    targets = ["int32", "int64"]
    check(
        lambda x: [lax.convert_element_type(x, t) for t in targets], make_values(jnp.dtype(source))
    )


@pytest.mark.parametrize("block", [16, 1 << 14])
def test_selection_and_bits(block, monkeypatch):
    monkeypatch.setattr("meshflow.interpreter.elementwise.BLOCK_SIZE", block)
    x, y = make_pairs(np.dtype("float32"))
    which = (np.arange(len(x)) % 3).astype(np.int32)

    def run(x, y, which):
        zero = lax.full_like(x, 0)
        return [
            lax.select(x > y, x, y),
            *[lax.select(x > y, *cases) for cases in ((x, zero), (zero, y), (zero, zero))],
            lax.select_n(which, x, y, x + y),
            lax.clamp(np.float32(-1), x, y),
            lax.clamp(y, x, lax.abs(y)),
            lax.bitcast_convert_type(x, np.uint32),
            lax.bitcast_convert_type(x, np.uint16),
            lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.uint8), np.float32),
            lax.complex(x, y),
        ]

    check(run, x, y, which)


@pytest.mark.parametrize("sizes", list(itertools.product((1, 40), repeat=3)))
def test_selection_from_operands_of_size_1(sizes, monkeypatch):
    monkeypatch.setattr("meshflow.interpreter.elementwise.BLOCK_SIZE", 16)
    p, x, y = (np.arange(1, n + 1, dtype=np.float32) for n in sizes)
    result = make_selection(np.dtype(np.float32))(p % 2 == 0, x, y)
    np.testing.assert_array_equal(result, np.where(p % 2 == 0, y, x))


@pytest.mark.parametrize("dtype", ["float32", "uint32", "int16", "float64"])
def test_selection_of_many_elements(dtype):
    select = make_selection(np.dtype(dtype))
    p = np.random.RandomState(0).rand(60, 50) > 0.5
    full, row, one = (
        np.arange(math.prod(s)).reshape(s).astype(dtype) for s in [(60, 50), (50,), ()]
    )
    for x, y in itertools.product([full, full[::-1], np.asfortranarray(full), row, one], repeat=2):
        expected = np.where(p, y, x)
        for outs in ([], [np.empty_like(full)], [np.empty_like(full.T).T]):
            np.testing.assert_array_equal(select(p, x, y, *outs), expected)
        for operand in {id(a): a for a in (x, y) if a.shape == p.shape}.values():
            x_copy, y_copy = x.copy(), y.copy()
            out = x_copy if operand is x else y_copy
            np.testing.assert_array_equal(select(p, x_copy, y_copy, out), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_functions(dtype):
    rtol = 1e-12 if dtype == "float64" else 1e-5
    values = make_values(jnp.dtype(dtype))
    check(lambda x: [f(x) for f in SPECIAL], values, rtol=rtol, atol=rtol)


def test_special_functions_of_two_operands():
    a = np.array([0.1, 0.5, 1.0, 2.0, 5.5, 30.0], np.float32)
    x = np.array([0.2, 0.9, 1.5, 3.0, 0.01, 25.0], np.float32)

    def run(a, x):
        return [
            lax.igamma(a, x),
            lax.igammac(a, x),
            lax.polygamma(np.float32(2) + 0 * a, x),
            lax.zeta(a + 1, x),
            lax.betainc(a, x, x / 30),
        ]

    check(run, a, x, rtol=1e-4)
