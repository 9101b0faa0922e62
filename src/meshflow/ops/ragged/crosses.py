"""`tf.ragged.cross`: combinations of the values in each row of several tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, int64, string
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import Result, compute_on_host, host_function
from meshflow.environment.types import PyTree
from meshflow.ops import array, hashing
from meshflow.ops.casting import cast
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.tensor import RaggedTensor

_MAX_INT64 = (1 << 63) - 1
# A sparse tensor can claim any number of rows.
_MAX_ROWS = 1 << 24


def _list_parts(value: PyTree) -> list[Tensor]:
    """Return the values, their rows, and the number of rows.

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
        return [values, value.indices[:, 0], value.dense_shape[0]]
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
        return [value.flat_values, value.value_rowids(), convert_to_tensor(value.nrows())]
    shape = array.shape(value, int64)
    ids = array.broadcast_to(array.range(shape[0])[:, None], shape)
    return [array.reshape(value, [-1]), array.reshape(ids, [-1]), shape[0]]


def _cross_rows(
    name: str, inputs: PyTree, combine: Callable[..., list[np.ndarray]], dtype: DType
) -> RaggedTensor:
    """Combine the values in each row by a host function."""
    if not isinstance(inputs, list | tuple):
        raise ValueError(f"{name}: expected a list of tensors, got {inputs!r}.")
    parts = [part for value in inputs for part in _list_parts(value)]
    ragged = next((v for v in inputs if isinstance(v, RaggedTensor)), None)
    row_dtype = int64 if ragged is None else ragged.partition.dtype
    if dtype is string or any(p.dtype is string for p in parts):
        parts = [Tensor(p.require_value(f"inputs of {name}")) for p in parts]
    results: list[Result] = [((None,), dtype.as_numpy_dtype), ((None,), row_dtype.dtype)]
    values, lengths = compute_on_host(combine, parts, results, f"inputs of {name}")
    return RaggedTensor.from_row_lengths(values, lengths)


def _combine_rows(
    op: str, convert: Callable[[np.ndarray], np.ndarray], parts: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the combinations of the values in each row as columns, and the number of combinations of each row.

    Args:
      op: Name of the public function, for error messages.
      convert: Converts the values of an input, before they are combined.
      parts: The values, their rows, and the number of rows of each input.
    """
    columns, counts = [], []
    for values, ids, count in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            raise InvalidValueError(
                f"{op}: the rows of elements must be in [0, {count}), got {ids.tolist()}."
            )
        if count > _MAX_ROWS:
            raise InvalidValueError(f"{op}: more than {_MAX_ROWS} rows, got {count}.")
        columns.append(convert(values)[np.argsort(ids, kind="stable")])
        counts.append(np.bincount(ids.astype(np.int64), minlength=int(count)))
    if len(set(map(len, counts))) > 1:
        raise InvalidValueError(f"{op}: inputs have different numbers of rows.")
    lengths = np.prod(counts, 0) if counts else np.zeros(0, np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    # The last input varies fastest.
    places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    for k in reversed(range(len(columns))):
        starts = np.cumsum(counts[k]) - counts[k]
        columns[k] = columns[k][starts[rows] + places % counts[k][rows]]
        places //= counts[k][rows]
    return columns, lengths


def _to_texts(values: np.ndarray) -> np.ndarray:
    texts = np.empty(len(values), object)
    texts[:] = [v if isinstance(v, bytes) else str(v).encode() for v in values.tolist()]
    return texts


def _to_prints(values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        return np.array([hashing.fingerprint_word(v) for v in values], np.uint64)
    return values.astype(np.int64).view(np.uint64)


@dispatch_composites
def cross(inputs: Sequence[Any], name: str | None = None) -> RaggedTensor:
    """Return the combinations of the values in each row, joined by "_X_".

    Args:
      inputs: Ragged, sparse or dense matrices of strings or integers, with the same number of rows.
      name: Ignored.

    Example:
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
    return _cross_rows(op, inputs, functools.partial(_join_rows, op, separator), string)


@host_function
def _join_rows(op: str, separator: str, *parts: np.ndarray) -> list[np.ndarray]:
    columns, lengths = _combine_rows(op, _to_texts, parts)
    flat: np.ndarray = np.empty(lengths.sum(), object)
    flat[:] = [separator.encode().join(items) for items in zip(*columns, strict=True)]
    return [flat, lengths]


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
      >>> rows = tf.ragged.constant([["a"], ["b", "c"]])
      >>> tf.ragged.cross_hashed([rows, rows], num_buckets=5).shape
      TensorShape([2, None])
    """
    start = hashing.DEFAULT_CROSS_KEY if hash_key is None else hash_key
    op = "tf.ragged.cross_hashed"
    combine = functools.partial(_hash_rows, op, int(start), int(num_buckets))
    return _cross_rows(op, inputs, combine, int64)


@host_function
def _hash_rows(op: str, start: int, num_buckets: int, *parts: np.ndarray) -> list[np.ndarray]:
    columns, lengths = _combine_rows(op, _to_prints, parts)
    cross: Any = hashing.cross_fingerprints_from
    hashes = cross(np.full(lengths.sum(), start, np.uint64), columns) % np.uint64(
        num_buckets or _MAX_INT64
    )
    return [hashes.astype(np.int64), lengths]
