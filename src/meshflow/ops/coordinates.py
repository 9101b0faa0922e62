"""Computation on coordinate lists: the indices [n, rank] and values [n] of sparse tensors.

Indices may be traced, then only the number of elements is static. No function creates an array of
the dense shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, sum_rows
from meshflow.core.dispatch.dispatch import apply, op
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.bounds_checks import is_padding
from meshflow.core.values.dtypes import string
from meshflow.core.values.symbolic_sizes import (
    has_symbolic_size,
    make_sizes_tensor,
    pad_for_gather,
)
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import read_sizes
from meshflow.environment.types import Array
from meshflow.ops.array.gather_scatter import gather
from meshflow.ops.deferred_host_values import find_recording

# The error message of ops that do not name the index.
INVALID = "Indices are not valid (out of bounds).  Shape: [{sizes}]"


def has_static_indices(sparse: SparseTensor) -> bool:
    """Check whether the indices are known on the host."""
    return not isinstance(sparse.indices.array, jax.core.Tracer)


def get_sizes_list(sparse: SparseTensor) -> list[Any]:
    """Return the dense shape as integers, or symbols of a trace."""
    return list(read_sizes(sparse.dense_shape, "the dense shape of a sparse tensor"))


def make_sparse(indices: Tensor, values: Tensor, sizes: Sequence[Any]) -> SparseTensor:
    """Create a sparse tensor; its sizes may be symbols."""
    shape = make_sizes_tensor(tuple(sizes), np.int64) if has_symbolic_size(sizes) else None
    return SparseTensor(indices, values, np.array(sizes, np.int64) if shape is None else shape)


def map_indices(compute: Callable[..., Array], *indices: Tensor) -> Tensor:
    """Compute new indices: with NumPy from static ones, and in the program from traced ones.

    Args:
      compute: Function of a module, NumPy or JAX's, and arrays.
      *indices: The arrays.
    """
    if any(isinstance(i.array, jax.core.Tracer) for i in indices):
        traced = Op("sparse_indices", lambda o, _: compute(jnp, *o), differentiable=False)
        result: Tensor = apply(traced, indices)
        return result
    return Tensor(compute(np, *[np.asarray(i.array) for i in indices]))


def sort_elements(indices: Tensor, values: Tensor, shape: Sequence[Any]) -> SparseTensor:
    """Create a sparse tensor with elements in row-major order."""
    order = map_indices(lambda xp, i: xp.lexsort(i.T[::-1]), indices)
    indices = map_indices(lambda xp, i, o: i[o], indices, order)
    return make_sparse(indices, take_elements(values, order), shape)


_take = Op(
    "gather",
    lambda o, _: jnp.take(pad_for_gather(o[0], 0), o[1], axis=0, mode="clip"),
    strings="moves",
)


def take_elements(values: Tensor, order: Tensor) -> Tensor:
    """Return the values at some positions; unlike that of `gather`, the gradient is dense."""
    if find_recording(values) is not None and values.dtype is string:
        return gather(values, order, axis=0)
    result: Tensor = apply(_take, (values, order))
    return result


def sum_elements(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Sum the values with the same owner; negative owners are ignored."""
    result: Tensor = apply(sum_rows, (values, owner), (count,))
    return result


def unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different rows of a matrix in order, and for each row its index among them."""
    ids = _number_rows(rows)
    if ids is None:
        different, owner = np.unique(rows, axis=0, return_inverse=True)
        return different, owner.reshape(-1)
    if (ids[1:] >= ids[:-1]).all():
        is_first = np.ones(len(ids), bool)
        is_first[1:] = ids[1:] != ids[:-1]
        return rows[is_first], np.cumsum(is_first) - 1
    _, first, owner = np.unique(ids, return_index=True, return_inverse=True)
    return rows[first], owner.reshape(-1)


def merge_rows(*parts: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Return the different rows of two matrices in order, and for each row its index among them.

    Returns:
      None if the rows of a matrix are not in order, or not different.
    """
    ids = _number_rows(np.concatenate(parts))
    if ids is None:
        return None
    first, second = np.split(ids, [len(parts[0])])
    if not (first[1:] > first[:-1]).all() or not (second[1:] > second[:-1]).all():
        return None
    places = np.searchsorted(first, second)
    is_new = np.ones(len(second), bool)
    is_inside = places < len(first)
    is_new[is_inside] = first[places[is_inside]] != second[is_inside]
    # Each new row of the second matrix moves the following ones.
    owners = [
        np.arange(len(first)) + np.searchsorted(second[is_new], first),
        places + np.cumsum(is_new) - is_new,
    ]
    rows = np.empty((len(first) + np.count_nonzero(is_new), parts[0].shape[1]), np.int64)
    for part, owner in zip(parts, owners, strict=True):
        rows[owner] = part
    return rows, owners


