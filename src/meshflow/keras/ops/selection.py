"""What picks and orders elements.

Example:
  >>> from meshflow.keras import ops
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
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import as_sum, common, tensor
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


@one_layer()
def diag(x: TensorLike, k: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with a diagonal.

    Args:
      x: a row or a matrix.
      k: which diagonal.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.diag([1, 2]).numpy().tolist()
      [[1, 0], [0, 2]]
    """
    x = tensor(x)
    if len(x.shape) not in (1, 2):
        raise ValueError(f"`x` must be 1d or 2d. Received: x.shape={tuple(x.shape)}")
    return _diag(x, k, False)


@one_layer()
def diagflat(x: TensorLike, k: int = 0) -> Tensor:
    """A matrix with all elements on a diagonal.

    Args:
      x: a tensor.
      k: which diagonal.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.diagflat([[1, 2]]).numpy().tolist()
      [[1, 0], [0, 2]]
    """
    return _diag(tensor(x), k, True)


@op(same=(), name="diagonal")
def _diagonal(x: TensorLike, offset: int, axis1: int, axis2: int) -> Any:
    return jnp.diagonal(x, offset, axis1, axis2)


@one_layer()
def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as the last dimension.

    Args:
      x: a tensor of rank 2 or more.
      offset: which diagonal.
      axis1: the first dimension.
      axis2: the second one.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.diagonal([[1, 2], [3, 4]]).numpy().tolist()
      [1, 4]
    """
    return _diagonal(tensor(x), offset, axis1, axis2)


@op(same=(), name="trace")
def _trace(x: TensorLike, offset: int, axis1: int, axis2: int) -> Any:
    return jnp.trace(x, offset, axis1, axis2, dtype=x.dtype)


@one_layer()
def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal.

    Args:
      x: a tensor of rank 2 or more.
      offset: which diagonal.
      axis1: the first dimension.
      axis2: the second one.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.trace([[1, 2], [3, 4]]))
      5
    """
    return _trace(as_sum(x), offset, axis1, axis2)


@op(same=(), name="triangle")
def _triangle(x: TensorLike, k: int, lower: bool) -> Any:
    return jnp.tril(x, k) if lower else jnp.triu(x, k)


@one_layer()
def tril(x: TensorLike, k: int = 0) -> Tensor:
    """What is on and below a diagonal; the rest is 0.

    Args:
      x: a tensor of rank 2 or more.
      k: the diagonal.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.tril([[1, 2], [3, 4]]).numpy().tolist()
      [[1, 0], [3, 4]]
    """
    return _triangle(tensor(x), k, True)


@one_layer()
def triu(x: TensorLike, k: int = 0) -> Tensor:
    """What is on and above a diagonal; the rest is 0.

    Args:
      x: a tensor of rank 2 or more.
      k: the diagonal.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.triu([[1, 2], [3, 4]]).numpy().tolist()
      [[1, 2], [0, 4]]
    """
    return _triangle(tensor(x), k, False)


@op(same=(), name="diff")
def _diff(a: TensorLike, n: int, axis: int) -> Any:
    return jnp.diff(a, n, axis)


