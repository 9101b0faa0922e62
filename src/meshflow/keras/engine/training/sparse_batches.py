"""Batches of composite tensors: SciPy's matrices, sparse and ragged tensors, and extension types.

A batch consists of arrays, so it passes through pipelines and compiled steps like other nested
batches. The step function receives a `tf.SparseTensor`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, join_dense_shape
from meshflow.core.dispatch.tiers import is_interpreter_enabled
from meshflow.core.runtime.bounds_checks import PADDING_INDEX, is_padding
from meshflow.core.values import nest
from meshflow.core.values.composite import is_extension
from meshflow.core.values.convert import convert_to_tensor
from meshflow.data import structure
from meshflow.environment.types import Array, PyTree
from meshflow.keras import settings
from meshflow.ops.ragged import RaggedTensor, concatenate_ranges
from meshflow.ops.sparse_elements import retain


class SparseArrays(NamedTuple):
    """A sparse batch as arrays.

    Where programs are compiled for each size, the number of elements is a power of two. The ops of sparse tensors ignore
    padding, see `is_padding`.

    Attributes:
      shape: Array of shape [*dense shape, 0], which holds no data.
      indices: Indices of the elements.
      values: The elements.
    """

    shape: Array
    indices: Array
    values: Array

    @classmethod
    def pad(cls, indices: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> SparseArrays:
        """Create a batch from elements, with padding where programs cannot run op by op."""
        power = max(1, 1 << max(len(values) - 1, 0).bit_length())
        count = 0 if is_interpreter_enabled() else power - len(values)
        outside = np.broadcast_to(np.maximum(shape, PADDING_INDEX), (count, len(shape)))
        empty = np.empty((*shape, 0), np.int8)
        return cls(
            empty,
            np.concatenate([indices, outside]),
            np.concatenate([values, np.zeros(count, values.dtype)]),
        )


class RaggedBatch(NamedTuple):
    """A ragged batch as arrays: row splits, outermost first, and the innermost values."""

    splits: tuple[Array, ...]
    values: Array

    @classmethod
    def from_tensor(cls, tensor: RaggedTensor) -> RaggedBatch:
        """Create a batch from all rows of a ragged tensor."""
        splits = tuple(part.numpy() for part in tensor.nested_row_splits)
        return cls(splits, tensor.flat_values.numpy())


class ExtensionBatch(NamedTuple):
    """A batch of an extension type as arrays; subclasses hold the type and its static part."""

    parts: tuple[Array, ...]


@functools.cache
def _make_batch_class(value_class: type, static: Hashable) -> type[ExtensionBatch]:
    members = {"value_class": value_class, "static": static}
    return type(ExtensionBatch.__name__, (ExtensionBatch,), members)


class SparseRows:
    """Rows of a sparse array that can be selected like those of a NumPy array.

    Args:
      value: A `tf.SparseTensor`, or a matrix of `scipy.sparse`.
    """

    def __init__(self, value: Any) -> None:
        if isinstance(value, SparseTensor):
            indices = np.asarray(value.check_indices())
            values = np.asarray(value.values)
            self.shape = tuple(value.shape.as_list())
        else:
            matrix = value.tocoo()
            indices, values = np.stack([matrix.row, matrix.col], 1), matrix.data
            self.shape = tuple(matrix.shape)
        order = np.lexsort(indices.T[::-1])
        values = values.astype(settings.floatx()) if values.dtype == np.float64 else values
        self._indices, self._values = indices[order].astype(np.int64), values[order]
        self._starts = np.searchsorted(self._indices[:, 0], np.arange(self.shape[0] + 1))
        self.ndim, self.dtype = len(self.shape), values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> SparseArrays:
        return self.take(np.arange(*key.indices(len(self))))

    def take(self, rows: np.ndarray, axis: int = 0) -> SparseArrays:
        """Return a batch of rows."""
        starts, counts = self._starts[rows], self._starts[rows + 1] - self._starts[rows]
        positions = concatenate_ranges(starts, counts)
        indices = self._indices[positions]
        indices[:, 0] = np.repeat(np.arange(len(rows)), counts)
        return SparseArrays.pad(indices, self._values[positions], (len(rows), *self.shape[1:]))


class RaggedBatchRows:
    """Rows of a ragged tensor that can be selected like those of a NumPy array.

    Args:
      value: The ragged tensor.
    """

    def __init__(self, value: RaggedTensor) -> None:
        self._value = value
        self.shape, self.ndim = tuple(value.shape.as_list()), value.ndim
        self.dtype = value.flat_values.numpy().dtype

    def __len__(self) -> int:
        return int(self._value.partition.static_nrows)

    def __getitem__(self, key: slice) -> RaggedBatch:
        return self.take(np.arange(*key.indices(len(self))))

    def take(self, rows: np.ndarray, axis: int = 0) -> RaggedBatch:
        """Return a batch of rows."""
        return RaggedBatch.from_tensor(self._value.take_rows(rows))


class ExtensionRows:
    """Values in a batch of an extension type that can be selected like the rows of a NumPy array.

    Args:
      value: The batch.
    """

    def __init__(self, value: Any) -> None:
        self._rows: list[Any] = structure.split_rows(value)
        self.shape = tuple(getattr(value, "shape", (len(self._rows),)))
        self.ndim, self.dtype = len(self.shape), None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: slice) -> ExtensionBatch:
        return self.take(np.arange(*key.indices(len(self))))

    def take(self, rows: np.ndarray, axis: int = 0) -> ExtensionBatch:
        """Return a batch of values."""
        batch: Any = split_batch(structure.stack_extensions([self._rows[row] for row in rows]))
        return batch


def is_composite(value: object) -> bool:
    """Check whether a value consists of several tensors, or is a matrix of `scipy.sparse`."""
    return is_sparse(value) or isinstance(value, RaggedTensor) or is_extension(value)


def list_rows(value: PyTree) -> PyTree:
    """Return a composite value as rows that can be selected."""
    if isinstance(value, RaggedTensor):
        return RaggedBatchRows(value)
    return ExtensionRows(value) if is_extension(value) else SparseRows(value)


def is_sparse(value: object) -> bool:
    """Check whether a value is a `tf.SparseTensor` or a matrix of `scipy.sparse`."""
    is_scipy = type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocoo")
    return is_scipy or isinstance(value, SparseTensor)


def split_batch(value: object) -> SparseArrays | RaggedBatch | ExtensionBatch:
    """Convert a composite value to a batch."""
    if is_extension(value):
        parts, static = value.split_parts()
        value_class: Any = type(value)
        return _make_batch_class(value_class, static)(tuple([part.numpy() for part in parts]))
    if isinstance(value, RaggedTensor):
        return RaggedBatch.from_tensor(value)
    rows = SparseRows(value)
    return rows[: len(rows)]


def list_varied_shapes(batch: PyTree) -> list[tuple[int, ...]]:
    """List the shapes of a batch's arrays after a change of the number of rows, and of elements of each composite part.

    Args:
      batch: Structure of arrays and composite parts.

    Returns:
      The shapes. Those of a batch without composite parts are unchanged.
    """
    is_part = lambda node: isinstance(node, (SparseArrays, RaggedBatch))
    kinds: dict[Hashable, int] = {}
    shapes: list[tuple[int, ...]] = []
    for node in jax.tree.leaves(batch, is_leaf=is_part):
        outer, *rest = [leaf.shape for leaf in jax.tree.leaves(node)]
        if rest:
            # Parts of equal sizes are probably related, such as the ids and the weights of the same items.
            more = kinds.setdefault((type(node), outer, *rest), len(kinds) + 2)
            rest = [(n + more, *sizes) for n, *sizes in rest]
        # The number of rows is in the first array of a part. It is smaller in the last batch of an epoch.
        shapes += [(*[n + 1 for n in outer[:1]], *outer[1:]), *rest]
    return shapes if kinds else [leaf.shape for leaf in jax.tree.leaves(batch)]


def join_batch(batch: PyTree) -> PyTree:
    """Replace the composite parts of a batch by tensors."""
    if isinstance(batch, ExtensionBatch):
        value_class: Any = batch.value_class  # type: ignore[attr-defined]
        parts = list(map(convert_to_tensor, batch.parts))
        return value_class.build_from_parts(parts, batch.static)  # type: ignore[attr-defined]
    if isinstance(batch, RaggedBatch):
        return RaggedTensor.from_nested_row_splits(batch.values, batch.splits, validate=False)
    if isinstance(batch, SparseArrays):
        sizes: Any = batch.shape
        shape = join_dense_shape(sizes, (True, np.dtype(np.int64)))
        sparse = SparseTensor(batch.indices, batch.values, shape)
        if isinstance(sparse.indices.array, jax.core.Tracer):
            return sparse
        padding = is_padding(np.asarray(sparse.indices.array), shape.numpy())
        return retain(sparse, ~padding[:, 0])
    if isinstance(batch, dict):
        return type(batch)((key, join_batch(value)) for key, value in batch.items())
    if nest.is_nested(batch) and isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(join_batch(value) for value in batch)
    return batch
