"""`tf.sparse`: sparse tensors to and from dense ones; joined and cut in ops/sparse_elements.py."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops.sparse_elements import *  # noqa: F403
from meshflow.ops.sparse_elements import __all__ as _elements

__all__ = [
    *_elements,
    "SparseTensor",
    "expand_dims",
    "eye",
    "from_dense",
    "mask",
    "reduce_max",
    "reduce_sum",
    "reorder",
    "reshape",
    "sparse_dense_matmul",
    "to_dense",
    "transpose",
]


def to_dense(
    sp_input: SparseTensor,
    default_value: Any = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """The whole tensor.

    Args:
      sp_input: a sparse tensor.
      default_value: value of the other elements; default 0.
      validate_indices: whether indices are checked; those of traced functions are not.
      name: ignored.

    Returns:
      A tensor.

    Raises:
      InvalidArgumentError: for indices that are out of bounds, out of order or repeated.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor(indices=[[0, 1], [1, 0]], values=[5, 6], dense_shape=[2, 2])
      >>> print(tf.sparse.to_dense(a, default_value=-1).numpy())
      [[-1  5]
       [ 6 -1]]
    """
    shape = sp_input.shape.as_list()
    if validate_indices and not isinstance(sp_input.indices._value, jax.core.Tracer):
        _check_places(np.asarray(sp_input.indices._value), shape)
    if default_value is None:
        empty = array.zeros(shape, sp_input.dtype)
    else:
        empty = array.fill(shape, convert_to_tensor(default_value, dtype=sp_input.dtype))
    return array.tensor_scatter_nd_update(empty, sp_input.indices, sp_input.values)


def _check_places(places: np.ndarray, shape: list[int]) -> None:
    if not len(places):
        return
    flat = np.ravel_multi_index(tuple(places.T), shape, mode="clip") if shape else np.zeros(1, int)
    outside = np.any((places < 0) | (places >= shape), axis=1)
    unsorted: np.ndarray = np.diff(flat, prepend=-1) <= 0
    for i in np.flatnonzero(outside | unsorted)[:1]:
        place = f"indices[{i}] = [{','.join(map(str, places[i]))}]"
        if outside[i]:
            bounds = ",".join(map(str, shape))
            raise InvalidArgumentError(f"{place} is out of bounds: need 0 <= index < [{bounds}]")
        if np.array_equal(places[i], places[i - 1]):
            raise InvalidArgumentError(f"{place} is repeated")
        raise InvalidArgumentError(
            f"{place} is out of order. Many sparse ops require sorted indices.\n"
            "    Use `tf.sparse.reorder` to create a correctly ordered copy."
        )


def from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """The nonzero elements of a tensor whose values are known.

    Args:
      tensor: a tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[0, 5], [6, 0]])
      >>> a.indices.numpy().tolist(), a.values.numpy().tolist()
      ([[0, 1], [1, 0]], [5, 6])
    """
    tensor = convert_to_tensor(tensor)
    known = tensor._concrete("a tensor to be made sparse (its result's shape depends on it)")
    places = np.argwhere(known != (b"" if known.dtype == object else 0)).astype(np.int64)
    return SparseTensor(places, array.gather_nd(tensor, places), tensor.shape.as_list())


def sparse_dense_matmul(
    sp_a: Any,
    b: Any,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """The matrix product, computed densely.

    Args:
      sp_a: a matrix, of the two one is sparse.
      b: a matrix.
      adjoint_a: whether the adjoint of sp_a is taken.
      adjoint_b: whether the adjoint of b is taken.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
      >>> print(tf.sparse.sparse_dense_matmul(a, [[1.0], [10.0]]).numpy())
      [[20.]
       [ 3.]]
    """
    a, b = (to_dense(v) if isinstance(v, SparseTensor) else v for v in (sp_a, b))
    return math.matmul(a, b, adjoint_a=adjoint_a, adjoint_b=adjoint_b)


def reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor | SparseTensor:
    """Sums over dimensions.

    Args:
      sp_input: a sparse tensor.
      axis: the dimensions; default all.
      keepdims: whether they stay, with size 1.
      output_is_sparse: whether the result is sparse.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.sparse.reduce_sum(tf.sparse.from_dense([[1, 0, 2], [0, 3, 0]]), axis=1).numpy())
      [3 3]
    """
    found = math.reduce_sum(to_dense(sp_input), axis, bool(keepdims))
    return from_dense(found) if output_is_sparse else found


def reduce_max(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor | SparseTensor:
    """Largest stored elements over dimensions; 0 where there is none.

    Args:
      sp_input: a sparse tensor.
      axis: the dimensions; default all.
      keepdims: whether they stay, with size 1.
      output_is_sparse: whether the result is sparse.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.sparse.reduce_max(tf.sparse.from_dense([[1, 0, 2], [0, -3, 0]]), axis=1).numpy())
      [ 2 -3]
    """
    kind = sp_input.dtype
    found = math.reduce_max(to_dense(sp_input, kind.min), axis, bool(keepdims))
    stored = to_dense(sp_input.with_values(array.ones_like(sp_input.values)))
    anything = math.reduce_max(stored, axis, bool(keepdims)) > 0
    found = array.where(anything, found, array.zeros_like(found))
    return from_dense(found) if output_is_sparse else found


def reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The elements in the order of their coordinates, the last dimension running fastest.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[1, 0], [0, 1]], [6, 5], [2, 2])
      >>> print(tf.sparse.reorder(a).values.numpy())
      [5 6]
    """
    order = np.lexsort(sp_input.indices.numpy().T[::-1])
    return _taken(sp_input, sp_input.indices.numpy(), order, sp_input.shape.as_list())


