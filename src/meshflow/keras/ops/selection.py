"""Selection, search and sorting of elements.

Example:
  >>> ops.take([5, 6, 7], [0, -1]).numpy().tolist()
  [5, 7]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import array_op
from meshflow.keras.ops.promotion import as_sum, as_tensor, promote
from meshflow.ops import array as array_ops
from meshflow.ops import casting

__all__ = [
    "argpartition",
    "argsort",
    "diag",
    "diagflat",
    "diagonal",
    "diff",
    "get_item",
    "isin",
    "ndim",
    "nonzero",
    "select",
    "size",
    "sort",
    "take",
    "take_along_axis",
    "trace",
    "tril",
    "triu",
    "unique",
    "unravel_index",
    "where",
]


@op(same=(), name="diag")
def _diag(x: TensorLike, k: int, flat: bool) -> Any:
    return jnp.diagflat(x, k) if flat else jnp.diag(x, k)


@as_single_layer()
def diag(x: TensorLike, k: int = 0) -> Tensor:
    """Extract a diagonal of a matrix, or create a matrix from a diagonal.

    Args:
      x: A vector or matrix.
      k: Offset of the diagonal; positive is above the main one.

    Example:
      >>> ops.diag([1, 2]).numpy().tolist()
      [[1, 0], [0, 2]]
    """
    x = as_tensor(x)
    if len(x.shape) not in (1, 2):
        raise ValueError(f"`x` must be 1d or 2d. Received: x.shape={tuple(x.shape)}")
    return _diag(x, k, False)


@as_single_layer()
def diagflat(x: TensorLike, k: int = 0) -> Tensor:
    """Create a matrix with all elements on a diagonal.

    Args:
      x: A tensor.
      k: Offset of the diagonal; positive is above the main one.

    Example:
      >>> ops.diagflat([[1, 2]]).numpy().tolist()
      [[1, 0], [0, 2]]
    """
    return _diag(as_tensor(x), k, True)


@array_op()
def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Extract the diagonal of two axes as the last axis.

    Args:
      x: A tensor of rank 2 or more.
      offset: Offset of the diagonal; positive is above the main one.
      axis1: First axis.
      axis2: Second axis.

    Example:
      >>> ops.diagonal([[1, 2], [3, 4]]).numpy().tolist()
      [1, 4]
    """
    return jnp.diagonal(x, offset, axis1, axis2)


@array_op(as_sum)
def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Compute the sum of a diagonal.

    Args:
      x: A tensor of rank 2 or more.
      offset: Offset of the diagonal; positive is above the main one.
      axis1: First axis.
      axis2: Second axis.

    Example:
      >>> int(ops.trace([[1, 2], [3, 4]]))
      5
    """
    return jnp.trace(x, offset, axis1, axis2, dtype=x.dtype)


@op(same=(), name="triangle")
def _triangle(x: TensorLike, k: int, lower: bool) -> Any:
    return jnp.tril(x, k) if lower else jnp.triu(x, k)


@as_single_layer()
def tril(x: TensorLike, k: int = 0) -> Tensor:
    """Set the elements above a diagonal to 0.

    Args:
      x: A tensor of rank 2 or more.
      k: Offset of the diagonal; positive is above the main one.

    Example:
      >>> ops.tril([[1, 2], [3, 4]]).numpy().tolist()
      [[1, 0], [3, 4]]
    """
    return _triangle(as_tensor(x), k, True)


@as_single_layer()
def triu(x: TensorLike, k: int = 0) -> Tensor:
    """Set the elements below a diagonal to 0.

    Args:
      x: A tensor of rank 2 or more.
      k: Offset of the diagonal; positive is above the main one.

    Example:
      >>> ops.triu([[1, 2], [3, 4]]).numpy().tolist()
      [[1, 2], [0, 4]]
    """
    return _triangle(as_tensor(x), k, False)


@array_op()
def diff(a: TensorLike, n: int = 1, axis: int = -1) -> Tensor:
    """Compute the differences of consecutive elements.

    Args:
      a: A tensor.
      n: Number of times to take differences.
      axis: The axis.

    Example:
      >>> ops.diff([1, 4, 9]).numpy().tolist()
      [3, 5]
    """
    return jnp.diff(a, n, axis)


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Take elements at indices.

    Args:
      x: A tensor.
      indices: Integers; negative ones count from the end.
      axis: The axis; None for the flattened tensor.

    Example:
      >>> ops.take([5, 6, 7], [0, -1]).numpy().tolist()
      [5, 7]
    """
    x = array_ops.reshape(as_tensor(x), [-1]) if axis is None else as_tensor(x)
    indices = as_tensor(indices)
    kind = dtypes.as_dtype(indices.dtype)
    if kind.is_floating and 0 not in indices.shape:
        raise InvalidValueError(f"take: indices must be integers, got {kind.name}.")
    if not kind.is_integer:
        indices = casting.cast(indices, "int32")
    size = x.shape[0 if axis is None else axis]
    if size is not None:
        indices = where(
            indices < 0, indices + casting.cast(as_tensor(size), indices.dtype), indices
        )
    return array_ops.gather(x, indices, axis=0 if axis is None else axis)