@one_layer()
def diff(a: TensorLike, n: int = 1, axis: int = -1) -> Tensor:
    """Each element minus the one before it.

    Args:
      a: a tensor.
      n: how often.
      axis: the dimension.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.diff([1, 4, 9]).numpy().tolist()
      [3, 5]
    """
    return _diff(tensor(a), n, axis)


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Elements at places.

    Args:
      x: a tensor.
      indices: integers; negative ones count from the end.
      axis: the dimension; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.take([5, 6, 7], [0, -1]).numpy().tolist()
      [5, 7]
    """
    x = array_ops.reshape(tensor(x), [-1]) if axis is None else tensor(x)
    indices = tensor(indices)
    kind = dtypes.as_dtype(indices.dtype)
    if kind.is_floating and 0 not in indices.shape:
        raise InvalidValueError(f"take: indices must be integers, got {kind.name}.")
    if not kind.is_integer:
        indices = casting.cast(indices, "int32")
    size = x.shape[0 if axis is None else axis]
    if size is not None:
        indices = where(indices < 0, indices + casting.cast(tensor(size), indices.dtype), indices)
    return array_ops.gather(x, indices, axis=0 if axis is None else axis)


@op(same=(), name="take_along_axis")
def _take_along(x: TensorLike, indices: TensorLike, axis: Any) -> Any:
    return jnp.take_along_axis(x, indices, axis)


@one_layer()
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Elements at places of their own in each row.

    Args:
      x: a tensor.
      indices: integers, of the rank of `x`.
      axis: the dimension; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.take_along_axis([[5, 6], [7, 8]], [[1], [0]], axis=1).numpy().tolist()
      [[6], [7]]
    """
    return _take_along(tensor(x), tensor(indices), axis)


def get_item(x: TensorLike, key: Any) -> Tensor:
    """`x[key]`.

    Args:
      x: a tensor.
      key: an index, slice, or tuple of them.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.get_item([1, 2, 3], -1))
      3
    """
    return tensor(x)[key]


def where(condition: TensorLike, x1: Any = None, x2: Any = None) -> Tensor | tuple[Tensor, ...]:
    """Elements of one tensor or of another; or, without them, where the condition holds.

    Args:
      condition: a tensor of booleans.
      x1: what is taken where it holds.
      x2: what is taken where it does not.

    Returns:
      A tensor; without `x1` and `x2` a tuple of places, as `nonzero` gives.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.where([True, False], 1, 2.5).numpy().tolist()
      [1.0, 2.5]
    """
    if (x1 is None) != (x2 is None):
        raise ValueError(
            "`x1` and `x2` either both should be `None` or both should have non-None value."
        )
    condition = casting.cast(tensor(condition), dtypes.bool_)
    if x1 is None:
        return nonzero(condition)
    return array_ops.where(condition, *common(x1, x2))


def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """The places of elements that are not 0, one row of int32 for each dimension.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.nonzero([0, 3, 4])[0].numpy().tolist()
      [1, 2]
    """
    places = array_ops.where(casting.cast(tensor(x), dtypes.bool_))
    return tuple(casting.cast(row, "int32") for row in array_ops.unstack(places, axis=1))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Tensor:
    """For each element the first choice whose condition holds.

    Args:
      condlist: conditions.
      choicelist: as many tensors.
      default: what is taken where none holds.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.select([[True, False], [True, True]], [[1, 1], [2, 2]]).numpy().tolist()
      [1, 2]
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"condlist and choicelist must not be empty and have one length. Received: len(condlist)={len(condlist)}, "
            f"len(choicelist)={len(choicelist)}"
        )
    *choices, found = common(*choicelist, default)
    for condition, choice in zip(reversed(list(condlist)), reversed(choices), strict=True):
        found = array_ops.where(casting.cast(tensor(condition), dtypes.bool_), choice, found)
    return found


@op(same=("x1", "x2"), name="isin", differentiable=False)
def _isin(x1: TensorLike, x2: TensorLike, invert: bool) -> Any:
    return jnp.isin(x1, x2, invert=invert)


@one_layer()
def isin(
    x1: TensorLike, x2: TensorLike, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element is among those of another tensor.

    Args:
      x1: the elements.
      x2: among which is looked.
      assume_unique: accepted; the answer is the same.
      invert: whether the answers are turned round.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.isin([1, 2], [2, 3]).numpy().tolist()
      [False, True]
    """
    x1, x2 = common(x1, x2)
    return _isin(x1, x2, invert)


@op(same=(), name="sort")
def _sort(x: TensorLike, axis: int) -> Any:
    return jnp.sort(x, axis)


@one_layer()
def sort(x: TensorLike, axis: int = -1) -> Tensor:
    """Elements in rising order.

    Args:
      x: a tensor.
      axis: the dimension.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.sort([3, 1, 2]).numpy().tolist()
      [1, 2, 3]
    """
    return _sort(tensor(x), axis)


