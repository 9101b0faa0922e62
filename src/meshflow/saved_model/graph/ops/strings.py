"""Ops on strings and lookup tables, which the host runs by NumPy and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    InvalidValueError,
    UnimplementedError,
)
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.files import gfile
from meshflow.ops import files, hashing, strings
from meshflow.saved_model.graph.format.node_attributes import GraphNode, as_static_ints
from meshflow.saved_model.graph.ops.example_parsing import EXAMPLE_OPS
from meshflow.saved_model.graph.ops.host_ops import flatten_rows, make_sparse, to_string_array
from meshflow.saved_model.manifest.assets import AssetFile


class HostTable:
    """Lookup table on the host.

    Args:
      key_dtype: Dtype of the keys.
      value_dtype: Dtype of the values.
    """

    def __init__(self, key_dtype: np.dtype, value_dtype: np.dtype) -> None:
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.content: dict[Any, Any] = {}

    def insert(self, keys: Array, values: Array) -> None:
        """Insert keys with their values.

        Args:
          keys: Array of any shape.
          values: One value for each key along the first axis.
        """
        self.content.update(zip(np.asarray(keys).reshape(-1).tolist(), values, strict=True))

    def remove(self, keys: Array) -> None:
        """Remove keys. Missing keys are ignored."""
        for key in np.asarray(keys).reshape(-1).tolist():
            self.content.pop(key, None)

    def export(self) -> list[np.ndarray]:
        """Return all keys, and all values."""
        keys = np.empty(len(self.content), self.key_dtype)
        keys[:] = list(self.content)
        return [keys, self.find(keys, np.zeros((), self.value_dtype))]

    def find(self, keys: Array, default: Array) -> np.ndarray:
        """Return the values of keys.

        Args:
          keys: Array of any shape.
          default: Value of missing keys.

        Returns:
          Array of the shape `keys.shape + default.shape`.
        """
        host = np.asarray(keys)
        found = [self.content.get(key, default) for key in host.reshape(-1).tolist()]
        out = np.empty((host.size, *np.shape(default)), self.value_dtype)
        for i, value in enumerate(found):
            out[i] = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
        return out.reshape(*host.shape, *np.shape(default))


def _make_string_op(function: Callable[..., Any], *keys: str) -> Callable[..., Any]:
    """Return an op that calls a function of `tf.strings`, with attributes as its last arguments."""

    def run(node: GraphNode, *values: Array) -> Array:
        options = [node.text(k) if isinstance(node[k], bytes) else node[k] for k in keys]
        return function(*[Tensor(np.asarray(v)) for v in values], *options).array

    return run


def _make_map(function: Callable[[bytes], Any], dtype: np.dtype | type) -> Callable[..., Any]:
    """Return an op that calls a function for each string."""

    def run(node: GraphNode, x: Array) -> Array:
        host = np.asarray(x, object)
        out = np.empty(host.size, dtype)
        for i, value in enumerate(host.reshape(-1)):
            out[i] = function(value)
        return out.reshape(host.shape)

    return run


def _split(node: GraphNode, x: Array, separator: Array) -> list[np.ndarray]:
    """Split strings, and return the parts as the indices, values and shape of a sparse tensor."""
    sep, max_splits = bytes(np.asarray(separator).item()) or None, node["maxsplit"]
    rows = [
        value.split(sep, max_splits) if sep is None or value else [b""]
        for value in np.asarray(x, object).reshape(-1)
    ]
    return make_sparse(rows, to_string_array(flatten_rows(rows)))


def _join(node: GraphNode, *values: Array) -> Array:
    shape = np.broadcast_shapes(*(np.shape(v) for v in values))
    parts = [np.broadcast_to(np.asarray(v, object), shape).reshape(-1) for v in values]
    out = np.empty(int(np.prod(shape)), object)
    for i, row in enumerate(zip(*parts, strict=True)):
        out[i] = node["separator"].join(row)
    return out.reshape(shape)


def _get_length(node: GraphNode, x: Array) -> Array:
    if node["unit"] == b"UTF8_CHAR":
        return _make_map(lambda v: len(v.decode("utf-8", "replace")), np.int32)(node, x)
    return _make_map(len, np.int32)(node, x)


def _convert_to_string(node: GraphNode, x: Array) -> Array:
    options = {key: node[key] for key in ("precision", "scientific", "shortest", "width")}
    return strings.as_string(Tensor(np.asarray(x)), **options, fill=node.text("fill")).array


def _get_substring(node: GraphNode, x: Array, position: Array, count: Array) -> Array:
    text, first, length = (Tensor(np.asarray(v)) for v in (x, position, count))
    return strings.substr(text, first, length, node.text("unit")).array


def _reduce_join(node: GraphNode, x: Array, axes: Array) -> Array:
    options = {"keepdims": node["keep_dims"], "separator": node.text("separator")}
    return strings.reduce_join(Tensor(np.asarray(x)), axis=as_static_ints(axes), **options).array


def _parse_numbers(node: GraphNode, x: Array) -> Array:
    dtype = node.dtype("out_type")

    def parse(value: bytes) -> Array:
        try:
            return dtype.type(value.strip())
        except ValueError:
            raise InvalidArgumentError(
                f"StringToNumberOp could not correctly convert string: {value!r}"
            ) from None

    return _make_map(parse, dtype)(node, x)


def _ragged_to_tensor(
    node: GraphNode, shape: Array, values: Array, default: Array, *partitions: Array
) -> Array:
    """Convert rows of different lengths to a dense array."""
    kinds = [bytes(k) for k in node["row_partition_types"]]
    splits = []
    if kinds and kinds[0] == b"FIRST_DIM_SIZE":
        rows = int(np.asarray(partitions[0]))
        for ids in map(np.asarray, partitions[1:]):
            counts = np.bincount(ids.astype(np.int64), minlength=rows)[:rows]
            splits.append(np.concatenate([[0], np.cumsum(counts)]))
            rows = len(ids)
    elif all(k == b"ROW_SPLITS" for k in kinds):
        splits = [np.asarray(p) for p in partitions]
    else:
        raise UnimplementedError(f"row partitions of the types {kinds} are not supported")
    values = np.asarray(values)
    dense_shape = as_static_ints(shape) if np.ndim(shape) else []
    return _pad_rows(values, splits, dense_shape, np.asarray(default))


def _pad_rows(values: Array, splits: list[Any], dense_shape: list[int], default: Array) -> Array:
    inner = values if len(splits) == 1 else _pad_rows(values, splits[1:], dense_shape[1:], default)
    lengths = np.diff(splits[0])
    rows = dense_shape[0] if dense_shape and dense_shape[0] >= 0 else len(lengths)
    width = int(lengths.max(initial=0))
    if len(dense_shape) > 1 and dense_shape[1] >= 0:
        width = dense_shape[1]
    out = np.empty((rows, width, *inner.shape[1:]), values.dtype)
    out[...] = default
    for i, start in enumerate(splits[0][: min(rows, len(lengths))]):
        row = inner[start : start + min(int(lengths[i]), width)]
        out[i, : len(row)] = row
    return out


def _count_ragged(
    node: GraphNode, splits: Array, values: Array, size: Array, weights: Array
) -> Array:
    """Count the occurrences of each integer in each of several rows of different lengths."""
    splits, values, weights = (np.asarray(v) for v in (splits, values, weights))
    if not splits.size:
        raise InvalidValueError("Splits must be non-empty. [Op:RaggedBincount]")
    if np.ndim(size):
        raise InvalidValueError(f"The size: Shape must be rank 0, got {size}. [Op:RaggedBincount]")
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    out = np.zeros((len(splits) - 1, int(np.asarray(size))), node.dtype("T"))
    counted = values < out.shape[1]
    amounts = weights[counted] if weights.size else 1
    np.add.at(out, (rows[counted], values[counted]), amounts)
    return (out > 0).astype(out.dtype) if node["binary_output"] else out


def _create_table(node: GraphNode) -> HostTable:
    return HostTable(node.dtype("key_dtype"), node.dtype("value_dtype"))


def _insert(node: GraphNode, table: HostTable, keys: Array, values: Array) -> None:
    table.insert(keys, np.asarray(values))


def _insert_from_file(node: GraphNode, table: HostTable, file: Array) -> None:
    """Fill a table with lines of an asset of the SavedModel."""
    asset = np.asarray(file).item()
    if not isinstance(asset, AssetFile):
        raise InvalidArgumentError(
            f"{asset!r} is not an asset of the SavedModel, and other files are not read"
        )
    path = asset.decode()
    with gfile.GFile(path, "rb") as opened:
        # `splitlines` would also end lines at carriage returns inside of them.
        lines = opened.read().removesuffix(b"\n").split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines] if lines != [b""] else []
    offset = node["offset"] if "offset" in node.proto.attr else 0
    delimiter = node["delimiter"]
    size = node["vocab_size"]
    if size >= 0:
        lines = lines[:size]

    def get_column(index: int, dtype: np.dtype) -> Array:
        if index == -1:
            return np.arange(offset, offset + len(lines), dtype=dtype)
        parts = lines if index == -2 else [line.split(delimiter)[index] for line in lines]
        out = np.empty(len(lines), dtype)
        out[:] = parts if dtype.hasobject else [dtype.type(p) for p in parts]
        return out

    try:
        keys = get_column(node["key_index"], table.key_dtype)
        table.insert(keys, get_column(node["value_index"], table.value_dtype))
    except (ValueError, IndexError) as error:
        raise DataLossError(
            f"{path} does not match the table of node {node.name}: {error}"
        ) from error


STRING_OPS: dict[str, Callable[..., Any]] = {
    **EXAMPLE_OPS,
    "StringLower": _make_string_op(lambda x, e: strings.lower(x, encoding=e), "encoding"),
    "StringUpper": _make_string_op(lambda x, e: strings.upper(x, encoding=e), "encoding"),
    "StringStrip": _make_string_op(strings.strip),
    "StaticRegexReplace": _make_string_op(
        strings.regex_replace, "pattern", "rewrite", "replace_global"
    ),
    "StaticRegexFullMatch": _make_string_op(strings.regex_full_match, "pattern"),
    "RegexReplace": lambda node, x, pattern, rewrite: (
        strings.regex_replace(
            Tensor(np.asarray(x)),
            np.asarray(pattern).item().decode(),
            np.asarray(rewrite).item().decode(),
            node["replace_global"],
        ).array
    ),
    "StringSplitV2": _split,
    "StringJoin": _join,
    "StringLength": _get_length,
    "Substr": _get_substring,
    "ReduceJoin": _reduce_join,
    "AsString": _convert_to_string,
    "StringToNumber": _parse_numbers,
    "StringToHashBucketFast": _make_string_op(hashing.to_hash_bucket_fast, "num_buckets"),
    "EncodeBase64": _make_string_op(files.encode_base64, "pad"),
    "DecodeBase64": _make_string_op(files.decode_base64),
    "RaggedTensorToTensor": _ragged_to_tensor,
    "RaggedBincount": _count_ragged,
    "HashTableV2": _create_table,
    "MutableHashTableV2": _create_table,
    "MutableHashTableOfTensorsV2": _create_table,
    "LookupTableFindV2": lambda node, table, keys, default: table.find(keys, np.asarray(default)),
    "LookupTableImportV2": _insert,
    "LookupTableInsertV2": _insert,
    "LookupTableRemoveV2": lambda node, table, keys: table.remove(keys),
    "LookupTableExportV2": lambda node, table: table.export(),
    "LookupTableSizeV2": lambda node, table: np.array(len(table.content), np.int64),
    "InitializeTableV2": _insert,
    "InitializeTableFromTextFileV2": _insert_from_file,
}
