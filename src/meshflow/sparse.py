"""`tf.sparse`: conversion, reduction and rearrangement of sparse tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, SparseTensorValue
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.bounds_checks import is_padding
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host, host_function
from meshflow.environment.types import PyTree
from meshflow.ops import array, math, strings
from meshflow.ops.array.shaping import normalize_axis
from meshflow.ops.coordinates import (
    INVALID,
    add_elements,
    get_sizes_list,
    has_static_indices,
    make_sparse,
    map_indices,
    multiply_elements,
    reduce_elements,
    sort_elements,
    unique_rows,
)
from meshflow.ops.deferred_host_values import FullSparseVector
from meshflow.ops.ragged import crosses
from meshflow.ops.ragged.crosses import join_crosses
from meshflow.ops.sparse_elements import *  # noqa: F403
from meshflow.ops.sparse_elements import __all__ as _elements
from meshflow.ops.sparse_elements import check_sparse

__all__ = [
    *_elements,
    "SparseTensor",
    "cross",
    "cross_hashed",
    "eye",
    "from_dense",
    "mask",
    "reduce_max",
    "reduce_sum",
    "reorder",
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
    """Convert a sparse tensor to a dense one.

    Args:
      sp_input: A sparse tensor.
      default_value: Value of the elements that are not stored; default 0.
      validate_indices: Whether to check the order of the indices; it is not checked in compiled functions.
      name: Ignored.

    Raises:
      InvalidArgumentError: Indices are out of bounds, out of order or repeated.

    Example:
      >>> a = tf.SparseTensor(indices=[[0, 1], [1, 0]], values=[5, 6], dense_shape=[2, 2])
      >>> print(tf.sparse.to_dense(a, default_value=-1).numpy())
      [[-1  5]
       [ 6 -1]]
    """
    check_sparse(sp_input, "sp_input")
    if isinstance(sp_input, FullSparseVector) or (
        default_value is None and _is_full_vector(sp_input)
    ):
        return sp_input.values
    indices = sp_input.check_indices() if validate_indices else sp_input.check_indices(INVALID)
    if validate_indices and has_static_indices(sp_input):
        _check_order(np.asarray(indices.array))
    shape = sp_input.dense_shape
    if sp_input.dtype is string:
        like, default = array.zeros(shape, int64), "" if default_value is None else default_value
        return strings.place_strings(sp_input.values, indices, like, default)
    if default_value is None:
        empty = array.zeros(shape, sp_input.dtype)
    else:
        empty = array.fill(shape, convert_to_tensor(default_value, dtype=sp_input.dtype))
    return add_elements(empty, indices, sp_input.values, True)


def _is_full_vector(sp_input: SparseTensor) -> bool:
    """Check whether a sparse tensor stores all elements of a vector in order, as variable-length features do."""
    parts = sp_input.indices, sp_input.dense_shape
    # Placeholders of traces that determine shapes have no values.
    indices, shape = (getattr(part, "_value", None) for part in parts)
    if type(indices) is not np.ndarray or type(shape) is not np.ndarray or shape.shape != (1,):
        return False
    return len(indices) == shape[0] and bool((indices[:, 0] == np.arange(shape[0])).all())


def _check_order(indices: np.ndarray) -> None:
    # The first coordinate that differs from that of the index before.
    first = np.zeros(max(len(indices) - 1, 0), int)
    for column in np.diff(indices, axis=0).T:
        first = np.where(first == 0, column, first)
    for i in np.flatnonzero(first <= 0)[:1] + 1:
        location = f"indices[{i}] = [{','.join(map(str, indices[i]))}]"
        if np.array_equal(indices[i], indices[i - 1]):
            raise InvalidArgumentError(f"{location} is repeated")
        raise InvalidArgumentError(
            f"{location} is out of order. Many sparse ops require sorted indices.\n"
            "    Use `tf.sparse.reorder` to create a correctly ordered copy."
        )


def from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """Convert a tensor with known values to a sparse tensor of its nonzero elements.

    Args:
      tensor: A tensor.
      name: Ignored.

    Example:
      >>> a = tf.sparse.from_dense([[0, 5], [6, 0]])
      >>> a.indices.numpy().tolist(), a.values.numpy().tolist()
      ([[0, 1], [1, 0]], [5, 6])
    """
    tensor = convert_to_tensor(tensor)
    if not tensor.ndim:
        raise InvalidValueError("tf.sparse.from_dense: the tensor must have at least rank 1.")
    indices = array.where(tensor)
    values = array.gather_nd(tensor, indices)
    return SparseTensor(indices, values, array.shape(tensor, int64))


def sparse_dense_matmul(
    sp_a: Any,
    b: Any,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute a matrix product in which one or both matrices are sparse.

    Only stored elements are multiplied, so NaN and Inf do not spread through zeros. Indices may be
    unsorted and repeated. If both matrices are sparse, the right one is converted to a dense one.

    Args:
      sp_a: The left matrix.
      b: The right matrix.
      adjoint_a: Whether to use the adjoint of `sp_a`.
      adjoint_b: Whether to use the adjoint of `b`.
      name: Ignored.

    Raises:
      InvalidArgumentError: Indices are out of bounds.

    Example:
      >>> a = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
      >>> print(tf.sparse.sparse_dense_matmul(a, [[1.0], [10.0]]).numpy())
      [[20.]
       [ 3.]]
    """
    if isinstance(b, SparseTensor) and not isinstance(sp_a, SparseTensor):
        product = sparse_dense_matmul(b, sp_a, not adjoint_b, not adjoint_a)
        return array.transpose(product)
    if isinstance(b, SparseTensor):
        b = to_dense(b)
    if not isinstance(sp_a, SparseTensor):
        return math.matmul(sp_a, b, adjoint_a=adjoint_a, adjoint_b=adjoint_b)
    if not hasattr(b, "_keras_history"):
        b = convert_to_tensor(b, dtype=sp_a.dtype)
    are_matrices = len(sp_a.shape) == len(b.shape) == 2
    inner = sp_a.shape[0 if adjoint_a else 1] if are_matrices else None
    if not are_matrices or not TensorShape([inner]).is_compatible_with([b.shape[bool(adjoint_b)]]):
        raise InvalidValueError(
            f"Matrix size-incompatible: matrices of shapes {sp_a.shape} and {b.shape} cannot be multiplied with "
            f"adjoint_a={adjoint_a} and adjoint_b={adjoint_b}."
        )
    if adjoint_b:
        b = array.transpose(b, conjugate=True)
    return multiply_elements(sp_a, b, adjoint_a)