@op(same=(), name="argsort", differentiable=False)
def _argsort(x: TensorLike, axis: Any) -> Any:
    return jnp.argsort(x, axis).astype(jnp.int32)


@one_layer()
def argsort(x: TensorLike, axis: int | None = -1) -> Tensor:
    """The places of elements in rising order, int32; equal ones stay in order.

    Args:
      x: a tensor.
      axis: the dimension; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.argsort([3, 1, 2]).numpy().tolist()
      [1, 2, 0]
    """
    x = tensor(x)
    return _argsort(x, axis if len(x.shape) else None)


@op(same=(), name="argpartition", differentiable=False)
def _argpartition(x: TensorLike, kth: int, axis: int) -> Any:
    return jnp.argpartition(x, kth, axis).astype(jnp.int32)


@one_layer()
def argpartition(x: TensorLike, kth: int, axis: int | None = -1) -> Tensor:
    """Places such that the element at `kth` is where sorting puts it, smaller ones before it.

    Args:
      x: a tensor.
      kth: the place.
      axis: the dimension; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.argpartition([3, 1, 2], 0)[0])
      1
    """
    x = tensor(x)
    if axis is None:
        x, axis = array_ops.reshape(x, [-1]), 0
    return _argpartition(x, kth, axis)


def size(x: TensorLike) -> Tensor:
    """How many elements a tensor has, as int32.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.size([[1, 2]]))
      2
    """
    return array_ops.size(tensor(x))


def ndim(x: TensorLike) -> int:
    """How many dimensions a tensor has.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ndim([[1, 2]])
      2
    """
    return len(tensor(x).shape)


@op(same=(), name="unravel_index", differentiable=False)
def _unravel(indices: TensorLike, shape: Any) -> Any:
    return tuple(v.astype(indices.dtype) for v in jnp.unravel_index(indices, shape))


@one_layer()
def unravel_index(indices: TensorLike, shape: Any) -> tuple[Tensor, ...]:
    """Places in a shape of places in the row of all elements.

    Args:
      indices: integers.
      shape: the shape.

    Example:
      >>> from meshflow.keras import ops
      >>> [int(v) for v in ops.unravel_index(5, (2, 3))]
      [1, 2]
    """
    return tuple(_unravel(tensor(indices), tuple(shape)))


@op(same=(), name="unique_of_size", differentiable=False)
def _unique_of_size(x: TensorLike, axis: Any, size: int, fill_value: Any) -> Any:
    found = jnp.unique(
        x, True, True, True, axis=axis, equal_nan=False, size=size, fill_value=fill_value
    )
    return (found[0], *(v.astype(jnp.int32) for v in found[1:]))


def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: Any = None,
) -> Tensor | tuple[Tensor, ...]:
    """The different elements, in rising order.

    Args:
      x: a tensor, known when the program is written unless `size` is given.
      sorted: accepted; they are always in order.
      return_index: whether the place of each one's first occurrence is returned.
      return_inverse: whether the place of each element among them is returned.
      return_counts: whether it is returned how often each occurs.
      axis: a dimension whose slices are compared; None for all elements.
      size: how many are returned; the last ones are filled in or left out.
      fill_value: what fills; default the first element.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.unique([3, 1, 3]).numpy().tolist()
      [1, 3]
    """
    x = tensor(x)
    wanted = (True, return_index, return_inverse, return_counts)
    if size is not None:
        found: Any = _unique_of_size(x, axis, size, fill_value)
    else:
        known = np.unique(np.asarray(x), True, True, True, axis=axis, equal_nan=False)
        found = [tensor(known[0]), *(tensor(v.astype(np.int32)) for v in known[1:])]
    kept = [v for v, is_wanted in zip(found, wanted, strict=True) if is_wanted]
    return kept[0] if len(kept) == 1 else tuple(kept)
