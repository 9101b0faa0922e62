"""Embedding lookups, and weighted sums and means of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host, is_unknown
from meshflow.interpreter.symbolic_sizes import SizeGuardError
from meshflow.ops import array, math
from meshflow.ops import sparse_elements as sparse
from meshflow.ops.array import gather
from meshflow.ops.array.sharded_gather import gather_from_shards
from meshflow.ops.math import clip_by_norm

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def _get_rank(table: TensorLike) -> int:
    return len(table.shape) if hasattr(table, "shape") else np.ndim(table)


@dispatch_composites
def embedding_lookup(
    params: TensorLike | Sequence[TensorLike],
    ids: TensorLike,
    max_norm: float | None = None,
    name: str | None = None,
) -> Tensor:
    """Look up rows of a table.

    Args:
      params: Table of shape [rows, ...], or a list of tables with consecutive rows.
      ids: Integers of any shape.
      max_norm: Maximum L2 norm to which rows are scaled down; None for no limit.
      name: Ignored.

    Returns:
      Tensor of shape [*ids.shape, ...].

    Raises:
      ValueError: If there is no table.
      InvalidArgumentError: Eagerly, if a row does not exist.

    Example:
      >>> tf.nn.embedding_lookup(tf.constant([[1.0, 2.0], [3.0, 4.0]]), [1, 1]).numpy()
      array([[3., 4.],
             [3., 4.]], dtype=float32)
    """
    if params is None or (isinstance(params, (list, tuple)) and not params):
        raise ValueError("params: pass a table of rows, or a list of tables, got none.")
    tables = [params]
    if isinstance(params, (list, tuple)) and all(map(_get_rank, params)):
        tables = [p if hasattr(p, "shape") else convert_to_tensor(p) for p in params]
    rows = gather(tables[0], ids) if len(tables) == 1 else gather_from_shards(tables, ids)
    if max_norm is None:
        return rows
    inner = len(tables[0].shape) - 1 if hasattr(tables[0], "shape") else 1
    rank = len(rows.shape)
    return clip_by_norm(rows, float(max_norm), axes=list(range(rank - inner, rank)))


@dispatch_composites
def embedding_lookup_sparse(
    params: TensorLike | Sequence[TensorLike],
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Tensor:
    """Combine the rows of a table that each row of a sparse tensor refers to.

    Args:
      params: Table of shape [rows, ...], or a list of tables with consecutive rows.
      sp_ids: Row indices, a sparse tensor [n, m] with at least one index in each row.
      sp_weights: Weights with the same sparse indices; None for 1.
      combiner: 'sum', 'mean' (default; divides by the sum of the weights) or 'sqrtn' (divides by
        the square root of the sum of their squares).
      max_norm: Maximum L2 norm to which rows are scaled down; None for no limit.
      name: Ignored.

    Returns:
      Tensor [n, ...].

    Raises:
      ValueError: For another combiner.
      TypeError: If `sp_ids` or `sp_weights` is not a SparseTensor.

    Example:
      >>> table = tf.constant([[1.0, 1.0], [10.0, 20.0], [30.0, 40.0]])
      >>> ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 2, 0], [2, 2])
      >>> print(tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum").numpy())
      [[40. 60.]
       [ 1.  1.]]
    """
    if not isinstance(sp_ids, SparseTensor):
        raise TypeError(
            "tf.nn.embedding_lookup_sparse: sp_ids must be a SparseTensor or RaggedTensor, got "
            f"{type(sp_ids).__name__}."
        )
    num_rows = None
    if is_unknown([sp_ids.indices]) and not context.exporting:
        sp_ids, num_rows = _assume_all_rows(sp_ids)
    return _combine_rows(params, sp_ids, sp_weights, combiner, max_norm, num_rows)


def _assume_all_rows(sp_ids: SparseTensor) -> tuple[SparseTensor, Tensor]:
    """Check that the last row has an id, and return the ids and the number of rows.

    Otherwise the call runs as Python.
    """

    def check(indices: np.ndarray, shape: np.ndarray) -> list[np.ndarray]:
        rows = indices[:, 0]
        if not rows.size or rows[-1] + 1 != shape[0] or (np.diff(rows) < 0).any():
            raise SizeGuardError({})
        return [indices]

    results: list[Result] = [(sp_ids.indices.array.shape, np.int64)]
    operands = [sp_ids.indices, sp_ids.dense_shape]
    (indices,) = compute_on_host(check, operands, results, "ids of tf.nn.embedding_lookup_sparse")
    return SparseTensor(indices, sp_ids.values, sp_ids.dense_shape), sp_ids.dense_shape[0]


def _combine_rows(
    params: TensorLike | Sequence[TensorLike],
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None,
    max_norm: float | None,
    num_rows: Tensor | None,
) -> Tensor:
    """Combine rows like `embedding_lookup_sparse`; `num_rows` is the size of the result, if it is known."""
    combiner = combiner or "mean"
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner!r}.")
    for label, value in (("sp_ids", sp_ids), ("sp_weights", sp_weights)):
        if not isinstance(value, SparseTensor) and not (value is None and label == "sp_weights"):
            raise TypeError(f"{label} must be a SparseTensor, got {type(value).__name__}.")
    rows = embedding_lookup(params, sp_ids.values, max_norm)
    segments = sp_ids.indices[:, 0]
    if sp_weights is None:
        weights = array.ones_like(segments, dtype=rows.dtype)
    else:
        weights = math.cast(sp_weights.values, rows.dtype)
    column = array.reshape(weights, [-1] + [1] * (len(rows.shape) - 1))

    def add_rows(values: Tensor) -> Tensor:
        if num_rows is None:
            return math.segment_sum(values, segments)
        return math.unsorted_segment_sum(values, segments, num_rows)

    total = add_rows(rows * column)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return math.divide_no_nan(total, add_rows(column))
    return math.divide_no_nan(total, math.sqrt(add_rows(column * column)))


@dispatch_composites
def safe_embedding_lookup_sparse(
    embedding_weights: TensorLike | Sequence[TensorLike],
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Tensor:
    """Combine rows like `embedding_lookup_sparse`, allowing empty rows and ignoring negative indices.

    Args:
      embedding_weights: Table of shape [rows, ...], or a list of tables with consecutive rows.
      sparse_ids: Row indices, a sparse tensor of shape [..., m].
      sparse_weights: Weights with the same sparse indices; entries with weights of 0 or less are
        ignored, except for 'sum'.
      combiner: 'sum', 'mean' or 'sqrtn'.
      default_id: Row index for empty rows; by default their result is zero.
      max_norm: Maximum L2 norm to which rows are scaled down; None for no limit.
      name: Ignored.

    Returns:
      Tensor [..., *row_shape].

    Example:
      >>> table = tf.constant([[1.0, 1.0], [10.0, 20.0]])
      >>> ids = tf.SparseTensor([[0, 0], [2, 0]], [1, -1], [3, 1])
      >>> print(tf.nn.safe_embedding_lookup_sparse(table, ids, default_id=0).numpy())
      [[10. 20.]
       [ 1.  1.]
       [ 1.  1.]]
    """
    rank = len(sparse_ids.shape)
    leading = sparse_ids.dense_shape[: rank - 1]
    parts = [sparse_ids]
    if sparse_weights is not None:
        parts.append(sparse_ids.with_values(sparse_weights.values))
    if rank != 2:
        matrix = array.concat([[math.reduce_prod(leading)], sparse_ids.dense_shape[rank - 1 :]], 0)
        parts = [sparse.reshape(part, matrix) for part in parts]
    is_valid = parts[0].values >= 0
    if sparse_weights is not None and combiner != "sum":
        is_valid &= parts[1].values > 0
    parts = [sparse.retain(part, is_valid) for part in parts]
    # Empty rows have the default id with the weight 1.
    (ids, is_empty), *weights = [
        sparse.fill_empty_rows(part, math.cast(default, part.dtype))
        for part, default in zip(parts, (default_id or 0, 1), strict=False)
    ]
    weighted = weights[0][0] if weights else None
    num_rows = ids.dense_shape[0]
    result = _combine_rows(embedding_weights, ids, weighted, combiner, max_norm, num_rows)
    inner = result.shape.as_list()[1:]
    if default_id is None:
        mask = array.reshape(is_empty, [-1] + [1] * len(inner))
        result = array.where(mask, array.zeros_like(result), result)
    return result if rank == 2 else array.reshape(result, array.concat([leading, inner], 0))
