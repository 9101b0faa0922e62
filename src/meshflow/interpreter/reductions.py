"""Rules of reductions, cumulative reductions and sorts."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.interpreter.elementwise import get_compute_dtype, is_small_float, widen
from meshflow.interpreter.table import (
    Compute,
    Equation,
    HostArray,
    UnsupportedPrimitive,
    Writer,
    rule,
)

# Elements of a row from which a reduction of the leading axes is fast.
MIN_ROW_SIZE = 1 << 10


def _register_reductions() -> None:
    for name, function in {
        "reduce_sum": np.add,
        "reduce_prod": np.multiply,
        "reduce_max": np.maximum,
        "reduce_min": np.minimum,
        "reduce_and": np.bitwise_and,
        "reduce_or": np.bitwise_or,
        "reduce_xor": np.bitwise_xor,
    }.items():
        rule(name, is_writer=True)(functools.partial(_reduce, function))


def get_identity(function: np.ufunc, dtype: np.dtype) -> Any:
    """Return the identity of a reduction."""
    if function in (np.maximum, np.minimum):
        sign = -1 if function is np.maximum else 1
        if dtype == np.bool_:
            return sign > 0
        if jnp.issubdtype(dtype, np.inexact):
            return dtype.type(sign * np.inf)
        info = jnp.iinfo(dtype)
        return dtype.type(info.min if sign < 0 else info.max)
    if function is np.bitwise_and:
        return np.array(-1).astype(dtype)[()] if dtype != np.bool_ else True
    return dtype.type(1 if function is np.multiply else 0)


def _reduce(function: np.ufunc, equation: Equation) -> Compute | Writer:
    (shape, dtype), axes = equation.inputs[0], tuple(equation.params["axes"])
    if not axes:
        return np.array
    if 0 in shape or (function in (np.maximum, np.minimum) and dtype.kind == "c"):
        identity = get_identity(function, dtype)
        result = equation.outputs[0].shape
        return lambda x: np.full(result, identity, dtype)
    reduce = function.reduce
    if is_small_float(dtype):
        return widen(lambda x: reduce(x, axis=axes), dtype)
    inner = math.prod(shape[len(axes) :])
    if sorted(axes) == list(range(len(axes))) and 0 < inner < MIN_ROW_SIZE:
        outer, result = math.prod(shape[: len(axes)]), equation.outputs[0].shape
        if outer * inner >= 4 * MIN_ROW_SIZE and result:
            return lambda x: _reduce_rows(reduce, x, outer, inner).reshape(result)
    return Writer(lambda x: reduce(x, axes, dtype), lambda x, out: reduce(x, axes, dtype, out))


def _reduce_rows(reduce: Any, x: HostArray, outer: int, inner: int) -> HostArray:
    """Reduce the leading axes; several short rows are combined, because each takes a fixed time."""
    count = MIN_ROW_SIZE // inner
    main = outer // count * count
    rows = x.reshape(outer, inner)
    total = reduce(rows[:main].reshape(-1, count * inner), 0, x.dtype).reshape(count, inner)
    if main < outer:
        total = np.concatenate([total, rows[main:]])
    return reduce(total, 0, x.dtype)


_register_reductions()


@rule("argmax", "argmin")
def _find_extreme(equation: Equation) -> Compute:
    (axis,), index = equation.params["axes"], equation.params["index_dtype"]
    find = np.argmax if equation.name == "argmax" else np.argmin
    if equation.inputs[0].dtype.kind == "c":
        raise UnsupportedPrimitive([equation.name])  # XLA raises the error.
    # NumPy also returns the first NaN.
    dtype = get_compute_dtype(equation.inputs[0].dtype)
    return lambda x: find(x.astype(dtype, copy=False), axis).astype(index)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", uses_shapes=False)
def _accumulate(equation: Equation) -> Compute:
    function = {
        "cumsum": np.add,
        "cumprod": np.multiply,
        "cummax": np.maximum,
        "cummin": np.minimum,
        "cumlogsumexp": np.logaddexp,
    }[equation.name]
    axis, dtype = equation.params["axis"], equation.inputs[0].dtype
    index = (slice(None),) * axis + (slice(None, None, -1),)

    def run(x: HostArray) -> HostArray:
        if equation.params["reverse"]:
            return function.accumulate(x[index], axis, x.dtype)[index]
        return function.accumulate(x, axis, x.dtype)

    return widen(run, dtype) if is_small_float(dtype) else run


def _make_sort_key(x: HostArray) -> HostArray:
    """Return integers or floats that NumPy sorts as XLA sorts an array."""
    return x.astype(get_compute_dtype(x.dtype), copy=False)


def _pack_keys(key: HostArray, is_reversed: bool = False) -> HostArray | None:
    """Return int64 numbers with the order of keys, in which the position along the last axis decides ties.

    All numbers differ, so an unstable sort, which uses vector instructions, has the result of a stable one.

    Args:
      key: Keys of at most 32 bits; NaN is larger than any number.
      is_reversed: Whether the larger of two equal keys is the first, and not the last.

    Returns:
      The key in the high and the position in the low half of each number; None for other dtypes.
    """
    if key.dtype == np.float32:
        # Adding zero makes the bits of both zeros equal; NaN may be negative.
        key = np.where(np.isnan(key), np.float32(np.nan), key + np.float32(0))
        bits = key.view(np.int32)
        key = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    elif key.dtype.kind not in "biu" or key.dtype.itemsize > 4:
        return None
    packed = key.astype(np.int64)
    if key.dtype == np.uint32:
        packed -= 1 << 31
    packed <<= 32
    count = key.shape[-1]
    packed |= np.arange(count - 1, -1, -1) if is_reversed else np.arange(count)
    return packed


def _sort_indices(key: HostArray, axis: int) -> HostArray:
    """Return the indices that sort an array along an axis; equal elements keep their order."""
    packed = _pack_keys(np.moveaxis(key, axis, -1))
    if packed is None:
        return np.argsort(key, axis, kind="stable")
    packed.sort(-1)
    return np.moveaxis(packed & 0xFFFFFFFF, -1, axis)


def _sort_values(x: HostArray, axis: int) -> HostArray:
    """Sort an array along an axis; the zeros of both signs keep their order."""
    has_two_zeros = x.dtype.kind == "f" and bool(np.any(np.signbit(x) & (x == 0)))
    return np.sort(x, axis, kind="stable" if has_two_zeros or x.dtype.kind == "c" else None)


@rule("sort", uses_shapes=False)
def _sort(equation: Equation) -> Compute:
    axis, num_keys = equation.params["dimension"], equation.params["num_keys"]

    def run(*arrays: HostArray) -> list[HostArray]:
        keys = [_make_sort_key(x) for x in arrays[:num_keys]]
        if len(arrays) == 1 and keys[0] is arrays[0]:
            return [_sort_values(arrays[0], axis)]
        order = _sort_indices(keys[0], axis) if num_keys == 1 else np.lexsort(keys[::-1], axis)
        return [np.take_along_axis(x, order, axis) for x in arrays]

    return run


@rule("top_k", "approx_top_k")
def _find_top(equation: Equation) -> Compute:
    p, index = equation.params, equation.outputs[1].dtype
    axis = p.get("axis", p.get("reduction_dimension", -1))
    k, is_min = p["k"], not p.get("is_max_k", True)

    def find_largest(key: HostArray) -> HostArray:
        """Return the positions of the largest keys along the last axis; of equal ones, the first."""
        count = key.shape[-1]
        packed = _pack_keys(key, is_reversed=True)
        if packed is None:
            order = count - 1 - np.argsort(key[..., ::-1], -1, kind="stable")
            return order[..., ::-1][..., :k]
        if 0 < k <= count // 4:
            packed = np.partition(packed, count - k, -1)[..., count - k :]
        packed.sort(-1)
        return count - 1 - (packed[..., ::-1][..., :k] & 0xFFFFFFFF)

    def run(x: HostArray) -> list[HostArray]:
        key = _make_sort_key(x)
        if is_min:
            order = np.take(_sort_indices(key, axis), np.arange(k), axis)
        else:
            order = np.moveaxis(find_largest(np.moveaxis(key, axis, -1)), -1, axis)
        return [np.take_along_axis(x, order, axis), order.astype(index)]

    return run
