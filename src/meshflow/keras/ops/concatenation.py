"""Functions that join, split, repeat and pad tensors.

Example:
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
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Sizes, as_tensor, promote
from meshflow.keras.ops.shape_ops import ravel, reshape
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
    """Concatenate tensors along an axis.

    Args:
      xs: The tensors.
      axis: The axis; None to flatten the tensors first.

    Example:
      >>> ops.concatenate([[1], [2.5]]).numpy().tolist()
      [1.0, 2.5]
    """
    tensors = promote(*xs)
    if axis is None:
        tensors, axis = [ravel(x) for x in tensors], 0
    return array_ops.concat(tensors, axis)


def append(x1: TensorLike, x2: TensorLike, axis: int | None = None) -> Tensor:
    """Append one tensor to another.

    Args:
      x1: The first tensor.
      x2: The second tensor.
      axis: The axis; None to flatten the tensors first.

    Example:
      >>> ops.append([1, 2], [[3]]).numpy().tolist()
      [1, 2, 3]
    """
    return concatenate([as_tensor(x1), as_tensor(x2)], axis)


def stack(x: Sequence[Any], axis: int = 0) -> Tensor:
    """Stack tensors of one shape along a new axis.

    Args:
      x: The tensors.
      axis: Position of the new axis.

    Example:
      >>> ops.stack([[1, 2], [3, 4]], axis=1).numpy().tolist()
      [[1, 3], [2, 4]]
    """
    return array_ops.stack(promote(*x), axis)


def vstack(xs: Sequence[Any]) -> Tensor:
    """Stack vectors or matrices vertically.

    Args:
      xs: The tensors.

    Example:
      >>> ops.vstack([[1, 2], [3, 4]]).shape
      TensorShape([2, 2])
    """
    return concatenate([_expand_to_rank(x, 2) for x in xs], 0)


def hstack(xs: Sequence[Any]) -> Tensor:
    """Concatenate vectors, or stack matrices horizontally.

    Args:
      xs: The tensors.

    Example:
      >>> ops.hstack([[1, 2], [3]]).numpy().tolist()
      [1, 2, 3]
    """
    tensors = [_expand_to_rank(x, 1) for x in xs]
    return concatenate(tensors, 0 if len(tensors[0].shape) == 1 else 1)


def dstack(xs: Sequence[Any]) -> Tensor:
    """Stack matrices along the third axis.

    Args:
      xs: The tensors.

    Example:
      >>> ops.dstack([[1, 2], [3, 4]]).numpy().tolist()
      [[[1, 3], [2, 4]]]
    """
    return concatenate([_expand_to_rank(x, 3) for x in xs], 2)


def _expand_to_rank(x: TensorLike, rank: int) -> Tensor:
    x = as_tensor(x)
    current_rank = len(x.shape)
    if current_rank < rank:
        x = reshape(
            x, {1: [1], 2: [1, -1], 3: [1, -1, 1]}[rank] if current_rank < 2 else [*x.shape, 1]
        )
    return x


def split(x: TensorLike, indices_or_sections: Sizes, axis: int = 0) -> list[Tensor]:
    """Split a tensor along an axis.

    Args:
      x: A tensor.
      indices_or_sections: Number of equal parts, or start indices of the parts after the first.
      axis: The axis.

    Example:
      >>> [p.numpy().tolist() for p in ops.split(ops.arange(5), [1, 3])]
      [[0], [1, 2], [3, 4]]
    """
    x = as_tensor(x)
    if isinstance(indices_or_sections, int):
        size = x.shape[axis]
        if indices_or_sections < 1:
            raise InvalidValueError(
                f"split: expected a positive number of parts, got {indices_or_sections}."
            )
        if size is not None and size % indices_or_sections:
            raise InvalidValueError(
                f"split: the axis size {size} is not divisible by {indices_or_sections}. Use array_split for parts of "
                "different sizes."
            )
        return list(array_ops.split(x, indices_or_sections, axis))
    return _split_at(x, [int(i) for i in indices_or_sections], axis)


def _split_at(x: Tensor, indices: list[int], axis: int) -> list[Tensor]:
    size = x.shape[axis]
    edges = [0, *(builtins.min(i % size if i < 0 else i, size) for i in indices), size]
    return list(array_ops.split(x, [b - a for a, b in itertools.pairwise(edges)], axis))


@as_single_layer()
def array_split(x: TensorLike, indices_or_sections: Sizes, axis: int = 0) -> list[Tensor]:
    """Split a tensor along an axis; the first parts are longer by one if the sizes differ.

    Args:
      x: A tensor.
      indices_or_sections: Number of parts, or start indices of the parts after the first.
      axis: The axis.

    Example:
      >>> [p.numpy().tolist() for p in ops.array_split(ops.arange(5), 2)]
      [[0, 1, 2], [3, 4]]
    """
    x = as_tensor(x)
    if not isinstance(indices_or_sections, int):
        return split(x, indices_or_sections, axis)
    length, remainder = divmod(x.shape[axis], indices_or_sections)
    sizes = [length + (i < remainder) for i in builtins.range(indices_or_sections)]
    return list(array_ops.split(x, sizes, axis))


def vsplit(x: TensorLike, indices_or_sections: Sizes) -> list[Tensor]:
    """Split a tensor along the first axis.

    Args:
      x: A tensor.
      indices_or_sections: See `split`.

    Example:
      >>> len(ops.vsplit(ops.zeros([4, 2]), 2))
      2
    """
    return split(x, indices_or_sections, 0)


def hsplit(x: TensorLike, indices_or_sections: Sizes) -> list[Tensor]:
    """Split a tensor along the second axis, or a vector along its only axis.

    Args:
      x: A tensor.
      indices_or_sections: See `split`.

    Example:
      >>> ops.hsplit(ops.zeros([4, 2]), 2)[0].shape
      TensorShape([4, 1])
    """
    x = as_tensor(x)
    return split(x, indices_or_sections, 0 if len(x.shape) == 1 else 1)


def dsplit(x: TensorLike, indices_or_sections: Sizes) -> list[Tensor]:
    """Split a tensor along the third axis.

    Args:
      x: A tensor.
      indices_or_sections: See `split`.

    Example:
      >>> ops.dsplit(ops.zeros([1, 1, 4]), 2)[0].shape
      TensorShape([1, 1, 2])
    """
    return split(x, indices_or_sections, 2)


def repeat(x: TensorLike, repeats: TensorLike, axis: int | None = None) -> Tensor:
    """Repeat each element.

    Args:
      x: A tensor.
      repeats: Number of repetitions, for all elements or for each.
      axis: The axis; None for the flattened tensor.

    Example:
      >>> ops.repeat([1, 2], 2).numpy().tolist()
      [1, 1, 2, 2]
    """
    return array_ops.repeat(as_tensor(x), repeats, axis)


def tile(x: TensorLike, repeats: Sizes) -> Tensor:
    """Repeat the tensor along its axes.

    Args:
      x: A tensor.
      repeats: Number of repetitions along each of the last axes.

    Example:
      >>> ops.tile([1, 2], 2).numpy().tolist()
      [1, 2, 1, 2]
    """
    x = as_tensor(x)
    multiples = [repeats] if isinstance(repeats, int) else list(repeats)
    rank = len(x.shape)
    multiples = [1] * (rank - len(multiples)) + multiples
    if len(multiples) > rank:
        x = reshape(x, [1] * (len(multiples) - rank) + [-1 if s is None else s for s in x.shape])
    return array_ops.tile(x, multiples)


@as_single_layer()
def pad(
    x: TensorLike,
    pad_width: int | Sequence[Any],
    mode: str = "constant",
    constant_values: float | None = None,
) -> Tensor:
    """Pad a tensor.

    Args:
      x: A tensor.
      pad_width: Number of elements before and after, for each axis or for all.
      mode: 'constant', 'reflect' or 'symmetric'.
      constant_values: Value of the padding in mode 'constant'; default 0.

    Example:
      >>> ops.pad([1, 2], 1).numpy().tolist()
      [0, 1, 2, 0]
    """
    x = as_tensor(x)
    if constant_values is not None and mode != "constant":
        raise ValueError(
            f"Argument `constant_values` can only be provided when `mode == 'constant'`. Received: mode={mode}"
        )
    pairs = np.broadcast_to(np.asarray(pad_width, int), (len(x.shape), 2)).tolist()
    return array_ops.pad(x, pairs, mode.upper(), 0 if constant_values is None else constant_values)
