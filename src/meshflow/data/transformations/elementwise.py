"""Transformations that apply a function to every element, such as `map` and `filter`."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.random_streams import call_key_scope, compute_call_keys
from meshflow.data import structure
from meshflow.data.arguments import UNKNOWN_CARDINALITY, IntLike, parse_parallel_calls, to_int
from meshflow.data.epoch import Epoch, map_in_threads
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import (
    Failure,
    RaisingIterator,
    ResumingIterator,
    catch_failures,
    close_iterator,
)
from meshflow.data.execution.function_effects import are_states_equal, get_random_states
from meshflow.data.execution.function_templates import create_function
from meshflow.data.execution.host_plan import HostPlan, split_blocks
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.states import make_state_function
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.transformations.base import RandomTransformation, Unary, is_live
from meshflow.data.transformations.batching import Batch
from meshflow.environment.types import PyTree

# Elements of unknown sizes are read in groups, which end with the element that exceeds these bytes.
_MAX_GROUP_SIZE, _MAX_GROUP_BYTES = 64, 1 << 20


def _read_group(items: Iterator[Any], size: int) -> list[Any]:
    """Return the next items, fewer than `size` of large elements."""
    group: list[Any] = []
    num_bytes = 0
    for item in itertools.islice(items, size):
        group.append(item)
        # The memory of strings and composites is unknown.
        sizes = [getattr(leaf, "nbytes", _MAX_GROUP_BYTES) for leaf in nest.flatten(item)]
        num_bytes += sum(sizes)
        if num_bytes >= _MAX_GROUP_BYTES:
            break
    return group


class Map(RandomTransformation):
    """A function of every element.

    Args:
      parent: The dataset.
      fn: The function.
      calls: Number of threads that may run the function if it is not compiled; -1 means one per
        processor.
      spec: Function from the spec of the elements to that of the results; by default the function
        is traced.
      seed: Function that returns the words of the seed of random ops, by default those of a new one.
    """

    def __init__(
        self,
        parent: DatasetNode,
        fn: Callable[..., Any],
        calls: IntLike | None = None,
        spec: Callable[[Any], Any] | None = None,
        seed: Callable[[], list[int]] | None = None,
    ) -> None:
        super().__init__(parent, seed)
        self._infer_result_spec = spec
        self.function = create_function(fn, parent.element_spec, "map")
        threads = 1 if calls is None else parse_parallel_calls(calls)
        self._threads = (os.cpu_count() or 1) if threads < 0 else threads
        self._parallel = calls is not None and threads != 1

    def _infer_spec(self) -> PyTree:
        if self._infer_result_spec is not None:
            return self._infer_result_spec(self.parent.element_spec)
        return self.function.output_spec

    def _relax_spec(self, first: PyTree) -> PyTree:
        return self.function.refine_spec(first)

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the static shapes of the results, or None if those of the function are not known."""
        shapes = self.parent.infer_static_shapes()
        return shapes and shapes.apply_function(self.function.infer_result_spec)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the results, in the fastest form that the function allows."""
        rows = self._iter_rows(epoch)
        if rows is None and self.function.rows is not None and type(self.parent) is Batch:
            rows = self.parent.gather_affine_batches(epoch, self.function.rows, self.element_spec)
        if rows is not None:
            return rows
        if self.function.segments is not None and not is_live(self.parent):
            parts = self.parent.iter_chunks(epoch)
            if parts is not None:
                return RaisingIterator(self._run_segments(parts, epoch))
        parent = self.parent.iter_elements(epoch)
        if self.function.plan is not None:
            return RaisingIterator(self._run_plan(self.function.plan, parent, epoch))
        if self._parallel and self.function.runs_eagerly and not self.function.holds_variables:
            return ResumingIterator(self._map_in_threads(parent, epoch), parent)
        compute = self.function.bind_random_states(epoch.random_states)
        if structure.is_static(self.parent.element_spec) or is_live(self.parent):
            return ResumingIterator(lambda: map(compute, parent), parent)
        return RaisingIterator(self._run_groups(parent, compute))

    def _run_groups(self, parent: Iterator[Any], compute: Callable[[Any], Any]) -> Iterator[Any]:
        """Compute the results for elements of unknown sizes, those of equal sizes in a group together."""
        items, size = catch_failures(parent), 1
        try:
            while group := _read_group(items, size):
                elements = [item for item in group if type(item) is not Failure]
                found = iter(self.function.compute_equal(elements) if size > 1 else [None])
                for item in group:
                    if type(item) is not Failure:
                        try:
                            result = next(found)
                            item = compute(item) if result is None else result
                        except Exception as error:
                            item = Failure(error)
                    yield item
                size = min(2 * size, _MAX_GROUP_SIZE) if self.function.may_stack else 1
        finally:
            close_iterator(parent)

    def _run_segments(self, parts: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """Compute the results for chunks of elements; a result that cannot be computed is a failure."""
        try:
            for part in parts:
                if type(part) is Failure:
                    yield part
                else:
                    yield from self.function.compute_rows(part, epoch.random_states)
        finally:
            close_iterator(parts)

    def _run_plan(self, plan: HostPlan, parent: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """Compute the results with a host plan, for groups of elements."""
        indices = epoch.random_states.count_calls(self.function)
        batch_size = plan.choose_block_length(epoch.batch_sizes.get(id(self), 1))
        max_group_size = 1 if is_live(self.parent) else plan.group_size
        keys = self._make_pass_words(epoch)

        def iter_groups() -> Iterator[list[Any]]:
            free_slots: list[list[np.ndarray]] = []
            items, size = catch_failures(parent), 1
            while next_items := list(itertools.islice(items, size)):
                # The first groups are small, so that a consumer of one element does not wait for many.
                size = min(2 * size, max_group_size)
                group: list[Any] = []
                for item in next_items:
                    free_slots = free_slots or split_blocks(
                        plan.allocate_blocks(batch_size), batch_size
                    )
                    failed = type(item) is Failure
                    group.append(item if failed else (item, next(indices), free_slots.pop(0)))
                yield group

        def compute(group: list[Any]) -> list[Any]:
            items = [item for item in group if type(item) is not Failure]
            try:
                results = iter(self._compute_group(plan, items, keys))
            except Exception as error:
                if len(items) > 1:
                    # If one element fails, the others of the group are computed individually.
                    return [result for item in group for result in compute([item])]
                results = iter([Failure(error)])
            return [item if type(item) is Failure else next(results) for item in group]

        parallel = self._parallel and not (self.function.holds_variables or plan.holds_lock)
        groups_of_results = (
            map_in_threads(compute, iter_groups(), self._threads)
            if parallel
            else map(compute, iter_groups())
        )
        try:
            for results in groups_of_results:
                yield from results
        finally:
            close_iterator(groups_of_results)
            close_iterator(parent)

    def _compute_group(
        self, plan: HostPlan, items: list[Any], draw_words: Callable[[], list[int]]
    ) -> list[Any]:
        if not items:
            return []
        leaves = [nest.flatten(element) for element, _, _ in items]
        keys = compute_call_keys([index for _, index, _ in items], plan.draws, draw_words)
        return plan.compute_elements(leaves, keys, [slot for _, _, slot in items])

    def _make_pass_words(self, epoch: Epoch) -> Callable[[], list[int]]:
        """Return a function that draws the seed of random ops in this pass, if none is set."""
        words: list[int] = []
        lock = threading.Lock()

        def pass_words() -> list[int]:
            # The words are drawn on first use, because most functions do not draw random numbers.
            with lock:
                if not words:
                    words.extend(epoch.create_generator(self).integers(1 << 32, size=2).tolist())
            return words

        return pass_words

    def _map_in_threads(self, parent: Iterator[Any], epoch: Epoch) -> Callable[[], Iterator[Any]]:
        """Return a function that starts an iterator over the results, computed in threads."""
        pass_words = self._make_pass_words(epoch)

        def compute(indexed_element: tuple[Any, int]) -> Any:
            # Random ops draw by the index of the element, so the order of the threads does not matter.
            element, index = indexed_element
            with call_key_scope(index, pass_words):
                return self.function(element)

        elements = zip(parent, epoch.random_states.count_calls(self.function), strict=False)
        threads: list[Iterator[Any]] = []

        def results() -> Iterator[Any]:
            if not threads:
                before = get_random_states()
                yield compute(next(elements))
                # A function that draws from Python's or NumPy's random state must run in the order
                # of the elements.
                is_deterministic = are_states_equal(before, get_random_states())
                threads.append(
                    map_in_threads(compute, elements, self._threads)
                    if is_deterministic
                    else map(compute, elements)
                )
            yield from threads[0]

        return results

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the parent's index stream with the function applied to gathered elements, or None."""
        parent = self.parent.vectorize(epoch) if self.function.vectorizes else None
        if parent is None:
            return None
        affine_maps = self.function.affine_maps
        if affine_maps is not None and parent.gather_affine is not None:
            affine_gather = parent.gather_affine(affine_maps.gathered_maps)
            gather = (
                affine_gather
                if affine_maps.are_all_affine
                else lambda i: affine_maps.finish(affine_gather(i))
            )
        else:
            gather = lambda i: self.function.compute_many(parent.gather(i))
        return parent._replace(gather=gather, gather_affine=None)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        has_checks = self.function.checked is not None
        parent = (
            self.parent.iter_chunks(epoch) if self.function.takes_chunks or has_checks else None
        )
        if parent is None:
            return None
        if has_checks:
            return chunks.expand_chunks(
                lambda chunk: self.function.compute_items(chunk, epoch.random_states), parent
            )
        compute = lambda chunk: self.function.compute_chunk(chunk, epoch.random_states)
        return chunks.map_chunks(compute, parent)

    def explain_fallback(self) -> str:
        """Return the reason why the function is not vectorized, with the number of threads."""
        if self.function.plan is not None and self.function.vectorizes:
            return f"{self.function.reason}, then vectorized"
        reason = self.function.reason or super().explain_fallback()
        holds_lock = self.function.plan is not None and self.function.plan.holds_lock
        if holds_lock or not (self._parallel and self.function.runs_eagerly):
            return reason
        threads = f"it runs in {self._threads} threads"
        return f"{reason}; {threads}" if reason else threads


