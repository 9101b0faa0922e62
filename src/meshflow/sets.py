"""`tf.sets`: set operations on the last axis, computed with NumPy; results are sparse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int8, int16, int32, int64, string, uint8, uint16
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import Result, compute_on_host, host_function
from meshflow.ops.coordinates import get_sizes_list

__all__ = ["difference", "intersection", "size", "union"]

_Rows = dict[tuple[int, ...], np.ndarray]
_DTYPES = (int8, int16, int32, int64, uint8, uint16, string)
_OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "difference": np.setdiff1d,
    "intersection": np.intersect1d,
    "union": np.union1d,
}


def _list_parts(value: Any, name: str) -> tuple[list[Tensor], int]:
    """Return the dense shape, the indices and the values of a sparse tensor, or a dense tensor; and the rank."""
    if isinstance(value, SparseTensor):
        parts = [value.dense_shape, value.indices, value.values]
        rank = value.dense_shape.array.shape[0]
    else:
        parts = [convert_to_tensor(value)]
        rank = parts[0].ndim
    dtype = parts[-1].dtype
    if dtype not in _DTYPES:
        raise TypeError(f"tf.sets: {name} must be integers or strings, got {dtype.name}.")
    if rank < 2:
        raise InvalidArgumentError(f"tf.sets: {name} has rank {rank}, expected at least 2")
    return parts, rank


def _collect_rows(parts: Sequence[np.ndarray]) -> tuple[_Rows, list[int]]:
    """Return sets by their index in the leading axes, and the shape of those axes."""
    if len(parts) == 1:
        leading = parts[0].shape[:-1]
        return {k: parts[0][k] for k in np.ndindex(*leading)}, list(leading)
    sizes, indices, values = parts
    leading = sizes.tolist()[:-1]
    elements: dict[tuple[int, ...], list[Any]] = {}
    for index, element in zip(indices.tolist(), values, strict=True):
        elements.setdefault(tuple(index[:-1]), []).append(element)
    return {k: np.array(elements.get(k, []), values.dtype) for k in np.ndindex(*leading)}, leading


def _combine(a: Any, b: Any, operation: str) -> SparseTensor:
    (left, rank), (right, _) = _list_parts(a, "a"), _list_parts(b, "b")
    dtype, other_dtype = left[-1].dtype, right[-1].dtype
    if dtype is not other_dtype:
        raise TypeError(
            f"tf.sets: a and b must have equal dtypes, got {dtype.name} and {other_dtype.name}."
        )
    results: list[Result] = [
        (("n", rank), np.int64),
        (("n",), dtype.as_numpy_dtype),
        ((rank,), np.int64),
    ]
    combine = functools.partial(_combine_sets, operation, len(left))
    return SparseTensor(*compute_on_host(combine, [*left, *right], results, "a set"))


@host_function
def _combine_sets(operation: str, num_parts: int, *parts: np.ndarray) -> list[np.ndarray]:
    left, leading = _collect_rows(parts[:num_parts])
    right, other_leading = _collect_rows(parts[num_parts:])
    if leading != other_leading:
        raise InvalidArgumentError(
            f"tf.sets: the leading dimensions of a and b must be equal, got {leading} and {other_leading}"
        )
    combine, dtype = _OPERATIONS[operation], parts[-1].dtype
    sets = {index: combine(row, right[index]) for index, row in left.items()}
    indices = [(*index, i) for index, row in sets.items() for i in range(len(row))]
    return [
        np.array(indices, np.int64).reshape(-1, len(leading) + 1),
        np.concatenate([*sets.values(), np.empty(0, dtype)]).astype(dtype),
        np.array([*leading, max((len(row) for row in sets.values()), default=0)]),
    ]


@host_function
def _count_sets(*parts: np.ndarray) -> list[np.ndarray]:
    rows, leading = _collect_rows(parts)
    counts = [len(np.unique(row)) for row in rows.values()]
    return [np.array(counts, np.int32).reshape(leading)]


def difference(a: Any, b: Any, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:
    """Compute the difference of the sets of `a` and `b`.

    Args:
      a: Tensor or sparse tensor [..., n] of integers or strings.
      b: Tensor or sparse tensor [..., m] with the same leading dimensions and dtype.
      aminusb: Whether to compute `a - b`; otherwise `b - a`.
      validate_indices: Ignored.

    Returns:
      A sparse tensor with sorted sets along the last axis.

    Raises:
      InvalidArgumentError: The rank is less than 2, or the leading dimensions differ.

    Example:
      >>> tf.sparse.to_dense(tf.sets.difference([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[5]], dtype=int32)
    """
    return _combine(a, b, "difference") if aminusb else _combine(b, a, "difference")


def intersection(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """Compute the intersection of the sets of `a` and `b`; arguments as for `difference`.

    Example:
      >>> tf.sparse.to_dense(tf.sets.intersection([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[2, 9]], dtype=int32)
    """
    return _combine(a, b, "intersection")


def union(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """Compute the union of the sets of `a` and `b`; arguments as for `difference`.

    Example:
      >>> tf.sparse.to_dense(tf.sets.union([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[0, 2, 5, 9]], dtype=int32)
    """
    return _combine(a, b, "union")


def size(a: SparseTensor, validate_indices: bool = True) -> Tensor:
    """Count the distinct elements of each set.

    Args:
      a: Sparse tensor [..., n].
      validate_indices: Ignored.

    Returns:
      int32 tensor with the shape of the leading dimensions.

    Raises:
      TypeError: `a` is not sparse.

    Example:
      >>> a = tf.SparseTensor([[0, 0], [0, 1], [0, 2], [1, 0]], [5, 6, 5, 7], [2, 3])
      >>> print(tf.sets.size(a).numpy())
      [2 1]
    """
    if not isinstance(a, SparseTensor):
        raise TypeError(f"Expected `SparseTensor`, got {a!r}.")
    parts, _ = _list_parts(a, "a")
    sizes = tuple(get_sizes_list(a)[:-1])
    return compute_on_host(_count_sets, parts, [(sizes, np.int32)], "a set")[0]


_hide_frames(globals())
