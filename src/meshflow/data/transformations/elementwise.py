"""A function of every element: `map`, `filter`, `scan` and their like."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.random import call_keys, keys_of_calls
from meshflow.data import structure
from meshflow.data.arguments import UNKNOWN_CARDINALITY, integer, threads_of
from meshflow.data.dataset import Dataset, Vector
from meshflow.data.epoch import Epoch, in_threads
from meshflow.data.execution import chunks
from meshflow.data.execution.host_plan import Plan, places
from meshflow.data.execution.map_function import ElementFunction, randomness, same_randomness
from meshflow.data.execution.resumable import Failed, Raising, Resuming, caught, close
from meshflow.data.states import function_of_state
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.transformations.base import RandomTransformation, Unary, is_live
from meshflow.data.transformations.batching import Batch


class Map(RandomTransformation):
    """A function of every element.

    Args:
      parent: the dataset.
      fn: the function.
      calls: how many threads may run it where it is not compiled; -1 for one per processor.
      spec: from the spec of the elements to that of its results, where it is known without them.
    """

    def __init__(
        self,
        parent: Dataset,
        fn: Callable[..., Any],
        calls: Any = None,
        spec: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self._spec_of = spec
        self.function = ElementFunction(fn, parent.element_spec, "map")
        threads = 1 if calls is None else threads_of(calls)
        self._threads = (os.cpu_count() or 1) if threads < 0 else threads
        self._parallel = calls is not None and threads != 1

    def _known_spec(self) -> Any:
        if self._spec_of is not None:
            return self._spec_of(self._parent.element_spec)
        return self.function.output_spec

    def _static_shapes(self) -> StaticShapes | None:
        known = self._parent._static_shapes()
        return known and known.mapped(self.function.results_of)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is None and self.function.rows is not None and type(self._parent) is Batch:
            rows = self._parent.mapped(epoch, self.function.rows, self.element_spec)
        if rows is not None:
            return rows
        parent = self._parent._elements(epoch)
        if self.function.plan is not None:
            return Raising(self._planned(self.function.plan, parent, epoch))
        if self._parallel and self.function.runs_eagerly and not self.function.holds_variables:
            return Resuming(self._in_threads(parent, epoch), parent)
        return Resuming(lambda: map(self.function.with_states(epoch.random_states), parent), parent)

    def _planned(self, plan: Plan, parent: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """The results, computed for groups of elements."""
        numbers = epoch.random_states.numbers(self.function)
        together = plan.together(epoch.together.get(id(self), 1))
        most = 1 if is_live(self._parent) else plan.size
        keys = self._keys(epoch)

        def groups() -> Iterator[list[Any]]:
            free: list[Any] = []
            items, size = caught(parent), 1
            while found := list(itertools.islice(items, size)):
                # Whoever wants one element does not wait for many.
                size = min(2 * size, most)
                group: list[Any] = []
                for item in found:
                    free = free or places(plan.blocks(together), together)
                    failed = type(item) is Failed
                    group.append(item if failed else (item, next(numbers), free.pop(0)))
                yield group

        def computed(group: list[Any]) -> list[Any]:
            items = [item for item in group if type(item) is not Failed]
            try:
                results = iter(self._of_group(plan, items, keys))
            except Exception as error:
                if len(items) > 1:
                    # Those before and behind the one that cannot be made are given, too.
                    return [result for item in group for result in computed([item])]
                results = iter([Failed(error)])
            return [item if type(item) is Failed else next(results) for item in group]

        parallel = self._parallel and not self.function.holds_variables
        made = (
            in_threads(computed, groups(), self._threads) if parallel else map(computed, groups())
        )
        try:
            for results in made:
                yield from results
        finally:
            close(made)
            close(parent)

    def _of_group(self, plan: Plan, items: list[Any], keys: Callable[[], list[int]]) -> list[Any]:
        if not items:
            return []
        leaves = [nest.flatten(element) for element, _, _ in items]
        drawn = keys_of_calls([number for _, number, _ in items], plan.draws, keys)
        return plan.results(leaves, drawn, [place for _, _, place in items])

    def _keys(self, epoch: Epoch) -> Callable[[], list[int]]:
        """What random ops draw from when nothing has a seed: words of the pass."""
        words: list[int] = []
        lock = threading.Lock()

        def pass_words() -> list[int]:
            # Drawn when a random op first needs them; most functions do not.
            with lock:
                if not words:
                    words.extend(epoch.generator(self).integers(1 << 32, size=2).tolist())
            return words

        return pass_words

    def _in_threads(self, parent: Iterator[Any], epoch: Epoch) -> Callable[[], Iterator[Any]]:
        pass_words = self._keys(epoch)

        def computed(numbered: tuple[Any, int]) -> Any:
            # Random ops draw by an element's number, whichever thread comes first.
            with call_keys(numbered[1], pass_words):
                return self.function(numbered[0])

        elements = zip(parent, epoch.random_states.numbers(self.function), strict=False)
        threads: list[Iterator[Any]] = []

        def results() -> Iterator[Any]:
            if not threads:
                before = randomness()
                yield computed(next(elements))
                # Python's and NumPy's numbers are drawn in the elements' order.
                alike = same_randomness(before, randomness())
                threads.append(
                    in_threads(computed, elements, self._threads)
                    if alike
                    else map(computed, elements)
                )
            yield from threads[0]

        return results

    def _vector(self, epoch: Epoch) -> Vector | None:
        parent = self._parent._vector(epoch) if self.function.vectorizes else None
        if parent is None:
            return None
        affine_maps = self.function.affine_maps
        if affine_maps is not None and parent.mapped is not None:
            wanted = parent.mapped(affine_maps.wanted)
            gather = wanted if affine_maps.are_all else lambda i: affine_maps.finished(wanted(i))
        else:
            gather = lambda i: self.function.many(parent.gather(i))
        return parent._replace(gather=gather, mapped=None)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self._parent._in_chunks(epoch) if self.function.takes_chunks else None
        if parent is None:
            return None
        compute = lambda chunk: self.function.chunk(chunk, epoch.random_states)
        return chunks.applied(compute, parent)

    def _why_not_vectorized(self) -> str:
        if self.function.plan is not None and self.function.vectorizes:
            return f"{self.function.reason}, then vectorized"
        reason = self.function.reason or super()._why_not_vectorized()
        many = self._parallel and self.function.runs_eagerly
        return f"{reason}; in {self._threads} threads" if many else reason


class HostMap(Unary):
    """A function of NumPy arrays, of every element, by several threads; the order is kept.

    Args:
      parent: the dataset.
      fn: from an element of arrays to one of arrays.
      spec: the spec of its results.
      workers: how many threads; default as many as there are processors.
    """

    def __init__(
        self, parent: Dataset, fn: Callable[[Any], Any], spec: Any, workers: int | None = None
    ) -> None:
        super().__init__(parent)
        self._fn, self._own_spec = fn, spec
        self._workers = os.cpu_count() or 1 if workers is None else workers

    def _known_spec(self) -> Any:
        return self._own_spec

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return in_threads(self._fn, self._parent._elements(epoch), self._workers)

    def _why_not_vectorized(self) -> str:
        return f"it calls Python, in {self._workers} threads"


class Filter(Unary):
    """The elements for which a function is true."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "filter")
        self._predicate.check_condition()

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        parent = self._parent._elements(epoch)
        return Resuming(
            lambda: filter(self._predicate.with_states(epoch.random_states), parent), parent
        )

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return filtered(self._parent, self._predicate, epoch, _of_mask)

    def _why_not_vectorized(self) -> str:
        return self._predicate.reason or super()._why_not_vectorized()


