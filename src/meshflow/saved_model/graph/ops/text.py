"""Ops on strings and lookup tables, which the host runs by NumPy and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, UnimplementedError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.files import gfile
from meshflow.ops import files, hashing, strings
from meshflow.saved_model.assets import AssetFile
from meshflow.saved_model.graph.attributes import Node, numbers
from meshflow.saved_model.graph.ops.examples import EXAMPLES
from meshflow.saved_model.graph.ops.records import _flat, _sparse, _texts

__all__ = ["TEXT", "Table"]


class Table:
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


def _op(function: Callable[..., Any], *keys: str) -> Callable[..., Any]:
    """Return an op that calls a function of `tf.strings`, with attributes as its last arguments."""

    def run(node: Node, *values: Array) -> Array:
        options = [node.text(k) if isinstance(node[k], bytes) else node[k] for k in keys]
        return function(*[Tensor(np.asarray(v)) for v in values], *options)._value

    return run


def _each(function: Callable[[bytes], Any], dtype: np.dtype | type) -> Callable[..., Any]:
    """Return an op that calls a function for each string."""

    def run(node: Node, x: Array) -> Array:
        host = np.asarray(x, object)
        out = np.empty(host.size, dtype)
        for i, value in enumerate(host.reshape(-1)):
            out[i] = function(value)
        return out.reshape(host.shape)

    return run


def _split(node: Node, x: Array, separator: Array) -> list[np.ndarray]:
    """Split strings, and return the parts as the indices, values and shape of a sparse tensor."""
    sep, max_splits = bytes(np.asarray(separator).item()) or None, node["maxsplit"]
    rows = [
        value.split(sep, max_splits) if sep is None or value else [b""]
        for value in np.asarray(x, object).reshape(-1)
    ]
    return _sparse(rows, _texts(_flat(rows)))


def _joined(node: Node, *values: Array) -> Array:
    shape = np.broadcast_shapes(*(np.shape(v) for v in values))
    parts = [np.broadcast_to(np.asarray(v, object), shape).reshape(-1) for v in values]
    out = np.empty(int(np.prod(shape)), object)
    for i, row in enumerate(zip(*parts, strict=True)):
        out[i] = node["separator"].join(row)
    return out.reshape(shape)


def _length(node: Node, x: Array) -> Array:
    if node["unit"] == b"UTF8_CHAR":
        return _each(lambda v: len(v.decode("utf-8", "replace")), np.int32)(node, x)
    return _each(len, np.int32)(node, x)


def _formatted(node: Node, x: Array) -> Array:
    options = {key: node[key] for key in ("precision", "scientific", "shortest", "width")}
    return strings.as_string(Tensor(np.asarray(x)), **options, fill=node.text("fill"))._value


def _part(node: Node, x: Array, position: Array, count: Array) -> Array:
    text, first, length = (Tensor(np.asarray(v)) for v in (x, position, count))
    return strings.substr(text, first, length, node.text("unit"))._value


def _joined_along(node: Node, x: Array, axes: Array) -> Array:
    options = {"keepdims": node["keep_dims"], "separator": node.text("separator")}
    return strings.reduce_join(Tensor(np.asarray(x)), axis=numbers(axes), **options)._value


def _to_number(node: Node, x: Array) -> Array:
    dtype = node.dtype("out_type")

    def parse(value: bytes) -> Array:
        try:
            return dtype.type(value.strip())
        except ValueError:
            raise InvalidArgumentError(
                f"StringToNumberOp could not correctly convert string: {value!r}"
            ) from None

    return _each(parse, dtype)(node, x)


def _ragged_to_tensor(
    node: Node, shape: Array, values: Array, default: Array, *partitions: Array
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
    dense_shape = numbers(shape) if np.ndim(shape) else []
    return _dense(values, splits, dense_shape, np.asarray(default))


def _dense(values: Array, splits: list[Any], dense_shape: list[int], default: Array) -> Array:
    inner = values if len(splits) == 1 else _dense(values, splits[1:], dense_shape[1:], default)
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


def _ragged_counts(node: Node, splits: Array, values: Array, size: Array, weights: Array) -> Array:
    """Count the occurrences of each integer in each of several rows of different lengths."""
    splits, values, weights = (np.asarray(v) for v in (splits, values, weights))
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    out = np.zeros((len(splits) - 1, int(np.asarray(size))), node.dtype("T"))
    counted = values < out.shape[1]
    amounts = weights[counted] if weights.size else 1
    np.add.at(out, (rows[counted], values[counted]), amounts)
    return (out > 0).astype(out.dtype) if node["binary_output"] else out


def _new_table(node: Node) -> Table:
    return Table(node.dtype("key_dtype"), node.dtype("value_dtype"))


def _imported(node: Node, table: Table, keys: Array, values: Array) -> None:
    table.insert(keys, np.asarray(values))


def _from_file(node: Node, table: Table, file: Array) -> None:
    """Fill a table with lines of an asset of the SavedModel."""
    asset = np.asarray(file).item()
    if not isinstance(asset, AssetFile):
        raise InvalidArgumentError(
            f"{asset!r} is not an asset of the SavedModel, and other files are not read"
        )
    path = asset.decode()
    with gfile.GFile(path, "rb") as opened:
        lines = opened.read().splitlines()
    delimiter = node["delimiter"]
    size = node["vocab_size"]
    if size >= 0:
        lines = lines[:size]

    def get_column(index: int, dtype: np.dtype) -> Array:
        if index == -1:
            return np.arange(len(lines), dtype=dtype)
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


TEXT: dict[str, Callable[..., Any]] = {
    **EXAMPLES,
    "StringLower": _op(lambda x, e: strings.lower(x, encoding=e), "encoding"),
    "StringUpper": _op(lambda x, e: strings.upper(x, encoding=e), "encoding"),
    "StringStrip": _op(strings.strip),
    "StaticRegexReplace": _op(strings.regex_replace, "pattern", "rewrite", "replace_global"),
    "StaticRegexFullMatch": _op(strings.regex_full_match, "pattern"),
    "RegexReplace": lambda node, x, pattern, rewrite: (
        strings.regex_replace(
            Tensor(np.asarray(x)),
            np.asarray(pattern).item().decode(),
            np.asarray(rewrite).item().decode(),
            node["replace_global"],
        )._value
    ),
    "StringSplitV2": _split,
    "StringJoin": _joined,
    "StringLength": _length,
    "Substr": _part,
    "ReduceJoin": _joined_along,
    "AsString": _formatted,
    "StringToNumber": _to_number,
    "StringToHashBucketFast": _op(hashing.to_hash_bucket_fast, "num_buckets"),
    "EncodeBase64": _op(files.encode_base64, "pad"),
    "DecodeBase64": _op(files.decode_base64),
    "RaggedTensorToTensor": _ragged_to_tensor,
    "RaggedBincount": _ragged_counts,
    "HashTableV2": _new_table,
    "MutableHashTableV2": _new_table,
    "MutableHashTableOfTensorsV2": _new_table,
    "LookupTableFindV2": lambda node, table, keys, default: table.find(keys, np.asarray(default)),
    "LookupTableImportV2": _imported,
    "LookupTableInsertV2": _imported,
    "LookupTableRemoveV2": lambda node, table, keys: table.remove(keys),
    "LookupTableExportV2": lambda node, table: table.export(),
    "LookupTableSizeV2": lambda node, table: np.array(len(table.content), np.int64),
    "InitializeTableV2": _imported,
    "InitializeTableFromTextFileV2": _from_file,
}
