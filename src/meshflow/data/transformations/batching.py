"""Transformations that stack elements to batches, or split batches into elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import nest
from meshflow.core.values.shapes import ShapeLike, as_shape
from meshflow.core.values.specs import TensorSpec
from meshflow.data import sparse_leaves, structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, integer
from meshflow.data.epoch import Epoch
from meshflow.data.execution import affine, chunks, padding
from meshflow.data.execution.batched_gather import Gather
from meshflow.data.execution.prefetched_batches import PrefetchedBatches
from meshflow.data.execution.resumable import Failed, Raising, Resuming, caught
from meshflow.data.execution.timing import Timed
from meshflow.data.node import DatasetNode
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.transformations.base import Unary, is_live
from meshflow.environment.types import PyTree


def positive(size: IntLike, name: str) -> int:
    """Convert a batch size to an integer.

    Raises:
      InvalidArgumentError: If it is not greater than zero.
    """
    value = integer(size, name)
    if value < 1:
        raise InvalidArgumentError(f"Batch size must be greater than zero, got {name}={value}.")
    return value


class Batch(Unary):
    """Batches of consecutive elements.

    Args:
      parent: The dataset.
      size: Number of elements in a batch.
      drop_remainder: Whether to drop a smaller last batch.
    """

    def __init__(self, parent: DatasetNode, size: IntLike, drop_remainder: bool) -> None:
        super().__init__(parent)
        self._size = positive(size, "batch_size")
        self._drop = bool(drop_remainder)

    def _known_spec(self) -> PyTree:
        return structure.batched(self._parent.element_spec, self._size if self._drop else None)

    def _count(self) -> int:
        count = self._parent._count()
        if count < 0:
            return count
        return count // self._size if self._drop else math.ceil(count / self._size)

    def _static_shapes(self) -> StaticShapes | None:
        shapes = self._parent._static_shapes()
        return shapes and shapes.batched(self._size, self._drop)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        vector = self._parent._vector(epoch)
        if vector is not None:
            return self._batches(vector.blocks, vector.gather, self._parent.element_spec)
        parts = self._parent._in_chunks(epoch)
        if parts is not None:
            return Raising(self._packed(chunks.regrouped(parts, self._size, self._drop)))
        epoch.together[id(self._parent)] = self._size
        # If an element of a batch cannot be computed, the batch is dropped.
        elements = caught(self._parent._elements(epoch))
        return chunked(elements, self._size, self._drop, structure.stack)

    def _packed(self, batches: Iterator[Any]) -> Iterator[Any]:
        pack = structure.packer(self._parent.element_spec)
        for batch in batches:
            yield batch if type(batch) is Failed else pack(batch)

    def mapped(
        self, epoch: Epoch, affine_maps: affine.AffineMaps, spec: PyTree
    ) -> Generator[Any, None, None] | None:
        """Compute affine maps of the batches while their rows are gathered.

        Args:
          epoch: The pass.
          affine_maps: The affine maps.
          spec: Structure of the results.

        Returns:
          The results for each batch, or None if the parent cannot compute affine maps.
        """
        vector = self._parent._vector(epoch)
        if vector is None or vector.gather_affine is None:
            return None
        batches = self._batches(vector.blocks, vector.gather_affine(affine_maps.wanted), spec)
        return Timed(batches, self._stopwatch, True) if epoch.counts else batches

    def _batches(
        self, blocks: Iterator[np.ndarray], gather: Gather, spec: PyTree
    ) -> PrefetchedBatches:
        return PrefetchedBatches(blocks, gather, spec, self._size, self._drop)


def chunked(
    elements: Iterator[Any], size: int, drop: bool, join: Callable[[list[Any]], Any]
) -> Generator[Any, None, None]:
    """Apply a function to groups of consecutive elements; drop a group with a failure.

    Args:
      elements: The elements, or failures.
      size: Number of elements in a group.
      drop: Whether to drop a smaller last group.
      join: The function.
    """

    def batches() -> Iterator[Any]:
        while group := list(itertools.islice(elements, size)):
            for item in group:
                if type(item) is Failed:
                    raise item.error
            if len(group) == size or not drop:
                yield join(group)

    return Resuming(batches, elements)


class PaddedBatch(Unary):
    """Batches of consecutive elements that are padded to one shape.

    Args:
      parent: The dataset.
      size: Number of elements in a batch.
      shapes: Padded shape of each component; None pads to the largest sizes in the batch.
      values: Value to pad each component with; None means 0 or an empty string.
      drop_remainder: Whether to drop a smaller last batch.
    """

    def __init__(
        self,
        parent: DatasetNode,
        size: IntLike,
        shapes: PyTree,
        values: PyTree,
        drop_remainder: bool,
    ) -> None:
        super().__init__(parent)
        self._size, self._drop = positive(size, "batch_size"), bool(drop_remainder)
        spec = parent.element_spec
        leaves = nest.flatten(spec)
        if not all(isinstance(s, TensorSpec) for s in leaves):
            raise TypeError(
                f"`padded_batch` is only supported for tensors, got elements of {spec}."
            )
        if shapes is None:
            if any(s.shape.rank is None for s in leaves):
                raise ValueError(
                    "Unable to infer `padded_shapes`: a component has an unknown rank. Pass `padded_shapes`."
                )
            self._shapes = [s.shape.as_list() for s in leaves]
        else:
            flat = padding.flat_up_to(spec, shapes)
            self._shapes = [padding.sizes(s, leaf) for s, leaf in zip(flat, leaves, strict=True)]
        flat_values = [None] * len(leaves) if values is None else padding.flat_values(spec, values)
        self._values = [
            padding.padding_value(v, s) for v, s in zip(flat_values, leaves, strict=True)
        ]

    def _known_spec(self) -> PyTree:
        batch_size = self._size if self._drop else None
        leaves = [
            TensorSpec([batch_size, *[None if n in (None, -1) else n for n in shape]], s.dtype)
            for shape, s in zip(self._shapes, nest.flatten(self._parent.element_spec), strict=True)
        ]
        return nest.pack_sequence_as(self._parent.element_spec, leaves)

    def _count(self) -> int:
        return Batch._count(self)  # type: ignore[arg-type]

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        pad = lambda chunk: structure.padded(chunk, self._shapes, self._values)
        return chunked(self._parent._elements(epoch), self._size, self._drop, pad)


class SparseBatch(Unary):
    """Batches of consecutive arrays of different sizes as sparse tensors, one row for each array.

    Args:
      parent: A dataset of single arrays.
      size: Number of elements in a batch.
      row_shape: Dense shape of a row; None or -1 means the largest size in the batch.
    """

    def __init__(self, parent: DatasetNode, size: IntLike, row_shape: ShapeLike) -> None:
        super().__init__(parent)
        spec = parent.element_spec
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"sparse_batch: elements must be one tensor each, got {spec}.")
        self._size = positive(size, "batch_size")
        self._row = [None if n in (None, -1) else n for n in as_shape(row_shape).as_list()]
        self._own_spec = SparseTensorSpec([None, *self._row], spec.dtype)

    def _known_spec(self) -> PyTree:
        return self._own_spec

    def _count(self) -> int:
        count = self._parent._count()
        return count if count < 0 else math.ceil(count / self._size)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        elements = caught(self._parent._elements(epoch))
        join = lambda arrays: sparse_leaves.of_arrays(arrays, self._row)
        return chunked(elements, self._size, False, join)


class Unbatch(Unary):
    """The rows of every element.

    Args:
      parent: The dataset.
    """

    def __init__(self, parent: DatasetNode) -> None:
        super().__init__(parent)
        structure.unbatched(parent.element_spec)

    def _known_spec(self) -> PyTree:
        return structure.unbatched(self._parent.element_spec)

    def _count(self) -> int:
        count = self._parent._count()
        leaves = nest.flatten(self._parent.element_spec)
        rows = leaves[0].shape.as_list()[0] if leaves and leaves[0].shape.rank else None
        if count == INFINITE_CARDINALITY or count == 0:
            return count
        return count * rows if count >= 0 and rows is not None else UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        parent = self._parent._elements(epoch)
        return Resuming(lambda: self._taken_apart(parent), parent)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        spec = self.element_spec
        if not chunks.stackable(spec):
            return None
        size = chunks.size_for(spec)

        def parts() -> Iterator[Any]:
            for element in caught(self._parent._elements(epoch)):
                leaves = [] if type(element) is Failed else nest.flatten(element)
                if len({len(leaf) for leaf in leaves}) > 1:
                    yield _uneven(leaves)
                elif not leaves:
                    yield element
                else:
                    for start in range(0, len(leaves[0]), size):
                        yield chunks.part(leaves, start, start + size)

        return parts() if is_live(self._parent) else chunks.merged(parts(), size)

    def _taken_apart(self, parent: Iterator[Any]) -> Iterator[Any]:
        for element in parent:
            arrays = [
                sparse_leaves.rows(a) if sparse_leaves.is_sparse(a) else a
                for a in nest.flatten(element)
            ]
            num_rows = {len(a) for a in arrays if a is not None}
            if len(num_rows) > 1:
                raise _uneven([a for a in arrays if a is not None]).error
            columns = [itertools.repeat(None) if a is None else a for a in arrays]
            for _, *row in zip(range(max(num_rows)), *columns, strict=False):
                yield nest.pack_sequence_as(
                    element, [None if v is None else structure.scalar(v) for v in row]
                )


def _uneven(leaves: list[Any]) -> Failed:
    """Return the failure for an element with different numbers of rows in its components."""
    return Failed(
        InvalidArgumentError(
            "Input element must have the same batch size in each component, got "
            f"{sorted({len(leaf) for leaf in leaves})}."
        )
    )


class Rebatch(Unary):
    """Batches of other sizes than those of the parent.

    Args:
      parent: A dataset of batches.
      sizes: Batch size, or several sizes that are used cyclically.
      drop_remainder: Whether to drop a last batch that is too small.
    """

    def __init__(
        self, parent: DatasetNode, sizes: IntLike | Sequence[int], drop_remainder: bool
    ) -> None:
        super().__init__(parent)
        values = structure.to_array(sizes).reshape(-1).tolist()
        self._sizes = [integer(n, "batch_size") for n in values]
        if not self._sizes or max(self._sizes) < 1 or min(self._sizes) < 0:
            raise InvalidArgumentError(
                f"Batch size must be greater than zero, got batch_size={self._sizes}."
            )
        self._drop = bool(drop_remainder)
        structure.unbatched(parent.element_spec, "batch_sizes: first `batch` the dataset")

    def _known_spec(self) -> PyTree:
        spec = self._parent.element_spec
        leaf = nest.flatten(spec)[0]
        old_size = leaf.shape.as_list()[0] if leaf.shape.rank else None
        divides = self._drop or (old_size is not None and old_size % sum(self._sizes) == 0)
        is_constant = len(set(self._sizes)) == 1
        return structure.batched(
            structure.unbatched(spec), self._sizes[0] if is_constant and divides else None
        )

    def _count(self) -> int:
        count = self._parent._count()
        return count if count in (INFINITE_CARDINALITY, 0) else UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        sizes = itertools.cycle(self._sizes)
        parent = self._parent._elements(epoch)
        return Resuming(lambda: self._cut(parent, sizes), parent)

    def _cut(self, parent: Iterator[Any], sizes: Iterator[int]) -> Iterator[Any]:
        spec = self._parent.element_spec
        pending: list[Any] = []
        for size in sizes:
            while not pending or len(pending[0]) < size:
                element = next(parent, None)
                if element is None:
                    if pending and len(pending[0]) and not self._drop:
                        yield nest.pack_sequence_as(spec, pending)
                    return
                leaves = nest.flatten(element)
                pending = (
                    [np.concatenate(p) for p in zip(pending, leaves, strict=True)]
                    if pending
                    else leaves
                )
            yield nest.pack_sequence_as(spec, [a[:size] for a in pending])
            pending = [a[size:] for a in pending]