@overload
def reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: Literal[False] = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    *,
    output_is_sparse: Literal[True],
    name: str | None = None,
) -> SparseTensor: ...
def reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor | SparseTensor:
    """Sum a sparse tensor over axes.

    Args:
      sp_input: A sparse tensor.
      axis: Axes to reduce; default all.
      keepdims: Whether to keep reduced axes with size 1.
      output_is_sparse: Whether to return a sparse tensor.
      name: Ignored.

    Example:
      >>> print(tf.sparse.reduce_sum(tf.sparse.from_dense([[1, 0, 2], [0, 3, 0]]), axis=1).numpy())
      [3 3]
    """
    return _reduce(sp_input, axis, keepdims, output_is_sparse, "sum")


def _reduce(
    sparse: SparseTensor, axis: Any, keepdims: bool | None, is_sparse: bool, reduction: str
) -> Tensor | SparseTensor:
    sizes = get_sizes_list(sparse)
    rank = len(sizes)
    axes = to_static_value(axis, "axis")
    if axes is None:
        axes = tuple(range(rank))
    name = f"sparse.reduce_{reduction}"
    axes = [normalize_axis(a, rank, name) for a in (axes if isinstance(axes, tuple) else (axes,))]
    kept = tuple(d for d in range(rank) if d not in axes)
    shape = tuple(1 if d in axes else n for d, n in enumerate(sizes) if keepdims or d not in axes)
    if not is_sparse:
        message = "Obtained a write index of {item} which is outside of bounds of [0, {bound})"
        # Indices along the other axes have no effect.
        limits = np.iinfo(np.int64)
        lower = tuple(0 if d in kept else limits.min for d in range(rank))
        upper = tuple(n if d in kept else limits.max for d, n in enumerate(sizes))
        checked = sparse.check_indices(message, lower=lower, upper=upper, error="InternalError")
        return reduce_elements(checked, sparse.values, tuple(sizes), kept, shape, reduction)
    find = functools.partial(_group_elements, kept, bool(keepdims))
    results: list[Result] = [((None, len(shape)), np.int64), (sparse.values.array.shape, np.int64)]
    operands = [sparse.indices, sparse.dense_shape]
    rows, owner = compute_on_host(find, operands, results, f"indices of tf.{name}")
    count = rows.array.shape[0]
    owner = array.reshape(owner, [-1, 1])
    values = reduce_elements(owner, sparse.values, (count,), (0,), (count,), reduction)
    return make_sparse(rows, values, shape)


