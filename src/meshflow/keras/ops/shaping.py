"""What moves elements, and gives them other dimensions.

Example:
  >>> from meshflow.keras import ops
  >>> ops.rearrange(ops.zeros([2, 6]), "b (h w) -> h b w", w=3).shape
  TensorShape([2, 2, 3])
"""

from __future__ import annotations

import builtins
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import tensor
from meshflow.ops import array as array_ops
from meshflow.ops.array.shaping import axis_within

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


def reshape(x: TensorLike, newshape: Any) -> Tensor:
    """The elements in another shape.

    Args:
      x: a tensor.
      newshape: the shape; one size may be -1.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.reshape([[1, 2], [3, 4]], -1).numpy().tolist()
      [1, 2, 3, 4]
    """
    if isinstance(newshape, (tuple, list)):
        newshape = [-1 if s is None else s for s in newshape]
    return array_ops.reshape(tensor(x), [newshape] if isinstance(newshape, int) else newshape)


def ravel(x: TensorLike) -> Tensor:
    """The elements in a row.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ravel([[1, 2]]).numpy().tolist()
      [1, 2]
    """
    return reshape(x, -1)


def transpose(x: TensorLike, axes: Any = None) -> Tensor:
    """The dimensions in another order.

    Args:
      x: a tensor.
      axes: the order; default reversed.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.transpose([[1, 2]]).numpy().tolist()
      [[1], [2]]
    """
    return array_ops.transpose(tensor(x), axes)


