"""Transformations that combine several datasets: concatenated, zipped, interleaved."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.shape_probing import ShapeProbe, probe_shapes
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.random_streams import call_key_scope
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunk_reordering, chunks
from meshflow.data.execution.affine import AffineMap
from meshflow.data.execution.batched_gather import Gather, join_gathers
from meshflow.data.execution.failures import Failure, RaisingIterator, catch_failures
from meshflow.data.execution.function_effects import (
    are_states_equal,
    get_random_states,
    holds_variables,
)
from meshflow.data.execution.function_templates import get_templates
from meshflow.data.execution.round_robin import interleave
from meshflow.data.execution.slice_recording import make_tensor_function
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.sources import iter_index_blocks, make_seed_words
from meshflow.data.specs import DatasetSpec
from meshflow.data.transformations.base import ElementList, RandomTransformation
from meshflow.data.transformations.batching import Batch, Unbatch
from meshflow.data.transformations.elementwise import Map
from meshflow.data.transformations.grouping import Window, WindowPlaceholder
from meshflow.environment.types import PyTree

_END = object()


class Concatenate(Dataset):
    """The elements of one dataset, followed by those of another one.

    Args:
      first: A dataset.
      second: A dataset of elements with the same structure and dtypes.
    """

    def __init__(self, first: DatasetNode, second: DatasetNode) -> None:
        self.parents = (first, second)
        self._own_spec = structure.merge_specs(first.element_spec, second.element_spec)

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the sum of both counts; an infinite dataset takes precedence over an unknown count."""
        counts = [p.count_elements() for p in self.parents]
        if INFINITE_CARDINALITY in counts:
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in counts else sum(counts)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements of the first dataset, then of the second one."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        return RaisingIterator(
            e for parent in self.parents for e in catch_failures(parent.iter_elements(epoch))
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.is_stackable(self._own_spec):
            return None
        first, second = (p.iter_chunks(epoch) for p in self.parents)
        if first is None and second is None:
            return None
        return itertools.chain.from_iterable(
            chunks.wrap_elements(catch_failures(parent.iter_elements(epoch)))
            if stream is None
            else stream
            for stream, parent in zip((first, second), self.parents, strict=True)
        )

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return one index stream in which the indices of the second dataset follow those of the first."""
        if not chunks.is_stackable(self._own_spec):
            return None
        first, second = (p.vectorize(epoch) for p in self.parents)
        if (
            first is None
            or second is None
            or first.max_spread is not None
            or second.max_spread is not None
        ):
            return None
        if first.index_limit is None or second.index_limit is None:
            return None
        offset = first.index_limit
        return IndexStream(
            chunk_reordering.concatenate_gathers(first.gather, second.gather, offset),
            itertools.chain(first.blocks, (block + offset for block in second.blocks)),
            is_in_order=first.is_in_order and second.is_in_order,
            index_limit=offset + second.index_limit,
        )


class Zip(Dataset):
    """The elements of several datasets, combined to nested structures.

    Args:
      datasets: Nested tuples and dictionaries of datasets.
    """

    def __init__(self, datasets: PyTree) -> None:
        self.tree = datasets
        self.parents = tuple(_flatten_datasets(datasets))
        for item in self.parents:
            if not isinstance(item, Dataset):
                raise TypeError(
                    f"The argument to `Dataset.zip()` must be a (nested) structure of `Dataset` objects. Got {type(item)}."
                )

    def _infer_spec(self) -> PyTree:
        return _replace_leaves(self.tree, iter([p.element_spec for p in self.parents]))

    def count_elements(self) -> int:
        """Return the smallest count, or UNKNOWN_CARDINALITY if any count is unknown."""
        counts = [p.count_elements() for p in self.parents]
        known_counts = [c for c in counts if c >= 0]
        if UNKNOWN_CARDINALITY in counts:
            return UNKNOWN_CARDINALITY
        return min(known_counts) if known_counts else INFINITE_CARDINALITY

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return an index stream that gathers from all parents, if each of them is in order."""
        streams = [p.vectorize(epoch) for p in self.parents]
        parts = [s for s in streams if s is not None and s.is_in_order]
        if len(parts) < len(streams) or self.count_elements() < 0:
            return None
        order, starts = self._order_leaves()

        def gather_affine(affine_maps: list[AffineMap]) -> Gather:
            """Let each parent compute the affine maps of its leaves."""
            parents = [bisect.bisect(starts, order[m.leaf]) - 1 for m in affine_maps]
            gathers, gathered = [], []
            for index, (part, start) in enumerate(zip(parts, starts, strict=False)):
                selected = [i for i, parent in enumerate(parents) if parent == index]
                maps = [
                    affine_maps[i]._replace(leaf=order[affine_maps[i].leaf] - start)
                    for i in selected
                ]
                gathers.append(part.gather_affine(maps))  # type: ignore[misc]
                gathered += selected
            return join_gathers(gathers, [gathered.index(i) for i in range(len(affine_maps))])

        spreads = [part.max_spread for part in parts if part.max_spread is not None]
        return IndexStream(
            join_gathers([part.gather for part in parts], order),
            iter_index_blocks(self.count_elements()),
            min(spreads, default=None),
            gather_affine if all(part.gather_affine is not None for part in parts) else None,
            is_in_order=True,
            index_limit=self.count_elements(),
        )

    def _order_leaves(self) -> tuple[list[int], list[int]]:
        """Return the order of the leaves of all parents in an element, and where each parent starts.

        Returns:
          For each leaf of an element its index among the leaves of all parents, concatenated; and
          for each parent the index of its first leaf.
        """
        sizes = [len(structure.nest.flatten(p.element_spec)) for p in self.parents]
        starts = [0, *itertools.accumulate(sizes)]
        indices = (
            structure.nest.pack_sequence_as(p.element_spec, list(range(start, start + size)))
            for p, start, size in zip(self.parents, starts, sizes, strict=False)
        )
        return structure.nest.flatten(_replace_leaves(self.tree, iter(list(indices)))), starts

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        streams = []
        for parent in self.parents:
            stream = parent.iter_chunks(epoch)
            if stream is None:
                return None
            streams.append(stream)
        order, _ = self._order_leaves()
        return (
            item if type(item) is Failure else [list(itertools.chain(*item))[i] for i in order]
            for item in chunk_reordering.align_streams(streams)
        )

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over structures of elements until the shortest dataset ends."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        iterators = [p.iter_elements(epoch) for p in self.parents]

        def zip_elements() -> Iterator[Any]:
            try:
                for parts in zip(*map(catch_failures, iterators), strict=False):
                    failures = [part for part in parts if type(part) is Failure]
                    yield failures[0] if failures else _replace_leaves(self.tree, iter(parts))
            finally:
                for iterator in iterators:
                    iterator.close()

        return RaisingIterator(zip_elements())