@op(same=(), name="take_along_axis")
def _take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None) -> Any:
    return jnp.take_along_axis(x, indices, axis)


@as_single_layer()
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Take elements at different indices in each row.

    Args:
      x: A tensor.
      indices: Integers, of the rank of `x`.
      axis: The axis; None for the flattened tensor.

    Example:
      >>> ops.take_along_axis([[5, 6], [7, 8]], [[1], [0]], axis=1).numpy().tolist()
      [[6], [7]]
    """
    return _take_along_axis(as_tensor(x), as_tensor(indices), axis)


def get_item(x: TensorLike, key: Any) -> Tensor:
    """Return `x[key]`.

    Args:
      x: A tensor.
      key: An index, a slice, or a tuple of them.

    Example:
      >>> int(ops.get_item([1, 2, 3], -1))
      3
    """
    return as_tensor(x)[key]


def where(
    condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Select elements from two tensors by a condition, or find the indices of true elements.

    Args:
      condition: A boolean tensor.
      x1: Values for true elements.
      x2: Values for false elements.

    Returns:
      A tensor; without `x1` and `x2` a tuple of indices, see `nonzero`.

    Example:
      >>> ops.where([True, False], 1, 2.5).numpy().tolist()
      [1.0, 2.5]
    """
    if (x1 is None) != (x2 is None):
        raise ValueError(
            "`x1` and `x2` either both should be `None` or both should have non-None value."
        )
    condition = casting.cast(as_tensor(condition), dtypes.bool_)
    if x1 is None:
        return nonzero(condition)
    x1, x2 = promote(x1, x2)
    return array_ops.where(condition, x1, x2)


def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """Find the indices of the elements that are not 0, an int32 vector for each axis.

    Args:
      x: A tensor.

    Example:
      >>> ops.nonzero([0, 3, 4])[0].numpy().tolist()
      [1, 2]
    """
    indices = array_ops.where(casting.cast(as_tensor(x), dtypes.bool_))
    return tuple(casting.cast(row, "int32") for row in array_ops.unstack(indices, axis=1))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: TensorLike = 0) -> Tensor:
    """Select each element from the first choice with a true condition.

    Args:
      condlist: Conditions.
      choicelist: A tensor for each condition.
      default: Values for elements without a true condition.

    Example:
      >>> ops.select([[True, False], [True, True]], [[1, 1], [2, 2]]).numpy().tolist()
      [1, 2]
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"`condlist` and `choicelist` must have the same length of at least 1. Received: len(condlist)={len(condlist)}, "
            f"len(choicelist)={len(choicelist)}"
        )
    *choices, result = promote(*choicelist, default)
    for condition, choice in zip(reversed(list(condlist)), reversed(choices), strict=True):
        result = array_ops.where(casting.cast(as_tensor(condition), dtypes.bool_), choice, result)
    return result


@op(same=("x1", "x2"), name="isin", differentiable=False)
def _isin(x1: TensorLike, x2: TensorLike, invert: bool) -> Any:
    return jnp.isin(x1, x2, invert=invert)


@as_single_layer()
def isin(
    x1: TensorLike, x2: TensorLike, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Check whether each element of a tensor is in another tensor.

    Args:
      x1: The elements.
      x2: The tensor to search.
      assume_unique: Accepted and ignored.
      invert: Whether to return the negation.

    Example:
      >>> ops.isin([1, 2], [2, 3]).numpy().tolist()
      [False, True]
    """
    x1, x2 = promote(x1, x2)
    return _isin(x1, x2, invert)


