"""NumPy implementations of cheap ops, in eager mode and for functions of elements in input pipelines.

Tracing or calling a program costs more than flipping a small image. The results are bitwise equal to those
of the compiled programs; ops with results that could differ (sums along axes, half precision, conversions
from floats to integers) are left to the programs. Sums by index add in order, as programs do. Quotients are the exception: they are rounded once, as
in TensorFlow, where XLA multiplies by the reciprocal of a scalar.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import DIVISOR_CHECK, sum_rows
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import philox_host
from meshflow.core.runtime.bounds_checks import is_padding
from meshflow.core.runtime.context import context
from meshflow.core.variables import indexing
from meshflow.interpreter import can_repeat_rows, repeat_rows, take_extremum, update_rows
from meshflow.ops import casting, coordinates
from meshflow.ops.array import gather_scatter, joining, shaping
from meshflow.ops.linalg.solving import _inv, _slogdet, _solve, det
from meshflow.ops.math import (
    arithmetic,
    clipping,
    comparison,
    division,
    elementwise,
    largest,
    segments,
)
from meshflow.ops.nn import activation
from meshflow.ops.random import from_keys

# Arrays, or lists of arrays for operands that are lists.
_HostArrays: TypeAlias = Sequence[Any]
# The results of an op; None leaves it to XLA.
_HostResult: TypeAlias = np.ndarray | tuple[np.ndarray, ...] | None
# Computes an op from its operands and static arguments.
_HostFunction: TypeAlias = Callable[[_HostArrays, tuple[Any, ...]], _HostResult]

# Compiled programs are faster for arrays with more elements.
_MAX_ELEMENTS = 1 << 22
# Compiled programs are faster for more random numbers.
_MAX_DRAWN = 1 << 12
# The interpreter is faster for the largest of more elements.
_MAX_SORTED = 1 << 10
# NumPy factors larger matrices with several threads.
_MAX_MATRIX = 32


def _is_portable(array: np.ndarray) -> bool:
    """Check whether NumPy and XLA compute the same results for an array."""
    kind = array.dtype.kind
    return (kind == "f" and array.dtype.itemsize >= 4) or kind in "iub"


def _make_elementwise(function: Callable[..., np.ndarray], kinds: str = "iuf") -> _HostFunction:
    """Wrap a NumPy function of arrays with the same dtype."""

    def compute(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
        if static or not all(_is_portable(a) and a.dtype.kind in kinds for a in arrays):
            return None
        if len(arrays) == 2 and arrays[0].shape != arrays[1].shape:
            x, y = arrays
            if can_repeat_rows(y.shape, x.shape):
                return function(x, repeat_rows(y, x.shape))
            if can_repeat_rows(x.shape, y.shape):
                return function(repeat_rows(x, y.shape), y)
        return function(*arrays)

    return compute


def _make_division(function: Callable[..., np.ndarray]) -> _HostFunction:
    """Wrap a NumPy function of integers and divisors; XLA defines the results for divisors of 0."""
    divide = _make_elementwise(function, "iu")
    return lambda arrays, static: divide(arrays, static) if arrays[1].all() else None


def _clip(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return take_extremum(np.maximum, take_extremum(np.minimum, t, high), low)


def _cast(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (x,), target = arrays, static[0].dtype
    widens = x.dtype.kind in "iub" and target.kind in "iuf" and target.itemsize >= 4
    if widens or (x.dtype == np.float32 and target == np.float64):
        return x.astype(target)
    return None


def _select(arrays: _HostArrays, _: tuple[Any, ...]) -> np.ndarray:
    condition, x, y = arrays
    if condition.size == 1 and x.shape == y.shape and condition.ndim <= x.ndim:
        return x if condition.item() else y
    return np.where(condition, x, y)


def _draw_uniform(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (key, low, high), (shape, dtype) = arrays, static
    count = math.prod(shape)
    is_supported = dtype.name == "float32" and not low.ndim and not high.ndim and key.shape == (3,)
    if not is_supported or count > _MAX_DRAWN:
        return None
    numbers = philox_host.draw_unit_uniform(key, count).reshape(shape)
    # Programs that run op by op round in the same way.
    return numbers * (high - low) + low if low else numbers * high


def _shuffle_rows(arrays: _HostArrays, _: tuple[Any, ...]) -> np.ndarray | None:
    key, value = arrays
    count = len(value) if value.ndim else 0
    if key.shape != (3,) or not 2 <= count <= _MAX_DRAWN:
        return None
    words = philox_host.draw_words(key, count - 1)
    partners = words % np.arange(count, 1, -1).astype(np.uint32) + np.arange(count - 1)
    order = list(range(count))
    for i, partner in enumerate(partners.tolist()):
        order[i], order[partner] = order[partner], order[i]
    shuffled: np.ndarray = value[order]
    return shuffled


def _find_top(arrays: _HostArrays, static: tuple[Any, ...]) -> tuple[np.ndarray, ...] | None:
    (x,), (k,) = arrays, static
    if not _is_portable(x) or x.size > _MAX_SORTED or not x.ndim or not 0 < k <= x.shape[-1]:
        return None
    rows, last = x.reshape(-1, x.shape[-1]), x.shape[-1] - 1
    # The first of equal elements precedes the others, so that reversed rows are sorted.
    order = last - np.argsort(rows[:, ::-1], -1, kind="stable")[:, ::-1][:, :k]
    values = rows[np.arange(len(rows))[:, None], order]
    shape = (*x.shape[:-1], k)
    return values.reshape(shape), order.astype(np.int32).reshape(shape)


def _reshape(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (tensor,), (shape,) = arrays, static
    if not isinstance(shape, tuple) or None in shape:
        return None
    count = int(np.prod(shape, dtype=np.int64))
    if min(shape, default=0) >= 0:
        return tensor.reshape(shape) if count == tensor.size else None
    is_valid = shape.count(-1) == 1 and count < 0 and tensor.size % count == 0
    return tensor.reshape(shape) if is_valid else None


def _expand(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (array,), (axis,) = arrays, static
    is_valid = type(axis) is int and -array.ndim - 1 <= axis <= array.ndim
    return np.expand_dims(array, axis) if is_valid else None


def _concatenate(operands: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (arrays,), (axis,) = operands, static
    return np.concatenate(arrays, axis) if arrays and arrays[0].ndim else None


def _stack(operands: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (arrays,), (axis,) = operands, static
    return np.stack(arrays, axis) if arrays else None


def _add_bias(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    value, bias = arrays
    is_last = static[0] is None or static[0].endswith("C")
    is_valid = is_last and value.ndim > 1 and value.shape[-1:] == bias.shape
    return np.add(value, bias) if is_valid and _is_portable(value) else None


def _get_item(arrays: _HostArrays, template: tuple[Any, ...]) -> np.ndarray | None:
    return indexing._index_array(arrays, template) if len(arrays) == 1 else None


def _is_summable(array: np.ndarray) -> bool:
    return _is_portable(array) and array.dtype != bool


def _are_inside(indices: np.ndarray, size: int) -> bool:
    return not indices.size or (indices.min() >= 0 and indices.max() < size)


def _gather(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (params, indices), (axis, batch_dims) = arrays, static
    if batch_dims or not _are_inside(indices, params.shape[axis]):
        return None
    return params.take(indices, axis)


def _take(arrays: _HostArrays, _: tuple[Any, ...]) -> np.ndarray | None:
    values, order = arrays
    return values.take(order, 0, mode="clip")


def _sum_rows(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    rows, ids = arrays
    return _reduce_rows(rows, ids, static[0]) if _is_summable(rows) else None


def _reduce_rows(
    rows: np.ndarray, ids: np.ndarray, count: int, reduce: np.ufunc = np.add, initial: Any = 0
) -> np.ndarray:
    """Reduce the rows with equal ids in order, like a scatter; ids out of range are ignored."""
    result = np.full((count, *rows.shape[1:]), initial, rows.dtype)
    if rows.size and result.size:
        update_rows(reduce, result, ids, rows, True)
    return result


def _reduce_segments(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (data, ids), (count, kind) = arrays, static
    divides_integers = kind in ("mean", "sqrt_n") and data.dtype.kind != "f"
    if not _is_summable(data) or divides_integers or kind == "prod":
        return None
    if data.shape[: ids.ndim] != ids.shape:
        return None
    rows, ids = data.reshape(ids.size, *data.shape[ids.ndim :]), ids.reshape(-1)
    if kind in ("max", "min"):
        limits = np.finfo(data.dtype) if data.dtype.kind == "f" else np.iinfo(data.dtype)
        reduce, initial = (np.maximum, limits.min) if kind == "max" else (np.minimum, limits.max)
        return _reduce_rows(rows, ids, count, reduce, initial) if np.isfinite(rows).all() else None
    total = _reduce_rows(rows, ids, count)
    if kind == "sum":
        return total
    sizes = np.bincount(ids[(ids >= 0) & (ids < count)], minlength=count)
    divisor = np.maximum(sizes, 1).astype(data.dtype).reshape(-1, *[1] * (rows.ndim - 1))
    return total / (divisor if kind == "mean" else np.sqrt(divisor))


def _multiply_sparse(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (indices, values, dense), (num_rows, is_adjoint) = arrays, static
    if not _is_summable(values):
        return None
    rows, columns = indices.T[::-1] if is_adjoint else indices.T
    return _reduce_rows(values[:, None] * dense.take(columns, 0, mode="clip"), rows, num_rows)


def _reduce_sparse(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (indices, values), (sizes, remaining_axes, shape, reduction) = arrays, static
    if not _is_summable(values):
        return None
    ids, count = coordinates.find_cells(np, indices, sizes, remaining_axes)
    if reduction == "sum":
        return _reduce_rows(values, np.asarray(ids), count).reshape(shape)
    largest = _reduce_segments((values, np.asarray(ids)), (count, "max"))
    if largest is None:
        return None
    is_used = np.zeros(count + 1, bool)
    is_used[ids] = True
    return np.where(is_used[:-1], largest, 0).astype(values.dtype).reshape(shape)


def _check_divisors(arrays: _HostArrays, sizes: tuple[Any, ...]) -> np.ndarray | None:
    divisors, indices = arrays
    is_valid = (divisors != 0) | is_padding(indices, sizes)[:, 0]
    return divisors if is_valid.all() and divisors.all() else None


def _add_elements(arrays: _HostArrays, static: tuple[Any, ...]) -> np.ndarray | None:
    (dense, indices, values), (replaces,) = arrays, static
    index = tuple(indices.T)
    if not _is_summable(values) or not all(map(_are_inside, index, dense.shape)):
        return None
    result = dense.copy()
    if replaces:
        result[index] = values
    else:
        np.add.at(result, index, values)
    return result


def _make_matrix_function(function: Callable[..., Any]) -> _HostFunction:
    """Return the host function of an op of small square matrices, with a flag `adjoint` as static argument or none."""

    def compute(arrays: _HostArrays, static: tuple[Any, ...]) -> _HostResult:
        height, width = (0, 0, *arrays[0].shape)[-2:]
        is_square = 0 < height == width <= _MAX_MATRIX
        if not is_square or any(static) or any(a.dtype.char not in "fdFD" for a in arrays):
            return None
        if any(a.shape[:-1] != arrays[0].shape[:-1] for a in arrays):
            return None
        try:
            result = function(*arrays)
        except np.linalg.LinAlgError:
            return None
        dtype = arrays[0].dtype
        return tuple(r.astype(dtype) for r in result) if isinstance(result, tuple) else result

    return compute


_HOST_FUNCTIONS: list[tuple[Any, _HostFunction]] = [
    (arithmetic.add, _make_elementwise(np.add)),
    (arithmetic.subtract, _make_elementwise(np.subtract)),
    (arithmetic.multiply, _make_elementwise(np.multiply)),
    (division.truediv, _make_elementwise(np.divide, "f")),
    (division._floordiv, _make_division(np.floor_divide)),
    (division._floormod, _make_division(np.mod)),
    (arithmetic.maximum, _make_elementwise(functools.partial(take_extremum, np.maximum))),
    (arithmetic.minimum, _make_elementwise(functools.partial(take_extremum, np.minimum))),
    (elementwise.abs, _make_elementwise(np.absolute)),
    (comparison.less, _make_elementwise(np.less)),
    (comparison.less_equal, _make_elementwise(np.less_equal)),
    (comparison.greater, _make_elementwise(np.greater)),
    (comparison.greater_equal, _make_elementwise(np.greater_equal)),
    (casting.cast_tensor, _cast),
    (clipping.clip_by_value, _make_elementwise(_clip)),
    (gather_scatter._select, _select),
    (from_keys.sample_uniform, _draw_uniform),
    (from_keys.shuffle_rows, _shuffle_rows),
    (largest._top_k, _find_top),
    (shaping.reshape, _reshape),
    (joining._concat, _concatenate),
    (joining._stack, _stack),
    (shaping.expand_dims, _expand),
    (activation.bias_add, _add_bias),
    (gather_scatter._gather, _gather),
    (segments._reduce_segments, _reduce_segments),
    (coordinates._multiply_elements, _multiply_sparse),
    (coordinates.reduce_elements, _reduce_sparse),
    (coordinates.add_elements, _add_elements),
    (_inv, _make_matrix_function(np.linalg.inv)),
    (_solve, _make_matrix_function(np.linalg.solve)),
    (det, _make_matrix_function(np.linalg.det)),
    (_slogdet, _make_matrix_function(np.linalg.slogdet)),
]

# These functions only move elements, so they accept arrays of strings.
_MOVES = (_reshape, _expand, _concatenate, _stack, _select, _gather, _take, _get_item)


def _restrict_to_host_arrays(function: _HostFunction) -> _HostFunction:
    takes_strings = function in _MOVES

    def compute(values: Sequence[Any], static: tuple[Any, ...]) -> _HostResult:
        for value in values:
            for v in value if type(value) is list else (value,):
                if type(v) is not np.ndarray or v.size > _MAX_ELEMENTS:
                    return None
                if v.dtype == object and not takes_strings:
                    return None
        with np.errstate(all="ignore"):
            result: Any = function(values, static)
        if isinstance(result, bytes):
            return np.array(result, object)
        return result if result is None or type(result) is tuple else np.asarray(result)

    return compute


def register_host_function(op: Op, function: _HostFunction) -> None:
    """Let NumPy compute an op on small host arrays."""
    op.host_function = _restrict_to_host_arrays(function)


for _public, _function in _HOST_FUNCTIONS:
    register_host_function(_public.op, _function)
register_host_function(indexing._getitem, _get_item)
register_host_function(sum_rows, _sum_rows)
register_host_function(DIVISOR_CHECK, _check_divisors)
register_host_function(coordinates._take, _take)


@contextmanager
def host_scope() -> Iterator[None]:
    """Allow NumPy to compute ops on host arrays in this context; their results are host arrays."""
    saved, context.computes_on_host = context.computes_on_host, True
    try:
        yield
    finally:
        context.computes_on_host = saved