def _flatten_datasets(tree: PyTree) -> list[Any]:
    """Return the datasets in a structure, in the order of `tf.nest.flatten`."""
    if isinstance(tree, list):
        raise TypeError(
            "The argument to `Dataset.zip()` must be a tuple or a dictionary, not a list."
        )
    if isinstance(tree, tuple):
        return [d for item in tree for d in _flatten_datasets(item)]
    if isinstance(tree, dict):
        return [d for key in sorted(tree) for d in _flatten_datasets(tree[key])]
    return [tree]


def _replace_leaves(tree: PyTree, parts: Iterator[Any]) -> PyTree:
    """Replace the leaves of a structure by the items of an iterator."""
    if isinstance(tree, tuple):
        items = [_replace_leaves(item, parts) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, dict):
        values = {key: _replace_leaves(tree[key], parts) for key in sorted(tree)}
        return {key: values[key] for key in tree}
    return next(parts)


class FlatMap(RandomTransformation):
    """The elements of the datasets that a function returns, concatenated or interleaved.

    Args:
      parent: The dataset.
      fn: Function from an element to a dataset.
      cycle: Number of datasets that are open at a time.
      block: Number of consecutive elements taken from each dataset, None for all.

    Raises:
      InvalidArgumentError: If a number is not greater than zero.
    """

    def __init__(
        self, parent: DatasetNode, fn: Callable[..., Any], cycle: int = 1, block: int | None = None
    ) -> None:
        super().__init__(parent)
        for name, value in (("cycle_length", cycle), ("block_length", block)):
            if value is not None and value < 1:
                raise InvalidArgumentError(f"`{name}` must be greater than zero, got {value}.")
        if not callable(fn):
            raise InvalidValueError(f"`map_func` must be a callable, got {fn!r}.")
        self._fn, self._cycle, self._block = fn, cycle, block
        self._unpack = type(parent.element_spec) is tuple
        self._templates = get_templates()
        # This is True if the first datasets can produce chunks, see `_infer_spec`.
        self._supports_chunks = False
        # These are the results of the function in the trace for `_slices`.
        self._traced_results: list[Any] = []
        if structure.is_static(parent.element_spec):
            self._check_result()

    def _check_result(self) -> None:
        """Check the result of the function if it can be traced without an element."""

        def probe(element: PyTree) -> tuple[()]:
            self._traced_results.append(self._fn(*element) if self._unpack else self._fn(element))
            return ()

        # Other errors of the function are raised when it gets an element. Its Python code may have side effects,
        # so it is traced only once, for the slices where that is possible.
        with contextlib.suppress(Exception):
            if self._can_trace_slices:
                _ = self._slices
            else:
                trace_shapes(probe, (self.parent.element_spec,), {})
        if self._traced_results:
            self._check_dataset(self._traced_results[0])

    def _create_inner_dataset(self, element: PyTree, call_index: int = 0) -> Dataset:
        """Call the function on an element; `call_index` determines its random numbers."""
        tensors = structure.to_tensors(element)
        with call_key_scope(call_index):
            return self._check_dataset(self._fn(*tensors) if self._unpack else self._fn(tensors))

    @staticmethod
    def _check_dataset(dataset: object) -> Dataset:
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"The `map_func` argument must return a `Dataset` object. Got {type(dataset)}."
            )
        return dataset

    @property
    def _can_trace_slices(self) -> bool:
        return self._cycle == 1 and not holds_variables(self._fn)

    @functools.cached_property
    def _slices(self) -> Unbatch | None:
        """A dataset with the same elements, if the function only slices tensors that a map can compute."""
        if not self._can_trace_slices:
            return None
        states = get_random_states()
        try:
            mapped = Map(
                self.parent,
                make_tensor_function(self._fn, self._traced_results.append),
                seed=self._seed,
            )
            leaves = nest.flatten(mapped.function.output_spec)
            if not mapped.function.is_pure or not all(
                isinstance(s, TensorSpec) and s.shape.rank for s in leaves
            ):
                return None
            return Unbatch(mapped) if are_states_equal(states, get_random_states()) else None
        except Exception:
            # The function does something else, or its errors occur when it gets an element.
            return None

    def _infer_spec(self) -> PyTree:
        if self._slices is not None:
            return self._slices.element_spec
        elements = self.parent.iter_elements(Epoch(self.parent))
        try:
            samples = list(itertools.islice(elements, 2))
        finally:
            elements.close()
        samples = samples or [structure.map_specs(_make_blank_leaf, self.parent.element_spec)]
        # Assertions hold when elements are read, perhaps not yet.
        with probe_shapes(ShapeProbe(0, invents_sizes=True)):
            inner = [
                self._create_inner_dataset(element, index) for index, element in enumerate(samples)
            ]
        self._supports_chunks = all(d.iter_chunks(Epoch(d)) is not None for d in inner)
        # The sizes may differ between the datasets, so the specs are merged.
        return functools.reduce(structure.merge_specs, [d.element_spec for d in inner])

    def count_elements(self) -> int:
        """Return INFINITE_CARDINALITY for an infinite parent that is interleaved, else UNKNOWN_CARDINALITY."""
        is_infinite = (
            self._block is not None and self.parent.count_elements() == INFINITE_CARDINALITY
        )
        return INFINITE_CARDINALITY if is_infinite else UNKNOWN_CARDINALITY

    def _iter_batched_windows(self, epoch: Epoch) -> Iterator[Any] | None:
        """Iterate over chunks of windows if the function only batches each window, else return None."""
        parent = self.parent
        if type(parent) is not Window or self._cycle > 1 or holds_variables(self._fn):
            return None
        # The function may draw random numbers, so its results of two calls are compared.
        states = get_random_states()
        try:
            batches = [
                _parse_window_batch(self._create_inner_dataset(parent.make_placeholders(), index))
                for index in range(2)
            ]
        except Exception:
            # The function uses the elements of a window, or fails for each of them.
            return None
        first, second = batches
        if first is None or first != second or not are_states_equal(states, get_random_states()):
            return None
        windows = parent.iter_stacked(epoch) if first.size >= parent.size else None
        if windows is None:
            return None
        leaves = nest.flatten(first.leaves)
        return (
            item if type(item) is Failure else [item[leaf] for leaf in leaves]
            for item in windows
            if type(item) is Failure or not first.drop or item[0].shape[1] == first.size
        )

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements of the inner datasets, in blocks from each open one in turn."""
        if self._slices is not None:
            return self._slices.iter_elements(epoch)
        windows = self._iter_batched_windows(epoch)
        if windows is not None:
            return RaisingIterator(chunks.unpack_chunks(windows, self.element_spec))
        open_inner = self._make_opener(
            lambda inner: catch_failures(inner.iter_elements(epoch.create_inner_pass(self, inner))),
            epoch,
        )
        parent = self.parent.iter_elements(epoch)
        return RaisingIterator(
            interleave(catch_failures(parent), open_inner, self._cycle, self._block or sys.maxsize)
        )

    def _make_opener(
        self, start: Callable[[Dataset], Iterator[Any]], epoch: Epoch
    ) -> Callable[[Any], Iterator[Any]]:
        """Return a function from an element to an iterator over its dataset.

        Args:
          start: Function that starts the iterator.
          epoch: The pass.
        """
        call_indices = epoch.random_states.count_calls(self)

        def open_inner(element: PyTree) -> Iterator[Any]:
            if type(element) is Failure:
                return iter([element])
            try:
                with self._templates.use():
                    inner = self._create_inner_dataset(element, next(call_indices))
                return start(inner)
            except Exception as error:
                return iter([Failure(error)])

        return open_inner

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.is_stackable(self.element_spec):
            return None
        if self._slices is not None:
            return self._slices.iter_chunks(epoch)
        windows = self._iter_batched_windows(epoch)
        if windows is not None or not self._supports_chunks:
            return windows

        def start(inner: Dataset) -> Iterator[Any]:
            inner_epoch = epoch.create_inner_pass(self, inner)
            stream = inner.iter_chunks(inner_epoch)
            if stream is None:
                return chunks.wrap_elements(catch_failures(inner.iter_elements(inner_epoch)))
            return stream

        parent = catch_failures(self.parent.iter_elements(epoch))
        return chunk_reordering.interleave_chunks(
            parent, self._make_opener(start, epoch), self._cycle, self._block or sys.maxsize
        )


class WindowBatch(NamedTuple):
    """Combination of the components of a window to a batch.

    Attributes:
      leaves: The index of each component of the window, in the structure of the batch.
      size: The batch size, 0 if the window is not batched.
      drop: Whether to drop a smaller batch.
    """

    leaves: PyTree
    size: int = 0
    drop: bool = False


def _parse_window_batch(node: DatasetNode) -> WindowBatch | None:
    """Parse the batch of a window from a dataset of placeholders; return None for any other dataset."""
    if type(node) is WindowPlaceholder:
        return WindowBatch(node.index)
    if type(node) not in (Batch, Zip):
        return None
    parts = [_parse_window_batch(parent) for parent in node.parents]
    known_parts = [part for part in parts if part is not None]
    if len(known_parts) < len(parts) or len({part[1:] for part in known_parts}) != 1:
        return None
    first = known_parts[0]
    if isinstance(node, Batch):
        return (
            None if first.size else first._replace(size=node.batch_size, drop=node.drops_remainder)
        )
    assert isinstance(node, Zip)
    leaves = _replace_leaves(node.tree, iter([part.leaves for part in known_parts]))
    return first._replace(leaves=leaves)


def _make_blank_leaf(spec: PyTree) -> Dataset | np.ndarray:
    """Return a leaf that matches a spec: an empty dataset, or an array of zeros."""
    if isinstance(spec, DatasetSpec):
        return ElementList([], spec.element_spec)
    return structure.make_zeros(spec)


class Choose(Dataset):
    """Elements of several datasets, in the order that a dataset of indices determines.

    Args:
      datasets: The datasets.
      choices: Dataset of int64 scalars, the index of the dataset that provides each element.
      stop_on_empty: Whether to stop as soon as a dataset ends, instead of when all have ended.
    """

    _tensorflow_name = "DirectedInterleaveDataset"

    def __init__(
        self, datasets: Sequence[DatasetNode], choices: DatasetNode, stop_on_empty: bool
    ) -> None:
        choice_spec = choices.element_spec
        if not (
            isinstance(choice_spec, TensorSpec)
            and choice_spec.is_compatible_with(TensorSpec([], dtypes.int64))
        ):
            raise TypeError(
                f"Invalid `choice_dataset`. Its elements must be scalar `tf.int64` tensors but are {choice_spec}."
            )
        self.parents = (choices, *datasets)
        self._stop = stop_on_empty
        spec = datasets[0].element_spec
        for dataset in datasets[1:]:
            spec = structure.merge_specs(spec, dataset.element_spec)
        self._own_spec = spec

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the number of choices if all datasets are infinite, else UNKNOWN_CARDINALITY."""
        counts = [p.count_elements() for p in self.parents[1:]]
        if all(c == INFINITE_CARDINALITY for c in counts):
            return self.parents[0].count_elements()
        return UNKNOWN_CARDINALITY

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.is_stackable(self._own_spec):
            return None
        all_streams = [p.iter_chunks(epoch) for p in self.parents]
        streams = [s for s in all_streams if s is not None]
        if len(streams) < len(all_streams):
            return None
        return chunk_reordering.choose_chunks(streams[0], streams[1:], self._stop)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the next element of each chosen dataset; an exhausted one is skipped or ends the pass."""
        rows = self._iter_rows(epoch)
        return RaisingIterator(self._iter_choices(epoch)) if rows is None else rows

    def _iter_choices(self, epoch: Epoch) -> Iterator[Any]:
        choices, *iterators = [catch_failures(p.iter_elements(epoch)) for p in self.parents]
        open_iterators: list[Iterator[Any] | None] = list(iterators)
        for choice in choices:
            if type(choice) is Failure:
                yield choice
                continue
            index = int(choice)
            if not 0 <= index < len(open_iterators):
                yield chunk_reordering.make_choice_failure(index, len(open_iterators))
                return
            current = open_iterators[index]
            if current is None:
                continue
            element = next(current, _END)
            if element is _END:
                if self._stop:
                    return
                open_iterators[index] = None
                if not any(open_iterators):
                    return
                continue
            yield element


class RandomChoice(Dataset):
    """Random indices of datasets, the choices of `sample_from_datasets`.

    Args:
      weights: Weight of each dataset, or a dataset of such vectors, one for each choice.
      seed: Seed of the choices.
      reshuffle: Whether later passes make other choices.
    """

    def __init__(
        self, weights: np.ndarray | DatasetNode, seed: int | None, reshuffle: bool
    ) -> None:
        self._weights = weights
        if isinstance(weights, DatasetNode):
            self.parents = (weights,)
        self._words = make_seed_words(seed)
        self.seeded = seed is not None
        self.reshuffles = reshuffle
        self.epoch = 0

    def get_seed_words(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def _infer_spec(self) -> PyTree:
        return TensorSpec([], dtypes.int64)

    def count_elements(self) -> int:
        """Return INFINITE_CARDINALITY."""
        return INFINITE_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Draw the index of a dataset for each element, as int64 scalars."""
        rows = self._iter_rows(epoch)
        return RaisingIterator(self._draw_with_varying_weights(epoch)) if rows is None else rows

    def _draw_with_varying_weights(self, epoch: Epoch) -> Iterator[Any]:
        rng = epoch.create_generator(self)
        assert isinstance(self._weights, DatasetNode)
        for weights in self._weights.iter_elements(epoch):
            yield np.asarray(rng.choice(len(weights), p=weights / weights.sum()))

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return None if isinstance(self._weights, DatasetNode) else self._draw_chunks(epoch)

    def _draw_chunks(self, epoch: Epoch) -> Iterator[Any]:
        assert isinstance(self._weights, np.ndarray)
        rng, shares = epoch.create_generator(self), self._weights / self._weights.sum()
        while True:
            yield [rng.choice(len(shares), chunks.MAX_CHUNK_SIZE, p=shares)]