@array_op()
def sort(x: TensorLike, axis: int = -1) -> Tensor:
    """Sort elements in ascending order.

    Args:
      x: A tensor.
      axis: The axis.

    Example:
      >>> ops.sort([3, 1, 2]).numpy().tolist()
      [1, 2, 3]
    """
    return jnp.sort(x, axis)


@op(same=(), name="argsort", differentiable=False)
def _argsort(x: TensorLike, axis: int | None) -> Any:
    return jnp.argsort(x, axis).astype(jnp.int32)


@as_single_layer()
def argsort(x: TensorLike, axis: int | None = -1) -> Tensor:
    """Find the indices that sort a tensor, int32; the order of equal elements is kept.

    Args:
      x: A tensor.
      axis: The axis; None for the flattened tensor.

    Example:
      >>> ops.argsort([3, 1, 2]).numpy().tolist()
      [1, 2, 0]
    """
    x = as_tensor(x)
    return _argsort(x, axis if len(x.shape) else None)


@op(same=(), name="argpartition", differentiable=False)
def _argpartition(x: TensorLike, kth: int, axis: int) -> Any:
    return jnp.argpartition(x, kth, axis).astype(jnp.int32)


@as_single_layer()
def argpartition(x: TensorLike, kth: int, axis: int | None = -1) -> Tensor:
    """Find indices that move the smallest `kth` elements to the front.

    Args:
      x: A tensor.
      kth: Index of the element with its final position.
      axis: The axis; None for the flattened tensor.

    Example:
      >>> int(ops.argpartition([3, 1, 2], 0)[0])
      1
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = array_ops.reshape(x, [-1]), 0
    return _argpartition(x, kth, axis)


def size(x: TensorLike) -> Tensor:
    """Count the elements of a tensor, as int32.

    Args:
      x: A tensor.

    Example:
      >>> int(ops.size([[1, 2]]))
      2
    """
    return array_ops.size(as_tensor(x))


def ndim(x: TensorLike) -> int:
    """Return the number of axes of a tensor.

    Args:
      x: A tensor.

    Example:
      >>> ops.ndim([[1, 2]])
      2
    """
    return len(as_tensor(x).shape)


@op(same=(), name="unravel_index", differentiable=False)
def _unravel_index(indices: TensorLike, shape: tuple[int, ...]) -> Any:
    return tuple(v.astype(indices.dtype) for v in jnp.unravel_index(indices, shape))


@as_single_layer()
def unravel_index(indices: TensorLike, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Convert indices of a flattened tensor to indices of each axis.

    Args:
      indices: Integers.
      shape: Shape of the tensor.

    Example:
      >>> [int(v) for v in ops.unravel_index(5, (2, 3))]
      [1, 2]
    """
    return tuple(_unravel_index(as_tensor(indices), tuple(shape)))


@op(same=(), name="unique_of_size", differentiable=False)
def _find_unique(x: TensorLike, axis: int | None, size: int, fill_value: Any) -> Any:
    results = jnp.unique(
        x, True, True, True, axis=axis, equal_nan=False, size=size, fill_value=fill_value
    )
    return (results[0], *(v.astype(jnp.int32) for v in results[1:]))


def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: TensorLike | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Find the unique elements, in ascending order.

    Args:
      x: A tensor, which must be known while tracing unless `size` is set.
      sorted: Accepted and ignored; the elements are always sorted.
      return_index: Whether to return the index of each element's first occurrence.
      return_inverse: Whether to return the index of each element of `x` in the result.
      return_counts: Whether to return the number of occurrences.
      axis: Axis with the slices to compare; None for all elements.
      size: Number of elements to return, with padding or truncation.
      fill_value: Value of the padding; default the first element.

    Example:
      >>> ops.unique([3, 1, 3]).numpy().tolist()
      [1, 3]
    """
    x = as_tensor(x)
    requested = (True, return_index, return_inverse, return_counts)
    if size is not None:
        results: Any = _find_unique(x, axis, size, fill_value)
    else:
        arrays = np.unique(np.asarray(x), True, True, True, axis=axis, equal_nan=False)
        results = [as_tensor(arrays[0]), *(as_tensor(v.astype(np.int32)) for v in arrays[1:])]
    selected = [v for v, is_requested in zip(results, requested, strict=True) if is_requested]
    return selected[0] if len(selected) == 1 else tuple(selected)