def moveaxis(x: TensorLike, source: Any, destination: Any) -> Tensor:
    """Dimensions moved elsewhere.

    Args:
      x: a tensor.
      source: the dimension or dimensions.
      destination: where each goes.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.moveaxis(ops.zeros([2, 3, 4]), 0, -1).shape
      TensorShape([3, 4, 2])
    """
    x = tensor(x)
    rank = len(x.shape)
    sources, places = (
        [
            axis_within(axis, rank, "moveaxis")
            for axis in ([given] if isinstance(given, int) else given)
        ]
        for given in (source, destination)
    )
    order = [i for i in builtins.range(rank) if i not in sources]
    for place, moved in sorted(zip(places, sources, strict=True)):
        order.insert(place, moved)
    return array_ops.transpose(x, order)


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Two dimensions in each other's place.

    Args:
      x: a tensor.
      axis1: one.
      axis2: the other.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.swapaxes(ops.zeros([2, 3, 4]), 0, 2).shape
      TensorShape([4, 3, 2])
    """
    x = tensor(x)
    order = list(builtins.range(len(x.shape)))
    one, other = (axis_within(axis, len(order), "swapaxes") for axis in (axis1, axis2))
    order[one], order[other] = other, one
    return array_ops.transpose(x, order)


def expand_dims(x: TensorLike, axis: Any) -> Tensor:
    """New dimensions of size 1.

    Args:
      x: a tensor.
      axis: where, in the result; several are given as a tuple.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.expand_dims([1, 2], 0).shape
      TensorShape([1, 2])
    """
    x = tensor(x)
    if isinstance(axis, int):
        return array_ops.expand_dims(x, axis)
    rank = len(x.shape) + len(axis)
    for place in sorted(a % rank for a in axis):
        x = array_ops.expand_dims(x, place)
    return x


def squeeze(x: TensorLike, axis: Any = None) -> Tensor:
    """Without dimensions of size 1.

    Args:
      x: a tensor.
      axis: which; default all of them.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.squeeze([[1, 2]]).shape
      TensorShape([2])
    """
    return array_ops.squeeze(tensor(x), list(axis) if isinstance(axis, tuple) else axis)


@one_layer()
def broadcast_to(x: TensorLike, shape: Any) -> Tensor:
    """Repeated where sizes are 1, to a shape.

    Args:
      x: a tensor.
      shape: the shape.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.broadcast_to([1, 2], [2, 2]).numpy().tolist()
      [[1, 2], [1, 2]]
    """
    return array_ops.broadcast_to(tensor(x), shape)


@op(same=(), name="flip")
def _flip(x: TensorLike, axis: Any) -> Any:
    return jnp.flip(x, axis)


@one_layer()
def flip(x: TensorLike, axis: Any = None) -> Tensor:
    """Backwards along dimensions.

    Args:
      x: a tensor.
      axis: the dimension or dimensions; None for all.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.flip([1, 2, 3]).numpy().tolist()
      [3, 2, 1]
    """
    return _flip(tensor(x), axis)


def fliplr(x: TensorLike) -> Tensor:
    """Backwards along the second dimension.

    Args:
      x: a tensor of rank 2 or more.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.fliplr([[1, 2]]).numpy().tolist()
      [[2, 1]]
    """
    return flip(x, 1)


def flipud(x: TensorLike) -> Tensor:
    """Backwards along the first dimension.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.flipud([1, 2]).numpy().tolist()
      [2, 1]
    """
    return flip(x, 0)


@op(same=(), name="rot90")
def _rot90(x: TensorLike, k: int, axes: Any) -> Any:
    return jnp.rot90(x, k, axes)


@one_layer()
def rot90(array: TensorLike, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """Turned by right angles, from the first of two dimensions towards the second.

    Args:
      array: a tensor of rank 2 or more.
      k: how often.
      axes: the two dimensions.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.rot90([[1, 2], [3, 4]]).numpy().tolist()
      [[2, 4], [1, 3]]
    """
    array = tensor(array)
    if len(array.shape) < 2:
        raise ValueError(
            f"Input array must have at least 2 dimensions. Received: array.ndim={len(array.shape)}"
        )
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ValueError(f"Invalid axes: {axes}. Axes must be a tuple of two different dimensions.")
    return _rot90(array, k, tuple(axes))


@op(same=(), name="roll")
def _roll(x: TensorLike, shift: Any, axis: Any) -> Any:
    return jnp.roll(x, shift, axis)


@one_layer()
def roll(x: TensorLike, shift: Any, axis: Any = None) -> Tensor:
    """Moved along dimensions; what leaves at one end comes in at the other.

    Args:
      x: a tensor.
      shift: how far.
      axis: the dimension or dimensions; None for all elements in a row.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.roll([1, 2, 3], 1).numpy().tolist()
      [3, 1, 2]
    """
    return _roll(tensor(x), shift, axis)


def rearrange(tensor: TensorLike, pattern: str, **axes_lengths: int) -> Tensor:
    """Dimensions named by a pattern, moved, joined and split (einops' notation).

    Args:
      tensor: a tensor.
      pattern: such as 'b (h p) c -> b h (p c)'.
      **axes_lengths: sizes of names that the tensor's shape does not give.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.rearrange(ops.zeros([2, 6]), "b (h w) -> h b w", w=3).shape
      TensorShape([2, 2, 3])
    """
    return _rearranged(tensor, pattern, axes_lengths)


def _groups(side: str) -> list[list[str]]:
    """Names of a side of a pattern, a list for each dimension."""
    found: list[list[str]] = []
    inside = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            found.append([])
            inside = True
        elif word == ")":
            inside = False
        elif inside:
            found[-1].append(word)
        else:
            found.append([word] if word != "1" else [])
    return found


def _rearranged(x: Any, pattern: str, lengths: dict[str, int]) -> Any:
    if pattern.count("->") != 1:
        raise ValueError(f"rearrange: a pattern has one '->', got {pattern!r}.")
    x = tensor(x)
    before, after = (_groups(side) for side in pattern.split("->"))
    names, wanted = (list(itertools.chain(*side)) for side in (before, after))
    if (
        sorted(names) != sorted(wanted)
        or len(set(names)) < len(names)
        or len(before) != len(x.shape)
    ):
        raise ValueError(
            f"rearrange: both sides of {pattern!r} must have the same names, each once, and the left one a group "
            f"for each of the {len(x.shape)} dimensions of a tensor of shape {tuple(x.shape)}."
        )
    sizes = dict(lengths)
    for group, size in zip(before, x.shape, strict=True):
        open_names = [n for n in group if n not in sizes]
        if len(open_names) > 1:
            raise ValueError(
                f"rearrange: {pattern!r} needs the sizes of all but one of {open_names}."
            )
        if open_names and size is not None:
            sizes[open_names[0]] = size // int(
                np.prod([sizes[n] for n in group if n in sizes], dtype=int)
            )
    x = reshape(x, [sizes.get(n, -1) for n in names])
    x = array_ops.transpose(x, [names.index(n) for n in wanted])
    # A size that is not known stays open once.
    product = lambda group: (
        -1
        if any(n not in sizes for n in group)
        else int(np.prod([sizes[n] for n in group], dtype=int))
    )
    return reshape(x, [product(group) for group in after])
