"""Transformations that stack elements to batches, or split batches into elements."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import nest
from meshflow.core.values.composite import is_extension_spec
from meshflow.core.values.shapes import ShapeLike, as_shape
from meshflow.core.values.specs import TensorSpec
from meshflow.data import sparse_leaves, structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, to_int
from meshflow.data.epoch import Epoch
from meshflow.data.execution import affine, chunks, padding
from meshflow.data.execution.batched_gather import Gather
from meshflow.data.execution.failures import (
    Failure,
    RaisingIterator,
    ResumingIterator,
    catch_failures,
)
from meshflow.data.execution.prefetched_batches import PrefetchedBatches
from meshflow.data.execution.timing import TimedIterator
from meshflow.data.node import DatasetNode
from meshflow.data.specs import DatasetSpec
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.transformations.base import Unary, is_live
from meshflow.environment.types import PyTree


def parse_batch_size(size: IntLike, name: str) -> int:
    """Convert a batch size to an integer.

    Raises:
      InvalidArgumentError: If it is not greater than zero.
    """
    value = to_int(size, name)
    if value < 1:
        raise InvalidArgumentError(f"Batch size must be greater than zero, got {name}={value}.")
    return value


def find_batch_size(dataset: DatasetNode) -> int | None:
    """Return the size of the batches that a dataset last created, or None if there are none.

    Args:
      dataset: A dataset, which may transform the batches.
    """
    node: Any = dataset
    while not hasattr(node, "batch_size"):
        if len(getattr(node, "parents", ())) != 1:
            return None
        (node,) = node.parents
    return int(node.batch_size)


class Batch(Unary):
    """Batches of consecutive elements.

    Args:
      parent: The dataset.
      size: Number of elements in a batch.
      drop_remainder: Whether to drop a smaller last batch.
    """

    def __init__(self, parent: DatasetNode, size: IntLike, drop_remainder: bool) -> None:
        super().__init__(parent)
        self.batch_size = parse_batch_size(size, "batch_size")
        self._drop = bool(drop_remainder)

    def _infer_spec(self) -> PyTree:
        return structure.batch_spec(
            self.parent.element_spec, self.batch_size if self._drop else None
        )

    def count_elements(self) -> int:
        """Return the number of batches, rounded up unless the remainder is dropped."""
        count = self.parent.count_elements()
        if count < 0:
            return count
        return count // self.batch_size if self._drop else math.ceil(count / self.batch_size)

    @property
    def drops_remainder(self) -> bool:
        """Return whether a smaller last batch is dropped."""
        return self._drop

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the static shapes of the batches; a smaller last batch has its own spec."""
        shapes = self.parent.infer_static_shapes()
        return shapes and shapes.batch(self.batch_size, self._drop)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over batches in the fastest form of the parent: by index, by chunks or by elements."""
        vector = self.parent.vectorize(epoch)
        if vector is not None:
            return self._prefetch_batches(vector.blocks, vector.gather, self.parent.element_spec)
        parts = self.parent.iter_chunks(epoch)
        if parts is not None:
            return RaisingIterator(
                self._pack_batches(chunks.regroup_chunks(parts, self.batch_size, self._drop))
            )
        epoch.batch_sizes[id(self.parent)] = self.batch_size
        # If an element of a batch cannot be computed, the batch is dropped.
        elements = catch_failures(self.parent.iter_elements(epoch))
        stack = functools.partial(structure.stack_elements, spec=self.parent.element_spec)
        return join_groups(elements, self.batch_size, self._drop, stack)

    def _pack_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        pack = structure.make_packer(self.parent.element_spec)
        for batch in batches:
            yield batch if type(batch) is Failure else pack(batch)

    def gather_affine_batches(
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
        vector = self.parent.vectorize(epoch)
        if vector is None or vector.gather_affine is None:
            return None
        batches = self._prefetch_batches(
            vector.blocks, vector.gather_affine(affine_maps.gathered_maps), spec
        )
        return TimedIterator(batches, self.stopwatch, True) if epoch.measures_time else batches

    def _prefetch_batches(
        self, blocks: Iterator[np.ndarray], gather: Gather, spec: PyTree
    ) -> PrefetchedBatches:
        return PrefetchedBatches(blocks, gather, spec, self.batch_size, self._drop)


def join_groups(
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
                if type(item) is Failure:
                    raise item.error
            if len(group) == size or not drop:
                yield join(group)

    return ResumingIterator(batches, elements)


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
        self.batch_size = parse_batch_size(size, "batch_size")
        self._drop = bool(drop_remainder)
        spec = parent.element_spec
        leaves = nest.flatten(spec)
        if not all(isinstance(s, TensorSpec) for s in leaves):
            is_extension = any(map(is_extension_spec, leaves))
            raise (NotImplementedError if is_extension else TypeError)(
                "`padded_batch` is not supported for datasets of datasets: map their elements to tensors first."
                if any(isinstance(s, DatasetSpec) for s in leaves)
                else "`padded_batch` is only supported for datasets that produce tensor elements but type spec of "
                f"elements in the input dataset is not a subclass of TensorSpec: `{spec}`."
            )
        if shapes is None:
            if any(s.shape.rank is None for s in leaves):
                raise ValueError(
                    "Unable to infer `padded_shapes`: a component has an unknown rank. Pass `padded_shapes`."
                )
            self._shapes = [s.shape.as_list() for s in leaves]
        else:
            flat = padding.flatten_shapes(spec, shapes)
            self._shapes = [
                padding.parse_shape(s, leaf) for s, leaf in zip(flat, leaves, strict=True)
            ]
        flat_values = (
            [None] * len(leaves) if values is None else padding.flatten_values(spec, values)
        )
        self._values = [
            padding.parse_padding_value(v, s) for v, s in zip(flat_values, leaves, strict=True)
        ]

    def _infer_spec(self) -> PyTree:
        batch_size = self.batch_size if self._drop else None
        leaves = [
            TensorSpec([batch_size, *[None if n in (None, -1) else n for n in shape]], s.dtype)
            for shape, s in zip(self._shapes, nest.flatten(self.parent.element_spec), strict=True)
        ]
        return nest.pack_sequence_as(self.parent.element_spec, leaves)

    def count_elements(self) -> int:
        """Return the number of batches, as `Batch` counts them."""
        return Batch.count_elements(self)  # type: ignore[arg-type]

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over batches, each padded and stacked along a new first axis."""
        pad = lambda chunk: structure.pad_and_stack(chunk, self._shapes, self._values)
        return join_groups(self.parent.iter_elements(epoch), self.batch_size, self._drop, pad)


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
        self.batch_size = parse_batch_size(size, "batch_size")
        self._row = [None if n in (None, -1) else n for n in as_shape(row_shape).as_list()]
        self._own_spec = SparseTensorSpec([None, *self._row], spec.dtype)

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the number of batches, rounded up."""
        count = self.parent.count_elements()
        return count if count < 0 else math.ceil(count / self.batch_size)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over batches, each a `SparseTensor` with one row for each array."""
        elements = catch_failures(self.parent.iter_elements(epoch))
        join = lambda arrays: sparse_leaves.arrays_to_sparse(arrays, self._row)
        return join_groups(elements, self.batch_size, False, join)


