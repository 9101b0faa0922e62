"""`tf.ragged.cross`: combinations of the values in each row of several tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64, string
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.ops import hashing
from meshflow.ops.casting import cast
from meshflow.ops.ragged.tensor import RaggedTensor, convert_values

__all__ = ["cross", "cross_hashed"]

_MAX_INT64 = (1 << 63) - 1


def _list_rows(value: PyTree) -> list[list[Any]]:
    """Return the values of each row.

    Raises:
      ValueError: If the value is not a matrix or has a dtype other than string or integers.
    """
    if isinstance(value, SparseTensor):
        if len(value.shape) != 2:
            raise InvalidValueError(
                f"tf.sparse.cross: inputs must be matrices, got shape {value.shape}."
            )
        values = value.values
        if values.dtype is not string:
            values = cast(values, int64)
        # The order of the elements in a row is kept.
        rows = value.indices[:, 0].require_value("indices of tf.sparse.cross")
        order = np.argsort(rows, kind="stable")
        values = convert_to_tensor(values.require_value("values of tf.sparse.cross")[order])
        value = RaggedTensor.from_value_rowids(values, rows[order], value.shape[0])
    value = convert_values(value)
    if len(value.shape) != 2:
        raise InvalidValueError(
            f"tf.ragged.cross only supports inputs with rank=2, got shape {value.shape}."
        )
    if value.dtype is not string and not value.dtype.is_integer:
        raise InvalidValueError(
            f"Unexpected dtype for inputs of tf.ragged.cross: {value.dtype.name}"
        )
    if isinstance(value, RaggedTensor):
        if value.ragged_rank != 1 or len(value.flat_values.shape) != 1:
            raise ValueError("tf.ragged.cross only supports inputs with ragged_rank=1.")
        return value.to_list()
    return value.require_value("inputs of tf.ragged.cross").tolist()


def _cross_rows(
    name: str, inputs: PyTree, combine: Callable[[tuple[Any, ...]], Any]
) -> tuple[list[Any], np.ndarray]:
    if not isinstance(inputs, list | tuple):
        raise ValueError(f"{name}: expected a list of tensors, got {inputs!r}.")
    columns = [_list_rows(value) for value in inputs]
    if len({len(rows) for rows in columns}) > 1:
        raise InvalidValueError(f"{name}: inputs have different numbers of rows.")
    ragged = next((v for v in inputs if isinstance(v, RaggedTensor)), None)
    dtype = int64 if ragged is None else ragged.partition.dtype
    rows = [
        [combine(items) for items in itertools.product(*row)] for row in zip(*columns, strict=True)
    ]
    lengths = np.array([len(row) for row in rows], dtype.dtype)
    return [item for row in rows for item in row], lengths


def _to_text(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


@dispatch_composites
def cross(inputs: Sequence[Any], name: str | None = None) -> RaggedTensor:
    """Return the combinations of the values in each row, joined by "_X_".

    Args:
      inputs: Ragged, sparse or dense matrices of strings or integers, with the same number of rows.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.ragged.cross([tf.ragged.constant([["a"], ["b", "c"]]), tf.constant([["d"], ["e"]])])
      <tf.RaggedTensor [[b'a_X_d'], [b'b_X_e', b'c_X_e']]>
    """
    return join_crosses("tf.ragged.cross", inputs, "_X_")


def join_crosses(op: str, inputs: Sequence[Any], separator: str) -> RaggedTensor:
    """Return the combinations of the values in each row, joined by a separator.

    Args:
      op: Name of the public function, for error messages.
      inputs: As in `cross`.
      separator: Text between the values.
    """
    values, lengths = _cross_rows(
        op, inputs, lambda items: separator.encode().join(map(_to_text, items))
    )
    flat: np.ndarray = np.empty(len(values), object)
    flat[:] = values
    return RaggedTensor.from_row_lengths(Tensor(flat), lengths)


@dispatch_composites
def cross_hashed(
    inputs: Sequence[Any],
    num_buckets: int = 0,
    hash_key: int | None = None,
    name: str | None = None,
) -> RaggedTensor:
    """Return hashes of the combinations of the values in each row.

    Args:
      inputs: Ragged, sparse or dense matrices of strings or integers, with the same number of rows.
      num_buckets: Number of hashes; 0 for all nonnegative int64 values.
      hash_key: Key of the hash; default TensorFlow's.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> rows = tf.ragged.constant([["a"], ["b", "c"]])
      >>> tf.ragged.cross_hashed([rows, rows], num_buckets=5).shape
      TensorShape([2, None])
    """
    start = hashing.DEFAULT_CROSS_KEY if hash_key is None else hash_key

    def combine(items: tuple[Any, ...]) -> int:
        prints = [
            hashing.farm_fingerprint(v) if isinstance(v, bytes) else v & 0xFFFFFFFFFFFFFFFF
            for v in items
        ]
        return hashing.cross_fingerprints_from(start, prints) % (num_buckets or _MAX_INT64)

    values, lengths = _cross_rows("tf.ragged.cross_hashed", inputs, combine)
    return RaggedTensor.from_row_lengths(convert_to_tensor(np.array(values, np.int64)), lengths)
