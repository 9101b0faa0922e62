"""Rows of ragged tensors as elements of datasets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, string
from meshflow.ops.ragged.arrays import pack_rows, set_row_lengths
from meshflow.ops.ragged.tensor import RaggedTensor, RaggedTensorSpec


class RaggedRow:
    """A row of a ragged tensor in a dataset, which batches put together again.

    Args:
      array: The values.
      splits_dtype: Dtype of the row splits of batches.
    """

    def __init__(self, array: np.ndarray, splits_dtype: DTypeLike = "int64") -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.splits_dtype = as_dtype(splits_dtype)

    def __len__(self) -> int:
        return len(self.array)


def split_rows(ragged: RaggedTensor) -> list[Any]:
    """Return the rows of a ragged tensor as elements of a dataset."""
    dtype = ragged.row_splits.dtype
    if ragged.ragged_rank == 1:
        values, splits = ragged.flat_values.numpy(), ragged.row_splits.numpy().tolist()
        return [RaggedRow(values[a:b], dtype) for a, b in itertools.pairwise(splits)]
    return [r if isinstance(r, RaggedTensor) else RaggedRow(r.numpy(), dtype) for r in ragged]


def stack_rows(rows: Sequence[Any], spec: object = None) -> RaggedTensor:
    """Stack elements of a dataset, which have the given spec, to a ragged tensor."""
    first = rows[0]
    if all(
        isinstance(r, RaggedRow) and r.dtype == first.dtype and r.shape[1:] == first.shape[1:]
        for r in rows
    ):
        lengths = np.array([len(r) for r in rows], first.splits_dtype.dtype)
        joined = np.concatenate([r.array for r in rows])
        batch = RaggedTensor.from_row_lengths(joined, lengths, validate=False)
        return set_row_lengths(batch, spec) if isinstance(spec, RaggedTensorSpec) else batch
    values = [r if isinstance(r, RaggedTensor) else convert_to_tensor(r.array) for r in rows]
    dtype = next(
        r.row_splits.dtype if isinstance(r, RaggedTensor) else r.splits_dtype for r in rows
    )
    packed = pack_rows(values).with_row_splits_dtype(dtype)
    return set_row_lengths(packed, spec) if isinstance(spec, RaggedTensorSpec) else packed


def make_spec(value: RaggedTensor | RaggedRow) -> RaggedTensorSpec:
    """Return the spec of an element of a dataset."""
    if isinstance(value, RaggedTensor):
        return RaggedTensorSpec.from_value(value)
    dtype = string if value.dtype == object else as_dtype(value.dtype)
    return RaggedTensorSpec([None, *value.shape[1:]], dtype, 0, value.splits_dtype)
