"""Sparse tensors as strings: the serialized indices, values and shape."""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.io import protos
from meshflow.io.tensors import parse_array, parse_tensor, serialize_array, serialize_tensor
from meshflow.ops.array import stack
from meshflow.ops.files import to_host_strings
from meshflow.ops.sparse_elements import check_sparse


def _check_strings(out_type: DTypeLike) -> None:
    if as_dtype(out_type) is not string:
        raise InvalidArgumentError(
            f"out_type must be tf.string, got {out_type!r}; variants are not available."
        )


def serialize_sparse(
    sp_input: SparseTensor, out_type: DTypeLike = string, name: str | None = None
) -> Tensor:
    """Serialize a sparse tensor to three strings: indices, values and shape.

    Args:
      sp_input: The sparse tensor.
      out_type: tf.string.
      name: Ignored.

    Example:
      >>> text = tf.io.serialize_sparse(tf.SparseTensor([[1]], [5], [3]))
      >>> tf.io.deserialize_many_sparse(text[tf.newaxis], tf.int32).dense_shape.numpy()
      array([1, 3])
    """
    _check_strings(out_type)
    check_sparse(sp_input, "sp_input")
    parts = (sp_input.indices, sp_input.values, sp_input.dense_shape)
    return stack([serialize_tensor(part) for part in parts])


def serialize_many_sparse(
    sp_input: SparseTensor, out_type: DTypeLike = string, name: str | None = None
) -> Tensor:
    """Serialize each row of a sparse tensor to three strings; returns a tensor of shape [rows, 3].

    Args:
      sp_input: Sparse tensor of rank 2 or more.
      out_type: tf.string.
      name: Ignored.
    """
    _check_strings(out_type)
    check_sparse(sp_input, "sp_input")
    if len(sp_input.shape) < 2:
        raise InvalidArgumentError(
            f"serialize_many_sparse: the rank must be at least 2, got shape {sp_input.shape}."
        )
    parts = (sp_input.indices, sp_input.values, sp_input.dense_shape)
    indices, values, shape = (x.require_value("parts of serialize_many_sparse") for x in parts)
    order = np.argsort(indices[:, 0], kind="stable")
    indices, values = indices[order], values[order]
    ends = np.searchsorted(indices[:, 0], np.arange(1, int(shape[0])))
    rows = []
    if shape[0]:
        for row in zip(np.split(indices[:, 1:], ends), np.split(values, ends), strict=True):
            rows.append(list(map(serialize_array, (*row, shape[1:]))))
    return convert_to_tensor(np.array(rows, object).reshape(-1, 3))


def deserialize_many_sparse(
    serialized_sparse: TensorLike,
    dtype: DTypeLike,
    rank: int | None = None,
    name: str | None = None,
) -> SparseTensor:
    """Combine serialized sparse tensors to a batch.

    Args:
      serialized_sparse: Strings of shape [batch, 3], or of shape [3] for one tensor.
      dtype: Dtype of the values.
      rank: Rank of the result, or None.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the shape of the strings, the rank or the dtype is wrong.
    """
    texts = to_host_strings(serialized_sparse, "deserialize_many_sparse")
    if texts.ndim not in (1, 2) or texts.shape[-1] != 3:
        raise InvalidArgumentError(
            f"deserialize_many_sparse: expected strings of shape [batch, 3], got {list(texts.shape)}."
        )
    if texts.ndim == 1:
        # One tensor, without a dimension of batches.
        single = [parse_tensor(t, k) for t, k in zip(texts, ("int64", dtype, "int64"), strict=True)]
        return SparseTensor(*single)
    kinds = [as_dtype(k) for k in ("int64", dtype, "int64")]
    parts = [list(map(parse_array, map(bytes, row), kinds)) for row in texts]
    shapes = [shape for _, _, shape in parts]
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidArgumentError(
            f"deserialize_many_sparse: expected equal ranks, got shapes {shapes}."
        )
    if rank is not None and any(len(shape) + 1 != rank for shape in shapes):
        raise ValueError(
            f"deserialize_many_sparse: expected a batch of rank {rank}, got rows of shapes {shapes}."
        )
    indices = [
        np.insert(np.reshape(i, (len(v), len(shapes[0]))), 0, row, axis=1)
        for row, (i, v, _) in enumerate(parts)
    ]
    values = (
        np.concatenate([v for _, v, _ in parts])
        if parts
        else np.zeros(0, as_dtype(dtype).as_numpy_dtype)
    )
    size = np.max(shapes, axis=0) if parts else np.zeros(rank or 1, np.int64)
    stacked = np.concatenate(indices) if parts else np.zeros((0, len(size) + 1), np.int64)
    return SparseTensor(stacked, values, np.array([len(parts), *size]))


def deserialize_sparse(serialized_sparse: TensorLike, dtype: DTypeLike) -> SparseTensor:
    """Combine serialized sparse tensors to one with the outer dimensions of the strings, as a raw op.

    Args:
      serialized_sparse: Strings of shape [..., 3].
      dtype: Dtype of the values.

    Raises:
      InvalidArgumentError: If the shape of the strings or the dtype is wrong, or there are no strings.
    """
    texts = to_host_strings(serialized_sparse, "DeserializeSparse")
    if not texts.size:
        raise InvalidArgumentError(
            f"DeserializeSparse: expected at least one sparse tensor, got strings of shape {list(texts.shape)}."
        )
    if texts.ndim < 3:
        return deserialize_many_sparse(serialized_sparse, dtype)
    outer = texts.shape[:-1]
    rows = deserialize_many_sparse(texts.reshape(-1, texts.shape[-1]), dtype)
    indices, shape = rows.indices.numpy(), rows.dense_shape.numpy()
    positions = np.stack(np.unravel_index(indices[:, 0], outer), 1)
    stacked = np.concatenate([positions, indices[:, 1:]], 1)
    return SparseTensor(stacked, rows.values, [*outer, *shape[1:]])


def decode_json_example(json_examples: TensorLike, name: str | None = None) -> Tensor:
    """Convert `tf.train.Example` messages in JSON to serialized messages.

    Args:
      json_examples: Strings of any shape.
      name: Ignored.

    Raises:
      InvalidArgumentError: If a text is no such message.

    Example:
      >>> text = tf.io.decode_json_example('{"features": {"feature": {"a": {"int64List": {"value": ["3"]}}}}}')
      >>> tf.train.Example.FromString(text.numpy()).features.feature["a"].int64_list.value
      [3]
    """
    message_class = protos.Example
    from google.protobuf import json_format  # noqa: PLC0415 - an optional package; `protos` reports its absence

    texts = to_host_strings(json_examples, "decode_json_example")
    results = np.empty(texts.shape, object)
    for index in np.ndindex(texts.shape):
        try:
            message = json_format.Parse(texts[index], message_class())
        except json_format.ParseError as error:
            raise InvalidArgumentError(f"Error while parsing JSON: {error}") from None
        results[index] = message.SerializeToString()
    return convert_to_tensor(results if texts.shape else results[()])