def _taken(
    sp_input: SparseTensor, places: np.ndarray, order: np.ndarray, shape: Any
) -> SparseTensor:
    return SparseTensor(places[order], array.gather(sp_input.values, order), shape)


def transpose(sp_input: SparseTensor, perm: Any = None, name: str | None = None) -> SparseTensor:
    """Permutes dimensions; default reverses them.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 2, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.transpose(a)).numpy().tolist())
      [[1], [2], [0]]
    """
    places = sp_input.indices.numpy()
    rank = places.shape[1]
    perm = list(range(rank))[::-1] if perm is None else [int(p) for p in perm]
    moved = places[:, perm]
    shape = [sp_input.shape.as_list()[p] for p in perm]
    return _taken(sp_input, moved, np.lexsort(moved.T[::-1]), shape)


def reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """The same elements in another shape, of which one size may be -1.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 0], [0, 2]])
      >>> print(tf.sparse.to_dense(tf.sparse.reshape(a, [-1])).numpy())
      [1 0 0 2]
    """
    old = sp_input.shape.as_list()
    new = [int(s) for s in np.asarray(convert_to_tensor(shape)._value)]
    if -1 in new:
        rest = -int(np.prod(new))
        new[new.index(-1)] = int(np.prod(old)) // max(rest, 1)
    if int(np.prod(new)) != int(np.prod(old)):
        raise InvalidValueError(
            f"tf.sparse.reshape: a tensor of shape {old} does not fit into {new}."
        )
    flat = np.ravel_multi_index(tuple(sp_input.indices.numpy().T), old)
    places = np.stack(np.unravel_index(flat, new), 1).astype(np.int64)
    return SparseTensor(places, sp_input.values, new)


def expand_dims(sp_input: SparseTensor, axis: Any = None, name: str | None = None) -> SparseTensor:
    """Adds a dimension of size 1; default last.

    Example:
      >>> import meshflow as tf
      >>> tf.sparse.expand_dims(tf.sparse.from_dense([1, 0]), axis=0).shape
      TensorShape([1, 2])
    """
    shape = sp_input.shape.as_list()
    axis = -1 if axis is None else int(axis)
    axis = axis if axis >= 0 else len(shape) + 1 + axis
    places = np.insert(sp_input.indices.numpy(), axis, 0, axis=1)
    return SparseTensor(places, sp_input.values, [*shape[:axis], 1, *shape[axis:]])


def eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = "float32", name: str | None = None
) -> SparseTensor:
    """A sparse identity matrix.

    Example:
      >>> import meshflow as tf
      >>> print(tf.sparse.to_dense(tf.sparse.eye(2, 3)).numpy())
      [[1. 0. 0.]
       [0. 1. 0.]]
    """
    columns = num_rows if num_columns is None else num_columns
    places = np.arange(min(num_rows, columns), dtype=np.int64)
    return SparseTensor(
        np.stack([places, places], 1), array.ones([len(places)], dtype), [num_rows, columns]
    )


def mask(a: IndexedSlices, mask_indices: TensorLike, name: str | None = None) -> IndexedSlices:
    """`tf.IndexedSlices` without some of their rows.

    Args:
      a: indexed slices.
      mask_indices: numbers of the rows to leave out.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([4, 7, 9]))
      >>> left = tf.sparse.mask(rows, [7])
      >>> left.indices.numpy().tolist(), left.values.numpy().tolist()
      ([4, 9], [[1.0], [3.0]])
    """
    numbers = a.indices.numpy()
    kept = np.flatnonzero(~np.isin(numbers, np.asarray(convert_to_tensor(mask_indices)._value)))
    return IndexedSlices(array.gather(a.values, kept), numbers[kept], a.dense_shape)