class Unbatch(Unary):
    """The rows of every element.

    Args:
      parent: The dataset.
    """

    def __init__(self, parent: DatasetNode) -> None:
        super().__init__(parent)
        structure.unbatch_spec(parent.element_spec)

    def _infer_spec(self) -> PyTree:
        return structure.unbatch_spec(self.parent.element_spec)

    def count_elements(self) -> int:
        """Return the number of rows, UNKNOWN_CARDINALITY if the spec does not determine it."""
        count = self.parent.count_elements()
        leaves = nest.flatten(self.parent.element_spec)[:1]
        shapes = [s.shape for leaf in leaves for s in structure.list_encoding_specs(leaf)]
        rows = shapes[0].as_list()[0] if shapes and shapes[0].rank else None
        if count == INFINITE_CARDINALITY or count == 0:
            return count
        return count * rows if count >= 0 and rows is not None else UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the rows of each element along the first axis."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        parent = self.parent.iter_elements(epoch)
        return ResumingIterator(lambda: self._split_elements(parent), parent)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        spec = self.element_spec
        if not chunks.is_stackable(spec):
            return None
        size = chunks.choose_chunk_size(spec)
        if self._has_static_rows():
            # The rows of the elements of a chunk are consecutive in its memory.
            streams = self.parent.iter_chunks(epoch)
            if streams is not None:
                return chunks.expand_chunks(lambda chunk: _split_chunk(chunk, size), streams)

        def parts() -> Iterator[Any]:
            for element in catch_failures(self.parent.iter_elements(epoch)):
                leaves = [] if type(element) is Failure else nest.flatten(element)
                if len({len(leaf) for leaf in leaves}) > 1:
                    yield _make_uneven_failure(leaves)
                elif not leaves:
                    yield element
                else:
                    for start in range(0, len(leaves[0]), size):
                        yield chunks.slice_chunk(leaves, start, start + size)

        return parts() if is_live(self.parent) else chunks.merge_chunks(parts(), size)

    def _has_static_rows(self) -> bool:
        spec = self.parent.element_spec
        leaves = nest.flatten(spec)
        return chunks.is_stackable(spec) and len({s.shape.as_list()[0] for s in leaves}) == 1

    def _split_elements(self, parent: Iterator[Any]) -> Iterator[Any]:
        for element in parent:
            arrays = list(map(structure.split_rows, nest.flatten(element)))
            num_rows = {len(a) for a in arrays if a is not None}
            if len(num_rows) > 1:
                raise _make_uneven_failure([a for a in arrays if a is not None]).error
            columns = [itertools.repeat(None) if a is None else a for a in arrays]
            for _, *row in zip(range(max(num_rows)), *columns, strict=False):
                yield nest.pack_sequence_as(
                    element, [None if v is None else structure.item_to_array(v) for v in row]
                )


