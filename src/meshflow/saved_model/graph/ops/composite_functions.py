"""Ops of graphs that public functions of ragged and sparse tensors compute, and rows in variants. The host runs them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.environment.types import Array
from meshflow.ops import sparse_elements, strings
from meshflow.ops.ragged import crosses
from meshflow.ops.ragged.tensor import RaggedTensor
from meshflow.saved_model.graph.format.node_attributes import GraphNode
from meshflow.saved_model.graph.ops.public_functions import make_op, to_arrays, to_tensor

# A graph can claim any number of outputs of a node.
_MAX_OUTPUTS = 1 << 16


def _make_sparse(indices: Array, values: Array, shape: Array) -> SparseTensor:
    return SparseTensor(*map(to_tensor, (indices, values, shape)))


def _check_count(count: int, limit: int, name: str) -> None:
    limit = min(limit, _MAX_OUTPUTS)
    if not 1 <= count <= limit:
        raise InvalidArgumentError(f"{name} must be in [1, {limit}], got {count}.")


def _list_components(sparse: SparseTensor) -> list[Array]:
    return to_arrays([sparse.indices, sparse.values, sparse.dense_shape])


def _combine(function: Callable[..., SparseTensor]) -> Callable[..., Any]:
    """Return an op of two sparse tensors, whose results are the indices and values."""

    def run(node: GraphNode, *parts: Array) -> list[Array]:
        return _list_components(function(_make_sparse(*parts[:3]), _make_sparse(*parts[3:])))[:2]

    return run


def _compute_softmax(node: GraphNode, indices: Array, values: Array, shape: Array) -> Array:
    return sparse_elements.softmax(_make_sparse(indices, values, shape)).values.array


def _split(
    node: GraphNode, axis: Array, indices: Array, values: Array, shape: Array
) -> list[Array]:
    """Return the indices of all parts, then their values, then their shapes."""
    sparse = _make_sparse(indices, values, shape)
    places, elements, total = np.array(sparse.check_indices()), np.asarray(values), np.array(shape)
    column, count = int(axis), node["num_split"]
    if not -len(total) <= column < len(total):
        raise InvalidArgumentError(f"no axis {column} in a sparse tensor of rank {len(total)}.")
    _check_count(count, int(total[column]), "num_split")
    base, num_larger = divmod(total[column], count)
    sizes = base + (np.arange(count) < num_larger)
    starts = np.cumsum(sizes) - sizes
    owner = np.searchsorted(starts, places[:, column], "right") - 1
    places[:, column] -= starts[owner]
    shapes = np.repeat(total[None], count, 0)
    shapes[:, column] = sizes
    parts = _group(owner, count)
    return [*(places[p] for p in parts), *(elements[p] for p in parts), *shapes]


def _group(owner: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the positions of the elements of each owner, in their order."""
    ends = np.cumsum(np.bincount(owner, minlength=count))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


# ---- counts ------------------------------------------------------------------------------


def _count(node: GraphNode, values: Any, weights: Any) -> list[Array]:
    low, high = (None if node[key] < 0 else node[key] for key in ("minlength", "maxlength"))
    is_binary = node["binary_output"]
    weights = None if is_binary else weights
    counts = sparse_elements.bincount(values, weights, -1, low, high, is_binary)
    indices, amounts, shape = _list_components(counts)
    return [indices, amounts.astype(node.dtype("output_type")), shape]


def _count_dense(node: GraphNode, values: Array, weights: Array) -> list[Array]:
    return _count(node, to_tensor(values), to_tensor(weights) if np.size(weights) else None)


def _count_sparse(
    node: GraphNode, indices: Array, values: Array, shape: Array, weights: Array
) -> list[Array]:
    make = lambda elements: _make_sparse(indices, elements, shape)
    make(values).check_indices()
    return _count(node, make(values), make(weights) if np.size(weights) else None)


def _count_ragged(node: GraphNode, splits: Array, values: Array, weights: Array) -> list[Array]:
    make = lambda elements: _make_rows(elements, splits).to_sparse()
    return _count(node, make(values), make(weights) if np.size(weights) else None)


def _make_rows(values: Array, splits: Array) -> RaggedTensor:
    return RaggedTensor.from_row_splits(to_tensor(values), to_tensor(splits))


