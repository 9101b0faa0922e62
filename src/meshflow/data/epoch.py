"""Passes over a dataset: seeds, iterators with checkpoints, and background threads."""

from __future__ import annotations

import atexit
import collections
import functools
import itertools
import json
import queue
import threading
import time
import zlib
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from meshflow.checkpoint.graph import STATE
from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.runtime.annotations import DATA, INPUT, name_thread, region
from meshflow.core.runtime.context import context
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.data import structure
from meshflow.data.execution.draws import Draws
from meshflow.data.execution.random_maps import RandomStates
from meshflow.data.execution.resumable import ClosingIterator, Failed, Raising, caught, close
from meshflow.data.optional import Optional
from meshflow.data.specs import IteratorSpec, described_by
from meshflow.data.static_shapes import StaticShapes, described, examples
from meshflow.environment.jax_internals import trace_state_clean
from meshflow.environment.types import PyTree

# A thread computes several items before it hands them over: as many as take this time, up to a
# maximum.
_GROUP_SECONDS, _GROUP_MOST = 0.004, 16


class PipelineNode(Protocol):
    """A dataset, as passes and iterators see it."""

    @property
    def _parents(self) -> Sequence[PipelineNode]: ...

    @property
    def element_spec(self) -> PyTree: ...

    def _elements(self, epoch: Epoch) -> Generator[PyTree, None, None]: ...

    def _static_shapes(self) -> StaticShapes | None: ...


class RandomNode(Protocol):
    """A dataset that draws random numbers.

    Attributes:
      epoch: Index of the next epoch.
      reshuffles: Whether every epoch draws other numbers.
    """

    epoch: int
    reshuffles: bool

    def seed(self) -> list[int]: ...


class Epoch:
    """A pass over a dataset, with the seeds of its random transformations.

    The seeds are drawn once per pass and can be saved, so that the same pass can be repeated.

    Attributes:
      seeds: For each random node, by its key in the graph, the words of its seed and the index of
        its first epoch.
      measures_time: Whether the pass measures time; False for passes that only inspect a dataset.
      random_states: States of the random ops of users' functions.
      together: For the id of a node, how many of its elements the consumer combines to a batch.

    Args:
      root: The dataset.
      seeds: Seeds of the pass to repeat; None draws new seeds.
      measures_time: See above.
      before: Prefix of the keys of the nodes.
      words: Function that provides the seed of nodes without a seed, in a dataset that another pass
        creates.
    """

    def __init__(
        self,
        root: PipelineNode,
        seeds: dict[str, list[Any]] | None = None,
        measures_time: bool = False,
        key_prefix: str = "",
        draw_words: Callable[[], list[int]] | None = None,
    ) -> None:
        self.counts = measures_time
        self.random_states = RandomStates()
        self.together: dict[int, int] = {}
        self._places = {id(node): f"{key_prefix}{i}" for i, node in enumerate(_nodes(root))}
        self._words = draw_words
        self._inner: dict[str, tuple[Iterator[int], Callable[[], list[int]]]] = {}
        self.seeds: dict[str, list[Any]] = {} if seeds is None else seeds
        self._epochs: dict[str, int] = {}

    def _place(self, node: object) -> str:
        return self._places.get(id(node), f"inner {id(node)}")

    def within(self, node: RandomNode, root: PipelineNode) -> Epoch:
        """Create the pass over a dataset that a node created for an element.

        It is repeated when this pass is repeated.

        Args:
          node: The node that created the dataset.
          root: The created dataset.
        """
        key = self._place(node)
        if key not in self._inner:
            draw_words = functools.cache(
                lambda: self.generator(node).integers(1 << 32, size=2).tolist()
            )
            self._inner[key] = itertools.count(), draw_words
        indices, draw_inner_words = self._inner[key]
        return Epoch(
            root, self.seeds, key_prefix=f"{key}.{next(indices)}.", draw_words=draw_inner_words
        )

    def generator(self, node: RandomNode) -> np.random.Generator:
        """Return a random number generator for the next epoch of a node in this pass."""
        words, epoch = self._next(node)
        return np.random.default_rng([*words, epoch if node.reshuffles else 0])

    def draws(self, node: RandomNode) -> Draws:
        """Return the random numbers for the next epoch of a node.

        They have the same values as those of TensorFlow's kernels.
        """
        words, epoch = self._next(node)
        return Draws(words, epoch if node.reshuffles else 0, node.reshuffles)

    def _next(self, node: RandomNode) -> tuple[list[int], int]:
        """Return the words of a node's seed and the index of its next epoch, and advance the node."""
        key = self._place(node)
        if key not in self.seeds:
            words = [int(w) for w in node.seed()]
            if self._words is not None and not getattr(node, "seeded", False):
                # The dataset exists only in this pass, so its seed is derived from that of the node
                # that created it.
                words = [*self._words(), zlib.crc32(key.encode())]
            self.seeds[key] = [words, node.epoch]
        words, first = self.seeds[key]
        epoch = first + self._epochs.get(key, 0)
        self._epochs[key] = self._epochs.get(key, 0) + 1
        node.epoch = max(node.epoch, epoch + 1)
        return words, epoch


