"""Functions that move elements: shapes, axes, joining, splitting, picking, sorting."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.indexing import check_positions
from meshflow.numpy import inspection as sizes
from meshflow.numpy.conversion import asarray
from meshflow.numpy.jnp_wrappers import of_jax
from meshflow.ops.math import cast

__all__ = [
    *(
        "append",
        "argpartition",
        "argsort",
        "array_split",
        "atleast_1d",
        "atleast_2d",
    ),
    *(
        "atleast_3d",
        "broadcast_arrays",
        "broadcast_to",
        "choose",
        "column_stack",
        "concat",
    ),
    *(
        "concatenate",
        "delete",
        "diag",
        "diagflat",
        "diagonal",
        "digitize",
        "dsplit",
        "dstack",
    ),
    *(
        "expand_dims",
        "flatten",
        "flip",
        "fliplr",
        "flipud",
        "hsplit",
        "hstack",
        "insert",
        "isin",
    ),
    *(
        "lexsort",
        "matrix_transpose",
        "moveaxis",
        "packbits",
        "pad",
        "partition",
        "permute_dims",
    ),
    *(
        "ravel",
        "repeat",
        "reshape",
        "resize",
        "roll",
        "rollaxis",
        "rot90",
        "searchsorted",
    ),
    *(
        "select",
        "sort",
        "sort_complex",
        "split",
        "squeeze",
        "stack",
        "swapaxes",
        "take",
    ),
    *(
        "take_along_axis",
        "tile",
        "transpose",
        "tril",
        "triu",
        "unpackbits",
        "unravel_index",
    ),
    *(
        "unstack",
        "vsplit",
        "vstack",
    ),
]

# Axes
transpose = permute_dims = of_jax(jnp.transpose)
matrix_transpose = of_jax(jnp.matrix_transpose)
swapaxes = of_jax(jnp.swapaxes)
moveaxis = of_jax(jnp.moveaxis)
rollaxis = of_jax(jnp.rollaxis)
expand_dims = of_jax(jnp.expand_dims)
squeeze = of_jax(jnp.squeeze)
atleast_1d = of_jax(jnp.atleast_1d, apart=["arys"])
atleast_2d = of_jax(jnp.atleast_2d, apart=["arys"])
atleast_3d = of_jax(jnp.atleast_3d, apart=["arys"])
flip = of_jax(jnp.flip)
fliplr = of_jax(jnp.fliplr)
flipud = of_jax(jnp.flipud)
rot90 = of_jax(jnp.rot90)
roll = of_jax(jnp.roll, operands=["shift"])

# Shapes
ravel = flatten = of_jax(jnp.ravel)
_reshape = of_jax(jnp.reshape, "reshape", static=["shape"])
resize = of_jax(jnp.resize)
broadcast_to = of_jax(jnp.broadcast_to)
broadcast_arrays = of_jax(jnp.broadcast_arrays, apart=["args"])

# Joining and splitting
concatenate = concat = of_jax(jnp.concatenate, weak=False)
stack = of_jax(jnp.stack, weak=False)
hstack = of_jax(jnp.hstack, weak=False)
vstack = of_jax(jnp.vstack, weak=False)
dstack = of_jax(jnp.dstack, weak=False)
column_stack = of_jax(jnp.column_stack, weak=False)
append = of_jax(jnp.append, weak=False)
insert = of_jax(jnp.insert, weak=False)
split = of_jax(jnp.split)
array_split = of_jax(jnp.array_split)
hsplit = of_jax(jnp.hsplit)
vsplit = of_jax(jnp.vsplit)
dsplit = of_jax(jnp.dsplit)
unstack = of_jax(jnp.unstack)

# Repeating
tile = of_jax(jnp.tile)
_repeat = of_jax(jnp.repeat, "repeat")


@op(name="pad")
def _pad(array: TensorLike, pad_width: Any, mode: str, options: Any) -> Any:
    return jnp.pad(array, pad_width, mode, **dict(options))


# Picking
_take = of_jax(jnp.take, "take")
take_along_axis = of_jax(jnp.take_along_axis, static=["mode"])
_choose = of_jax(jnp.choose, "choose", apart=["a"])
select = of_jax(jnp.select)
_searchsorted = of_jax(jnp.searchsorted, "searchsorted", apart=["sorter"], differentiable=False)
_digitize = of_jax(jnp.digitize, "digitize", operands=["bins"], differentiable=False)
isin = of_jax(jnp.isin, differentiable=False)

# Diagonals and triangles
diag = of_jax(jnp.diag)
diagflat = of_jax(jnp.diagflat)
diagonal = of_jax(jnp.diagonal)
tril = of_jax(jnp.tril)
triu = of_jax(jnp.triu)

# Sorting
_sort = of_jax(jnp.sort, "sort")
_argsort = of_jax(jnp.argsort, "argsort", differentiable=False)
sort_complex = of_jax(jnp.sort_complex)
partition = of_jax(jnp.partition, static=["kth"])
argpartition = of_jax(jnp.argpartition, static=["kth"], differentiable=False)
lexsort = of_jax(jnp.lexsort, differentiable=False)

# Bits in bytes, places in shapes
packbits = of_jax(jnp.packbits, differentiable=False)
unpackbits = of_jax(jnp.unpackbits, differentiable=False)
unravel_index = of_jax(jnp.unravel_index, differentiable=False)


def reshape(a: TensorLike, newshape: Any, order: str = "C") -> Tensor:
    """The same elements in another shape.

    Args:
      a: what `asarray` takes.
      newshape: an int or ints, one of which may be -1: what is left.
      order: 'C', the last index fastest, or 'F', the first.

    Returns:
      A tensor.

    Raises:
      ValueError: when the number of elements does not fit.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.reshape([1, 2, 3, 4], (2, 2), order="F").numpy()
      array([[1, 3],
             [2, 4]])
    """
    return _reshape(a, newshape, order=order)


def pad(array: TensorLike, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Tensor:
    """An array with elements around it.

    Args:
      array: what `asarray` takes.
      pad_width: how many before and after: pairs per axis, one pair, or one int for all.
      mode: 'constant', 'reflect', 'symmetric', 'edge', 'wrap' and others of NumPy.
      **kwargs: `constant_values`, `end_values`, `stat_length`, `reflect_type` as in NumPy.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.pad([1, 2], 1, "constant", constant_values=7).numpy()
      array([7, 1, 2, 7])
    """
    return _pad(asarray(array), pad_width, mode, tuple(kwargs.items()))


def repeat(a: TensorLike, repeats: Any, axis: int | None = None) -> Tensor:
    """Each element, or each slice along an axis, several times.

    Args:
      a: what `asarray` takes.
      repeats: how often: an int, or one for each, whose values are known.
      axis: the axis; by default `a` is taken flat.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.repeat([7, 8], [1, 2]).numpy()
      array([7, 8, 8])
    """
    counts = static_value(repeats, "repeats")
    if isinstance(counts, int):
        return _repeat(a, counts, axis)
    tensor = ravel(a) if axis is None else asarray(a)
    along = tensor.shape[axis or 0]
    return take(tensor, np.repeat(np.arange(along), counts), axis or 0)


def delete(arr: TensorLike, obj: Any, axis: int | None = None) -> Tensor:
    """An array without some elements, or without some slices along an axis.

    Args:
      arr: what `asarray` takes.
      obj: a position, a slice, positions or a mask, of known values.
      axis: the axis; by default `arr` is taken flat.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.delete([4, 5, 6], [0, 2]).numpy()
      array([5])
    """
    tensor = ravel(arr) if axis is None else asarray(arr)
    along = np.arange(tensor.shape[axis or 0])
    gone = obj if isinstance(obj, slice) else np.asarray(asarray(obj)._concrete("what to delete"))
    return take(tensor, np.delete(along, gone), axis or 0)


def choose(a: TensorLike, choices: Any, out: None = None, mode: str = "raise") -> Tensor:
    """Elements of several arrays, the one that `a` says at each place.

    Args:
      a: integers, which of `choices`.
      choices: arrays of shapes that broadcast with `a`.
      out: must be None.
      mode: what numbers outside mean: 'raise', 'wrap' or 'clip'. Numbers that are only known when a
        traced function runs are not checked.

    Returns:
      A tensor.

    Raises:
      InvalidArgumentError: with `mode='raise'` for a number outside.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.choose([1, 0], [[1, 2], [3, 4]]).numpy()
      array([3, 2])
    """
    if mode == "raise":
        check_positions(asarray(a), len(choices), 0)
        mode = "clip"
    return _choose(a, choices, out=out, mode=mode)


def searchsorted(a: TensorLike, v: TensorLike, side: str = "left") -> Tensor:
    """Where elements would be put in a sorted vector.

    Args:
      a: a sorted vector.
      v: elements.
      side: 'left' before equal elements, 'right' behind.

    Returns:
      An int64 tensor of the shape of `v`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.searchsorted([1, 2, 4], [0, 3]).numpy()
      array([0, 2])
    """
    return cast(_searchsorted(a, v, side), int64)


def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """The bins that elements lie in; see `numpy.digitize`.

    Returns:
      An int64 tensor of the shape of `x`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.digitize([0.5, 2.5], [1, 2]).numpy()
      array([0, 2])
    """
    return cast(_digitize(x, bins, right), int64)


def take(
    a: TensorLike,
    indices: TensorLike,
    axis: int | None = None,
    out: None = None,
    mode: str = "clip",
) -> Tensor:
    """The elements at positions along an axis.

    Args:
      a: what `asarray` takes.
      indices: integers of any shape.
      axis: the axis; by default positions count in the flat array.
      out: must be None.
      mode: what positions outside mean: 'clip' the nearest inside, 'wrap' around, 'fill' NaN.
        'raise' raises when the positions are known.

    Returns:
      A tensor with the shape of `indices` in place of the axis.

    Raises:
      InvalidArgumentError: with `mode='raise'` for a position outside.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.take([10, 20, 30], [0, 5]).numpy()
      array([10, 30])
    """
    if mode == "raise":
        size = sizes.size(a, axis)
        check_positions(asarray(indices), size, axis or 0)
        mode = "wrap"
    return _take(a, indices, axis=axis, out=out, mode=mode)


def sort(
    a: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None
) -> Tensor:
    """Elements in ascending order along an axis.

    Args:
      a: what `asarray` takes.
      axis: the axis; None sorts the flat array.
      kind: accepted for NumPy's sake: every sort is stable.
      order: must be None, as there are no records.

    Returns:
      A tensor.

    Raises:
      ValueError: when `order` is given.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.sort([3, 1, 2]).numpy()
      array([1, 2, 3])
    """
    _check_sort("sort", kind, order)
    return _sort(a, axis)


def argsort(
    a: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None
) -> Tensor:
    """The positions of elements in ascending order along an axis; see `sort`.

    Returns:
      An int64 tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.argsort([3, 1, 2]).numpy()
      array([1, 2, 0])
    """
    _check_sort("argsort", kind, order)
    return _argsort(a, axis)


def _check_sort(name: str, kind: Any, order: Any) -> None:
    if kind not in (None, "quicksort", "stable", "mergesort", "heapsort"):
        raise ValueError(f"tnp.{name}: unknown kind {kind!r}. Leave it out: every sort is stable.")
    if order is not None:
        raise ValueError(f"tnp.{name}: `order` needs records, which tensors are not. Leave it out.")