def _number_rows(rows: np.ndarray) -> np.ndarray | None:
    """Return numbers with the order of the rows, or None if they do not fit into integers."""
    sizes = [n + 1 for n in rows.max(0, initial=0).tolist()]
    if rows.min(initial=0) < 0 or math.prod(sizes) >= 1 << 63:
        return None
    return get_row_ids(np, rows, sizes)


def get_row_ids(xp: ModuleType, indices: Array, sizes: Sequence[int] | Array) -> Array:
    """Return the row-major positions of elements in a dense tensor."""
    ids = xp.zeros(indices.shape[0], np.int64)
    for axis in range(len(sizes)):
        ids = ids * sizes[axis] + indices[:, axis]
    return ids


def multiply_elements(sparse: SparseTensor, b: TensorLike, is_adjoint: bool = False) -> Tensor:
    """Multiply a sparse matrix or its adjoint with a dense matrix."""
    names = ("k", "m") if is_adjoint else ("m", "k")
    message = "{name} ({item}) from index[{index},{column}] out of bounds (>={bound})"
    indices = sparse.check_indices(message, names=names)
    num_rows = get_sizes_list(sparse)[is_adjoint]
    return _multiply_elements(indices, sparse.values, b, num_rows, is_adjoint)


@op(same=("values", "b"), name="sparse_dense_matmul", sizes=("num_rows",))
def _multiply_elements(
    indices: TensorLike, values: TensorLike, b: TensorLike, num_rows: int, is_adjoint: bool
) -> Tensor:
    rows, columns = indices.T[::-1] if is_adjoint else indices.T
    values = jnp.conj(values) if is_adjoint else values
    products = values[:, None] * jnp.take(b, columns, axis=0, mode="clip")
    return jax.ops.segment_sum(products, rows, num_rows)


def find_cells(
    xp: ModuleType, indices: Array, sizes: Sequence[Any], remaining_axes: Sequence[int]
) -> tuple[Array, Any]:
    """Return the position of each element along some axes in row-major order, and the number of positions.

    The position of an element outside of the tensor is that number.
    """
    remaining_sizes = [sizes[axis] for axis in remaining_axes]
    count = math.prod(remaining_sizes)
    is_inside = ~is_padding(indices, sizes)[:, 0]
    for axis in remaining_axes:
        is_inside &= (indices[:, axis] >= 0) & (indices[:, axis] < sizes[axis])
    indices = indices[:, np.array(remaining_axes, np.int64)]
    return xp.where(is_inside, get_row_ids(xp, indices, remaining_sizes), count), count


@op(same=("values",), name="sparse_reduce", sizes=("sizes", "shape"))
def reduce_elements(
    indices: TensorLike,
    values: TensorLike,
    sizes: Sequence[int],
    remaining_axes: Sequence[int],
    shape: Sequence[int],
    reduction: str,
) -> Tensor:
    """Reduce the elements of a sparse tensor to a dense one.

    Args:
      indices: Indices of the elements.
      values: The elements.
      sizes: The dense shape.
      remaining_axes: The axes that remain.
      shape: Shape of the result: the sizes of the remaining axes, and ones.
      reduction: "sum", or "max", which is 0 where there are no elements.
    """
    ids, count = find_cells(jnp, indices, sizes, remaining_axes)
    if reduction == "sum":
        return jax.ops.segment_sum(values, ids, count).reshape(shape)
    largest = jax.ops.segment_max(values, ids, count)
    num_elements = jax.ops.segment_sum(jnp.ones_like(ids), ids, count)
    return jnp.where(num_elements > 0, largest, 0).astype(values.dtype).reshape(shape)


@op(same=("dense", "values"), name="sparse_add")
def add_elements(
    dense: TensorLike, indices: TensorLike, values: TensorLike, replaces: bool
) -> Tensor:
    """Add the elements of a sparse tensor to a dense one, or replace elements of the dense one."""
    target = jnp.asarray(dense).at[tuple(indices.T)]
    return target.set(values, mode="drop") if replaces else target.add(values, mode="drop")
