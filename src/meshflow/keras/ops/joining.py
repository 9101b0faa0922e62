"""What joins, splits and repeats.

Example:
  >>> from meshflow.keras import ops
  >>> ops.concatenate([ops.zeros([1]), [1, 2]]).numpy().tolist()
  [0.0, 1.0, 2.0]
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import common, tensor
from meshflow.keras.ops.shaping import ravel, reshape
from meshflow.ops import array as array_ops

__all__ = [
    "append",
    "array_split",
    "concatenate",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "pad",
    "repeat",
    "split",
    "stack",
    "tile",
    "vsplit",
    "vstack",
]


def concatenate(xs: Sequence[Any], axis: int | None = 0) -> Tensor:
    """Tensors one after the other along a dimension.

    Args:
      xs: the tensors.
      axis: the dimension; None for their elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.concatenate([[1], [2.5]]).numpy().tolist()
      [1.0, 2.5]
    """
    found = common(*xs)
    if axis is None:
        found, axis = [ravel(x) for x in found], 0
    return array_ops.concat(found, axis)


def append(x1: TensorLike, x2: TensorLike, axis: int | None = None) -> Tensor:
    """One tensor after another.

    Args:
      x1: the first.
      x2: the second.
      axis: the dimension; None for their elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.append([1, 2], [[3]]).numpy().tolist()
      [1, 2, 3]
    """
    return concatenate([tensor(x1), tensor(x2)], axis)


def stack(x: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors of one shape along a new dimension.

    Args:
      x: the tensors.
      axis: where the dimension goes.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.stack([[1, 2], [3, 4]], axis=1).numpy().tolist()
      [[1, 3], [2, 4]]
    """
    return array_ops.stack(common(*x), axis)


def vstack(xs: Sequence[Any]) -> Tensor:
    """Rows or matrices below each other.

    Args:
      xs: the tensors.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.vstack([[1, 2], [3, 4]]).shape
      TensorShape([2, 2])
    """
    return concatenate([_at_least(x, 2) for x in xs], 0)


def hstack(xs: Sequence[Any]) -> Tensor:
    """Rows one after the other, matrices beside each other.

    Args:
      xs: the tensors.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.hstack([[1, 2], [3]]).numpy().tolist()
      [1, 2, 3]
    """
    found = [_at_least(x, 1) for x in xs]
    return concatenate(found, 0 if len(found[0].shape) == 1 else 1)


def dstack(xs: Sequence[Any]) -> Tensor:
    """Matrices behind each other.

    Args:
      xs: the tensors.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.dstack([[1, 2], [3, 4]]).numpy().tolist()
      [[[1, 3], [2, 4]]]
    """
    return concatenate([_at_least(x, 3) for x in xs], 2)


def _at_least(x: Any, rank: int) -> Any:
    x = tensor(x)
    own = len(x.shape)
    if own < rank:
        x = reshape(x, {1: [1], 2: [1, -1], 3: [1, -1, 1]}[rank] if own < 2 else [*x.shape, 1])
    return x


