"""Sorting, searching, unique values and histograms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.bounds_checks import BoundsCheck, check_bounds
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int32
from meshflow.core.values.symbolic_sizes import has_symbolic_size, pad_empty
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host, host_function
from meshflow.environment.types import Array
from meshflow.interpreter.table import Equation, UnsupportedPrimitive, call_rule
from meshflow.ops.array.shaping import check_rank
from meshflow.ops.deferred_host_values import find_recording

__all__ = [
    "argsort",
    "histogram_fixed_width",
    "histogram_fixed_width_bins",
    "searchsorted",
    "sort",
    "unique",
    "unique_with_counts",
    "unravel_index",
]


def _check_direction(direction: str) -> None:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(
            f"Argument `direction` should be one of 'ASCENDING' or 'DESCENDING'. Received: {direction}"
        )


@op(kinds="if")
def sort(
    values: TensorLike, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> Tensor:
    """Sort along a dimension.

    Args:
      values: A tensor.
      axis: The dimension to sort along; default last.
      direction: 'ASCENDING' or 'DESCENDING'.
      name: Ignored.

    Example:
      >>> tf.sort([3, 1, 2], direction="DESCENDING").numpy()
      array([3, 2, 1], dtype=int32)
    """
    _check_direction(direction)
    return _sort_padded(jnp.sort, values, axis, direction)


@op(kinds="if", differentiable=False)
def argsort(
    values: TensorLike,
    axis: int = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the int32 indices that sort along a dimension; the sort is always stable.

    Args:
      values: A tensor.
      axis: The dimension to sort along; default last.
      direction: 'ASCENDING' or 'DESCENDING'.
      stable: Ignored.
      name: Ignored.

    Example:
      >>> print(tf.argsort([30, 10, 20]).numpy())
      [1 2 0]
      >>> print(tf.argsort([30, 10, 20], direction="DESCENDING").numpy())
      [0 2 1]
    """
    _check_direction(direction)
    return _sort_padded(jnp.argsort, values, axis, direction).astype(jnp.int32)


def _sort_padded(sort: Callable[..., Array], values: Array, axis: int, direction: str) -> Array:
    """Apply `jnp.sort` or `jnp.argsort` to an array of which some axes may be empty."""
    is_descending, dtype = direction == "DESCENDING", values.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        last = -jnp.inf if is_descending else jnp.nan
    else:
        last = jnp.iinfo(dtype).min if is_descending else jnp.iinfo(dtype).max
    padded = values
    for i in range(values.ndim):
        padded = pad_empty(padded, i, last)
    result = sort(padded, axis=axis, stable=True, descending=is_descending)
    # The sort is stable, so the additional elements follow all equal ones.
    return result if padded is values else jax.lax.slice(result, [0] * values.ndim, values.shape)


_MAX_COMPARED_ROW_SIZE = 256


@op(same=("sorted_sequence", "values"), kinds="if", differentiable=False, name="searchsorted")
def _search_sorted(
    sorted_sequence: TensorLike, values: TensorLike, side: str, out_type: DType
) -> Tensor:
    shape = values.shape
    for name, array in (("sorted_sequence", sorted_sequence), ("values", values)):
        check_rank(array, 1, "searchsorted", name)
    counts = [math.prod(array.shape[:-1]) for array in (sorted_sequence, values)]
    if counts[0] != counts[1] and not has_symbolic_size(counts):
        raise InvalidValueError(
            f"searchsorted: Leading dim_size of both tensors must match, got the shapes {list(sorted_sequence.shape)} "
            f"and {list(shape)}. [Op:LowerBound]"
        )
    size = sorted_sequence.shape[-1]
    rows = sorted_sequence.reshape(counts[0], size)
    queries = values.reshape(counts[0], shape[-1])
    if has_symbolic_size([size]):
        # A binary search needs a known number of steps.
        compare = jnp.less if side == "left" else jnp.less_equal
        indices = compare(rows[:, None], queries[..., None]).sum(-1)
        return indices.reshape(shape).astype(out_type.dtype)
    # Other runtimes run comparisons with all elements faster than a binary search.
    compares_all = context.exporting and size <= _MAX_COMPARED_ROW_SIZE
    if compares_all or counts != [1, 1]:
        method = "compare_all" if compares_all else "scan"
        search = functools.partial(jnp.searchsorted, side=side, method=method)
        indices = jax.vmap(search)(rows, queries)
    else:
        indices = (search_left if side == "left" else search_right)(rows[0], queries)
    return indices.reshape(shape).astype(out_type.dtype)


@jax.jit
def search_left(keys: Array, queries: Array) -> Array:
    """Return the first indices at which queries of any shape keep a vector of keys sorted."""
    return jnp.searchsorted(keys, queries)


@jax.jit
def search_right(keys: Array, queries: Array) -> Array:
    """Return the last indices at which queries of any shape keep a vector of keys sorted."""
    return jnp.searchsorted(keys, queries, side="right")


