"""Functions that move elements and change shapes.

Example:
  >>> ops.rearrange(ops.zeros([2, 6]), "b (h w) -> h b w", w=3).shape
  TensorShape([2, 2, 3])
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import array_op
from meshflow.keras.ops.promotion import Axis, Sizes, as_tensor
from meshflow.ops import array as array_ops
from meshflow.ops.array.shaping import normalize_axis

__all__ = [
    "broadcast_to",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "moveaxis",
    "ravel",
    "rearrange",
    "reshape",
    "roll",
    "rot90",
    "squeeze",
    "swapaxes",
    "transpose",
]


def reshape(x: TensorLike, newshape: int | Sequence[int | None]) -> Tensor:
    """Change the shape of a tensor.

    Args:
      x: A tensor.
      newshape: The new shape; one size may be -1.

    Example:
      >>> ops.reshape([[1, 2], [3, 4]], -1).numpy().tolist()
      [1, 2, 3, 4]
    """
    if isinstance(newshape, (tuple, list)):
        newshape = [-1 if s is None else s for s in newshape]
    return array_ops.reshape(as_tensor(x), [newshape] if isinstance(newshape, int) else newshape)


def ravel(x: TensorLike) -> Tensor:
    """Flatten a tensor.

    Args:
      x: A tensor.

    Example:
      >>> ops.ravel([[1, 2]]).numpy().tolist()
      [1, 2]
    """
    return reshape(x, -1)


def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes.

    Args:
      x: A tensor.
      axes: New order of the axes; default reversed.

    Example:
      >>> ops.transpose([[1, 2]]).numpy().tolist()
      [[1], [2]]
    """
    return array_ops.transpose(as_tensor(x), axes)


def moveaxis(x: TensorLike, source: Sizes, destination: Sizes) -> Tensor:
    """Move axes to new positions.

    Args:
      x: A tensor.
      source: Axis or axes to move.
      destination: New position of each axis.

    Example:
      >>> ops.moveaxis(ops.zeros([2, 3, 4]), 0, -1).shape
      TensorShape([3, 4, 2])
    """
    x = as_tensor(x)
    rank = len(x.shape)
    sources, destinations = (
        [normalize_axis(a, rank, "moveaxis") for a in ([axes] if isinstance(axes, int) else axes)]
        for axes in (source, destination)
    )
    order = [i for i in builtins.range(rank) if i not in sources]
    for new_axis, old_axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(new_axis, old_axis)
    return array_ops.transpose(x, order)


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Swap two axes.

    Args:
      x: A tensor.
      axis1: First axis.
      axis2: Second axis.

    Example:
      >>> ops.swapaxes(ops.zeros([2, 3, 4]), 0, 2).shape
      TensorShape([4, 3, 2])
    """
    x = as_tensor(x)
    order = list(builtins.range(len(x.shape)))
    first, second = (normalize_axis(axis, len(order), "swapaxes") for axis in (axis1, axis2))
    order[first], order[second] = second, first
    return array_ops.transpose(x, order)


def expand_dims(x: TensorLike, axis: Sizes) -> Tensor:
    """Insert axes of size 1.

    Args:
      x: A tensor.
      axis: Position or positions in the result.

    Example:
      >>> ops.expand_dims([1, 2], 0).shape
      TensorShape([1, 2])
    """
    x = as_tensor(x)
    if isinstance(axis, int):
        return array_ops.expand_dims(x, axis)
    rank = len(x.shape) + len(axis)
    for position in sorted(a % rank for a in axis):
        x = array_ops.expand_dims(x, position)
    return x


def squeeze(x: TensorLike, axis: Axis = None) -> Tensor:
    """Remove axes of size 1.

    Args:
      x: A tensor.
      axis: Axis or axes to remove; default all of size 1.

    Example:
      >>> ops.squeeze([[1, 2]]).shape
      TensorShape([2])
    """
    return array_ops.squeeze(as_tensor(x), list(axis) if isinstance(axis, tuple) else axis)


@as_single_layer()
def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Broadcast a tensor to a shape.

    Args:
      x: A tensor.
      shape: The shape.

    Example:
      >>> ops.broadcast_to([1, 2], [2, 2]).numpy().tolist()
      [[1, 2], [1, 2]]
    """
    return array_ops.broadcast_to(as_tensor(x), shape)


@array_op()
def flip(x: TensorLike, axis: Axis = None) -> Tensor:
    """Reverse the order of elements along axes.

    Args:
      x: A tensor.
      axis: Axis or axes; None for all.

    Example:
      >>> ops.flip([1, 2, 3]).numpy().tolist()
      [3, 2, 1]
    """
    return jnp.flip(x, axis)