def _nodes(root: PipelineNode) -> Iterator[Any]:
    """Iterate over a dataset and all its ancestors, in depth-first order."""
    yield root
    for parent in root._parents:
        yield from _nodes(parent)


@described_by(IteratorSpec)
class OwnedIterator(structure.ElementSource, Source):
    """An iterator over a dataset, as `iter(dataset)` returns it.

    `next(iterator)` in a `tf.function` takes an element at every call of the function.

    `tf.train.Checkpoint(iterator=iterator)` saves its position; after it is restored, it continues
    with the same element.

    Example:
      >>> import meshflow as tf
      >>> iterator = iter(tf.data.Dataset.range(5))
      >>> int(next(iterator)), int(iterator.get_next())
      (0, 1)
    """

    def __init__(
        self, dataset: PipelineNode, convert: Callable[[Any], Any] = structure.to_tensors
    ) -> None:
        super().__init__()
        self._dataset, self._convert = dataset, convert
        self._start(None)

    def _start(self, seeds: dict[str, list[Any]] | None) -> None:
        self._position = 0
        self._given_back.clear()
        self._epoch = Epoch(self._dataset, seeds, measures_time=True)
        self._elements = self._dataset._elements(self._epoch)

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the elements."""
        return self._dataset.element_spec

    @property
    def _type_spec(self) -> IteratorSpec:
        return IteratorSpec(self.element_spec)

    def __next__(self) -> PyTree:
        if (
            self._given_back
            or context.trace is not None
            or context.tapes
            or not trace_state_clean()
        ):
            return self.pull()
        # This is the fast path of `pull`: traced functions and tapes need the rest of it.
        element = self._produce()
        self._position += 1
        return element

    def next(self) -> PyTree:
        """Return the next element, like `next(iterator)`."""
        return self.pull()

    def _produce(self) -> PyTree:
        try:
            with region(INPUT):
                return self._convert(next(self._elements))
        except (MemoryError, RuntimeError) as error:
            exhausted_error = exhausted(error, f"an element of {self._dataset!r}")
            if exhausted_error is None:
                raise
            raise exhausted_error from error

    def _kind(self) -> Hashable:
        sizes = described(self._dataset._static_shapes())
        return str(self._dataset.element_spec), self._convert, sizes

    def take(self) -> PyTree:
        """Take the next element immediately, even while a function is traced."""
        element = super().take()
        self._position += 1
        return element

    def give_back(self, element: PyTree) -> None:
        """Return an element to the iterator, so that it is the next one again."""
        super().give_back(element)
        self._position -= 1

    def _likes(self) -> tuple[Any, Any]:
        return examples(self._dataset._static_shapes(), self._convert) or super()._likes()

    def get_next_as_optional(self) -> Optional:
        """Return an optional that contains the next element, or is empty at the end."""
        element, present = self.pull_if_any()
        return Optional(element, present, self.element_spec)

    def close(self) -> None:
        """Stop the threads that produce elements."""
        self._elements.close()

    _checkpoint_attributes = (STATE,)

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        state = {"position": self._position, "seeds": self._epoch.seeds}
        return {"": np.array(json.dumps(state).encode(), object)}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        value = values[""]
        # Checkpoints of older versions contain the text as an array of bytes.
        state = json.loads(value.tobytes() if value.dtype == np.uint8 else value.item())
        self._elements.close()
        self._start(state["seeds"])
        for _ in range(state["position"]):
            next(self._elements)
        self._position = state["position"]


_END = object()


def ahead(elements: Iterator[Any], size: int) -> Generator[Any, None, None]:
    """Produce up to `size` elements before they are requested.

    A thread produces them, unless the iterator can start them without one
    (`ClosingIterator.go_ahead`). The thread ends after the last element, and when the returned
    iterator is closed or garbage collected.

    Args:
      elements: Iterator over the elements.
      size: Number of elements to produce ahead.
    """
    if isinstance(elements, ClosingIterator) and elements.go_ahead(size):
        return elements
    return Raising(_ahead(caught(elements), elements, size))


def _ahead(items: Iterator[Any], source: Iterator[Any], size: int) -> Generator[Any, None, None]:
    """Iterate over items that a thread takes from a source; close the source at the end."""
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # The queue contains one permit for each item that may be produced; False stops the thread.
    permits: queue.SimpleQueue[bool] = queue.SimpleQueue()
    for _ in range(max(size, 1)):
        permits.put(True)
    stopped = threading.Event()

    def produce_items() -> None:
        name_thread("tf.data ahead")
        try:
            for item in _in_regions(items, "ahead"):
                if not permits.get() or stopped.is_set():
                    break
                ready.put((item, None))
            else:
                ready.put((_END, None))
        except BaseException as error:
            ready.put((_END, error))
        finally:
            close(source)

    def stop() -> None:
        stopped.set()
        permits.put(False)

    thread = threading.Thread(target=produce_items, name="tf.data prefetch", daemon=True)
    _stops[thread] = stop
    thread.start()
    try:
        while True:
            # The region shows the time that the consumer waits for input.
            with region(INPUT):
                item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            permits.put(True)
            yield item
    finally:
        stop()
        thread.join(timeout=5)
        _stops.pop(thread, None)


def _in_regions(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Iterate over items, each produced in a region that profiles show."""
    while True:
        with region(DATA, name):
            item = next(items, _END)
        if item is _END:
            return
        yield item


