"""Sparse tensors as parts of elements: stacked to batches, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError


def is_sparse(leaf: Any) -> bool:
    """Whether a part of an element is a sparse tensor."""
    return isinstance(leaf, SparseTensor)


def _arrays(sparse: SparseTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return sparse.indices.numpy(), sparse.values.numpy(), sparse.dense_shape.numpy()


def stacked(parts: Sequence[SparseTensor]) -> SparseTensor:
    """One sparse tensor with a new first dimension, as large as the largest of the parts.

    Raises:
      InvalidArgumentError: when their ranks differ.
    """
    arrays = [_arrays(part) for part in parts]
    ranks = {len(shape) for *_, shape in arrays}
    if len(ranks) > 1:
        raise InvalidArgumentError(f"Cannot batch sparse tensors of ranks {sorted(ranks)}.")
    numbers = np.repeat(np.arange(len(parts)), [len(values) for _, values, _ in arrays])
    indices = np.concatenate([places for places, *_ in arrays])
    largest = np.max([shape for *_, shape in arrays], axis=0)
    return SparseTensor(
        np.concatenate([numbers[:, None], indices], axis=1).astype(np.int64),
        np.concatenate([values for _, values, _ in arrays]),
        np.array([len(parts), *largest], np.int64),
    )


def of_arrays(arrays: Sequence[np.ndarray], row_shape: Sequence[int | None]) -> SparseTensor:
    """Arrays of different sizes as the rows of one sparse tensor, which holds all their numbers.

    Args:
      arrays: the arrays.
      row_shape: how large a row is; None for the largest array's size.

    Raises:
      DataLossError: when an array is larger than that.
      InvalidArgumentError: when an array is of another rank.
    """
    if any(array.ndim != len(row_shape) for array in arrays):
        raise InvalidArgumentError(
            f"sparse_batch: elements of shapes {[a.shape for a in arrays]} do not fit row_shape={list(row_shape)}."
        )
    largest = np.max([array.shape for array in arrays], axis=0)
    full = [n if size is None else size for n, size in zip(largest, row_shape, strict=True)]
    if (largest > full).any():
        raise DataLossError(
            f"sparse_batch: an element of sizes up to {largest.tolist()} is larger than row_shape={list(row_shape)}."
        )
    places = [
        np.stack([np.full(array.size, number), *np.indices(array.shape).reshape(array.ndim, -1)], 1)
        for number, array in enumerate(arrays)
    ]
    return SparseTensor(
        np.concatenate(places).astype(np.int64),
        np.concatenate([array.reshape(-1) for array in arrays]),
        np.array([len(arrays), *full], np.int64),
    )


def rows(sparse: SparseTensor) -> list[SparseTensor]:
    """The parts along the first dimension."""
    indices, values, shape = _arrays(sparse)
    order = np.argsort(indices[:, 0], kind="stable")
    indices, values = indices[order], values[order]
    ends = np.searchsorted(indices[:, 0], np.arange(1, int(shape[0])))
    return [
        SparseTensor(places[:, 1:], found, shape[1:])
        for places, found in zip(np.split(indices, ends), np.split(values, ends), strict=True)
    ]


def batched(spec: SparseTensorSpec, size: int | None) -> SparseTensorSpec:
    """The spec of batches of sparse tensors."""
    if spec.shape.rank is None:
        return spec
    return SparseTensorSpec([size, *spec.shape.as_list()], spec.dtype)
