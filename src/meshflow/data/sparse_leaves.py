"""Composite tensors as leaves of elements: stacking them to batches, and splitting batches into rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError
from meshflow.core.values.composite import is_extension
from meshflow.core.values.specs import type_spec_from_value
from meshflow.environment.types import PyTree
from meshflow.ops import ragged
from meshflow.ops.ragged import RaggedRow, RaggedTensor


def is_sparse(leaf: object) -> bool:
    """Check whether a leaf is a sparse or ragged tensor, a row of a ragged one, or an extension type."""
    return isinstance(leaf, (SparseTensor, RaggedTensor, RaggedRow)) or is_extension(leaf)


def _get_arrays(sparse: SparseTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices, values and dense shape as host arrays."""
    return sparse.indices.numpy(), sparse.values.numpy(), sparse.dense_shape.numpy()


def to_dense_array(sparse: SparseTensor) -> np.ndarray:
    """Return the dense array of a sparse tensor; missing strings are empty."""
    indices, values, shape = _get_arrays(sparse)
    dense = np.full(shape, b"" if values.dtype == object else 0, values.dtype)
    dense[tuple(indices.T)] = values
    return dense


def stack_sparse(parts: Sequence[Any], spec: PyTree = None) -> SparseTensor | RaggedTensor:
    """Stack sparse or ragged tensors along a new first axis.

    The other sizes of a sparse tensor are the largest of the parts.

    Args:
      parts: The tensors.
      spec: Spec of a part, with static row lengths of a ragged tensor.

    Raises:
      InvalidArgumentError: If the ranks differ.
    """
    if not isinstance(parts[0], SparseTensor):
        return ragged.stack_rows(parts, spec)
    arrays = [_get_arrays(part) for part in parts]
    ranks = {len(shape) for *_, shape in arrays}
    if len(ranks) > 1:
        raise InvalidArgumentError(f"Cannot batch sparse tensors of ranks {sorted(ranks)}.")
    rows = np.repeat(np.arange(len(parts)), [len(values) for _, values, _ in arrays])
    indices = np.concatenate([part_indices for part_indices, *_ in arrays])
    largest = np.max([shape for *_, shape in arrays], axis=0)
    return SparseTensor(
        np.concatenate([rows[:, None], indices], axis=1).astype(np.int64),
        np.concatenate([values for _, values, _ in arrays]),
        np.array([len(parts), *largest], np.int64),
    )


def arrays_to_sparse(arrays: Sequence[np.ndarray], row_shape: Sequence[int | None]) -> SparseTensor:
    """Combine arrays of different sizes into one sparse tensor, one row for each array.

    All values are stored, including zeros.

    Args:
      arrays: The arrays.
      row_shape: Dense shape of a row; None means the largest size of the arrays.

    Raises:
      DataLossError: If an array is larger than `row_shape`.
      InvalidArgumentError: If the rank of an array differs from that of `row_shape`.
    """
    if any(array.ndim != len(row_shape) for array in arrays):
        raise InvalidArgumentError(
            f"sparse_batch: the shapes of the elements, {[a.shape for a in arrays]}, are incompatible with the row shape "
            f"{list(row_shape)}."
        )
    largest = np.max([array.shape for array in arrays], axis=0)
    dense_row = [n if size is None else size for n, size in zip(largest, row_shape, strict=True)]
    if (largest > dense_row).any():
        raise DataLossError(
            f"sparse_batch: an element of sizes up to {largest.tolist()} is larger than the row shape {list(row_shape)}."
        )
    indices = [
        np.stack([np.full(array.size, row), *np.indices(array.shape).reshape(array.ndim, -1)], 1)
        for row, array in enumerate(arrays)
    ]
    return SparseTensor(
        np.concatenate(indices).astype(np.int64),
        np.concatenate([array.reshape(-1) for array in arrays]),
        np.array([len(arrays), *dense_row], np.int64),
    )


def split_rows(sparse: SparseTensor | RaggedTensor) -> list[Any]:
    """Split a sparse or ragged tensor along its first axis."""
    if isinstance(sparse, RaggedTensor):
        return ragged.split_rows(sparse)
    indices, values, shape = _get_arrays(sparse)
    order = np.argsort(indices[:, 0], kind="stable")
    indices, values = indices[order], values[order]
    ends = np.searchsorted(indices[:, 0], np.arange(int(shape[0]) + 1))
    return [
        SparseTensor(indices[first:last, 1:], values[first:last], shape[1:])
        for first, last in itertools.pairwise(ends.tolist())
    ]


def infer_sparse_spec(leaf: PyTree) -> PyTree:
    """Return the spec of a composite leaf."""
    if is_extension(leaf):
        return type_spec_from_value(leaf)
    if isinstance(leaf, SparseTensor):
        return SparseTensorSpec.from_value(leaf)
    return ragged.make_spec(leaf)