class HostMap(Unary):
    """A function of NumPy arrays, applied to every element by several threads in order.

    Args:
      parent: The dataset.
      fn: Function from an element of host arrays to another one.
      spec: Spec of the results.
      workers: Number of threads, by default the number of processors.
    """

    _tensorflow_name = "MapDataset"

    def __init__(
        self,
        parent: DatasetNode,
        fn: Callable[[Any], Any],
        spec: PyTree,
        workers: int | None = None,
    ) -> None:
        super().__init__(parent)
        self._fn, self._own_spec = fn, spec
        self._workers = os.cpu_count() or 1 if workers is None else workers

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the results in the order of the elements."""
        return map_in_threads(self._fn, self.parent.iter_elements(epoch), self._workers)

    def explain_fallback(self) -> str:
        """Return that the function calls Python, with the number of threads."""
        return f"it calls Python, in {self._workers} threads"


class Filter(Unary):
    """The elements for which a predicate is true.

    Args:
      parent: The dataset.
      predicate: Function from an element to a bool scalar.
    """

    def __init__(self, parent: DatasetNode, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = create_function(predicate, parent.element_spec, "filter")
        self._predicate.check_condition()

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because only a pass evaluates the predicate."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements for which the predicate is true."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        parent = self.parent.iter_elements(epoch)
        return ResumingIterator(
            lambda: filter(self._predicate.bind_condition(epoch.random_states), parent), parent
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return filter_chunks(self.parent, self._predicate, epoch, _select_by_mask)

    def explain_fallback(self) -> str:
        """Return the reason why the predicate is not vectorized."""
        return self._predicate.reason or super().explain_fallback()


def _select_by_mask(chunk: list[Any], mask: np.ndarray) -> list[Any] | None:
    """Return the elements of a chunk where a mask is true, None if there are none."""
    count = np.count_nonzero(mask)
    if count == len(mask):
        return chunk
    return [leaf[mask] for leaf in chunk] if count else None


def filter_chunks(
    parent: DatasetNode,
    predicate: ElementFunction,
    epoch: Epoch,
    select: Callable[[list[Any], np.ndarray], list[Any] | None],
) -> Iterator[Any] | None:
    """Evaluate a predicate on chunks, and select elements from each.

    Args:
      parent: The dataset.
      predicate: The predicate.
      epoch: The pass.
      select: Function from a chunk and the values of the predicate to the selected elements.

    Returns:
      The selected elements in chunks, or None if the parent or the predicate do not support chunks.
    """
    # The predicate must see changes of variables between two elements.
    if not predicate.takes_chunks or predicate.reads_variables:
        return None
    parent_chunks = parent.iter_chunks(epoch)
    if parent_chunks is None:
        return None
    return chunks.map_chunks(
        lambda c: select(c, predicate.compute_chunk(c, epoch.random_states)[0].reshape(-1)),
        parent_chunks,
    )


class TakeWhile(Unary):
    """The elements before the first one for which a predicate is false.

    Args:
      parent: The dataset.
      predicate: Function from an element to a bool scalar.
    """

    def __init__(self, parent: DatasetNode, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "take_while")
        self._predicate.check_condition()

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because only a pass evaluates the predicate."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements until the predicate is false."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        parent = self.parent.iter_elements(epoch)
        return ResumingIterator(
            lambda: itertools.takewhile(
                self._predicate.bind_condition(epoch.random_states), parent
            ),
            parent,
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        masked_chunks = filter_chunks(
            self.parent, self._predicate, epoch, lambda c, mask: [mask, *c]
        )
        return None if masked_chunks is None else self._take_until_false(masked_chunks)

    @staticmethod
    def _take_until_false(parts: Iterator[Any]) -> Iterator[Any]:
        for item in parts:
            if type(item) is Failure:
                yield item
                continue
            mask, *chunk = item
            stop = len(mask) if mask.all() else int(mask.argmin())
            if stop:
                yield chunks.slice_chunk(chunk, 0, stop)
            if stop < len(mask):
                close_iterator(parts)
                return

    def explain_fallback(self) -> str:
        """Return the reason why the predicate is not vectorized."""
        return self._predicate.reason or super().explain_fallback()


class Scan(Unary):
    """A function of a state and every element.

    Args:
      parent: The dataset.
      initial_state: The first state.
      fn: Function from (state, element) to (next state, result).
    """

    def __init__(self, parent: DatasetNode, initial_state: PyTree, fn: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._state = structure.to_arrays(initial_state)
        self._function = make_state_function(
            fn, self._state, parent.element_spec, "scan", self._select_next_state
        )

    @staticmethod
    def _select_next_state(results: PyTree) -> PyTree:
        if not (type(results) is tuple and len(results) == 2):
            raise TypeError(
                "Invalid `scan_func`. `scan_func` should return a pair consisting of new state and the output value. It "
                f"returns {results}."
            )
        return results[0]

    def _infer_spec(self) -> PyTree:
        results = self._function.output_spec
        return None if results is None else results[1]

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the results, with the state of the previous element."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        state = self._state
        parent = self.parent.iter_elements(epoch)

        def results() -> Iterator[Any]:
            nonlocal state
            for element in parent:
                state, result = self._function((state, element), epoch.random_states)
                yield result

        return ResumingIterator(results, parent)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not self._function.can_scan(self._state):
            return None
        parent = self.parent.iter_chunks(epoch)
        if parent is None:
            return None
        state = nest.flatten(self._state)

        def scan(chunk: list[Any]) -> list[Any]:
            nonlocal state
            state, results = self._function.scan_chunk(state, chunk)
            return results

        return chunks.map_chunks(scan, parent)


class Enumerate(Unary):
    """Pairs of an index and an element.

    Args:
      parent: The dataset.
      start: Index of the first element.
    """

    def __init__(self, parent: DatasetNode, start: IntLike) -> None:
        super().__init__(parent)
        self._start = to_int(start, "start")

    def _infer_spec(self) -> PyTree:
        return TensorSpec([], dtypes.int64), self.parent.element_spec

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the parent's index stream with the shifted index as first component, if it is in order."""
        parent = self.parent.vectorize(epoch)
        if parent is None or not parent.is_in_order:
            return None
        gather = lambda i: [i + np.int64(self._start), *parent.gather(i)]
        return parent._replace(gather=gather, gather_affine=None)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over pairs of an int64 index and an element; a failed element uses up an index."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        indices = itertools.count(self._start)
        items = catch_failures(self.parent.iter_elements(epoch))
        # An element that failed uses up an index.
        indexed = (
            item if type(item) is Failure else (np.asarray(np.int64(index)), item)
            for index, item in zip(indices, items, strict=False)
        )
        return RaisingIterator(indexed)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self.parent.iter_chunks(epoch)
        if parent is None:
            return None
        return self._enumerate_chunks(parent)

    def _enumerate_chunks(self, parent: Iterator[Any]) -> Iterator[Any]:
        index = self._start
        for chunk in parent:
            if type(chunk) is Failure:
                index += 1
                yield chunk
                continue
            count = chunks.count_elements(chunk)
            yield [np.arange(index, index + count), *chunk]
            index += count
