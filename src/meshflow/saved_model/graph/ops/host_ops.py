"""Ops that the host runs: text, images, records and sets, and ops with results of unknown size."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.io import tensors
from meshflow.ops import audio, files, hashing, nn, strings, tables, unicode
from meshflow.ops.array.ordering import find_unique_slices_on_host
from meshflow.ops.image import codecs
from meshflow.saved_model.graph.format.node_attributes import GraphNode
from meshflow.saved_model.graph.ops.public_functions import make_op, to_arrays, to_tensor

__all__ = ["HOST_OPS"]


def _split_rows(values: Array, splits: Array) -> list[list[Any]]:
    flat, ends = np.asarray(values).tolist(), np.asarray(splits).tolist()
    return [flat[a:b] for a, b in itertools.pairwise(ends)]


def to_string_array(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _compute_row_splits(rows: list[Any], dtype: np.dtype) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(dtype)


def flatten_rows(rows: list[list[Any]]) -> list[Any]:
    return [part for row in rows for part in row]


def make_sparse(rows: list[list[Any]], values: np.ndarray) -> list[np.ndarray]:
    """Return the indices, values and dense shape of rows of different lengths."""
    indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    widest = max((len(row) for row in rows), default=0)
    return [
        np.array(indices, np.int64).reshape(-1, 2),
        values,
        np.array([len(rows), widest], np.int64),
    ]


# ---- text --------------------------------------------------------------------------------


def _split_by_characters(node: GraphNode, text: Array, delimiter: Array) -> list[np.ndarray]:
    """Split each text at any of some characters, or after each byte."""
    letters = bytes(np.asarray(delimiter).item())
    rows = []
    for value in np.asarray(text, object).reshape(-1):
        if letters:
            for letter in letters[1:]:
                value = value.replace(bytes([letter]), letters[:1])
            parts = value.split(letters[:1])
        else:
            parts = [bytes([b]) for b in value]
        rows.append([p for p in parts if p or not node["skip_empty"]])
    return make_sparse(rows, to_string_array(flatten_rows(rows)))


def _make_ngrams(node: GraphNode, data: Array, splits: Array) -> list[np.ndarray]:
    separator, left, right = node["separator"], node["left_pad"], node["right_pad"]
    ngrams: list[list[bytes]] = []
    for row in _split_rows(data, splits):
        found: list[bytes] = []
        for width in node["ngram_widths"]:
            pads = width - 1 if node["pad_width"] < 0 else min(node["pad_width"], width - 1)
            parts = [left] * (pads if left else 0) + row + [right] * (pads if right else 0)
            found += [separator.join(parts[i : i + width]) for i in range(len(parts) - width + 1)]
        if not found and row and node["preserve_short_sequences"]:
            found.append(separator.join(row))
        ngrams.append(found)
    return [
        to_string_array(flatten_rows(ngrams)),
        _compute_row_splits(ngrams, np.asarray(splits).dtype),
    ]


def _decode_unicode(node: GraphNode, text: Array) -> list[np.ndarray]:
    """Return row splits and code points of texts, and byte offsets if the op returns them."""
    rows, starts = [], []
    for value in np.asarray(text, object).reshape(-1):
        points, offsets = unicode.unicode_decode_with_offsets(
            Tensor(np.array(value, object)), node.text("input_encoding"), *_get_error_options(node)
        )
        rows.append(np.asarray(points).tolist())
        starts.append(np.asarray(offsets).tolist())
    results = [
        _compute_row_splits(rows, node.dtype("Tsplits")),
        np.array(flatten_rows(rows), np.int32),
    ]
    if node.op == "UnicodeDecodeWithOffsets":
        results.append(np.array(flatten_rows(starts), np.int64))
    return results


def _get_error_options(node: GraphNode) -> tuple[Any, ...]:
    return node.text("errors"), node["replacement_char"], node["replace_control_characters"]


def _encode_unicode(node: GraphNode, points: Array, splits: Array) -> Array:
    options = (node.text("output_encoding"), node.text("errors"), node["replacement_char"])
    return to_string_array(
        [
            unicode.unicode_encode(Tensor(np.array(row, np.int32)), *options).array.item()
            for row in _split_rows(points, splits)
        ]
    )


def _transcode_unicode(node: GraphNode, text: Array) -> Array:
    encodings = node.text("input_encoding"), node.text("output_encoding")
    return unicode.unicode_transcode(to_tensor(text), *encodings, *_get_error_options(node)).array


def _format_string(node: GraphNode, *inputs: Array) -> Array:
    text = strings.format(
        node.text("template"),
        list(map(to_tensor, inputs)),
        node.text("placeholder"),
        node["summarize"],
    )
    return text.array


def _print(node: GraphNode, text: Array) -> list[Any]:
    stream = node.text("output_stream")
    if stream.startswith("file://"):
        raise UnimplementedError(f"a model may not print to the file {stream}")
    file = sys.stdout if stream == "stdout" else sys.stderr
    print(np.asarray(text).item().decode("utf-8", "replace"), end=node.text("end"), file=file)
    return []


# ---- contents of files -------------------------------------------------------------------


def _decode_image(node: GraphNode, contents: Array) -> Array:
    image = codecs.decode_image(
        to_tensor(contents),
        node["channels"],
        node.dtype("dtype").name,
        expand_animations=node["expand_animations"],
    )
    return image.array


def _decode_png(node: GraphNode, contents: Array) -> Array:
    return codecs.decode_png(to_tensor(contents), node["channels"], node.dtype("dtype").name).array


def _decode_raw(node: GraphNode, data: Array) -> Array:
    dtype = node.dtype("out_type").name
    return files.decode_raw(to_tensor(data), dtype, node["little_endian"]).array


def _decode_csv(node: GraphNode, lines: Array, *defaults: Array) -> Array:
    columns = tables.decode_csv(
        to_tensor(lines),
        [np.asarray(d) for d in defaults],
        node.text("field_delim"),
        node["use_quote_delim"],
        node.text("na_value"),
        node["select_cols"] or None,
    )
    return to_arrays(columns)


def _parse_tensor(node: GraphNode, data: Array) -> Array:
    return tensors.parse_tensor(to_tensor(data), as_dtype(node["out_type"])).array


# ---- sets and sequences ------------------------------------------------------------------

_SET_OPERATIONS: dict[bytes, Callable[[set[Any], set[Any]], set[Any]]] = {
    b"a-b": lambda a, b: a - b,
    b"b-a": lambda a, b: b - a,
    b"intersection": lambda a, b: a & b,
    b"union": lambda a, b: a | b,
}


def _combine_sets(node: GraphNode, first: Array, second: Array) -> list[np.ndarray]:
    if np.ndim(first) != 2:
        raise UnimplementedError(f"set operations on rank {np.ndim(first)} are not supported")
    operation = _SET_OPERATIONS[node["set_operation"]]
    pairs = zip(np.asarray(first).tolist(), np.asarray(second).tolist(), strict=True)
    rows = [sorted(operation(set(a), set(b))) for a, b in pairs]
    values = to_string_array(flatten_rows(rows)).astype(node.dtype("T"))
    return make_sparse(rows, values)


def _find_unique(node: GraphNode, x: Array, axis: Array | None = None) -> list[np.ndarray]:
    axes = [] if axis is None else np.asarray(axis).reshape(-1).tolist()
    if len(axes) > 1:
        raise InvalidArgumentError(f"the axis must be a single number, got {axes}.")
    dtype = node.dtype("out_idx")
    values, indices, counts = find_unique_slices_on_host(axes[0] if axes else 0, np.asarray(x))
    return [values, indices.astype(dtype), counts.astype(dtype)]


def _decode_ctc_greedily(node: GraphNode, inputs: Array, lengths: Array) -> list[np.ndarray]:
    blank = None if node["blank_index"] == -1 else node["blank_index"]
    (decoded,), scores = nn.ctc_greedy_decoder(
        to_tensor(inputs), to_tensor(lengths), node["merge_repeated"], blank
    )
    return to_arrays([decoded.indices, decoded.values, decoded.dense_shape, scores])


HOST_OPS: dict[str, Callable[..., Any]] = {
    "StringSplit": _split_by_characters,
    "StringNGrams": _make_ngrams,
    "UnicodeDecode": _decode_unicode,
    "UnicodeDecodeWithOffsets": _decode_unicode,
    "UnicodeEncode": _encode_unicode,
    "UnicodeTranscode": _transcode_unicode,
    "StringFormat": _format_string,
    "PrintV2": _print,
    "StringToHashBucketStrong": make_op(
        hashing.to_hash_bucket_strong, num_buckets="num_buckets", key="key"
    ),
    "StringToHashBucket": make_op(hashing.to_hash_bucket, num_buckets="num_buckets"),
    "DecodeImage": _decode_image,
    "DecodePng": _decode_png,
    "DecodeJpeg": make_op(codecs.decode_jpeg, channels="channels", ratio="ratio"),
    "DecodeBmp": make_op(codecs.decode_bmp, channels="channels"),
    "DecodeGif": make_op(codecs.decode_gif),
    "EncodePng": make_op(codecs.encode_png, compression="compression"),
    "EncodeJpeg": make_op(codecs.encode_jpeg, format="format", quality="quality"),
    "DecodeWav": make_op(
        audio.decode_wav, desired_channels="desired_channels", desired_samples="desired_samples"
    ),
    "DecodeRaw": _decode_raw,
    "DecodeCSV": _decode_csv,
    "SerializeTensor": make_op(tensors.serialize_tensor),
    "ParseTensor": _parse_tensor,
    "DenseToDenseSetOperation": _combine_sets,
    "Unique": _find_unique,
    "UniqueV2": _find_unique,
    "UniqueWithCounts": _find_unique,
    "UniqueWithCountsV2": _find_unique,
    "CTCGreedyDecoder": _decode_ctc_greedily,
}