def split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Parts along a dimension.

    Args:
      x: a tensor.
      indices_or_sections: how many equal parts, or where they begin.
      axis: the dimension.

    Example:
      >>> from meshflow.keras import ops
      >>> [p.numpy().tolist() for p in ops.split(ops.arange(5), [1, 3])]
      [[0], [1, 2], [3, 4]]
    """
    x = tensor(x)
    if isinstance(indices_or_sections, int):
        size = x.shape[axis]
        if indices_or_sections < 1:
            raise InvalidValueError(f"split: expected at least 1 part, got {indices_or_sections}.")
        if size is not None and size % indices_or_sections:
            raise InvalidValueError(
                f"split: a dimension of {size} has no {indices_or_sections} equal parts; array_split makes "
                "unequal ones."
            )
        return list(array_ops.split(x, indices_or_sections, axis))
    return _split_at(x, [int(i) for i in indices_or_sections], axis)


def _split_at(x: Any, places: list[int], axis: int) -> list[Any]:
    size = x.shape[axis]
    edges = [0, *(builtins.min(p % size if p < 0 else p, size) for p in places), size]
    return list(array_ops.split(x, [b - a for a, b in itertools.pairwise(edges)], axis))


@one_layer()
def array_split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Parts along a dimension, the first ones longer by one where they cannot be equal.

    Args:
      x: a tensor.
      indices_or_sections: how many parts, or where they begin.
      axis: the dimension.

    Example:
      >>> from meshflow.keras import ops
      >>> [p.numpy().tolist() for p in ops.array_split(ops.arange(5), 2)]
      [[0, 1, 2], [3, 4]]
    """
    x = tensor(x)
    if not isinstance(indices_or_sections, int):
        return split(x, indices_or_sections, axis)
    length, longer = divmod(x.shape[axis], indices_or_sections)
    sizes = [length + (i < longer) for i in builtins.range(indices_or_sections)]
    return list(array_ops.split(x, sizes, axis))


def vsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Parts along the first dimension.

    Args:
      x: a tensor.
      indices_or_sections: as in `split`.

    Example:
      >>> from meshflow.keras import ops
      >>> len(ops.vsplit(ops.zeros([4, 2]), 2))
      2
    """
    return split(x, indices_or_sections, 0)


def hsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Parts along the second dimension, of a row along its only one.

    Args:
      x: a tensor.
      indices_or_sections: as in `split`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.hsplit(ops.zeros([4, 2]), 2)[0].shape
      TensorShape([4, 1])
    """
    x = tensor(x)
    return split(x, indices_or_sections, 0 if len(x.shape) == 1 else 1)


def dsplit(x: TensorLike, indices_or_sections: Any) -> list[Tensor]:
    """Parts along the third dimension.

    Args:
      x: a tensor.
      indices_or_sections: as in `split`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.dsplit(ops.zeros([1, 1, 4]), 2)[0].shape
      TensorShape([1, 1, 2])
    """
    return split(x, indices_or_sections, 2)


def repeat(x: TensorLike, repeats: Any, axis: int | None = None) -> Tensor:
    """Each element several times.

    Args:
      x: a tensor.
      repeats: how often: one number, or one of each.
      axis: the dimension; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.repeat([1, 2], 2).numpy().tolist()
      [1, 1, 2, 2]
    """
    return array_ops.repeat(tensor(x), repeats, axis)


def tile(x: TensorLike, repeats: Any) -> Tensor:
    """The tensor several times along dimensions.

    Args:
      x: a tensor.
      repeats: how often along each of the last dimensions.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.tile([1, 2], 2).numpy().tolist()
      [1, 2, 1, 2]
    """
    x = tensor(x)
    times = [repeats] if isinstance(repeats, int) else list(repeats)
    rank = len(x.shape)
    times = [1] * (rank - len(times)) + times
    if len(times) > rank:
        x = reshape(x, [1] * (len(times) - rank) + [-1 if s is None else s for s in x.shape])
    return array_ops.tile(x, times)


@one_layer()
def pad(
    x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: Any = None
) -> Tensor:
    """More elements around.

    Args:
      x: a tensor.
      pad_width: how many before and after, for each dimension or for all.
      mode: 'constant', 'reflect' or 'symmetric'.
      constant_values: the element of mode 'constant'; default 0.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.pad([1, 2], 1).numpy().tolist()
      [0, 1, 2, 0]
    """
    x = tensor(x)
    if constant_values is not None and mode != "constant":
        raise ValueError(
            f"Argument `constant_values` can only be provided when `mode == 'constant'`. Received: mode={mode}"
        )
    pairs = np.broadcast_to(np.asarray(pad_width, int), (len(x.shape), 2)).tolist()
    return array_ops.pad(x, pairs, mode.upper(), 0 if constant_values is None else constant_values)
