"""One pass over a dataset: which epoch each shuffle is in, and iterators that can be saved."""

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
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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
from meshflow.data.static_shapes import described, examples
from meshflow.environment.jax_internals import trace_state_clean

# Items that a thread computes before it hands them over: what takes so long, and how many at most.
_GROUP_SECONDS, _GROUP_MOST = 0.004, 16


class Epoch:
    """What one pass decides once: the seeds of its shuffles, so that it can be repeated.

    Attributes:
      seeds: for each random node, by its place in the graph, seed and number of its first epoch.
      counts: whether its time is taken; False where somebody only looks at a dataset.
      random_states: what the random ops of users' functions draw.
      together: by node, how many elements its child makes a batch of.

    Args:
      root: the dataset.
      seeds: those of the pass to repeat.
      counts: see above.
      before: what the places of its nodes begin with.
      words: gives the seed of what has none, in a dataset that another pass makes on its way.
    """

    def __init__(
        self,
        root: Any,
        seeds: dict[str, list[Any]] | None = None,
        counts: bool = False,
        before: str = "",
        words: Callable[[], list[int]] | None = None,
    ) -> None:
        self.counts = counts
        self.random_states = RandomStates()
        self.together: dict[int, int] = {}
        self._places = {id(node): f"{before}{i}" for i, node in enumerate(_nodes(root))}
        self._words = words
        self._inner: dict[str, tuple[Iterator[int], Callable[[], list[int]]]] = {}
        self.seeds: dict[str, list[Any]] = {} if seeds is None else seeds
        self._epochs: dict[str, int] = {}

    def _place(self, node: Any) -> str:
        return self._places.get(id(node), f"inner {id(node)}")

    def within(self, node: Any, root: Any) -> Epoch:
        """The pass over a dataset that a node has just made of an element; it is repeated with this one."""
        place = self._place(node)
        if place not in self._inner:
            drawn = functools.cache(lambda: self.generator(node).integers(1 << 32, size=2).tolist())
            self._inner[place] = itertools.count(), drawn
        numbers, words = self._inner[place]
        return Epoch(root, self.seeds, before=f"{place}.{next(numbers)}.", words=words)

    def generator(self, node: Any) -> np.random.Generator:
        """The random numbers of a node's next epoch in this pass."""
        words, number = self._next(node)
        return np.random.default_rng([*words, number if node.reshuffles else 0])

    def draws(self, node: Any) -> Draws:
        """The same for nodes that draw as TensorFlow's do."""
        words, number = self._next(node)
        return Draws(words, number if node.reshuffles else 0, node.reshuffles)

    def _next(self, node: Any) -> tuple[list[int], int]:
        """The words of a node's seed, and the number of its next epoch."""
        place = self._place(node)
        if place not in self.seeds:
            words = [int(w) for w in node.seed()]
            if self._words is not None and not getattr(node, "seeded", False):
                # A dataset made on the way has no seed that could be drawn again.
                words = [*self._words(), zlib.crc32(place.encode())]
            self.seeds[place] = [words, node.epoch]
        words, first = self.seeds[place]
        number = first + self._epochs.get(place, 0)
        self._epochs[place] = self._epochs.get(place, 0) + 1
        node.epoch = max(node.epoch, number + 1)
        return words, number


def _nodes(root: Any) -> Iterator[Any]:
    yield root
    for parent in root._parents:
        yield from _nodes(parent)


