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

from meshflow.checkpoint.object_graph import PYTHON_STATE
from meshflow.core.iterators.iterator_captures import Element, IteratorSource
from meshflow.core.runtime.annotations import DATA, INPUT, name_thread, region
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import NotFoundError
from meshflow.core.runtime.memory_errors import translate_memory_error
from meshflow.core.runtime.tracebacks import hide_frames
from meshflow.data import structure
from meshflow.data.execution.failures import (
    ClosingIterator,
    Failure,
    RaisingIterator,
    catch_failures,
    close_iterator,
)
from meshflow.data.execution.random_draws import RandomDraws
from meshflow.data.execution.random_maps import RandomStates
from meshflow.data.optional import Optional
from meshflow.data.specs import IteratorSpec, register_value_type
from meshflow.data.static_shapes import StaticShapes, describe_shapes, make_examples
from meshflow.environment.jax_internals import trace_state_clean
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import PyTree

# A thread computes several items before it hands them over: as many as take this time, up to a
# maximum.
_GROUP_SECONDS, _MAX_GROUP_SIZE = 0.004, 16


class PipelineNode(Protocol):
    """A dataset, as passes and iterators see it."""

    @property
    def parents(self) -> Sequence[PipelineNode]:
        """Return the datasets that provide the elements."""

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the elements: `tf.TensorSpec`s in the structure of an element."""

    def iter_elements(self, epoch: Epoch) -> Generator[PyTree, None, None]:
        """Iterate over the elements as host arrays, with the random numbers of a pass."""

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the shapes of all elements, or None if a compiled loop could not rely on them."""

    def record_part(self, part: slice) -> None:
        """Record at each `shuffle` of the pipeline which part of its elements a pass uses."""


class RandomNode(Protocol):
    """A dataset that draws random numbers.

    Attributes:
      epoch: Index of the next epoch.
      reshuffles: Whether every epoch draws other numbers.
    """

    epoch: int
    reshuffles: bool

    def get_seed_words(self) -> list[int]:
        """Return the seed as a list of integer words."""


class Epoch:
    """A pass over a dataset, with the seeds of its random transformations.

    The seeds are drawn once per pass and can be saved, so that the same pass can be repeated.

    Attributes:
      seeds: For each random node, by its key in the graph, the words of its seed and the index of
        its first epoch.
      measures_time: Whether the pass measures time; False for passes that only inspect a dataset.
      random_states: States of the random ops of users' functions.
      batch_sizes: For the id of a node, how many of its elements the consumer combines to a batch.

    Args:
      root: The dataset.
      seeds: Seeds of the pass to repeat; None draws new seeds.
      measures_time: See above.
      key_prefix: Prefix of the keys of the nodes.
      draw_words: Function that provides the seed of nodes without a seed, in a dataset that another
        pass creates.
    """

    def __init__(
        self,
        root: PipelineNode,
        seeds: dict[str, list[Any]] | None = None,
        measures_time: bool = False,
        key_prefix: str = "",
        draw_words: Callable[[], list[int]] | None = None,
    ) -> None:
        self.measures_time = measures_time
        self.random_states = RandomStates()
        self.batch_sizes: dict[int, int] = {}
        self._keys = {id(node): f"{key_prefix}{i}" for i, node in enumerate(iter_nodes(root))}
        self._draw_words = draw_words
        self._inner_passes: dict[str, tuple[Iterator[int], Callable[[], list[int]]]] = {}
        self.seeds: dict[str, list[Any]] = {} if seeds is None else seeds
        self._num_epochs: dict[str, int] = {}
        if measures_time:
            root.record_part(slice(0, None))

    def _get_key(self, node: object) -> str:
        return self._keys.get(id(node), f"inner {id(node)}")

    def create_inner_pass(self, node: RandomNode, root: PipelineNode) -> Epoch:
        """Create the pass over a dataset that a node created for an element.

        It is repeated when this pass is repeated.

        Args:
          node: The node that created the dataset.
          root: The created dataset.
        """
        key = self._get_key(node)
        if key not in self._inner_passes:
            draw_words = functools.cache(
                lambda: self.create_generator(node).integers(1 << 32, size=2).tolist()
            )
            self._inner_passes[key] = itertools.count(), draw_words
        indices, draw_inner_words = self._inner_passes[key]
        return Epoch(
            root, self.seeds, key_prefix=f"{key}.{next(indices)}.", draw_words=draw_inner_words
        )

    def create_generator(self, node: RandomNode) -> np.random.Generator:
        """Return a random number generator for the next epoch of a node in this pass."""
        words, epoch = self._start_epoch(node)
        return np.random.default_rng([*words, epoch if node.reshuffles else 0])

    def create_draws(self, node: RandomNode) -> RandomDraws:
        """Return the random numbers for the next epoch of a node.

        They have the same values as those of TensorFlow's kernels.
        """
        words, epoch = self._start_epoch(node)
        return RandomDraws(words, epoch if node.reshuffles else 0, node.reshuffles)

    def _start_epoch(self, node: RandomNode) -> tuple[list[int], int]:
        """Return the words of a node's seed and the index of its next epoch, and advance the node."""
        key = self._get_key(node)
        if key not in self.seeds:
            words = [int(w) for w in node.get_seed_words()]
            if self._draw_words is not None and not getattr(node, "seeded", False):
                # The dataset exists only in this pass, so its seed is derived from that of the node
                # that created it.
                words = [*self._draw_words(), zlib.crc32(key.encode())]
            self.seeds[key] = [words, node.epoch]
        words, first = self.seeds[key]
        epoch = first + self._num_epochs.get(key, 0)
        self._num_epochs[key] = self._num_epochs.get(key, 0) + 1
        node.epoch = max(node.epoch, epoch + 1)
        return words, epoch