def _build_search(side: Literal["left", "right"], equation: Equation) -> Callable[..., Any]:
    """Search keys in a program that runs op by op, without an array for each step of the search."""
    keys, queries = equation.inputs
    (result,) = equation.outputs
    if keys.ndim != 1 or queries.shape != result.shape:
        raise UnsupportedPrimitive(["searches of several vectors"])
    return lambda k, q: [np.searchsorted(k, q, side).astype(result.dtype)]


call_rule("search_left")(functools.partial(_build_search, "left"))
call_rule("search_right")(functools.partial(_build_search, "right"))


@dispatch_composites
def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """Find the indices at which values must be inserted to keep rows sorted.

    Args:
      sorted_sequence: Tensor of shape [..., n] with increasing rows.
      values: Tensor of shape [..., m].
      side: 'left' to insert before equal elements, 'right' to insert after them.
      out_type: Dtype of the indices.
      name: Ignored.

    Returns:
      Tensor of the shape of `values`.

    Example:
      >>> rows = [[1, 3, 5]]
      >>> print(tf.searchsorted(rows, [[0, 3, 9]]).numpy())
      [[0 1 3]]
      >>> print(tf.searchsorted(rows, [[0, 3, 9]], side="right").numpy())
      [[0 2 3]]
    """
    if side not in ("left", "right"):
        raise ValueError(
            f"Argument `side` must be either 'right' or 'left'. Received: `side` = '{side}'."
        )
    return _search_sorted(sorted_sequence, values, side, as_dtype(out_type))


class Unique(NamedTuple):
    """Result of `tf.unique`: unique values `y`, and `idx`, the index in `y` of each element."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """Result of `tf.unique_with_counts`: `y`, `idx`, and the number of occurrences, `count`."""

    y: Tensor
    idx: Tensor
    count: Any


def _find_unique(x: Any, out_idx: DTypeLike) -> list[Tensor]:
    tensor = convert_to_tensor(x)
    if tensor.ndim != 1:
        raise InvalidValueError(f"unique expects a 1D vector, got shape {tensor.shape}.")
    return find_unique_slices(tensor, 0, out_idx)


def find_unique_slices(x: TensorLike, axis: int, out_idx: DTypeLike = int32) -> list[Tensor]:
    """Find the unique slices of a tensor along an axis, in the order of their first occurrences.

    Args:
      x: A tensor with at least one axis.
      axis: The axis, at least 0.
      out_idx: Dtype of the indices and counts.

    Returns:
      The slices, the index among them of each slice of `x`, and the number of occurrences of each.
    """
    tensor = convert_to_tensor(x)
    shape, dtype = tensor.array.shape, as_dtype(out_idx).dtype
    slices_shape = (*shape[:axis], "count", *shape[axis + 1 :])
    types = [(slices_shape, tensor.array.dtype), ((shape[axis],), dtype), (("count",), dtype)]
    use = "the argument of tf.unique (the result's shape depends on it)"
    find = functools.partial(find_unique_slices_on_host, axis) if axis or len(shape) > 1 else None
    return compute_on_host(find or _find_unique_on_host, [tensor], types, use)


@host_function
def _find_unique_on_host(array: np.ndarray) -> tuple[np.ndarray, ...]:
    return find_unique_slices_on_host(0, array)


@host_function
def find_unique_slices_on_host(axis: int, array: np.ndarray) -> tuple[np.ndarray, ...]:
    """Find unique slices in a host array, as `find_unique_slices`."""
    keys = array
    if array.dtype == object and array.ndim > 1:
        # NumPy compares slices of numbers only.
        keys = np.unique(array.astype("S"), return_inverse=True)[1].reshape(array.shape)
    elif array.dtype == object:
        keys = array.astype("S")
    _, first, inverse, counts = np.unique(keys, True, True, True, axis=axis, equal_nan=False)
    # TensorFlow keeps the order of first occurrences.
    order = np.argsort(first)
    ranks = np.argsort(order)
    return np.take(array, first[order], axis), ranks[inverse.reshape(-1)], counts[order]


# Saved functions call the following functions one by one.


def find_unique_values(x: TensorLike) -> Tensor:
    """Return the unique values of a vector."""
    recording = find_recording(x)
    if recording is not None:
        result: Tensor = recording.call(find_unique_values, (x,), {})
        return result
    return _find_unique(x, int32)[0]


def find_unique_indices(x: TensorLike, out_idx: DTypeLike = int32) -> Tensor:
    """Return the index of each element's value in the unique values."""
    recording = find_recording(x)
    if recording is not None:
        result: Tensor = recording.call(find_unique_indices, (x, out_idx), {})
        return result
    return _find_unique(x, out_idx)[1]


def count_unique_values(x: TensorLike, values: TensorLike, out_idx: DTypeLike = int32) -> Tensor:
    """Count the occurrences of each unique value.

    Args:
      x: A vector.
      values: The result of `find_unique_values` for `x`.
      out_idx: Dtype of the counts.
    """
    recording = find_recording(x)
    if recording is not None:
        result: Tensor = recording.call(count_unique_values, (x, values, out_idx), {})
        return result
    return _find_unique(x, out_idx)[2]