@described_by(IteratorSpec)
class OwnedIterator(Source):
    """An iterator over a dataset; made by `iter(dataset)`.

    `next(iterator)` in a `tf.function` takes an element at every call of the function.

    It can be saved by `tf.train.Checkpoint(iterator=it)` and goes on at the same element after it is
    restored.

    Example:
      >>> import meshflow as tf
      >>> iterator = iter(tf.data.Dataset.range(5))
      >>> int(next(iterator)), int(iterator.get_next())
      (0, 1)
    """

    def __init__(self, dataset: Any, convert: Callable[[Any], Any] = structure.to_tensors) -> None:
        super().__init__()
        self._dataset, self._convert = dataset, convert
        self._start(None)

    def _start(self, seeds: Any) -> None:
        self._position = 0
        self._given_back.clear()
        self._epoch = Epoch(self._dataset, seeds, counts=True)
        self._elements = self._dataset._elements(self._epoch)

    @property
    def element_spec(self) -> Any:
        """The spec of the elements."""
        return self._dataset.element_spec

    @property
    def _type_spec(self) -> IteratorSpec:
        return IteratorSpec(self.element_spec)

    def __next__(self) -> Any:
        if (
            self._given_back
            or context.trace is not None
            or context.tapes
            or not trace_state_clean()
        ):
            return self.pull()
        # As `pull` does, but for what only traced functions and tapes need.
        element = self._produce()
        self._position += 1
        return element

    def next(self) -> Any:
        """The next element; `next(iterator)`."""
        return self.pull()

    def _produce(self) -> Any:
        try:
            with region(INPUT):
                return self._convert(next(self._elements))
        except (MemoryError, RuntimeError) as error:
            full = exhausted(error, f"an element of {self._dataset!r}")
            if full is None:
                raise
            raise full from error

    def _kind(self) -> Any:
        sizes = described(self._dataset._static_shapes())
        return str(self._dataset.element_spec), self._convert, sizes

    def take(self) -> Any:
        """The next element, now."""
        element = super().take()
        self._position += 1
        return element

    def give_back(self, element: Any) -> None:
        """Makes an element the next one again."""
        super().give_back(element)
        self._position -= 1

    def _likes(self) -> tuple[Any, Any]:
        return examples(self._dataset._static_shapes(), self._convert) or super()._likes()

    def get_next_as_optional(self) -> Optional:
        """The next element, or nothing at the end."""
        element, present = self.pull_if_any()
        return Optional(element, present, self.element_spec)

    def close(self) -> None:
        """Ends the threads behind it."""
        self._elements.close()

    _checkpoint_attributes = (STATE,)

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        state = {"position": self._position, "seeds": self._epoch.seeds}
        return {"": np.array(json.dumps(state).encode(), object)}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        value = values[""]
        # Older checkpoints hold the text as an array of bytes.
        state = json.loads(value.tobytes() if value.dtype == np.uint8 else value.item())
        self._elements.close()
        self._start(state["seeds"])
        for _ in range(state["position"]):
            next(self._elements)
        self._position = state["position"]


_END = object()


def ahead(elements: Iterator[Any], size: int) -> Generator[Any, None, None]:
    """Elements made up to `size` of them before they are asked for.

    A thread makes them, unless they say that they do so themselves. It ends with the elements, and when
    this iterator is closed or forgotten.
    """
    if isinstance(elements, ClosingIterator) and elements.go_ahead(size):
        return elements
    return Raising(_ahead(caught(elements), elements, size))


def _ahead(items: Iterator[Any], source: Any, size: int) -> Generator[Any, None, None]:
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # One thing for each element that may be made; False to stop.
    places: queue.SimpleQueue[bool] = queue.SimpleQueue()
    for _ in range(max(size, 1)):
        places.put(True)
    stopped = threading.Event()

    def work() -> None:
        name_thread("tf.data ahead")
        try:
            for item in _in_regions(items, "ahead"):
                if not places.get() or stopped.is_set():
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
        places.put(False)

    thread = threading.Thread(target=work, name="tf.data prefetch", daemon=True)
    _stops[thread] = stop
    thread.start()
    try:
        while True:
            # Whoever takes the elements waits for its input here.
            with region(INPUT):
                item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            places.put(True)
            yield item
    finally:
        stop()
        thread.join(timeout=5)
        _stops.pop(thread, None)


def _in_regions(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Items, each made in a region that profiles show."""
    while True:
        with region(DATA, name):
            item = next(items, _END)
        if item is _END:
            return
        yield item


# How to end each thread that works ahead.
_stops: dict[threading.Thread, Callable[[], None]] = {}


@atexit.register
def _stop_all() -> None:
    # A thread that the interpreter's end finds inside a compiled program takes the process down with it.
    running = dict(_stops)
    for stop in running.values():
        stop()
    until = time.monotonic() + 5
    for thread in running:
        thread.join(timeout=max(0.0, until - time.monotonic()))


def in_threads(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    """A function of items, computed ahead by several threads, in the items' order.

    Threads take several items at a time when the function is quick.

    Args:
      fn: the function.
      items: the items, taken by the thread that takes the results.
      workers: how many threads.
    """
    return Raising(_in_threads(fn, items, workers))


def _in_threads(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    def computed(item: Any) -> Any:
        if type(item) is Failed:
            return item
        try:
            return fn(item)
        except Exception as error:
            return Failed(error)

    def all_computed(group: list[Any]) -> tuple[list[Any], float]:
        start = time.perf_counter()
        with region(DATA, "map"):
            return [computed(item) for item in group], time.perf_counter() - start

    size = 1

    def next_results() -> list[Any]:
        nonlocal size
        results, seconds = started.popleft().result()
        # A group's time is little to wait for, and much more than handing it over takes.
        likely = int(_GROUP_SECONDS * len(results) / max(seconds, 1e-9))
        size = max(1, min(likely, 2 * size, _GROUP_MOST))
        return results

    source = caught(items)
    pool = ThreadPoolExecutor(workers, "tf.data map", name_thread, ("tf.data map",))
    started: collections.deque[Future[Any]] = collections.deque()
    try:
        while group := list(itertools.islice(source, size)):
            started.append(pool.submit(all_computed, group))
            if len(started) > 2 * workers:
                yield from next_results()
        while started:
            yield from next_results()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        close(items)