# ---- crosses -----------------------------------------------------------------------------


def _cross_ragged(node: GraphNode, *inputs: Array) -> list[Array]:
    """Cross rows; `input_order` has a letter for each input: ragged, sparse or dense."""
    remaining = iter(inputs)
    num_ragged, num_sparse = len(node["ragged_values_types"]), node["Nsparse"]
    ragged = _take_groups(remaining, num_ragged, 2)
    sparse = _take_groups(remaining, num_sparse, 3)
    values = {
        "R": iter([_make_rows(*parts) for parts in ragged]),
        "S": iter([_make_sparse(*parts) for parts in sparse]),
        "D": map(to_tensor, remaining),
    }
    counts = {"R": num_ragged, "S": num_sparse, "D": len(inputs) - 2 * num_ragged - 3 * num_sparse}
    if collections.Counter(node.text("input_order")) != collections.Counter(counts):
        raise InvalidArgumentError(
            f"input_order is {node.text('input_order')!r}, but the inputs are {counts}."
        )
    ordered = [next(values[kind]) for kind in node.text("input_order")]
    if node["hashed_output"]:
        rows = crosses.cross_hashed(ordered, node["num_buckets"], node["hash_key"])
    else:
        rows = crosses.cross(ordered)
    splits = np.asarray(rows.row_splits.array, node.dtype("out_row_splits_type"))
    return [rows.values.array, splits]


def _take_groups(values: Iterator[Array], count: int, size: int) -> list[tuple[Array, ...]]:
    """Take all first components, then all second ones and so on; return them by group."""
    return list(zip(*[list(itertools.islice(values, count)) for _ in range(size)], strict=True))


def _cross_sparse(node: GraphNode, *inputs: Array) -> list[Array]:
    *parts, separator = inputs
    remaining = iter(parts)
    sparse = [_make_sparse(*c) for c in _take_groups(remaining, node["N"], 3)]
    text = np.asarray(separator).item().decode()
    operands = [*sparse, *map(to_tensor, remaining)]
    rows = crosses.join_crosses("tf.sparse.cross", operands, text)
    return _list_components(rows.to_sparse())


# ---- rows in variants --------------------------------------------------------------------


class _EncodedRows:
    """Ragged or dense rows as an element of an array of variants.

    Args:
      splits: Row splits from the outermost dimension on; none for a dense array.
      values: Flat values.
    """

    def __init__(self, splits: Sequence[np.ndarray], values: np.ndarray) -> None:
        self.splits, self.values = splits, values

    def count_rows(self) -> int:
        """Return the number of rows."""
        return len(self.splits[0]) - 1 if self.splits else len(self.values)


def _encode_rows(node: GraphNode, *parts: Array) -> np.ndarray:
    """Return ragged rows as one variant, or as one for each row."""
    *splits, values = map(np.asarray, parts)
    for level, inner in itertools.zip_longest(splits, splits[1:]):
        _check_splits(level, len(values) if inner is None else len(inner) - 1)
    if not node["batched_input"]:
        encoded: np.ndarray = np.empty((), object)
        encoded[()] = _EncodedRows(splits, values)
        return encoded
    count = len(splits[0]) - 1 if splits else len(values)
    encoded = np.empty(count, object)
    for i in range(count):
        if not splits:
            encoded[i] = _EncodedRows([], values[i])
            continue
        start, end = splits[0][i : i + 2]
        inner = []
        for outer in splits[1:]:
            inner.append(outer[start : end + 1] - outer[start])
            start, end = outer[start], outer[end]
        encoded[i] = _EncodedRows(inner, values[start:end])
    return encoded