def fliplr(x: TensorLike) -> Tensor:
    """Reverse the order of elements along the second axis.

    Args:
      x: A tensor of rank 2 or more.

    Example:
      >>> ops.fliplr([[1, 2]]).numpy().tolist()
      [[2, 1]]
    """
    return flip(x, 1)


def flipud(x: TensorLike) -> Tensor:
    """Reverse the order of elements along the first axis.

    Args:
      x: A tensor.

    Example:
      >>> ops.flipud([1, 2]).numpy().tolist()
      [2, 1]
    """
    return flip(x, 0)


@op(same=(), name="rot90")
def _rot90(x: TensorLike, k: int, axes: Any) -> Any:
    return jnp.rot90(x, k, axes)


@as_single_layer()
def rot90(array: TensorLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate a tensor by 90 degrees in a plane of two axes, from the first towards the second.

    Args:
      array: A tensor of rank 2 or more.
      k: Number of rotations.
      axes: The two axes.

    Example:
      >>> ops.rot90([[1, 2], [3, 4]]).numpy().tolist()
      [[2, 4], [1, 3]]
    """
    array = as_tensor(array)
    if len(array.shape) < 2:
        raise ValueError(
            f"Input array must have at least 2 dimensions. Received: array.ndim={len(array.shape)}"
        )
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ValueError(f"Invalid axes: {axes}. Axes must be a tuple of two different dimensions.")
    return _rot90(array, k, tuple(axes))


@array_op()
def roll(x: TensorLike, shift: Sizes, axis: Axis = None) -> Tensor:
    """Shift elements cyclically.

    Args:
      x: A tensor.
      shift: Number of positions.
      axis: Axis or axes; None for the flattened tensor.

    Example:
      >>> ops.roll([1, 2, 3], 1).numpy().tolist()
      [3, 1, 2]
    """
    return jnp.roll(x, shift, axis)


def rearrange(tensor: TensorLike, pattern: str, **axes_lengths: int) -> Tensor:
    """Permute, merge and split axes by a pattern (einops' notation).

    Args:
      tensor: A tensor.
      pattern: Pattern of axis names, for example 'b (h p) c -> b h (p c)'.
      **axes_lengths: Sizes of axes that do not follow from the tensor's shape.

    Example:
      >>> ops.rearrange(ops.zeros([2, 6]), "b (h w) -> h b w", w=3).shape
      TensorShape([2, 2, 3])
    """
    return _rearrange(tensor, pattern, axes_lengths)


def _parse_groups(side: str) -> list[list[str]]:
    """Parse one side of a pattern into a list of names for each axis."""
    groups: list[list[str]] = []
    in_group = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            groups.append([])
            in_group = True
        elif word == ")":
            in_group = False
        elif in_group:
            groups[-1].append(word)
        else:
            groups.append([word] if word != "1" else [])
    return groups


def _rearrange(x: TensorLike, pattern: str, lengths: dict[str, int]) -> Tensor:
    if pattern.count("->") != 1:
        raise ValueError(f"rearrange: a pattern must contain one '->', got {pattern!r}.")
    x = as_tensor(x)
    before, after = (_parse_groups(side) for side in pattern.split("->"))
    names, new_names = (list(itertools.chain(*side)) for side in (before, after))
    if (
        sorted(names) != sorted(new_names)
        or len(set(names)) < len(names)
        or len(before) != len(x.shape)
    ):
        raise ValueError(
            f"rearrange: both sides of {pattern!r} must contain the same names, each once, and the left side must have "
            f"one group for each of the {len(x.shape)} axes of a tensor of shape {tuple(x.shape)}."
        )
    sizes = dict(lengths)
    for group, size in zip(before, x.shape, strict=True):
        open_names = [n for n in group if n not in sizes]
        if len(open_names) > 1:
            raise ValueError(
                f"rearrange: {pattern!r} requires the sizes of all but one of {open_names}. Pass them as keywords."
            )
        if open_names and size is not None:
            sizes[open_names[0]] = size // int(
                np.prod([sizes[n] for n in group if n in sizes], dtype=int)
            )
    x = reshape(x, [sizes.get(n, -1) for n in names])
    x = array_ops.transpose(x, [names.index(n) for n in new_names])
    # A reshape can infer one unknown size.
    product = lambda group: (
        -1
        if any(n not in sizes for n in group)
        else int(np.prod([sizes[n] for n in group], dtype=int))
    )
    return reshape(x, [product(group) for group in after])