# For each prefetching thread the function that stops it.
_stops: dict[threading.Thread, Callable[[], None]] = {}


@atexit.register
def _stop_all() -> None:
    # A daemon thread that is inside a compiled program at interpreter shutdown crashes the process.
    stop_functions = dict(_stops)
    for stop in stop_functions.values():
        stop()
    deadline = time.monotonic() + 5
    for thread in stop_functions:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))


def in_threads(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    """Apply a function to items in several threads, in the order of the items.

    A thread takes several items at a time if the function is fast.

    Args:
      fn: The function.
      items: The items; the thread that consumes the results iterates over them.
      workers: Number of threads.
    """
    return Raising(_in_threads(fn, items, workers))


def _in_threads(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    def compute(item: Any) -> Any:
        if type(item) is Failed:
            return item
        try:
            return fn(item)
        except Exception as error:
            return Failed(error)

    def compute_group(group: list[Any]) -> tuple[list[Any], float]:
        start = time.perf_counter()
        with region(DATA, "map"):
            return [compute(item) for item in group], time.perf_counter() - start

    size = 1

    def next_results() -> list[Any]:
        nonlocal size
        results, seconds = started.popleft().result()
        # The time of a group is short enough to wait for, and much longer than the hand-over
        # between threads.
        fitting_size = int(_GROUP_SECONDS * len(results) / max(seconds, 1e-9))
        size = max(1, min(fitting_size, 2 * size, _GROUP_MOST))
        return results

    source = caught(items)
    pool = ThreadPoolExecutor(workers, "tf.data map", name_thread, ("tf.data map",))
    started: collections.deque[Future[Any]] = collections.deque()
    try:
        while group := list(itertools.islice(source, size)):
            started.append(pool.submit(compute_group, group))
            if len(started) > 2 * workers:
                yield from next_results()
        while started:
            yield from next_results()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        close(items)
