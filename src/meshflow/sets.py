"""`tf.sets`: set operations on the last axis, computed on the host; results are sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["difference", "intersection", "size", "union"]

_Rows = dict[tuple[int, ...], np.ndarray]


def _collect_rows(value: Any, name: str) -> tuple[_Rows, list[int], np.dtype]:
    """Return sets by their index in the leading axes, the shape of those axes, and the dtype."""
    if isinstance(value, SparseTensor):
        parts = (value.dense_shape, value.indices, value.values)
        sizes, indices, values = (part.require_value("a set") for part in parts)
        shape = sizes.tolist()
        keys = [tuple(int(i) for i in index[:-1]) for index in indices]
        elements: dict[tuple[int, ...], list[Any]] = {}
        for key, element in zip(keys, values, strict=True):
            elements.setdefault(key, []).append(element)
        empty = values[:0]
        rows = {k: np.array(v, values.dtype) for k, v in elements.items()}
        rows = {k: rows.get(k, empty) for k in np.ndindex(*shape[:-1])}
        dtype = values.dtype
    else:
        array = convert_to_tensor(value).require_value("a set")
        shape, dtype = list(array.shape), array.dtype
        rows = {k: array[k] for k in np.ndindex(*shape[:-1])}
    if dtype.kind not in "iuO" or dtype in (np.uint32, np.uint64):
        raise TypeError(f"tf.sets: {name} must be integers or strings, got {dtype}.")
    if len(shape) < 2:
        raise InvalidArgumentError(
            f"tf.sets: shape {shape} of {name} has rank {len(shape)}, expected at least 2"
        )
    return rows, shape[:-1], dtype


def _combine(a: Any, b: Any, combine: Callable[..., np.ndarray]) -> SparseTensor:
    left, leading, dtype = _collect_rows(a, "a")
    right, other_leading, other_dtype = _collect_rows(b, "b")
    if leading != other_leading:
        raise InvalidArgumentError(
            f"tf.sets: the leading dimensions of a and b must be equal, got {leading} and {other_leading}"
        )
    if dtype != other_dtype:
        raise TypeError(f"tf.sets: a and b must have equal dtypes, got {dtype} and {other_dtype}.")
    sets = {index: combine(row, right[index]) for index, row in left.items()}
    indices = [(*index, i) for index, row in sets.items() for i in range(len(row))]
    rank = len(leading) + 1
    return SparseTensor(
        np.array(indices, np.int64).reshape(-1, rank),
        np.concatenate([*sets.values(), np.empty(0, dtype)]).astype(dtype),
        [*leading, max((len(row) for row in sets.values()), default=0)],
    )


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
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.difference([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[5]], dtype=int32)
    """
    return _combine(a, b, np.setdiff1d if aminusb else lambda x, y: np.setdiff1d(y, x))


def intersection(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """Compute the intersection of the sets of `a` and `b`; arguments as for `difference`.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.intersection([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[2, 9]], dtype=int32)
    """
    return _combine(a, b, np.intersect1d)


def union(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """Compute the union of the sets of `a` and `b`; arguments as for `difference`.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.union([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[0, 2, 5, 9]], dtype=int32)
    """
    return _combine(a, b, np.union1d)


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
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0, 0], [0, 1], [0, 2], [1, 0]], [5, 6, 5, 7], [2, 3])
      >>> print(tf.sets.size(a).numpy())
      [2 1]
    """
    if not isinstance(a, SparseTensor):
        raise TypeError(f"Expected `SparseTensor`, got {a!r}.")
    rows, leading, _ = _collect_rows(a, "a")
    counts = [len(np.unique(row)) for row in rows.values()]
    return convert_to_tensor(np.array(counts, np.int32).reshape(leading))


_hide_frames(globals())
