"""Ops of graphs on the components of ragged and sparse tensors, with results of unknown size: NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.composite import check_divisors
from meshflow.core.runtime.bounds_checks import check_columns
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.types import Array, PyTree
from meshflow.ops.ragged.partition import concatenate_ranges
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_static_ints,
)


def _sort_elements(
    node: GraphNode, indices: Array, values: Array, shape: Array
) -> list[np.ndarray]:
    order = np.lexsort(np.asarray(indices).T[::-1])
    return [np.asarray(indices)[order], np.asarray(values)[order]]


def _to_sparse(node: GraphNode, *parts: Array) -> list[np.ndarray]:
    *nested_splits, values = map(np.asarray, parts)
    sizes = [len(nested_splits[0]) - 1]
    indices = np.arange(sizes[0])[:, None]
    for splits in nested_splits:
        lengths = np.diff(splits)
        sizes.append(int(lengths.max(initial=0)))
        columns = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        indices = np.hstack([np.repeat(indices, lengths, 0), columns[:, None]])
    for size in values.shape[1:]:
        count = len(indices)
        indices = np.hstack([np.repeat(indices, size, 0), np.tile(np.arange(size), count)[:, None]])
        sizes.append(size)
    return [indices.astype(np.int64), values.reshape(-1), np.array(sizes, np.int64)]


def _fill_empty_rows(
    node: GraphNode, indices: Array, values: Array, shape: Array, default: Array
) -> list[np.ndarray]:
    indices, values = np.asarray(indices), np.asarray(values)
    num_rows = int(np.asarray(shape)[0])
    is_empty = np.bincount(indices[:, 0], minlength=num_rows)[:num_rows] == 0
    rows = np.flatnonzero(is_empty)
    added = np.zeros((len(rows), indices.shape[1]), np.int64)
    added[:, 0] = rows
    all_indices = np.concatenate([indices, added])
    order = np.argsort(all_indices[:, 0], kind="stable")
    all_values = np.concatenate([values, np.full(len(rows), np.asarray(default), values.dtype)])
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order))
    return [all_indices[order], all_values[order], is_empty, positions[: len(indices)]]


def _reshape(node: GraphNode, indices: Array, shape: Array, new_shape: Array) -> list[np.ndarray]:
    old, new = np.asarray(shape), np.array(new_shape, np.int64)
    if (new < 0).any():
        new[new < 0] = old.prod() // new[new >= 0].prod()
    flat = np.ravel_multi_index(tuple(np.asarray(indices).T), tuple(old))
    return [np.stack(np.unravel_index(flat, tuple(new)), 1).astype(np.int64), new]


def _slice(
    node: GraphNode, indices: Array, values: Array, shape: Array, start: Array, size: Array
) -> list[np.ndarray]:
    moved, limits = np.asarray(indices) - np.asarray(start), np.asarray(shape) - np.asarray(start)
    sizes = np.maximum(np.minimum(np.asarray(size), limits), 0)
    is_inside = ((moved >= 0) & (moved < sizes)).all(1)
    return [moved[is_inside], np.asarray(values)[is_inside], sizes]


def _concatenate(node: GraphNode, *parts: Array) -> list[np.ndarray]:
    count = len(parts) // 3
    indices, values, shapes = (
        [np.array(p) for p in parts[k * count : (k + 1) * count]] for k in range(3)
    )
    axis = node["concat_dim"] % len(shapes[0])
    offset = 0
    for part, shape in zip(indices, shapes, strict=True):
        part[:, axis] += offset
        offset += shape[axis]
    total = shapes[0].copy()
    total[axis] = offset
    all_indices, all_values = np.concatenate(indices), np.concatenate(values)
    return [*_sort_elements(node, all_indices, all_values, total), total]


def _add(node: GraphNode, *parts: Array) -> list[np.ndarray]:
    a_indices, a_values, shape, b_indices, b_values, _, threshold = map(np.asarray, parts)
    indices, inverse = np.unique(
        np.concatenate([a_indices, b_indices]), axis=0, return_inverse=True
    )
    sums = np.zeros(len(indices), a_values.dtype)
    np.add.at(sums, inverse.reshape(-1), np.concatenate([a_values, b_values]))
    keeps = abs(sums) > threshold if threshold else np.ones(len(sums), bool)
    return [indices[keeps], sums[keeps], shape]


def _make_range(node: GraphNode, *bounds: Array) -> list[np.ndarray]:
    starts, limits, deltas = np.broadcast_arrays(*map(np.atleast_1d, bounds))
    lengths = np.maximum(np.ceil((limits - starts) / deltas), 0).astype(np.int64)
    steps = concatenate_ranges(np.zeros_like(lengths), lengths)
    values = np.repeat(starts, lengths) + steps * np.repeat(deltas, lengths)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return [splits.astype(node.dtype("Tsplits")), values.astype(starts.dtype)]


def _gather_rows(node: GraphNode, *parts: Array) -> list[np.ndarray]:
    """Gather rows; return the innermost values first, and the row splits of the outer dimensions after them."""
    *nested_splits, values, indices = map(np.asarray, parts)
    results: list[np.ndarray] = []
    for size in indices.shape[:0:-1]:
        count = indices.size // size if size else 0
        results.insert(0, np.arange(count + 1) * size)
    positions = indices.reshape(-1)
    for splits in nested_splits:
        lengths = np.diff(splits)[positions]
        results.append(np.concatenate([[0], np.cumsum(lengths)]))
        positions = np.asarray(concatenate_ranges(splits[:-1][positions], lengths))
    return [values[positions], *(s.astype(node.dtype("Tsplits")) for s in results)]


# ---- ops with results of known size ------------------------------------------------------


def _combine_with_dense(combine: Callable[..., Any]) -> Callable[..., Any]:
    def run(node: GraphNode, indices: Array, values: Array, shape: Array, dense: Array) -> Array:
        sizes = tuple(as_static_ints(shape))
        places = jnp.asarray(check_columns(indices, sizes, is_gather=True))
        dense = jnp.broadcast_to(jnp.asarray(dense), sizes)
        return combine(jnp.asarray(values), dense[tuple(places.T)])

    return run


def _add_to_dense(
    node: GraphNode, indices: Array, values: Array, shape: Array, dense: Array
) -> Array:
    return jnp.asarray(dense).at[tuple(jnp.asarray(indices).T)].add(jnp.asarray(values))


def _make_reduction(is_max: bool) -> Callable[..., Any]:
    def run(node: GraphNode, indices: Array, values: Array, shape: Array, axes: Array) -> Array:
        sizes = as_static_ints(shape)
        places, elements = tuple(jnp.asarray(indices).T), jnp.asarray(values)
        reduced = tuple(a % len(sizes) for a in np.atleast_1d(as_host_array(axes)).tolist())
        reduced = reduced or tuple(range(len(sizes)))
        zeros, keepdims = jnp.zeros(sizes, elements.dtype), node["keep_dims"]
        if not is_max:
            return zeros.at[places].add(elements).sum(reduced, keepdims=keepdims)
        exists = jnp.zeros(sizes, bool).at[places].set(True)
        low = jnp.where(exists, zeros.at[places].set(elements), _get_lowest(elements.dtype))
        found = exists.any(reduced, keepdims=keepdims)
        return jnp.where(found, low.max(reduced, keepdims=keepdims), 0).astype(elements.dtype)

    return run


def _get_lowest(dtype: np.dtype) -> PyTree:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return jnp.iinfo(dtype).min if is_integer else jnp.finfo(dtype).min


def _reduce_segments(kind: str) -> Callable[..., Any]:
    def run(
        node: GraphNode, data: Array, indices: Array, ids: Array, count: Array | None = None
    ) -> Array:
        ids = as_host_array(ids)
        total = int(ids[-1]) + 1 if ids.size else 0
        total = total if count is None else int(as_host_array(count))
        rows = jnp.asarray(data)[jnp.asarray(indices)]
        sums = jnp.zeros((total, *rows.shape[1:]), rows.dtype).at[ids].add(rows)
        return _divide_by_counts(kind, sums, ids)

    return run


def _divide_by_counts(kind: str, rows: Array, ids: np.ndarray) -> Array:
    """Divide the row of each segment by its number of elements, or by the root of this number."""
    if kind == "Sum":
        return rows
    counts = np.maximum(np.bincount(ids, minlength=len(rows)), 1).astype(rows.dtype)
    counts = counts if kind == "Mean" else np.sqrt(counts)
    return rows / counts.reshape(-1, *[1] * (rows.ndim - 1))


def _differentiate_segments(kind: str) -> Callable[..., Any]:
    def run(node: GraphNode, gradient: Array, indices: Array, ids: Array, count: Array) -> Array:
        ids, (total,) = as_host_array(ids), as_static_ints(count)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(gradient):
            raise InvalidArgumentError(
                f"Segment ids must be in [0, {len(gradient)}), got {ids.tolist()}."
            )
        indices = check_columns(jnp.asarray(indices)[:, None], [total])[:, 0]
        rows = _divide_by_counts(kind, jnp.asarray(gradient), ids)[ids]
        return jnp.zeros((total, *rows.shape[1:]), rows.dtype).at[jnp.asarray(indices)].add(rows)

    return run


COMPOSITE_OPS: dict[str, Callable[..., Any]] = {
    "SparseDenseCwiseMul": _combine_with_dense(jnp.multiply),
    "SparseDenseCwiseDiv": _combine_with_dense(lambda x, y: lax.div(x, check_divisors(y))),
    "SparseDenseCwiseAdd": _combine_with_dense(jnp.add),
    "SparseTensorDenseAdd": _add_to_dense,
    "SparseReduceSum": _make_reduction(False),
    "SparseReduceMax": _make_reduction(True),
    **{
        f"SparseSegment{kind}Grad": _differentiate_segments(kind)
        for kind in ("Sum", "Mean", "SqrtN")
    },
    **{
        f"SparseSegment{kind}{suffix}": _reduce_segments(kind)
        for kind, suffix in itertools.product(("Sum", "Mean", "SqrtN"), ("", "WithNumSegments"))
    },
}
HOST_COMPOSITE_OPS: dict[str, Callable[..., Any]] = {
    "RaggedTensorToSparse": _to_sparse,
    "RaggedRange": _make_range,
    "RaggedGather": _gather_rows,
    "SparseFillEmptyRows": _fill_empty_rows,
    "SparseReorder": _sort_elements,
    "SparseReshape": _reshape,
    "SparseSlice": _slice,
    "SparseConcat": _concatenate,
    "SparseAdd": _add,
}
_PARTS = "output_indices", "output_values", "output_shape"
# Names of their outputs, in the order of the results.
COMPOSITE_OUTPUTS: dict[str, Sequence[str]] = {
    "RaggedTensorToSparse": ("sparse_indices", "sparse_values", "sparse_dense_shape"),
    "RaggedRange": ("rt_nested_splits", "rt_dense_values"),
    "RaggedGather": ("output_dense_values", "output_nested_splits"),
    "SparseFillEmptyRows": (*_PARTS[:2], "empty_row_indicator", "reverse_index_map"),
    "SparseReorder": _PARTS,
    "SparseReshape": ("output_indices", "output_shape"),
    "SparseSlice": _PARTS,
    "SparseConcat": _PARTS,
    "SparseAdd": ("sum_indices", "sum_values", "sum_shape"),
}
