"""What moves, joins, splits and repeats elements.

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

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.promotion import common, tensor
from meshflow.ops import array as array_ops

__all__ = [
    "append",
    "array_split",
    "broadcast_to",
    "concatenate",
    "dsplit",
    "dstack",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "moveaxis",
    "pad",
    "ravel",
    "rearrange",
    "repeat",
    "reshape",
    "roll",
    "rot90",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "transpose",
    "vsplit",
    "vstack",
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
    sources = [s % rank for s in ([source] if isinstance(source, int) else source)]
    places = [d % rank for d in ([destination] if isinstance(destination, int) else destination)]
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
    order[axis1], order[axis2] = order[axis2], order[axis1]
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


@op(same=(), name="flip")
def _flip(x: TensorLike, axis: Any) -> Any:
    return jnp.flip(x, axis)


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