def iter_nodes(root: PipelineNode) -> Iterator[Any]:
    """Iterate over a dataset and all its ancestors, in depth-first order."""
    yield root
    for parent in root.parents:
        yield from iter_nodes(parent)


@register_value_type(IteratorSpec)
class DatasetIterator(structure.ElementLeaf, IteratorSource[Element]):
    """An iterator over a dataset, as `iter(dataset)` returns it.

    `next(iterator)` in a `tf.function` takes an element at every call of the function.

    `tf.train.Checkpoint(iterator=iterator)` saves its position; after it is restored, it continues
    with the same element.

    Example:
      >>> iterator = iter(tf.data.Dataset.range(5))
      >>> int(next(iterator)), int(iterator.get_next())
      (0, 1)
    """

    def __init__(
        self, dataset: PipelineNode, convert: Callable[[Any], Any] = structure.to_tensors
    ) -> None:
        super().__init__()
        self._dataset, self._convert = dataset, convert
        # Threads may share an iterator, but not a generator, which raises an error.
        self._lock = threading.RLock()
        self._start_pass(None)

    def _start_pass(self, seeds: dict[str, list[Any]] | None) -> None:
        self._position = 0
        self._returned_elements.clear()
        self._epoch = Epoch(self._dataset, seeds, measures_time=True)
        self._elements = self._dataset.iter_elements(self._epoch)

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the elements."""
        return self._dataset.element_spec

    @property
    def _type_spec(self) -> IteratorSpec:
        return IteratorSpec(self.element_spec)

    def __next__(self) -> Element:
        if (
            self._returned_elements
            or context.trace is not None
            or context.tapes
            or not trace_state_clean()
        ):
            return self.pull()
        # This is the fast path of `pull`: traced functions and tapes need the rest of it.
        with self._lock:
            element = self._produce()
            self._position += 1
        return element

    def next(self) -> Element:
        """Return the next element, like `next(iterator)`."""
        return self.pull()

    # Libraries of TensorFlow's version call this name.
    _next_internal = IteratorSource.get_next

    def _produce(self) -> PyTree:
        try:
            with region(INPUT):
                return self._convert(next(self._elements))
        except (MemoryError, RuntimeError) as error:
            exhausted_error = translate_memory_error(error, f"an element of {self._dataset!r}")
            if exhausted_error is None:
                raise
            raise exhausted_error from error
        except StopIteration:
            raise
        except Exception as error:
            hide_frames(error)
            raise

    def _make_cache_key(self) -> Hashable:
        if self._is_created_in_trace:
            # Its elements are constants of the trace, so no other call may use a trace with them.
            return object()
        sizes = describe_shapes(self._dataset.infer_static_shapes())
        return str(self._dataset.element_spec), self._convert, sizes

    def take(self) -> PyTree:
        """Take the next element immediately, even while a function is traced."""
        with self._lock:
            element = super().take()
            self._position += 1
        return element

    def give_back(self, element: PyTree) -> None:
        """Return an element to the iterator, so that it is the next one again."""
        super().give_back(element)
        self._position -= 1

    def _make_examples(self) -> tuple[Any, Any]:
        return (
            make_examples(self._dataset.infer_static_shapes(), self._convert)
            or super()._make_examples()
        )

    def get_next_as_optional(self) -> Optional:
        """Return an optional that contains the next element, or is empty at the end."""
        element, present = self.pull_if_any()
        return Optional(element, present, self.element_spec)

    def close(self) -> None:
        """Stop the threads that produce elements."""
        self._elements.close()

    _checkpoint_attributes = (PYTHON_STATE,)

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        state = {"position": self._position, "seeds": self._epoch.seeds}
        return {"": np.array(json.dumps(state).encode(), object)}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        value = values[""]
        # Checkpoints of older versions contain the text as an array of bytes.
        state = parse_json(value.tobytes() if value.dtype == np.uint8 else value.item())
        self._elements.close()
        self._start_pass(state["seeds"])
        for index in range(state["position"]):
            if next(self._elements, _END) is _END:
                raise NotFoundError(
                    f"The checkpoint is at element {state['position']} of an iterator, but {self._dataset!r} has only "
                    f"{index} elements. Make sure the dataset definition has not changed since the checkpoint was saved."
                )
        self._position = state["position"]


_END = object()


def prefetch(elements: Iterator[Any], size: int) -> Generator[Any, None, None]:
    """Produce up to `size` elements before they are requested.

    A thread produces them, unless the iterator can start them without one
    (`ClosingIterator.start_prefetching`). The thread ends after the last element, and when the
    returned iterator is closed or garbage collected.

    Args:
      elements: Iterator over the elements.
      size: Number of elements to produce ahead.
    """
    if isinstance(elements, ClosingIterator) and elements.start_prefetching(size):
        return elements
    return RaisingIterator(_prefetch_in_thread(catch_failures(elements), elements, size))


def _prefetch_in_thread(
    items: Iterator[Any], source: Iterator[Any], size: int
) -> Generator[Any, None, None]:
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
            for item in _annotate_items(items, "ahead"):
                if not permits.get() or stopped.is_set():
                    break
                ready.put((item, None))
            else:
                ready.put((_END, None))
        except BaseException as error:
            ready.put((_END, error))
        finally:
            close_iterator(source)

    def stop() -> None:
        stopped.set()
        permits.put(False)

    thread = threading.Thread(target=produce_items, name="tf.data prefetch", daemon=True)
    _stop_functions[thread] = stop
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
        _stop_functions.pop(thread, None)


def _annotate_items(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Iterate over items, each produced in a region that profiles show."""
    while True:
        with region(DATA, name):
            item = next(items, _END)
        if item is _END:
            return
        yield item


# For each prefetching thread the function that stops it.
_stop_functions: dict[threading.Thread, Callable[[], None]] = {}


@atexit.register
def _stop_all_threads() -> None:
    # A daemon thread that is inside a compiled program at interpreter shutdown crashes the process.
    stop_functions = dict(_stop_functions)
    for stop in stop_functions.values():
        stop()
    deadline = time.monotonic() + 5
    for thread in stop_functions:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))


def map_in_threads(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    """Apply a function to items in several threads, in the order of the items.

    A thread takes several items at a time if the function is fast.

    Args:
      fn: The function.
      items: The items; the thread that consumes the results iterates over them.
      workers: Number of threads.
    """
    return RaisingIterator(_map_in_pool(fn, items, workers))


def _map_in_pool(
    fn: Callable[[Any], Any], items: Iterator[Any], workers: int
) -> Generator[Any, None, None]:
    def compute(item: Any) -> Any:
        if type(item) is Failure:
            return item
        try:
            return fn(item)
        except Exception as error:
            return Failure(error)

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
        size = max(1, min(fitting_size, 2 * size, _MAX_GROUP_SIZE))
        return results

    source = catch_failures(items)
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
        close_iterator(items)