def _split_chunk(chunk: chunks.Chunk, size: int) -> Iterator[chunks.Chunk]:
    """Iterate over the rows of the elements of a chunk, in chunks of at most a size."""
    rows = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in chunk]
    for start in range(0, len(rows[0]), size):
        yield chunks.slice_chunk(rows, start, start + size)


def _make_uneven_failure(leaves: list[Any]) -> Failure:
    """Return the failure for an element with different numbers of rows in its components."""
    return Failure(
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
        self.batch_sizes = [to_int(n, "batch_size") for n in values]
        if not self.batch_sizes or max(self.batch_sizes) < 1 or min(self.batch_sizes) < 0:
            raise InvalidArgumentError(
                f"Batch size must be greater than zero, got batch_size={self.batch_sizes}."
            )
        self._drop = bool(drop_remainder)
        structure.unbatch_spec(parent.element_spec, "batch_sizes: first `batch` the dataset")

    def _infer_spec(self) -> PyTree:
        spec = self.parent.element_spec
        leaf = structure.list_encoding_specs(nest.flatten(spec)[0])[0]
        old_size = leaf.shape.as_list()[0] if leaf.shape.rank else None
        divides = self._drop or (old_size is not None and old_size % sum(self.batch_sizes) == 0)
        is_constant = len(set(self.batch_sizes)) == 1
        return structure.batch_spec(
            structure.unbatch_spec(spec), self.batch_sizes[0] if is_constant and divides else None
        )

    def count_elements(self) -> int:
        """Return the count for an empty or infinite parent; otherwise it is unknown."""
        count = self.parent.count_elements()
        return count if count in (INFINITE_CARDINALITY, 0) else UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over batches of the new sizes, joined from and split out of the old ones."""
        sizes = itertools.cycle(self.batch_sizes)
        if not all(isinstance(s, TensorSpec) for s in nest.flatten(self.parent.element_spec)):
            rows = Unbatch(self.parent).iter_elements(epoch)
            return ResumingIterator(lambda: self._stack_rows(rows, sizes), rows)
        parent = self.parent.iter_elements(epoch)
        return ResumingIterator(lambda: self._resize_batches(parent, sizes), parent)

    def _stack_rows(self, rows: Iterator[Any], sizes: Iterator[int]) -> Iterator[Any]:
        """Iterate over batches of rows with composite tensors."""
        spec = structure.unbatch_spec(self.parent.element_spec)
        for size in sizes:
            group = list(itertools.islice(rows, size))
            if len(group) < size and (self._drop or not group):
                return
            yield structure.stack_elements(group, spec)

    def _resize_batches(self, parent: Iterator[Any], sizes: Iterator[int]) -> Iterator[Any]:
        spec = self.parent.element_spec
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