@accept_symbolic
def unique(x: TensorLike, out_idx: DTypeLike = int32, name: str | None = None) -> Unique:
    """Find the unique values of a vector, in the order of their first occurrences.

    Args:
      x: A vector.
      out_idx: Dtype of the indices.
      name: Ignored.

    Returns:
      (y, idx), the unique values and the index in `y` of each element.

    Example:
      >>> tf.unique([4, 1, 4]).y.numpy()
      array([4, 1], dtype=int32)
    """
    if find_recording(x) is not None:
        return Unique(find_unique_values(x), find_unique_indices(x, out_idx))
    return Unique(*_find_unique(x, out_idx)[:2])


@accept_symbolic
def unique_with_counts(
    x: TensorLike, out_idx: DTypeLike = int32, name: str | None = None
) -> UniqueWithCounts:
    """Find the unique values of a vector, and count their occurrences.

    The results are vectors of shapes (unique,), (n,) and (unique,).

    Args:
      x: A vector.
      out_idx: Dtype of the indices and counts.
      name: Ignored.

    Example:
      >>> y, idx, count = tf.unique_with_counts([7, 7, 4, 7])
      >>> print(y.numpy(), idx.numpy(), count.numpy())
      [7 4] [0 0 1 0] [3 1]
    """
    if find_recording(x) is not None:
        values = find_unique_values(x)
        return UniqueWithCounts(
            values, find_unique_indices(x, out_idx), count_unique_values(x, values, out_idx)
        )
    return UniqueWithCounts(*_find_unique(x, out_idx))


@op(same=("values",), differentiable=False, name="histogram_fixed_width_bins")
def _assign_bins(values: TensorLike, low: float, high: float, nbins: int, dtype: DType) -> Tensor:
    scaled = (values - low) / (high - low) * nbins
    return jnp.clip(jnp.floor(scaled), 0, nbins - 1).astype(dtype.dtype)


@op(same=(), differentiable=False, name="histogram_fixed_width")
def _count_bins(bins: TensorLike, nbins: int, dtype: DType) -> Tensor:
    return jnp.zeros((nbins,), dtype.dtype).at[bins.reshape(-1)].add(1)


@accept_symbolic
def histogram_fixed_width_bins(
    values: TensorLike,
    value_range: Sequence[float] | Array | Tensor,
    nbins: int = 100,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """Return the index of the bin, of `nbins` of equal size, that contains each value.

    Args:
      values: Numbers.
      value_range: Lower and upper end; values outside count for the first or last bin.
      nbins: Number of bins.
      dtype: Dtype of the result.
      name: Ignored.

    Example:
      >>> tf.histogram_fixed_width_bins([0.0, 1.0, 9.0], [0.0, 5.0], 5).numpy()
      array([0, 1, 4], dtype=int32)
    """
    low, high = (float(v) for v in to_static_value(value_range, "value_range"))
    if low >= high:
        raise InvalidValueError(f"value_range must rise, got [{low}, {high}].")
    count = int(to_static_value(nbins, "nbins"))
    if count < 1:
        raise InvalidValueError(f"nbins should be a positive number, but got {count}.")
    return _assign_bins(values, low, high, count, as_dtype(dtype))


@accept_symbolic
def histogram_fixed_width(
    values: TensorLike,
    value_range: Sequence[float] | Array | Tensor,
    nbins: int = 100,
    dtype: DTypeLike = int32,
    name: str | None = None,
) -> Tensor:
    """Count values in `nbins` bins of equal size.

    Args:
      values: A tensor of numbers.
      value_range: Lower and upper end; values outside count for the first or last bin.
      nbins: Number of bins.
      dtype: Dtype of the counts.
      name: Ignored.

    Example:
      >>> print(tf.histogram_fixed_width([-1.0, 0.1, 2.9, 3.0, 99.0], [0.0, 4.0], nbins=4).numpy())
      [2 0 1 2]
    """
    bins = histogram_fixed_width_bins(values, value_range, nbins)
    return _count_bins(bins, int(to_static_value(nbins, "nbins")), as_dtype(dtype))


@op(same=("indices", "dims"), differentiable=False)
def unravel_index(indices: TensorLike, dims: TensorLike, name: str | None = None) -> Tensor:
    """Convert flat indices to coordinates.

    Args:
      indices: Integers.
      dims: Shape of the array that the indices refer to.
      name: Ignored.

    Returns:
      Tensor of shape [len(dims), *indices.shape].

    Example:
      >>> tf.unravel_index([5, 7], [3, 4]).numpy()
      array([[1, 1],
             [1, 3]], dtype=int32)
    """
    check = BoundsCheck("index is out of bound as with dims")
    is_inside = check_bounds((indices < jnp.prod(dims)).astype(jnp.int8), check)
    indices = jnp.where(is_inside > 0, indices, 0)
    rows = []
    for axis in range(dims.shape[0] - 1, -1, -1):
        rows.append(indices % dims[axis])
        indices = indices // dims[axis]
    return jnp.stack(rows[::-1])
