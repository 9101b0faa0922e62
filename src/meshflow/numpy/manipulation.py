"""Functions that move elements: reshaping, joining, splitting, indexing and sorting."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.dtypes import int64
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.indexing import check_indices
from meshflow.numpy import inspection as sizes
from meshflow.numpy.conversion import asarray
from meshflow.numpy.jnp_wrappers import wrap_jnp
from meshflow.ops.math import cast

__all__ = [
    *("append", "argpartition", "argsort", "array_split", "atleast_1d", "atleast_2d", "atleast_3d"),
    *("broadcast_arrays", "broadcast_to", "choose", "column_stack", "concat", "concatenate"),
    *("delete", "diag", "diagflat", "diagonal", "digitize", "dsplit", "dstack", "expand_dims"),
    *("flatten", "flip", "fliplr", "flipud", "hsplit", "hstack", "insert", "isin", "lexsort"),
    *("matrix_transpose", "moveaxis", "packbits", "pad", "partition", "permute_dims", "ravel"),
    *("repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "searchsorted", "select", "sort"),
    *("sort_complex", "split", "squeeze", "stack", "swapaxes", "take", "take_along_axis", "tile"),
    *("transpose", "tril", "triu", "unpackbits", "unravel_index", "unstack", "vsplit", "vstack"),
]

# Axes.
transpose = permute_dims = wrap_jnp(jnp.transpose)
matrix_transpose = wrap_jnp(jnp.matrix_transpose)
swapaxes = wrap_jnp(jnp.swapaxes)
moveaxis = wrap_jnp(jnp.moveaxis)
rollaxis = wrap_jnp(jnp.rollaxis)
expand_dims = wrap_jnp(jnp.expand_dims)
squeeze = wrap_jnp(jnp.squeeze)
atleast_1d = wrap_jnp(jnp.atleast_1d, excluded=["arys"])
atleast_2d = wrap_jnp(jnp.atleast_2d, excluded=["arys"])
atleast_3d = wrap_jnp(jnp.atleast_3d, excluded=["arys"])
flip = wrap_jnp(jnp.flip)
fliplr = wrap_jnp(jnp.fliplr)
flipud = wrap_jnp(jnp.flipud)
rot90 = wrap_jnp(jnp.rot90)
roll = wrap_jnp(jnp.roll, operands=["shift"])

# Shapes.
ravel = flatten = wrap_jnp(jnp.ravel)
_reshape = wrap_jnp(jnp.reshape, "reshape", static=["shape"])
resize = wrap_jnp(jnp.resize)
broadcast_to = wrap_jnp(jnp.broadcast_to)
broadcast_arrays = wrap_jnp(jnp.broadcast_arrays, excluded=["args"])

# Joining and splitting.
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

# Repetition.
tile = wrap_jnp(jnp.tile)
_repeat = wrap_jnp(jnp.repeat, "repeat")


@op(name="pad")
def _pad(array: TensorLike, pad_width: Any, mode: str, options: Any) -> Any:
    return jnp.pad(array, pad_width, mode, **dict(options))


# Indexing.
_take = wrap_jnp(jnp.take, "take")
take_along_axis = wrap_jnp(jnp.take_along_axis, static=["mode"])
_choose = wrap_jnp(jnp.choose, "choose", excluded=["a"])
select = wrap_jnp(jnp.select)
_searchsorted = wrap_jnp(
    jnp.searchsorted, "searchsorted", excluded=["sorter"], differentiable=False
)
_digitize = wrap_jnp(jnp.digitize, "digitize", operands=["bins"], differentiable=False)
isin = wrap_jnp(jnp.isin, differentiable=False)

# Diagonals and triangles.
diag = wrap_jnp(jnp.diag)
diagflat = wrap_jnp(jnp.diagflat)
diagonal = wrap_jnp(jnp.diagonal)
tril = wrap_jnp(jnp.tril)
triu = wrap_jnp(jnp.triu)

# Sorting.
_sort = wrap_jnp(jnp.sort, "sort")
_argsort = wrap_jnp(jnp.argsort, "argsort", differentiable=False)
sort_complex = wrap_jnp(jnp.sort_complex)
partition = wrap_jnp(jnp.partition, static=["kth"])
argpartition = wrap_jnp(jnp.argpartition, static=["kth"], differentiable=False)
lexsort = wrap_jnp(jnp.lexsort, differentiable=False)

# Bits of bytes, and multi-dimensional indices.
packbits = wrap_jnp(jnp.packbits, differentiable=False)
unpackbits = wrap_jnp(jnp.unpackbits, differentiable=False)
unravel_index = wrap_jnp(jnp.unravel_index, differentiable=False)


def reshape(a: TensorLike, newshape: ShapeLike, order: str = "C") -> Tensor:
    """Reshape an array.

    Args:
      a: Array-like value.
      newshape: Integer or sequence of integers, one of which may be -1 to be inferred.
      order: 'C' for the last index fastest, or 'F' for the first.

    Raises:
      ValueError: If the number of elements differs.

    Example:
      >>> tnp.reshape([1, 2, 3, 4], (2, 2), order="F").numpy()
      array([[1, 3],
             [2, 4]])
    """
    return _reshape(a, newshape, order=order)


def pad(array: TensorLike, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Tensor:
    """Pad an array.

    Args:
      array: Array-like value.
      pad_width: Number of elements before and after: a pair for each axis, one pair, or one
        integer.
      mode: 'constant', 'reflect', 'symmetric', 'edge', 'wrap' or another mode of NumPy.
      **kwargs: `constant_values`, `end_values`, `stat_length`, `reflect_type` as in NumPy.

    Example:
      >>> tnp.pad([1, 2], 1, "constant", constant_values=7).numpy()
      array([7, 1, 2, 7])
    """
    return _pad(asarray(array), pad_width, mode, tuple(kwargs.items()))


def repeat(a: TensorLike, repeats: Any, axis: int | None = None) -> Tensor:
    """Repeat each element, or each slice along an axis.

    Args:
      a: Array-like value.
      repeats: Number of repetitions: an integer, or known integers for each element.
      axis: Axis; by default `a` is flattened.

    Example:
      >>> tnp.repeat([7, 8], [1, 2]).numpy()
      array([7, 8, 8])
    """
    counts = to_static_value(repeats, "repeats")
    if isinstance(counts, int):
        return _repeat(a, counts, axis)
    tensor = ravel(a) if axis is None else asarray(a)
    size = tensor.shape[axis or 0]
    return take(tensor, np.repeat(np.arange(size), counts), axis or 0)


def delete(arr: TensorLike, obj: Any, axis: int | None = None) -> Tensor:
    """Delete elements, or slices along an axis.

    Args:
      arr: Array-like value.
      obj: Index, slice, indices or mask, with known values.
      axis: Axis; by default `arr` is flattened.

    Example:
      >>> tnp.delete([4, 5, 6], [0, 2]).numpy()
      array([5])
    """
    tensor = ravel(arr) if axis is None else asarray(arr)
    indices = np.arange(tensor.shape[axis or 0])
    deleted = (
        obj if isinstance(obj, slice) else np.asarray(asarray(obj).require_value("what to delete"))
    )
    return take(tensor, np.delete(indices, deleted), axis or 0)


def choose(a: TensorLike, choices: Any, out: None = None, mode: str = "raise") -> Tensor:
    """Select elements from several arrays by the integers in `a`.

    Args:
      a: Indices into `choices`.
      choices: Arrays of shapes that broadcast with `a`.
      out: Must be None.
      mode: How to treat indices out of range: 'raise', 'wrap' or 'clip'. Indices that are only
        known when a traced function runs are not checked.

    Raises:
      InvalidArgumentError: If an index is out of range and `mode` is 'raise'.

    Example:
      >>> tnp.choose([1, 0], [[1, 2], [3, 4]]).numpy()
      array([3, 2])
    """
    if mode == "raise":
        check_indices(asarray(a), len(choices), 0)
        mode = "clip"
    return _choose(a, choices, out=out, mode=mode)


def searchsorted(a: TensorLike, v: TensorLike, side: str = "left") -> Tensor:
    """Find the indices at which elements would be inserted into a sorted vector.

    Args:
      a: Sorted vector.
      v: Elements.
      side: 'left' to insert before equal elements, 'right' to insert after them.

    Returns:
      An int64 tensor of the shape of `v`.

    Example:
      >>> tnp.searchsorted([1, 2, 4], [0, 3]).numpy()
      array([0, 2])
    """
    return cast(_searchsorted(a, v, side), int64)


def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """Find the bins of elements; see `numpy.digitize`.

    Returns:
      An int64 tensor of the shape of `x`.

    Example:
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
    """Take elements along an axis by their indices.

    Args:
      a: Array-like value.
      indices: Integers of any shape.
      axis: Axis; by default `a` is flattened.
      out: Must be None.
      mode: How to treat indices out of range: 'clip' takes the nearest element, 'wrap' wraps
        around, 'fill' returns NaN, 'raise' raises an error if the indices are known.

    Returns:
      A tensor with the shape of `indices` in place of the axis.

    Raises:
      InvalidArgumentError: If an index is out of range and `mode` is 'raise'.

    Example:
      >>> tnp.take([10, 20, 30], [0, 5]).numpy()
      array([10, 30])
    """
    if mode == "raise":
        size: Any = sizes.size(a, axis)
        check_indices(asarray(indices), size, axis or 0)
        mode = "wrap"
    return _take(a, indices, axis=axis, out=out, mode=mode)


def sort(
    a: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None
) -> Tensor:
    """Sort elements in ascending order along an axis.

    Args:
      a: Array-like value.
      axis: Axis; None sorts the flattened array.
      kind: Ignored; every sort is stable.
      order: Must be None, because records are not supported.

    Raises:
      ValueError: If `order` is passed.

    Example:
      >>> tnp.sort([3, 1, 2]).numpy()
      array([1, 2, 3])
    """
    _check_sort_arguments("sort", kind, order)
    return _sort(a, axis)


def argsort(
    a: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None
) -> Tensor:
    """Return int64 indices that sort the elements along an axis; see `sort`.

    Example:
      >>> tnp.argsort([3, 1, 2]).numpy()
      array([1, 2, 0])
    """
    _check_sort_arguments("argsort", kind, order)
    return _argsort(a, axis)


def _check_sort_arguments(name: str, kind: str | None, order: object) -> None:
    if kind not in (None, "quicksort", "stable", "mergesort", "heapsort"):
        raise ValueError(f"tnp.{name}: unknown kind {kind!r}. Omit it: every sort is stable.")
    if order is not None:
        raise ValueError(f"tnp.{name}: `order` is not supported, because tensors are not records.")