@host_function
def _group_elements(
    axes: Sequence[int], keeps_rank: bool, indices: np.ndarray, dense_shape: np.ndarray
) -> list[np.ndarray]:
    """Return the different indices along some axes, and for each element the index of its own among them."""
    stored = ~is_padding(indices, dense_shape)[:, 0]
    rows, owner = unique_rows(indices[:, axes][stored])
    owners = np.full(len(indices), -1)
    owners[stored] = owner
    if not keeps_rank:
        return [rows, owners]
    full_rows = np.zeros((len(rows), indices.shape[1]), np.int64)
    full_rows[:, axes] = rows
    return [full_rows, owners]


@overload
def reduce_max(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: Literal[False] = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def reduce_max(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    *,
    output_is_sparse: Literal[True],
    name: str | None = None,
) -> SparseTensor: ...
def reduce_max(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor | SparseTensor:
    """Compute the maximum of the stored elements over axes; 0 if there are none.

    Args:
      sp_input: A sparse tensor.
      axis: Axes to reduce; default all.
      keepdims: Whether to keep reduced axes with size 1.
      output_is_sparse: Whether to return a sparse tensor.
      name: Ignored.

    Example:
      >>> print(tf.sparse.reduce_max(tf.sparse.from_dense([[1, 0, 2], [0, -3, 0]]), axis=1).numpy())
      [ 2 -3]
    """
    return _reduce(sp_input, axis, keepdims, output_is_sparse, "max")


def reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Sort the elements of a sparse tensor in row-major order of their indices.

    Example:
      >>> a = tf.SparseTensor([[1, 0], [0, 1]], [6, 5], [2, 2])
      >>> print(tf.sparse.reorder(a).values.numpy())
      [5 6]
    """
    check_sparse(sp_input, "sp_input")
    return sort_elements(sp_input.indices, sp_input.values, get_sizes_list(sp_input))


def transpose(sp_input: SparseTensor, perm: Any = None, name: str | None = None) -> SparseTensor:
    """Permute the axes of a sparse tensor; by default, reverse them.

    Example:
      >>> a = tf.sparse.from_dense([[1, 2, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.transpose(a)).numpy().tolist())
      [[1], [2], [0]]
    """
    sizes = get_sizes_list(sp_input)
    axes = range(len(sizes))
    perm = axes[::-1] if perm is None else [int(p) for p in perm]
    if sorted(perm) != list(axes):
        raise InvalidValueError(
            f"tf.sparse.transpose: perm must be a permutation of {list(axes)}, got {perm}."
        )
    indices = map_indices(lambda xp, i: i[:, np.array(perm, np.int64)], sp_input.indices)
    shape = [sizes[p] for p in perm]
    return sort_elements(indices, sp_input.values, shape)


def eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = "float32", name: str | None = None
) -> SparseTensor:
    """Create a sparse identity matrix.

    Example:
      >>> print(tf.sparse.to_dense(tf.sparse.eye(2, 3)).numpy())
      [[1. 0. 0.]
       [0. 1. 0.]]
    """
    columns = num_rows if num_columns is None else num_columns
    if min(num_rows, columns) < 0:
        raise InvalidValueError(
            f"tf.sparse.eye: sizes must not be negative, got {num_rows} and {columns}."
        )
    diagonal = np.arange(min(num_rows, columns), dtype=np.int64)
    return SparseTensor(
        np.stack([diagonal, diagonal], 1), array.ones([len(diagonal)], dtype), [num_rows, columns]
    )


def mask(a: IndexedSlices, mask_indices: TensorLike, name: str | None = None) -> IndexedSlices:
    """Remove rows from a `tf.IndexedSlices`.

    Args:
      a: Indexed slices.
      mask_indices: Indices of the rows to remove.
      name: Ignored.

    Example:
      >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([4, 7, 9]))
      >>> left = tf.sparse.mask(rows, [7])
      >>> left.indices.numpy().tolist(), left.values.numpy().tolist()
      ([4, 9], [[1.0], [3.0]])
    """
    indices = a.indices.require_value("indices of tf.sparse.mask")
    rows = np.flatnonzero(~np.isin(indices, np.asarray(convert_to_tensor(mask_indices).array)))
    return IndexedSlices(array.gather(a.values, rows), indices[rows], a.dense_shape)


def cross(
    inputs: Sequence[TensorLike | SparseTensor],
    name: str | None = None,
    separator: str | None = None,
) -> SparseTensor:
    """Return the combinations of the values in each row, joined to strings.

    Args:
      inputs: Sparse or dense matrices of strings or integers, with the same number of rows.
      name: Ignored.
      separator: Text between the values; default "_X_".

    Example:
      >>> crossed = tf.sparse.cross([tf.constant([["a"], ["b"]]), tf.constant([["c", "d"], ["e", "f"]])])
      >>> crossed.values.numpy().tolist()
      [b'a_X_c', b'a_X_d', b'b_X_e', b'b_X_f']
    """
    joined = join_crosses("tf.sparse.cross", inputs, "_X_" if separator is None else separator)
    return joined.to_sparse()


def cross_hashed(
    inputs: Sequence[TensorLike | SparseTensor],
    num_buckets: int = 0,
    hash_key: int | None = None,
    name: str | None = None,
) -> SparseTensor:
    """Return hashes of the combinations of the values in each row.

    Args:
      inputs: Sparse or dense matrices of strings or integers, with the same number of rows.
      num_buckets: Number of hashes; 0 for all nonnegative int64 values.
      hash_key: Key of the hash; default TensorFlow's.
      name: Ignored.

    Example:
      >>> tf.sparse.cross_hashed([tf.constant([["a"], ["b"]])], num_buckets=5).dense_shape.numpy().tolist()
      [2, 1]
    """
    return crosses.cross_hashed(inputs, num_buckets, hash_key).to_sparse()


def _convert_value(value: PyTree) -> PyTree:
    """Convert a `SparseTensorValue` of TensorFlow 1, or those in a list."""
    if isinstance(value, SparseTensorValue):
        return SparseTensor(*value)
    return list(map(_convert_value, value)) if type(value) is list else value


def _accept_values(function: Callable[..., Any]) -> Callable[..., Any]:
    @record_in_graph
    @functools.wraps(function)
    def public(*args: PyTree, **kwargs: PyTree) -> PyTree:
        named = {name: _convert_value(value) for name, value in kwargs.items()}
        return function(*map(_convert_value, args), **named)

    return public


globals().update(
    {name: _accept_values(globals()[name]) for name in __all__ if name != "SparseTensor"}
)
_hide_frames(globals())

__getattr__ = _explain_names("tf.sparse")
