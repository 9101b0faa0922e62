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
from meshflow.numpy.jnp_wrappers import wrap_jnp
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
transpose = permute_dims = wrap_jnp(jnp.transpose)
matrix_transpose = wrap_jnp(jnp.matrix_transpose)
swapaxes = wrap_jnp(jnp.swapaxes)
moveaxis = wrap_jnp(jnp.moveaxis)
rollaxis = wrap_jnp(jnp.rollaxis)
expand_dims = wrap_jnp(jnp.expand_dims)
squeeze = wrap_jnp(jnp.squeeze)
atleast_1d = wrap_jnp(jnp.atleast_1d, apart=["arys"])
atleast_2d = wrap_jnp(jnp.atleast_2d, apart=["arys"])
atleast_3d = wrap_jnp(jnp.atleast_3d, apart=["arys"])
flip = wrap_jnp(jnp.flip)
fliplr = wrap_jnp(jnp.fliplr)
flipud = wrap_jnp(jnp.flipud)
rot90 = wrap_jnp(jnp.rot90)
roll = wrap_jnp(jnp.roll, operands=["shift"])

# Shapes
ravel = flatten = wrap_jnp(jnp.ravel)
_reshape = wrap_jnp(jnp.reshape, "reshape", static=["shape"])
resize = wrap_jnp(jnp.resize)
broadcast_to = wrap_jnp(jnp.broadcast_to)
broadcast_arrays = wrap_jnp(jnp.broadcast_arrays, apart=["args"])

# Joining and splitting
concatenate = concat = wrap_jnp(jnp.concatenate, weak=False)
stack = wrap_jnp(jnp.stack, weak=False)
hstack = wrap_jnp(jnp.hstack, weak=False)
vstack = wrap_jnp(jnp.vstack, weak=False)
dstack = wrap_jnp(jnp.dstack, weak=False)
column_stack = wrap_jnp(jnp.column_stack, weak=False)
append = wrap_jnp(jnp.append, weak=False)
insert = wrap_jnp(jnp.insert, weak=False)
split = wrap_jnp(jnp.split)
array_split = wrap_jnp(jnp.array_split)
hsplit = wrap_jnp(jnp.hsplit)
vsplit = wrap_jnp(jnp.vsplit)
dsplit = wrap_jnp(jnp.dsplit)
unstack = wrap_jnp(jnp.unstack)

# Repeating
tile = wrap_jnp(jnp.tile)
_repeat = wrap_jnp(jnp.repeat, "repeat")


@op(name="pad")
def _pad(array: TensorLike, pad_width: Any, mode: str, options: Any) -> Any:
    return jnp.pad(array, pad_width, mode, **dict(options))


# Picking
_take = wrap_jnp(jnp.take, "take")
take_along_axis = wrap_jnp(jnp.take_along_axis, static=["mode"])
_choose = wrap_jnp(jnp.choose, "choose", apart=["a"])
select = wrap_jnp(jnp.select)
_searchsorted = wrap_jnp(jnp.searchsorted, "searchsorted", apart=["sorter"], differentiable=False)
_digitize = wrap_jnp(jnp.digitize, "digitize", operands=["bins"], differentiable=False)
isin = wrap_jnp(jnp.isin, differentiable=False)

# Diagonals and triangles
diag = wrap_jnp(jnp.diag)
diagflat = wrap_jnp(jnp.diagflat)
diagonal = wrap_jnp(jnp.diagonal)
tril = wrap_jnp(jnp.tril)
triu = wrap_jnp(jnp.triu)

# Sorting
_sort = wrap_jnp(jnp.sort, "sort")
_argsort = wrap_jnp(jnp.argsort, "argsort", differentiable=False)
sort_complex = wrap_jnp(jnp.sort_complex)
partition = wrap_jnp(jnp.partition, static=["kth"])
argpartition = wrap_jnp(jnp.argpartition, static=["kth"], differentiable=False)
lexsort = wrap_jnp(jnp.lexsort, differentiable=False)

# Bits in bytes, places in shapes
packbits = wrap_jnp(jnp.packbits, differentiable=False)
unpackbits = wrap_jnp(jnp.unpackbits, differentiable=False)
unravel_index = wrap_jnp(jnp.unravel_index, differentiable=False)


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
