"""`tf.compat.v1.nn`: embedding lookups with TensorFlow 1's arguments."""

from __future__ import annotations

from collections.abc import Sequence

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array
from meshflow.ops import nn as _nn

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Look up rows of a table, or of several tables that share its rows.

    Args:
      params: Table of shape [rows, ...], or a list of tables.
      ids: Integers of any shape.
      partition_strategy: How the tables of a list share the rows: "mod" assigns row `i` to table `i
        % len(params)`, "div" assigns consecutive rows. A `ShardedVariable` always holds consecutive
        rows.
      name: Ignored.
      validate_indices: Ignored.
      max_norm: Maximum L2 norm; rows with a larger norm are scaled down.

    Returns:
      Tensor of shape [*ids.shape, ...].

    Raises:
      ValueError: If `partition_strategy` is unknown.

    Example:
      >>> import meshflow as tf
      >>> tables = [tf.constant([[0.0], [2.0]]), tf.constant([[1.0], [3.0]])]
      >>> tf.compat.v1.nn.embedding_lookup(tables, [1, 2]).numpy().ravel()
      array([1., 2.], dtype=float32)
      >>> tf.compat.v1.nn.embedding_lookup(tables, [1, 2], partition_strategy="div").numpy().ravel()
      array([2., 1.], dtype=float32)
    """
    return _nn.embedding_lookup(params, _consecutive(params, ids, partition_strategy), max_norm)


def embedding_lookup_sparse(
    params: TensorLike,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """Look up and combine rows for sparse ids, with `partition_strategy` as in `embedding_lookup`."""
    rows = _consecutive(params, sp_ids.values, partition_strategy)
    ids = SparseTensor(sp_ids.indices, rows, sp_ids.dense_shape)
    return _nn.embedding_lookup_sparse(params, ids, sp_weights, combiner, max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: TensorLike,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """Look up and combine rows, with defaults for empty rows of ids; see `embedding_lookup`."""
    values = convert_to_tensor(sparse_ids.values)
    # Negative ids remain, because they refer to no row.
    rows = array.where(
        values < 0, values, _consecutive(embedding_weights, values, partition_strategy)
    )
    ids = SparseTensor(sparse_ids.indices, rows, sparse_ids.dense_shape)
    if default_id is not None:
        default_id = int(_consecutive(embedding_weights, default_id, partition_strategy))
    return _nn.safe_embedding_lookup_sparse(
        embedding_weights, ids, sparse_weights, combiner, default_id, max_norm
    )


def _consecutive(params: TensorLike, ids: TensorLike, partition_strategy: str) -> TensorLike:
    """Convert ids to those of a list of tables with consecutive rows."""
    if not isinstance(params, Sequence) or len(params) < 2:
        return ids
    if partition_strategy == "div":
        return ids
    if partition_strategy != "mod":
        raise InvalidValueError(
            f"partition_strategy must be 'mod' or 'div', got {partition_strategy!r}."
        )
    indices, offsets = convert_to_tensor(ids), [0]
    for table in params[:-1]:
        offsets.append(offsets[-1] + int(table.shape[0]))
    offset = array.gather(convert_to_tensor(offsets, dtype=indices.dtype), indices % len(params))
    return offset + indices // len(params)
