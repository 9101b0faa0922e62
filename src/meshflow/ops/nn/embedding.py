"""Rows of tables by number, and weighted means of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops.array import gather
from meshflow.ops.array.row_parts import rows_of_tables
from meshflow.ops.math import clip_by_norm

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup(
    params: Any, ids: TensorLike, max_norm: float | None = None, name: str | None = None
) -> Tensor:
    """Rows of a table.

    Args:
      params: table of shape [rows, ...], or a list of tables that hold consecutive rows.
      ids: integers of any shape.
      max_norm: when given, rows are scaled down to this L2 norm.
      name: ignored.

    Returns:
      Tensor of shape [*ids.shape, ...].

    Raises:
      ValueError: for no table at all.
      InvalidArgumentError: eagerly, for a row that does not exist.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.embedding_lookup([[1.0, 2.0], [3.0, 4.0]], [1, 1]).numpy()
      array([[3., 4.],
             [3., 4.]], dtype=float32)
    """
    if params is None or (isinstance(params, (list, tuple)) and not params):
        raise ValueError("params: pass a table of rows, or a list of tables, got none.")
    tables = [params]
    if isinstance(params, (list, tuple)) and all(len(getattr(p, "shape", ())) for p in params):
        tables = list(params)
    rows = gather(tables[0], ids) if len(tables) == 1 else rows_of_tables(tables, ids)
    if max_norm is None:
        return rows
    inner = len(tables[0].shape) - 1 if hasattr(tables[0], "shape") else 1
    rank = len(rows.shape)
    return clip_by_norm(rows, float(max_norm), axes=list(range(rank - inner, rank)))


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Tensor:
    """Sums or means of the rows of a table that each row of a sparse tensor names.

    Args:
      params: table of shape [rows, ...], or a list of tables that hold consecutive rows.
      sp_ids: row numbers, a sparse tensor [n, m] with at least one number in each row.
      sp_weights: weights at the same places; None for 1.
      combiner: 'sum', 'mean' (default; divided by the sum of weights) or 'sqrtn' (by the root of the sum
        of their squares).
      max_norm: when given, rows are scaled down to this L2 norm.
      name: ignored.

    Returns:
      Tensor [n, ...].

    Raises:
      ValueError: for another combiner.
      TypeError: when `sp_ids` or `sp_weights` is not sparse.

    Example:
      >>> import meshflow as tf
      >>> table = tf.constant([[1.0, 1.0], [10.0, 20.0], [30.0, 40.0]])
      >>> ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 2, 0], [2, 2])
      >>> print(tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum").numpy())
      [[40. 60.]
       [ 1.  1.]]
    """
    combiner = combiner or "mean"
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner!r}.")
    for which, value in (("sp_ids", sp_ids), ("sp_weights", sp_weights)):
        if not isinstance(value, SparseTensor) and not (value is None and which == "sp_weights"):
            raise TypeError(f"{which} must be a SparseTensor, got {type(value).__name__}.")
    rows = embedding_lookup(params, sp_ids.values, max_norm)
    owners = sp_ids.indices[:, 0]
    if sp_weights is None:
        weights = array.ones_like(owners, dtype=rows.dtype)
    else:
        weights = math.cast(sp_weights.values, rows.dtype)
    column = array.reshape(weights, [-1] + [1] * (len(rows.shape) - 1))
    total = math.segment_sum(rows * column, owners)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return math.divide_no_nan(total, math.segment_sum(column, owners))
    return math.divide_no_nan(total, math.sqrt(math.segment_sum(column * column, owners)))


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Tensor:
    """`embedding_lookup_sparse` that takes empty rows, and leaves out negative row numbers.

    Args:
      embedding_weights: table of shape [rows, ...], or a list of tables that hold consecutive rows.
      sparse_ids: row numbers, a sparse tensor of shape [..., m].
      sparse_weights: weights at the same places; those not above 0 are left out too (not for 'sum').
      combiner: 'sum', 'mean' or 'sqrtn'.
      default_id: row number for empty rows; default zeros.
      max_norm: when given, rows are scaled down to this L2 norm.
      name: ignored.

    Returns:
      Tensor [..., *rows' shape].

    Example:
      >>> import meshflow as tf
      >>> table = tf.constant([[1.0, 1.0], [10.0, 20.0]])
      >>> ids = tf.SparseTensor([[0, 0], [2, 0]], [1, -1], [3, 1])
      >>> print(tf.nn.safe_embedding_lookup_sparse(table, ids, default_id=0).numpy())
      [[10. 20.]
       [ 1.  1.]
       [ 1.  1.]]
    """
    shape = sparse_ids.shape.as_list()
    count = int(np.prod(shape[:-1], dtype=int))
    places, numbers = sparse_ids.indices.numpy(), sparse_ids.values.numpy()
    owners = np.zeros(len(places), np.int64)
    for dimension, size in enumerate(shape[:-1]):
        owners = owners * size + places[:, dimension]
    weights = np.ones(len(numbers), np.float32)
    if sparse_weights is not None:
        weights = sparse_weights.values.numpy()
    kept = numbers >= 0
    if sparse_weights is not None and combiner != "sum":
        kept &= weights > 0
    owners, numbers, weights = owners[kept], numbers[kept], weights[kept]
    empty = np.setdiff1d(np.arange(count), owners)
    order = np.argsort(np.concatenate([owners, empty]), kind="stable")
    owners = np.concatenate([owners, empty])[order]
    filler = np.full(len(empty), default_id or 0, numbers.dtype)
    grid = np.stack([owners, np.zeros_like(owners)], 1)
    ids = SparseTensor(grid, np.concatenate([numbers, filler])[order], [count, 1])
    ones = np.ones(len(empty), weights.dtype)
    weighted = SparseTensor(grid, np.concatenate([weights, ones])[order], [count, 1])
    result = embedding_lookup_sparse(embedding_weights, ids, weighted, combiner, max_norm)
    inner = result.shape.as_list()[1:]
    if default_id is None:
        full = (~np.isin(np.arange(count), empty)).reshape([count] + [1] * len(inner))
        result = array.where(full, result, array.zeros_like(result))
    return array.reshape(result, [*shape[:-1], *inner])