def _of_mask(chunk: list[Any], mask: np.ndarray) -> list[Any] | None:
    count = np.count_nonzero(mask)
    if count == len(mask):
        return chunk
    return [leaf[mask] for leaf in chunk] if count else None


def filtered(
    parent: Dataset,
    predicate: ElementFunction,
    epoch: Epoch,
    kept: Callable[[list[Any], np.ndarray], list[Any] | None],
) -> Iterator[Any] | None:
    """What is kept of chunks, by a function of the chunk and of a mask; None when there are no chunks."""
    # Variables may change from element to element.
    if not predicate.takes_chunks or predicate.reads_variables:
        return None
    found = parent._in_chunks(epoch)
    if found is None:
        return None
    return chunks.applied(
        lambda c: kept(c, predicate.chunk(c, epoch.random_states)[0].reshape(-1)), found
    )


class TakeWhile(Unary):
    """Elements up to the first for which a function is false."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "take_while")
        self._predicate.check_condition()

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        parent = self._parent._elements(epoch)
        return Resuming(
            lambda: itertools.takewhile(self._predicate.with_states(epoch.random_states), parent),
            parent,
        )

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        found = filtered(self._parent, self._predicate, epoch, lambda c, mask: [mask, *c])
        return None if found is None else self._until(found)

    @staticmethod
    def _until(parts: Iterator[Any]) -> Iterator[Any]:
        for item in parts:
            if type(item) is Failed:
                yield item
                continue
            mask, *chunk = item
            stop = len(mask) if mask.all() else int(mask.argmin())
            if stop:
                yield chunks.part(chunk, 0, stop)
            if stop < len(mask):
                close(parts)
                return

    def _why_not_vectorized(self) -> str:
        return self._predicate.reason or super()._why_not_vectorized()


class Scan(Unary):
    """A function of state and element."""

    def __init__(self, parent: Dataset, initial_state: Any, fn: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._state = structure.to_arrays(initial_state)
        self._function = function_of_state(
            fn, self._state, parent.element_spec, "scan", self._next_state
        )

    @staticmethod
    def _next_state(found: Any) -> Any:
        if not (type(found) is tuple and len(found) == 2):
            raise TypeError(
                "Invalid `scan_func`. `scan_func` should return a pair of the new state and the output, but it "
                f"gives {found}."
            )
        return found[0]

    def _known_spec(self) -> Any:
        found = self._function.output_spec
        return None if found is None else found[1]

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        state = self._state
        parent = self._parent._elements(epoch)

        def results() -> Iterator[Any]:
            nonlocal state
            for element in parent:
                state, result = self._function((state, element), epoch.random_states)
                yield result

        return Resuming(results, parent)


class Enumerate(Unary):
    """Elements with their numbers."""

    def __init__(self, parent: Dataset, start: Any) -> None:
        super().__init__(parent)
        self._start = integer(start, "start")

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64), self._parent.element_spec

    def _vector(self, epoch: Epoch) -> Vector | None:
        parent = self._parent._vector(epoch)
        if parent is None or not parent.in_order:
            return None
        gather = lambda i: [i + np.int64(self._start), *parent.gather(i)]
        return parent._replace(gather=gather, mapped=None)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        numbers = itertools.count(self._start)
        items = caught(self._parent._elements(epoch))
        # An element that could not be made has a number too.
        numbered = (
            item if type(item) is Failed else (np.asarray(np.int64(number)), item)
            for number, item in zip(numbers, items, strict=False)
        )
        return Raising(numbered)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self._parent._in_chunks(epoch)
        if parent is None:
            return None
        return self._numbered(parent)

    def _numbered(self, parent: Iterator[Any]) -> Iterator[Any]:
        number = self._start
        for chunk in parent:
            if type(chunk) is Failed:
                number += 1
                yield chunk
                continue
            count = chunks.length(chunk)
            yield [np.arange(number, number + count), *chunk]
            number += count
