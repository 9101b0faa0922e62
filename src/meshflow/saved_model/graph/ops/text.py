"""Strings and tables, by NumPy and Python: what runs on the host, before a program or between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, UnimplementedError
from meshflow.core.values.tensor import Tensor
from meshflow.files import gfile
from meshflow.ops import files, hashing, strings
from meshflow.saved_model.assets import AssetFile
from meshflow.saved_model.graph.attributes import Node, numbers
from meshflow.saved_model.graph.ops.examples import EXAMPLES

__all__ = ["TEXT", "Table"]


class Table:
    """A table of keys and values on the host.

    Args:
      key_dtype: of the keys.
      value_dtype: of the values.
    """

    def __init__(self, key_dtype: Any, value_dtype: Any) -> None:
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.content: dict[Any, Any] = {}

    def insert(self, keys: Any, values: Any) -> None:
        """Adds keys with their values.

        Args:
          keys: as many as there are values.
          values: of any shape after that.
        """
        self.content.update(zip(np.asarray(keys).reshape(-1).tolist(), values, strict=True))

    def remove(self, keys: Any) -> None:
        """Takes keys out.

        Args:
          keys: those that are missing are ignored.
        """
        for key in np.asarray(keys).reshape(-1).tolist():
            self.content.pop(key, None)

    def export(self) -> list[np.ndarray]:
        """All keys, and all values."""
        keys = np.empty(len(self.content), self.key_dtype)
        keys[:] = list(self.content)
        return [keys, self.find(keys, np.zeros((), self.value_dtype))]

    def find(self, keys: Any, default: Any) -> np.ndarray:
        """The values of keys.

        Args:
          keys: of any shape.
          default: the value of those that are missing.
        """
        host = np.asarray(keys)
        found = [self.content.get(key, default) for key in host.reshape(-1).tolist()]
        out = np.empty((host.size, *np.shape(default)), self.value_dtype)
        for i, value in enumerate(found):
            out[i] = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
        return out.reshape(*host.shape, *np.shape(default))


def _op(function: Callable[..., Any], *keys: str) -> Callable[..., Any]:
    """An op of `tf.strings` for arrays, with attributes as its last arguments."""

    def run(node: Node, *values: Any) -> Any:
        more = [node.text(k) if isinstance(node[k], bytes) else node[k] for k in keys]
        return function(*[Tensor(np.asarray(v)) for v in values], *more)._value

    return run


def _each(function: Callable[[bytes], Any], dtype: Any) -> Callable[..., Any]:
    def run(node: Node, x: Any) -> Any:
        host = np.asarray(x, object)
        out = np.empty(host.size, dtype)
        for i, value in enumerate(host.reshape(-1)):
            out[i] = function(value)
        return out.reshape(host.shape)

    return run


def _split(node: Node, x: Any, separator: Any) -> Any:
    """Rows of parts as a sparse tensor."""
    by = bytes(np.asarray(separator).item()) or None
    most = node["maxsplit"]
    rows = [
        value.split(by, most) if by is None or value else ([] if by is None else [b""])
        for value in np.asarray(x, object).reshape(-1)
    ]
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    values = np.empty(len(places), object)
    values[:] = [part for row in rows for part in row]
    widest = max((len(row) for row in rows), default=0)
    indices = np.array(places, np.int64).reshape(-1, 2)
    return indices, values, np.array([len(rows), widest], np.int64)


def _joined(node: Node, *values: Any) -> Any:
    shape = np.broadcast_shapes(*(np.shape(v) for v in values))
    parts = [np.broadcast_to(np.asarray(v, object), shape).reshape(-1) for v in values]
    out = np.empty(int(np.prod(shape)), object)
    for i, row in enumerate(zip(*parts, strict=True)):
        out[i] = node["separator"].join(row)
    return out.reshape(shape)


def _length(node: Node, x: Any) -> Any:
    if node["unit"] == b"UTF8_CHAR":
        return _each(lambda v: len(v.decode("utf-8", "replace")), np.int32)(node, x)
    return _each(len, np.int32)(node, x)


def _formatted(node: Node, x: Any) -> Any:
    more = {key: node[key] for key in ("precision", "scientific", "shortest", "width")}
    return strings.as_string(Tensor(np.asarray(x)), **more, fill=node.text("fill"))._value


def _part(node: Node, x: Any, place: Any, count: Any) -> Any:
    text, first, length = (Tensor(np.asarray(v)) for v in (x, place, count))
    return strings.substr(text, first, length, node.text("unit"))._value


def _joined_along(node: Node, x: Any, axes: Any) -> Any:
    more = {"keepdims": node["keep_dims"], "separator": node.text("separator")}
    return strings.reduce_join(Tensor(np.asarray(x)), axis=numbers(axes), **more)._value


def _to_number(node: Node, x: Any) -> Any:
    dtype = node.dtype("out_type")

    def number(value: bytes) -> Any:
        try:
            return dtype.type(value.strip())
        except ValueError:
            raise InvalidArgumentError(
                f"StringToNumberOp could not correctly convert string: {value!r}"
            ) from None

    return _each(number, dtype)(node, x)


def _ragged_to_tensor(node: Node, shape: Any, values: Any, default: Any, *partitions: Any) -> Any:
    """Rows of different lengths as an array."""
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
        raise UnimplementedError(f"partitions of kinds {kinds} are not known")
    values = np.asarray(values)
    wanted = numbers(shape) if np.ndim(shape) else []
    return _dense(values, splits, wanted, np.asarray(default))


def _dense(values: Any, splits: list[Any], wanted: list[int], default: Any) -> Any:
    inner = values if len(splits) == 1 else _dense(values, splits[1:], wanted[1:], default)
    lengths = np.diff(splits[0])
    rows = wanted[0] if wanted and wanted[0] >= 0 else len(lengths)
    width = int(lengths.max(initial=0))
    if len(wanted) > 1 and wanted[1] >= 0:
        width = wanted[1]
    out = np.empty((rows, width, *inner.shape[1:]), values.dtype)
    out[...] = default
    for i, start in enumerate(splits[0][: min(rows, len(lengths))]):
        row = inner[start : start + min(int(lengths[i]), width)]
        out[i, : len(row)] = row
    return out


def _ragged_counts(node: Node, splits: Any, values: Any, size: Any, weights: Any) -> Any:
    """How often each number occurs in each of several rows of different lengths."""
    splits, values, weights = (np.asarray(v) for v in (splits, values, weights))
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    out = np.zeros((len(splits) - 1, int(np.asarray(size))), node.dtype("T"))
    inside = values < out.shape[1]
    amounts = weights[inside] if weights.size else 1
    np.add.at(out, (rows[inside], values[inside]), amounts)
    return (out > 0).astype(out.dtype) if node["binary_output"] else out


def _new_table(node: Node) -> Table:
    return Table(node.dtype("key_dtype"), node.dtype("value_dtype"))


def _found(node: Node, table: Table, keys: Any, default: Any) -> Any:
    return table.find(keys, np.asarray(default))


def _imported(node: Node, table: Table, keys: Any, values: Any) -> None:
    table.insert(keys, np.asarray(values))


def _from_file(node: Node, table: Table, file: Any) -> None:
    """Fills a table from lines of a file of the SavedModel."""
    asset = np.asarray(file).item()
    if not isinstance(asset, AssetFile):
        raise InvalidArgumentError(f"{asset!r} is no file of the SavedModel, so it is not read")
    path = asset.decode()
    with gfile.GFile(path, "rb") as opened:
        lines = opened.read().splitlines()
    delimiter = node["delimiter"]
    size = node["vocab_size"]
    if size >= 0:
        lines = lines[:size]

    def column(index: int, dtype: Any) -> Any:
        if index == -1:
            return np.arange(len(lines), dtype=dtype)
        parts = lines if index == -2 else [line.split(delimiter)[index] for line in lines]
        out = np.empty(len(lines), dtype)
        out[:] = parts if dtype.hasobject else [dtype.type(p) for p in parts]
        return out

    try:
        keys = column(node["key_index"], table.key_dtype)
        table.insert(keys, column(node["value_index"], table.value_dtype))
    except (ValueError, IndexError) as error:
        raise DataLossError(
            f"{path} does not fit the table of node {node.name}: {error}"
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
    "LookupTableFindV2": _found,
    "LookupTableImportV2": _imported,
    "LookupTableInsertV2": _imported,
    "LookupTableRemoveV2": lambda node, table, keys: table.remove(keys),
    "LookupTableExportV2": lambda node, table: table.export(),
    "LookupTableSizeV2": lambda node, table: np.array(len(table.content), np.int64),
    "InitializeTableV2": _imported,
    "InitializeTableFromTextFileV2": _from_file,
}
