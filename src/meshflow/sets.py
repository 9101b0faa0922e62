"""`tf.sets`: the last dimension's elements as sets, on the host; results are sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["difference", "intersection", "size", "union"]

_Rows = dict[tuple[int, ...], np.ndarray]


def _rows(value: Any, what: str) -> tuple[_Rows, list[int], Any]:
    """Elements by their place in the leading dimensions, the shape of those, and the dtype."""
    if isinstance(value, SparseTensor):
        shape = [int(n) for n in value.dense_shape.numpy()]
        places, values = value.indices.numpy(), value.values._concrete("a set")
        keys = [tuple(int(i) for i in place[:-1]) for place in places]
        known: dict[tuple[int, ...], list[Any]] = {}
        for key, one in zip(keys, values, strict=True):
            known.setdefault(key, []).append(one)
        empty = values[:0]
        rows = {k: np.array(v, values.dtype) for k, v in known.items()}
        rows = {k: rows.get(k, empty) for k in np.ndindex(*shape[:-1])}
        dtype = values.dtype
    else:
        array = convert_to_tensor(value)._concrete("a set")
        shape, dtype = list(array.shape), array.dtype
        rows = {k: array[k] for k in np.ndindex(*shape[:-1])}
    if len(shape) < 2:
        raise InvalidArgumentError(
            f"tf.sets: shape {shape} of {what} has rank {len(shape)}, expected at least 2"
        )
    return rows, shape[:-1], dtype


def _combined(a: Any, b: Any, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Any:
    left, leading, dtype = _rows(a, "a")
    right, others, other_dtype = _rows(b, "b")
    if leading != others:
        raise InvalidArgumentError(
            f"tf.sets: the leading dimensions of a and b differ: {leading} and {others}"
        )
    if dtype != other_dtype:
        raise TypeError(f"tf.sets: a has dtype {dtype}, b {other_dtype}; they must be the same.")
    found = {place: combine(one, right[place]) for place, one in left.items()}
    places = [(*place, i) for place, row in found.items() for i in range(len(row))]
    rank = len(leading) + 1
    return SparseTensor(
        np.array(places, np.int64).reshape(-1, rank),
        np.concatenate([*found.values(), np.empty(0, dtype)]).astype(dtype),
        [*leading, max((len(row) for row in found.values()), default=0)],
    )


def difference(a: Any, b: Any, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:
    """What is in one set and not in the other, for each place of the leading dimensions.

    Args:
      a: tensor or sparse tensor [..., n] of integers or strings.
      b: tensor or sparse tensor [..., m] with the same leading dimensions and dtype.
      aminusb: whether elements of `b` are taken from `a`; else the other way.
      validate_indices: ignored.

    Returns:
      A sparse tensor with the sets' elements in order.

    Raises:
      InvalidArgumentError: for ranks below 2 or other leading dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.difference([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[5]], dtype=int32)
    """
    return _combined(a, b, np.setdiff1d if aminusb else lambda x, y: np.setdiff1d(y, x))


def intersection(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """What is in both sets; see `difference` for the arguments.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.intersection([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[2, 9]], dtype=int32)
    """
    return _combined(a, b, np.intersect1d)


def union(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """What is in one of the sets; see `difference` for the arguments.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.to_dense(tf.sets.union([[9, 5, 2]], [[2, 9, 0]])).numpy()
      array([[0, 2, 5, 9]], dtype=int32)
    """
    return _combined(a, b, np.union1d)


def size(a: SparseTensor, validate_indices: bool = True) -> Tensor:
    """How many different elements each set has.

    Args:
      a: sparse tensor [..., n].
      validate_indices: ignored.

    Returns:
      int32 tensor with the shape of the leading dimensions.

    Raises:
      TypeError: when `a` is not sparse.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0, 0], [0, 1], [0, 2], [1, 0]], [5, 6, 5, 7], [2, 3])
      >>> print(tf.sets.size(a).numpy())
      [2 1]
    """
    if not isinstance(a, SparseTensor):
        raise TypeError(f"Expected `SparseTensor`, got {a!r}.")
    rows, leading, _ = _rows(a, "a")
    counts = [len(np.unique(row)) for row in rows.values()]
    return convert_to_tensor(np.array(counts, np.int32).reshape(leading))