def _decode_rows(node: GraphNode, encoded: Array) -> list[np.ndarray]:
    """Return the row splits and flat values of one variant, or of a vector of them."""
    host = np.asarray(encoded, object)
    if host.ndim > 1:
        raise UnimplementedError(f"rows in variants of rank {host.ndim} are not supported")
    dtype, rank = node.dtype("Tsplits"), node["output_ragged_rank"] - host.ndim
    items = list(host.reshape(-1))
    rank = max(rank, 0)
    _check_items(items, rank, node.dtype("Tvalues"))
    if node["input_ragged_rank"] not in (-1, rank):
        raise InvalidArgumentError(
            f"input_ragged_rank must be {rank}, got {node['input_ragged_rank']}."
        )
    if not host.ndim:
        return [*(s.astype(dtype) for s in items[0].splits), items[0].values]
    if node["output_ragged_rank"] == 0:
        return [np.stack([item.values for item in items])]
    _check_count(rank + 1, _MAX_OUTPUTS, "output_ragged_rank")
    empty = [np.zeros(1, dtype)] * rank
    if not items:
        items = [_EncodedRows(empty, np.empty(0, node.dtype("Tvalues")))]
        splits = [np.zeros(1, dtype)]
    else:
        splits = [_accumulate([item.count_rows() for item in items], dtype)]
    for level in zip(*(item.splits for item in items), strict=True):
        splits.append(_accumulate(np.concatenate([np.diff(s) for s in level]), dtype))
    return [*splits, np.concatenate([item.values for item in items])]


def _check_splits(splits: np.ndarray, count: int) -> None:
    is_valid = splits.ndim == 1 and splits.size and splits[0] == 0 and splits[-1] == count
    if not is_valid or (np.diff(splits) < 0).any():
        raise InvalidArgumentError(
            f"row splits must be ascending from 0 to {count}, got {splits.tolist()}."
        )


def _check_items(items: list[Any], rank: int, dtype: np.dtype) -> None:
    for item in items:
        if not isinstance(item, _EncodedRows):
            raise InvalidArgumentError("a variant is not the row of a ragged tensor.")
        if len(item.splits) != rank or item.values.dtype != dtype:
            raise InvalidArgumentError(
                f"expected rows of ragged rank {rank} and dtype {dtype}, got ragged rank {len(item.splits)} and dtype {item.values.dtype}."
            )


def _accumulate(lengths: Any, dtype: np.dtype) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def _partition(node: GraphNode, data: Array, parts: Array) -> list[np.ndarray]:
    host, owners, count = np.asarray(data), np.asarray(parts), node["num_partitions"]
    _check_count(count, _MAX_OUTPUTS, "num_partitions")
    if host.shape[: owners.ndim] != owners.shape:
        raise InvalidArgumentError(
            f"data.shape must start with partitions.shape, got {host.shape} and {owners.shape}."
        )
    if owners.size and not 0 <= owners.min() <= owners.max() < count:
        raise InvalidArgumentError(f"partitions must be in [0, {count}), got {owners.tolist()}.")
    rows = host.reshape(owners.size, *host.shape[owners.ndim :])
    return [rows[positions] for positions in _group(owners.reshape(-1), count)]


COMPOSITE_FUNCTION_OPS: dict[str, Callable[..., Any]] = {
    "SparseSparseMaximum": _combine(sparse_elements.maximum),
    "SparseSparseMinimum": _combine(sparse_elements.minimum),
    "SparseSoftmax": _compute_softmax,
    "SparseSplit": _split,
    "DenseCountSparseOutput": _count_dense,
    "SparseCountSparseOutput": _count_sparse,
    "RaggedCountSparseOutput": _count_ragged,
    "RaggedCross": _cross_ragged,
    "SparseCrossV2": _cross_sparse,
    "RaggedTensorToVariant": _encode_rows,
    "RaggedTensorFromVariant": _decode_rows,
    "UnsortedSegmentJoin": make_op(strings.unsorted_segment_join, separator="separator"),
    "DynamicPartition": _partition,
}
_PARTS = ("output_indices", "output_values")
# Names of their outputs, in the order of the results.
COMPOSITE_FUNCTION_OUTPUTS: dict[str, Sequence[str]] = {
    "SparseSparseMaximum": _PARTS,
    "SparseSparseMinimum": _PARTS,
    "SparseSplit": (*_PARTS, "output_shape"),
    "DenseCountSparseOutput": (*_PARTS, "output_dense_shape"),
    "SparseCountSparseOutput": (*_PARTS, "output_dense_shape"),
    "RaggedCountSparseOutput": (*_PARTS, "output_dense_shape"),
    "RaggedCross": ("output_values", "output_row_splits"),
    "RaggedTensorFromVariant": ("output_nested_splits", "output_dense_values"),
    "SparseCrossV2": (*_PARTS, "output_shape"),
}
