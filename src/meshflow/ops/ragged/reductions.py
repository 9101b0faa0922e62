"""Reductions of ragged tensors along ragged and dense axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.dtypes import bool_, int32
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import compute_size
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array, math
from meshflow.ops.ragged.partition import (
    Namespace,
    Size,
    define_array_function,
    sum_lengths,
    take,
)
from meshflow.ops.ragged.tensor import RaggedTensor, get_positive_axis

# Name of a reduction, or its functions: one like those in `SEGMENT_OPS`, and one like those in `DENSE_OPS`.
Reduction: TypeAlias = str | tuple[Callable[..., Any], Callable[..., Any]]
# Reduce values with equal ids: (values, ids, number of ids) -> results.
SEGMENT_OPS: dict[str, Callable[..., Any]] = {
    "sum": math.unsorted_segment_sum,
    "prod": math.unsorted_segment_prod,
    "max": math.unsorted_segment_max,
    "min": math.unsorted_segment_min,
}
# Reduce dense tensors along an axis, or along all.
DENSE_OPS: dict[str, Callable[..., Any]] = {
    kind: getattr(math, f"reduce_{kind}") for kind in SEGMENT_OPS
}


def _get_ops(kind: Reduction) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (SEGMENT_OPS[kind], DENSE_OPS[kind]) if isinstance(kind, str) else kind


def reduce_segments(kind: Reduction, values: PyTree, ids: PyTree, count: Any) -> PyTree:
    """Reduce values, or rows by position, with equal ids."""
    if not isinstance(values, RaggedTensor):
        return _get_ops(kind)[0](values, ids, count)
    partition = values.partition
    splits = sum_lengths(_find_longest_rows(partition.row_splits(), ids, static=(count,)))
    rows, columns = partition.value_rowids(), partition.offsets_in_rows()
    inner_ids = _find_inner_ids(splits, ids, rows, columns)
    inner_count = compute_size(lambda splits: splits[-1], [splits], "rows of a reduction")
    inner = reduce_segments(kind, values.values, inner_ids, inner_count)
    return RaggedTensor.from_row_splits(inner, splits, validate=False)


@define_array_function
def _find_longest_rows(xp: Namespace, splits: Array, ids: Array, count: Size) -> Array:
    """Return the length of the longest row with each id."""
    lengths = splits[1:] - splits[:-1]
    if xp is np:
        longest = np.zeros(count, lengths.dtype)
        np.maximum.at(longest, ids, lengths)
        return longest
    return jnp.zeros((count,), lengths.dtype).at[ids].max(lengths)


@define_array_function
def _find_inner_ids(xp: Namespace, splits: Array, ids: Array, rows: Array, columns: Array) -> Array:
    return splits[take(ids, rows)] + columns


def _reduce_axis(kind: Reduction, rows: PyTree, axis: int) -> PyTree:
    if not isinstance(rows, RaggedTensor):
        return _get_ops(kind)[1](rows, axis)
    if axis > 1:
        return rows.with_values(_reduce_axis(kind, rows.values, axis - 1))
    partition = rows.partition
    if axis == 1:
        return reduce_segments(kind, rows.values, partition.value_rowids(), partition.static_nrows)
    # TensorFlow's longest row of none has length 0, also if all rows are equally long.
    length = partition.static_uniform_row_length if partition.static_nrows != 0 else 0
    if length is None:
        use = "the largest row length, for a reduction over axis 0"
        length = compute_size(lambda n: n.max(initial=0), [partition.row_lengths()], use)
    return reduce_segments(kind, rows.values, partition.offsets_in_rows(), length)


def parse_axes(rows: RaggedTensor, axis: PyTree) -> list[int] | None:
    """Return nonnegative axes in ascending order; None for all axes."""
    axes = to_static_value(axis, "axis")
    if isinstance(axis, Tensor | np.ndarray):
        axes = np.asarray(axis).tolist()
    if axes is None:
        return None
    rank = len(rows.shape)
    items = list(axes) if isinstance(axes, tuple | list) else [axes]
    return sorted({get_positive_axis(a, rank) for a in items})


def reduce_axes(kind: Reduction, rows: PyTree, axes: list[int] | None) -> PyTree:
    """Reduce a ragged tensor along axes in ascending order."""
    if axes is None:
        return _get_ops(kind)[1](rows.flat_values, None)
    # The last axis is reduced first, which preserves the meaning of the others.
    for a in reversed(axes):
        rows = _reduce_axis(kind, rows, a)
    return rows


def reduce(name: str, rows: PyTree, axis: PyTree = None, keepdims: bool = False) -> PyTree:
    """Reduce a ragged tensor.

    Args:
      name: Name of the op, such as "reduce_sum".
      rows: The ragged tensor.
      axis: The axes; None for all.
      keepdims: Whether reduced axes remain, with size 1.
    """
    axes = parse_axes(rows, axis)
    if axes == []:
        return rows
    result = _REDUCTIONS[name](rows, axes)
    if not keepdims:
        return result
    if axes is None:
        return array.reshape(result, [1] * len(rows.shape))
    return restore_axes(result, axes)


def _reduce_mean(rows: PyTree, axes: list[int] | None) -> PyTree:
    if axes is None and not rows.dtype.is_integer:
        return math.reduce_mean(rows.flat_values)
    counts = reduce_axes("sum", array.ones_like(rows), axes)
    total = reduce_axes("sum", rows, axes)
    return _combine(lambda a, b: a / b, total, counts)


def _combine(function: Callable[..., Tensor], first: PyTree, second: PyTree) -> PyTree:
    """Apply an elementwise function to values of the same rows, which a trace may not know."""
    if not isinstance(first, RaggedTensor):
        return function(first, second)
    return first.with_flat_values(function(first.flat_values, second.flat_values))


def _reduce_variance(rows: PyTree, axes: list[int] | None) -> PyTree:
    if rows.dtype.is_complex:
        raise ValueError("reduce_variance is not supported for RaggedTensors with complex dtypes.")
    if axes is None and not rows.dtype.is_integer:
        return math.reduce_variance(rows.flat_values)
    squares, mean = _reduce_mean(math.square(rows), axes), _reduce_mean(rows, axes)
    # Rounding must not make a small variance negative.
    return _combine(lambda a, b: math.maximum(a - math.square(b), 0), squares, mean)


def restore_axes(values: PyTree, axes: list[int] | None) -> PyTree:
    """Insert reduced axes with size 1."""
    for a in axes or ():
        values = array.expand_dims(values, a)
    return values


def _reduce_std(rows: PyTree, axes: list[int] | None) -> PyTree:
    return math.sqrt(_reduce_variance(rows, axes))


def _reduce_logsumexp(rows: PyTree, axes: list[int] | None) -> PyTree:
    largest = array.stop_gradient(reduce_axes("max", rows, axes))
    spread = rows - restore_axes(largest, axes)
    return math.log(reduce_axes("sum", math.exp(spread), axes)) + largest


def _make_logical(kind: str) -> Callable[..., PyTree]:
    def compute(rows: PyTree, axes: list[int] | None) -> PyTree:
        flags = math.cast(math.cast(rows, bool_), int32)
        if kind == "any":
            return math.greater(reduce_axes("sum", flags, axes), 0)
        return math.equal(reduce_axes("sum", 1 - flags, axes), 0)

    return compute


def _make_reduction(kind: str) -> Callable[..., PyTree]:
    return lambda rows, axes: reduce_axes(kind, rows, axes)


_REDUCTIONS: dict[str, Callable[..., PyTree]] = {
    **{f"reduce_{kind}": _make_reduction(kind) for kind in tuple(SEGMENT_OPS)},
    "reduce_mean": _reduce_mean,
    "reduce_variance": _reduce_variance,
    "reduce_std": _reduce_std,
    "reduce_logsumexp": _reduce_logsumexp,
    "reduce_any": _make_logical("any"),
    "reduce_all": _make_logical("all"),
}
REDUCTIONS = frozenset(_REDUCTIONS)
