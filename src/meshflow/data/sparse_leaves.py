"""Sparse tensors as parts of elements: stacked to batches, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.composite import SparseTensor, SparseTensorSpec
from meshflow.core.errors import InvalidArgumentError


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
