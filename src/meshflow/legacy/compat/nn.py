"""`tf.compat.v1.nn`: lookups with version 1's order of arguments and its `partition_strategy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.ops import array
from meshflow.ops import nn as _nn

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Any:
    """Rows of a table, or of several that share its rows.

    Args:
      params: table of shape [rows, ...], or a list of tables.
      ids: integers of any shape.
      partition_strategy: how tables of a list share rows: "mod" deals them out in turn, "div" has each hold the next
        ones. A `ShardedVariable` holds the next ones in any case.
      name: ignored.
      validate_indices: ignored.
      max_norm: when given, rows are scaled down to this L2 norm.

    Returns:
      Tensor of shape [*ids.shape, ...].

    Raises:
      ValueError: for another `partition_strategy`.

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
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Any:
    """`tf.nn.embedding_lookup_sparse` with version 1's `partition_strategy`; see `embedding_lookup`."""
    rows = _consecutive(params, sp_ids.values, partition_strategy)
    ids = SparseTensor(sp_ids.indices, rows, sp_ids.dense_shape)
    return _nn.embedding_lookup_sparse(params, ids, sp_weights, combiner, max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Any:
    """`tf.nn.safe_embedding_lookup_sparse` with version 1's `partition_strategy`; see `embedding_lookup`."""
    given = convert_to_tensor(sparse_ids.values)
    # Negative numbers stay: they stand for no row.
    rows = array.where(given < 0, given, _consecutive(embedding_weights, given, partition_strategy))
    ids = SparseTensor(sparse_ids.indices, rows, sparse_ids.dense_shape)
    if default_id is not None:
        default_id = int(_consecutive(embedding_weights, default_id, partition_strategy))
    return _nn.safe_embedding_lookup_sparse(
        embedding_weights, ids, sparse_weights, combiner, default_id, max_norm
    )


def _consecutive(params: Any, ids: Any, partition_strategy: str) -> Any:
    """Row numbers as if the tables of a list held consecutive rows."""
    if not isinstance(params, Sequence) or len(params) < 2:
        return ids
    if partition_strategy == "div":
        return ids
    if partition_strategy != "mod":
        raise InvalidValueError(
            f"partition_strategy must be 'mod' or 'div', got {partition_strategy!r}."
        )
    numbers, firsts = convert_to_tensor(ids), [0]
    for table in params[:-1]:
        firsts.append(firsts[-1] + int(table.shape[0]))
    first = array.gather(convert_to_tensor(firsts, dtype=numbers.dtype), numbers % len(params))
    return first + numbers // len(params)
