"""Transformations, each a small class: elements in, elements out, and where possible indices in,
indices out.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core import dtypes, nest
from meshflow.core.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from meshflow.core.random import element_keys
from meshflow.core.specs import TensorSpec
from meshflow.data import sources, structure
from meshflow.data.dataset import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    Vector,
    integer,
    reblocked,
)
from meshflow.data.functions import ElementFunction, randomness, same_randomness
from meshflow.data.options import Options
from meshflow.data.running import Run, ahead, in_threads
from meshflow.data.sources import seed_of
from meshflow.data.turns import in_turn

# Elements that a vectorized map computes at once, and the bytes they may take.
_CHUNK, _CHUNK_BYTES = 1024, 1 << 24
# Records that are parsed at once.
_RECORDS = 64


class Unary(Dataset):
    """A transformation of one dataset."""

    def __init__(self, parent: Dataset) -> None:
        self._parents = (parent,)

    @property
    def _parent(self) -> Dataset:
        return self._parents[0]


class Map(Unary):
    """A function of every element.

    Args:
      parent: the dataset.
      fn: the function.
      calls: how many threads may run it where it is not compiled; -1 for one per processor.
    """

    reshuffles = True

    def __init__(self, parent: Dataset, fn: Callable[..., Any], calls: Any = None) -> None:
        super().__init__(parent)
        self.function = ElementFunction(fn, parent.element_spec, "map")
        threads = 1 if calls is None else integer(calls, "num_parallel_calls")
        self._threads = (os.cpu_count() or 1) if threads < 0 else threads
        self._parallel = calls is not None and threads != 1
        self._words: list[int] | None = None
        self.epoch = 0

    def _known_spec(self) -> Any:
        return self.function.output_spec

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self.function.vectorizes and self._parent._vector(Run(self._parent)) is not None:
            yield from super()._elements(run)
            return
        parent = self._parent._elements(run)
        if self.function.parsing is not None:
            size = 1 if _is_live(self._parent) else _RECORDS
            for texts, error in _chunks(parent, size):
                if texts:
                    yield from self.function.records(texts, size)
                if error is not None:
                    raise error
            return
        if self._parallel and self.function.runs_eagerly and not self.function.holds_variables:
            yield from self._in_threads(parent, run)
            return
        for element in parent:
            yield self.function(element)

    def _in_threads(self, parent: Iterator[Any], run: Run) -> Iterator[Any]:
        words: list[int] = []
        lock = threading.Lock()

        def pass_words() -> list[int]:
            # Drawn when a random op first needs them; most functions do not.
            with lock:
                if not words:
                    words.extend(run.generator(self).integers(1 << 32, size=2).tolist())
            return words

        def computed(numbered: tuple[int, Any]) -> Any:
            # Random ops draw by an element's number, whichever thread comes first.
            with element_keys(lambda: [*pass_words(), numbered[0]]):
                return self.function(numbered[1])

        elements = enumerate(parent)
        before = randomness()
        for numbered in itertools.islice(elements, 1):
            yield computed(numbered)
        try:
            if same_randomness(before, randomness()):
                yield from in_threads(computed, elements, self._threads)
            else:
                # Python's and NumPy's numbers are drawn in the elements' order.
                yield from map(computed, elements)
        finally:
            if hasattr(parent, "close"):
                parent.close()

    def seed(self) -> list[int]:
        """The words of the seed."""
        if self._words is None:
            self._words = seed_of(None)
        return self._words

    def _vector(self, run: Run) -> Vector | None:
        parent = self._parent._vector(run) if self.function.vectorizes else None
        if parent is None:
            return None
        return parent._replace(gather=lambda i: self.function.many(parent.gather(i)))

    def _why_not_vectorized(self) -> str:
        if self.function.parsing is not None:
            return "it parses records, then vectorized"
        reason = self.function.reason or super()._why_not_vectorized()
        many = self._parallel and self.function.runs_eagerly
        return f"{reason}; in {self._threads} threads" if many else reason


def _is_live(dataset: Dataset) -> bool:
    """Whether elements may come in slowly, so that none is waited for while another is there."""
    return isinstance(dataset, sources.Generator) or any(map(_is_live, dataset._parents))


def _chunks(elements: Iterator[Any], size: int) -> Iterator[tuple[list[Any], BaseException | None]]:
    """Several elements at a time, with the error that ended them."""
    while True:
        chunk: list[Any] = []
        try:
            for element in itertools.islice(elements, size):
                chunk.append(element)
        except Exception as error:
            yield chunk, error
            return
        if not chunk:
            return
        yield chunk, None


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

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        return in_threads(self._fn, self._parent._elements(run), self._workers)

    def _why_not_vectorized(self) -> str:
        return f"it calls Python, in {self._workers} threads"


class Filter(Unary):
    """The elements for which a function is true."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "filter")

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            if bool(self._predicate(element)):
                yield element


class Batch(Unary):
    """Consecutive elements, stacked."""

    def __init__(self, parent: Dataset, size: Any, drop_remainder: bool) -> None:
        super().__init__(parent)
        self._size = integer(size, "batch_size")
        if self._size < 1:
            raise InvalidArgumentError(f"Batch size must be greater than zero, got {self._size}.")
        self._drop = bool(drop_remainder)

    def _known_spec(self) -> Any:
        return structure.batched(self._parent.element_spec, self._size if self._drop else None)

    def _count(self) -> int:
        count = self._parent._count()
        if count < 0:
            return count
        return count // self._size if self._drop else math.ceil(count / self._size)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        vector = self._parent._vector(run)
        if vector is not None:
            yield from self._gathered(vector)
            return
        elements = self._parent._elements(run)
        while chunk := list(itertools.islice(elements, self._size)):
            if len(chunk) == self._size or not self._drop:
                yield structure.stack(chunk)

    def _gathered(self, vector: Vector) -> Iterator[Any]:
        spec, size = self._parent.element_spec, self._size
        # Several batches at once when they are small, known after the first.
        group = [1]
        for block in _growing(vector.blocks, size, group):
            leaves = vector.gather(block)
            if group[0] == 1:
                bytes_each = sum(a.nbytes for a in leaves) // len(block) + 1
                group[0] = max(1, min(_CHUNK, _CHUNK_BYTES // bytes_each) // size)
            for start in range(0, len(block), size):
                rows = [a[start : start + size] for a in leaves]
                if len(rows[0]) == size or not self._drop:
                    yield nest.pack_sequence_as(spec, rows)


def _growing(blocks: Iterator[np.ndarray], size: int, several: list[int]) -> Iterator[np.ndarray]:
    """Index blocks for one batch at first, then for several."""
    single = reblocked(blocks, size)
    while True:
        group = list(itertools.islice(single, several[0]))
        if not group:
            return
        yield group[0] if len(group) == 1 else np.concatenate(group)


class PaddedBatch(Unary):
    """Consecutive elements, padded and stacked."""

    def __init__(
        self, parent: Dataset, size: Any, shapes: Any, values: Any, drop_remainder: bool
    ) -> None:
        super().__init__(parent)
        self._size, self._drop = integer(size, "batch_size"), bool(drop_remainder)
        spec = parent.element_spec
        leaves = nest.flatten(spec)
        if shapes is None:
            if any(s.shape.rank is None for s in leaves):
                raise ValueError(
                    "Unable to infer `padded_shapes`: a component has an unknown rank. Give padded_shapes."
                )
            self._shapes = [s.shape.as_list() for s in leaves]
        else:
            self._shapes = [_sizes(s) for s in _up_to(spec, shapes)]
        given = [None] * len(leaves) if values is None else _values(spec, values)
        self._values = [_padding(v, s) for v, s in zip(given, leaves, strict=True)]

    def _known_spec(self) -> Any:
        first = self._size if self._drop else None
        leaves = [
            TensorSpec([first, *[None if n in (None, -1) else n for n in shape]], s.dtype)
            for shape, s in zip(self._shapes, nest.flatten(self._parent.element_spec), strict=True)
        ]
        return nest.pack_sequence_as(self._parent.element_spec, leaves)

    def _count(self) -> int:
        return Batch._count(self)  # type: ignore[arg-type]

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        elements = self._parent._elements(run)
        while chunk := list(itertools.islice(elements, self._size)):
            if len(chunk) == self._size or not self._drop:
                yield structure.padded(chunk, self._shapes, self._values)


def _up_to(spec: Any, shapes: Any) -> list[Any]:
    """Shapes, one for each leaf of a spec; a shape may be a list, a TensorShape or a tensor."""
    if isinstance(spec, tuple):
        if not isinstance(shapes, (tuple, list)) or len(shapes) != len(spec):
            raise ValueError(f"padded_shapes {shapes} does not have the structure of {spec}.")
        return [x for s, v in zip(spec, shapes, strict=True) for x in _up_to(s, v)]
    if isinstance(spec, dict):
        return [x for k in sorted(spec) for x in _up_to(spec[k], shapes[k])]
    return [shapes]


def _sizes(shape: Any) -> list[Any] | None:
    if shape is None:
        return None
    if hasattr(shape, "as_list"):
        return None if shape.rank is None else shape.as_list()
    if hasattr(shape, "numpy"):
        shape = shape.numpy().tolist()
    return [shape] if isinstance(shape, int) else [None if n is None else int(n) for n in shape]


def _values(spec: Any, values: Any) -> list[Any]:
    if not isinstance(values, (tuple, dict)):
        return [values] * len(nest.flatten(spec))
    return _up_to(spec, values)


def _padding(value: Any, spec: Any) -> Any:
    if value is None:
        return b"" if spec.dtype is dtypes.string else spec.dtype.as_numpy_dtype(0)
    array = np.asarray(structure.to_array(value))
    if spec.dtype is dtypes.string:
        return array[()]
    if array.dtype.kind != spec.dtype.dtype.kind and array.dtype.kind not in "bi":
        raise TypeError(
            f"Mismatched type between padding value {value!r} and input dataset's component of type {spec.dtype.name}."
        )
    return array.astype(spec.dtype.as_numpy_dtype)[()]


class Shuffle(Unary):
    """Elements in random order, drawn from a buffer."""

    def __init__(self, parent: Dataset, buffer_size: Any, seed: Any, reshuffle: Any) -> None:
        super().__init__(parent)
        self._buffer = integer(buffer_size, "buffer_size")
        if self._buffer < 1:
            raise InvalidArgumentError(
                f"buffer_size must be greater than zero, got {self._buffer}."
            )
        self._words = seed_of(seed)
        self.reshuffles = True if reshuffle is None else bool(reshuffle)
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self._reaches(self._parent._vector(Run(self._parent))):
            yield from super()._elements(run)
            return
        yield from shuffled(self._parent._elements(run), self._buffer, run.generator(self))

    def _vector(self, run: Run) -> Vector | None:
        parent = self._parent._vector(run)
        if parent is None or not self._reaches(parent):
            return None

        def blocks() -> Iterator[np.ndarray]:
            # The epoch begins with the first number, not when somebody asks whether there are any.
            yield from shuffled_blocks(parent.blocks, self._buffer, run.generator(self))

        return parent._replace(blocks=blocks())

    def _reaches(self, parent: Vector | None) -> bool:
        return parent is not None and (parent.reach is None or self._buffer <= parent.reach)

    def _why_not_vectorized(self) -> str:
        if self._parent._vector(Run(self._parent)) is None:
            return super()._why_not_vectorized()
        return "its buffer is larger than the source holds in memory"


def shuffled(items: Iterator[Any], buffer_size: int, rng: np.random.Generator) -> Iterator[Any]:
    """Items drawn at random from a buffer that is filled again from the front."""
    buffer = list(itertools.islice(items, buffer_size))
    draws = (u for _ in itertools.count() for u in rng.random(1024).tolist())
    if len(buffer) == buffer_size:
        for item in items:
            at = int(next(draws) * buffer_size)
            yield buffer[at]
            buffer[at] = item
    for size in range(len(buffer), 0, -1):
        at = int(next(draws) * size)
        buffer[at], buffer[size - 1] = buffer[size - 1], buffer[at]
        yield buffer.pop()


def shuffled_blocks(
    blocks: Iterator[np.ndarray], buffer_size: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """What `shuffled` makes of the numbers in some blocks, a block at a time."""
    waiting: list[np.ndarray] = []
    held = 0
    while held < buffer_size:
        block = next(blocks, None)
        if block is None:
            break
        waiting.append(block)
        held += len(block)
    everything = np.concatenate(waiting) if waiting else np.zeros(0, np.int64)
    buffer, rest = everything[:buffer_size].copy(), everything[buffer_size:]
    if len(buffer) == buffer_size:
        for items in itertools.chain([rest], blocks):
            at = (rng.random(len(items)) * buffer_size).astype(np.int64)
            # A place that an earlier item of this block took gives that item; others what they held.
            order = np.argsort(at, kind="stable")
            again = np.flatnonzero(at[order[1:]] == at[order[:-1]])
            found = buffer[at]
            found[order[again + 1]] = items[order[again]]
            buffer[at] = items
            if len(found):
                yield found
    left = buffer.tolist()
    draws = rng.random(len(left)).tolist()
    for size, draw in zip(range(len(left), 0, -1), draws, strict=True):
        place = int(draw * size)
        left[place], left[size - 1] = left[size - 1], left[place]
    drained = np.array(left[::-1], np.int64)
    yield from (drained[i : i + 256] for i in range(0, len(drained), 256))


class Repeat(Unary):
    """Elements again and again."""

    def __init__(self, parent: Dataset, count: Any) -> None:
        super().__init__(parent)
        self._times = -1 if count is None else integer(count, "count")

    def _count(self) -> int:
        count = self._parent._count()
        if self._times == 0:
            return 0
        if count == 0:
            return 0
        if self._times < 0:
            return INFINITE_CARDINALITY
        return count * self._times if count >= 0 else count

    def _turns(self) -> Iterator[int]:
        return itertools.count() if self._times < 0 else iter(range(self._times))

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for _ in self._turns():
            empty = True
            for element in self._parent._elements(run):
                empty = False
                yield element
            if empty:
                return

    def _vector(self, run: Run) -> Vector | None:
        first = self._parent._vector(run)
        if first is None:
            return None

        def blocks() -> Iterator[np.ndarray]:
            for turn in self._turns():
                vector = first if turn == 0 else self._parent._vector(run)
                assert vector is not None
                empty = True
                for block in vector.blocks:
                    empty = empty and not len(block)
                    yield block
                if empty:
                    return

        return first._replace(blocks=blocks())


class Slice(Unary):
    """Every `step`-th element from `start` on, up to `stop`: take, skip and shard."""

    def __init__(self, parent: Dataset, start: int, stop: int | None, step: int = 1) -> None:
        super().__init__(parent)
        self._start, self._stop, self._step = start, stop, step

    def _count(self) -> int:
        count = self._parent._count()
        if count == INFINITE_CARDINALITY:
            if self._stop is None:
                return count
            count = self._stop
        if count < 0:
            return 0 if self._stop == 0 else count
        return len(range(count)[self._start : self._stop : self._step])

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self._stop == 0:
            return
        parent = self._parent._elements(run)
        yield from itertools.islice(parent, self._start, self._stop, self._step)

    def _vector(self, run: Run) -> Vector | None:
        parent = self._parent._vector(run)
        if parent is None:
            return None

        def blocks() -> Iterator[np.ndarray]:
            seen = 0
            for block in parent.blocks:
                if self._stop is not None and seen >= self._stop:
                    return
                positions = np.arange(seen, seen + len(block))
                keep = (positions >= self._start) & ((positions - self._start) % self._step == 0)
                if self._stop is not None:
                    keep &= positions < self._stop
                seen += len(block)
                if keep.any():
                    yield block[keep]

        return parent._replace(blocks=blocks())


class ShardHint(Unary):
    """Where a dataset is to be divided between workers."""

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        raise FailedPreconditionError(
            "`shard(SHARD_HINT, SHARD_HINT)` is filled in where a dataset is distributed under the auto-shard policy "
            "HINT; elsewhere give numbers."
        )


class TakeWhile(Unary):
    """Elements up to the first for which a function is false."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "take_while")

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            if not bool(self._predicate(element)):
                return
            yield element


class Concatenate(Dataset):
    """One dataset after another."""

    def __init__(self, first: Dataset, second: Dataset) -> None:
        self._parents = (first, second)
        self._own_spec = structure.merged(first.element_spec, second.element_spec)

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        counts = [p._count() for p in self._parents]
        if INFINITE_CARDINALITY in counts:
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in counts else sum(counts)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for parent in self._parents:
            yield from parent._elements(run)


class Zip(Dataset):
    """Elements of several datasets side by side."""

    def __init__(self, datasets: Any) -> None:
        self._tree = datasets
        self._parents = tuple(_datasets(datasets))
        for item in self._parents:
            if not isinstance(item, Dataset):
                raise TypeError(
                    f"The argument to `Dataset.zip()` must be a (nested) structure of `Dataset` objects. Got {type(item)}."
                )

    def _known_spec(self) -> Any:
        return _filled(self._tree, iter([p.element_spec for p in self._parents]))

    def _count(self) -> int:
        counts = [p._count() for p in self._parents]
        finite = [c for c in counts if c >= 0]
        if UNKNOWN_CARDINALITY in counts:
            return UNKNOWN_CARDINALITY
        return min(finite) if finite else INFINITE_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        iterators = [p._elements(run) for p in self._parents]
        try:
            for parts in zip(*iterators, strict=False):
                yield _filled(self._tree, iter(parts))
        finally:
            for iterator in iterators:
                iterator.close()


def _datasets(tree: Any) -> list[Any]:
    if isinstance(tree, list):
        raise TypeError(
            "The argument to `Dataset.zip()` must be a tuple or a dictionary, not a list."
        )
    if isinstance(tree, tuple):
        return [d for item in tree for d in _datasets(item)]
    if isinstance(tree, dict):
        return [d for key in sorted(tree) for d in _datasets(tree[key])]
    return [tree]


def _filled(tree: Any, parts: Iterator[Any]) -> Any:
    if isinstance(tree, tuple):
        items = [_filled(item, parts) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, dict):
        found = {key: _filled(tree[key], parts) for key in sorted(tree)}
        return {key: found[key] for key in tree}
    return next(parts)


class Enumerate(Unary):
    """Elements with their numbers."""

    def __init__(self, parent: Dataset, start: Any) -> None:
        super().__init__(parent)
        self._start = integer(start, "start")

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64), self._parent.element_spec

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for number, element in enumerate(self._parent._elements(run), self._start):
            yield np.asarray(np.int64(number)), element


class Cache(Unary):
    """Elements kept from the first whole pass, in memory or in a file."""

    def __init__(self, parent: Dataset, filename: str) -> None:
        super().__init__(parent)
        self._file = Path(f"{filename}.meshflow") if filename else None
        self._kept: list[Any] | None = None

    def _forget(self, part: str) -> None:
        """Makes this the cache of a part of the data."""
        self._kept = None
        if self._file is not None:
            self._file = self._file.with_name(f"{self._file.stem}.{part}.meshflow")

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self._kept is None and self._file is not None and self._file.exists():
            with open(self._file, "rb") as file:
                try:
                    while True:
                        yield pickle.load(file)
                except EOFError:
                    return
        if self._kept is not None:
            yield from self._kept
            return
        if self._file is None:
            kept = []
            for element in self._parent._elements(run):
                kept.append(element)
                yield element
            self._kept = kept
            return
        part = self._file.with_name(f"{self._file.name}.{os.getpid()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb") as file:
                for element in self._parent._elements(run):
                    pickle.dump(element, file)
                    yield element
            os.replace(part, self._file)
        finally:
            part.unlink(missing_ok=True)


class Prefetch(Unary):
    """Elements made ahead by a thread."""

    _apart = True

    def __init__(self, parent: Dataset, buffer_size: Any) -> None:
        super().__init__(parent)
        size = 2 if buffer_size is None else integer(buffer_size, "buffer_size")
        self._size = 2 if size < 0 else size

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        elements = self._parent._elements(run)
        return elements if self._size == 0 else ahead(elements, self._size)

    def _vector(self, run: Run) -> Vector | None:
        return self._parent._vector(run)


class FlatMap(Unary):
    """The elements of the datasets that a function gives, some of them in turn.

    Args:
      parent: the dataset.
      fn: from an element to a dataset.
      cycle: how many of them are open at a time.
      block: how many elements of each follow each other.
    """

    def __init__(self, parent: Dataset, fn: Callable[..., Any], cycle: int, block: int) -> None:
        super().__init__(parent)
        self._fn, self._cycle, self._block = fn, cycle, block
        self._unpack = type(parent.element_spec) is tuple

    def _inner(self, element: Any) -> Dataset:
        tensors = structure.to_tensors(element)
        dataset = self._fn(*tensors) if self._unpack else self._fn(tensors)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"The `map_func` argument must return a `Dataset` object. Got {type(dataset)}."
            )
        return dataset

    def _known_spec(self) -> Any:
        elements = self._parent._elements(Run(self._parent))
        try:
            first = next(elements, None)
            return None if first is None else self._inner(first).element_spec
        finally:
            elements.close()

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        def opened(element: Any) -> Iterator[Any]:
            inner = self._inner(element)
            return inner._elements(Run(inner))

        yield from in_turn(self._parent._elements(run), opened, self._cycle, self._block)


_NOTHING = object()


class Window(Unary):
    """Datasets of consecutive elements."""

    def __init__(self, parent: Dataset, size: Any, shift: Any, stride: Any, drop: bool) -> None:
        super().__init__(parent)
        self._size = integer(size, "size")
        self._shift = self._size if shift is None else integer(shift, "shift")
        self._stride = integer(stride, "stride")
        for name, value in (("size", self._size), ("shift", self._shift), ("stride", self._stride)):
            if value < 1:
                raise InvalidArgumentError(f"Window {name} must be greater than zero, got {value}.")
        self._drop = bool(drop)

    def _known_spec(self) -> Any:
        return structure.map_specs(structure.DatasetSpec, self._parent.element_spec)

    def _count(self) -> int:
        count = self._parent._count()
        if count < 0:
            return count
        if not self._drop:
            return math.ceil(count / self._shift)
        span = (self._size - 1) * self._stride + 1
        return max(0, (count - span) // self._shift + 1)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        span = (self._size - 1) * self._stride + 1
        elements = self._parent._elements(run)
        buffer: list[Any] = []
        ended = False
        while True:
            while not ended and len(buffer) < span:
                element = next(elements, _NOTHING)
                if element is _NOTHING:
                    ended = True
                else:
                    buffer.append(element)
            window = buffer[: span : self._stride]
            if not buffer or (self._drop and len(buffer) < span):
                return
            yield self._datasets(window)
            skipped = self._shift - len(buffer)
            buffer = buffer[self._shift :]
            for _ in range(max(skipped, 0)):
                if next(elements, _NOTHING) is _NOTHING:
                    ended = True
                    break

    def _datasets(self, window: list[Any]) -> Any:
        spec = self._parent.element_spec
        columns = zip(*(nest.flatten(e) for e in window), strict=True)
        inner = [
            Fixed(list(column), leaf)
            for column, leaf in zip(columns, nest.flatten(spec), strict=True)
        ]
        return nest.pack_sequence_as(spec, inner)


class Fixed(Dataset):
    """Elements held in a list."""

    def __init__(self, elements: list[Any], spec: Any) -> None:
        self._held, self._own_spec = elements, spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return len(self._held)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        yield from self._held


class Unbatch(Unary):
    """The rows of every element."""

    def _known_spec(self) -> Any:
        return structure.unbatched(self._parent.element_spec)

    def _count(self) -> int:
        count = self._parent._count()
        leaves = nest.flatten(self._parent.element_spec)
        rows = leaves[0].shape.as_list()[0] if leaves and leaves[0].shape.rank else None
        if count == INFINITE_CARDINALITY or count == 0:
            return count
        return count * rows if count >= 0 and rows is not None else UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            leaves = nest.flatten(element)
            if len({len(a) for a in leaves}) > 1:
                raise InvalidArgumentError(
                    f"Input element must have the same batch size in each component, got {[len(a) for a in leaves]}."
                )
            for row in zip(*leaves, strict=True):
                yield nest.pack_sequence_as(element, [_scalar(v) for v in row])


def _scalar(value: Any) -> np.ndarray:
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


class Scan(Unary):
    """A function of state and element."""

    def __init__(self, parent: Dataset, initial_state: Any, fn: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._state = structure.to_arrays(initial_state)
        spec = structure.spec_of(self._state), parent.element_spec
        self._function = ElementFunction(fn, spec, "scan")

    def _known_spec(self) -> Any:
        found = self._function.output_spec
        return None if found is None else found[1]

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        state = self._state
        for element in self._parent._elements(run):
            state, result = self._function((state, element))
            yield result


class GroupByWindow(Unary):
    """Elements gathered by key, each full group reduced to a dataset."""

    def __init__(
        self,
        parent: Dataset,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size_func: Callable[[int], int],
    ) -> None:
        super().__init__(parent)
        self._key = ElementFunction(key_func, parent.element_spec, "group_by_window")
        self._reduce, self._window = reduce_func, window_size_func

    def _reduced(self, key: int, group: list[Any]) -> Dataset:
        from meshflow.core.convert import convert_to_tensor

        dataset = self._reduce(
            convert_to_tensor(np.int64(key)), Fixed(group, self._parent.element_spec)
        )
        if not isinstance(dataset, Dataset):
            raise TypeError(f"`reduce_func` must return a `Dataset` object. Got {type(dataset)}.")
        return dataset

    def _known_spec(self) -> Any:
        elements = self._parent._elements(Run(self._parent))
        try:
            first = next(elements, None)
            return None if first is None else self._reduced(0, [first]).element_spec
        finally:
            elements.close()

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        groups: dict[int, list[Any]] = collections.defaultdict(list)
        sizes: dict[int, int] = {}
        for element in self._parent._elements(run):
            key = int(self._key(element))
            if key not in sizes:
                sizes[key] = int(self._window(key))
                if sizes[key] < 1:
                    raise InvalidArgumentError(
                        f"Window size must be greater than zero, but got {sizes[key]}."
                    )
            groups[key].append(element)
            if len(groups[key]) == sizes[key]:
                dataset = self._reduced(key, groups.pop(key))
                yield from dataset._elements(Run(dataset))
        for key in list(groups):
            dataset = self._reduced(key, groups.pop(key))
            yield from dataset._elements(Run(dataset))


class GroupByReducer(Unary):
    """What a function makes of each group of elements, by ascending key."""

    def __init__(self, parent: Dataset, key_func: Callable[..., Any], reducer: Any) -> None:
        super().__init__(parent)
        self._key = ElementFunction(key_func, parent.element_spec, "group_by_reducer")
        self._reducer = reducer

    def _known_spec(self) -> Any:
        return None

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        from meshflow.core.convert import convert_to_tensor

        states: dict[int, Any] = {}
        function: ElementFunction | None = None
        for element in self._parent._elements(run):
            key = int(self._key(element))
            if key not in states:
                first = self._reducer.init_func(convert_to_tensor(np.int64(key)))
                states[key] = structure.to_arrays(first)
            if function is None:
                spec = structure.spec_of(states[key]), self._parent.element_spec
                function = ElementFunction(self._reducer.reduce_func, spec, "group_by_reducer")
            states[key] = function((states[key], element))
        for key in sorted(states):
            state = structure.to_tensors(states[key])
            parts = state if type(state) is tuple else (state,)
            yield structure.to_arrays(self._reducer.finalize_func(*parts))


class Unique(Unary):
    """Each element once."""

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        seen = set()
        for element in self._parent._elements(run):
            key = tuple(
                (a.shape, tuple(a.reshape(-1).tolist()) if a.dtype == object else a.tobytes())
                for a in nest.flatten(element)
            )
            if key not in seen:
                seen.add(key)
                yield element


class Choose(Dataset):
    """Elements of several datasets, each time of the one that a number names."""

    def __init__(self, datasets: list[Dataset], choices: Dataset, stop_on_empty: bool) -> None:
        self._parents = (choices, *datasets)
        self._stop = stop_on_empty
        spec = datasets[0].element_spec
        for other in datasets[1:]:
            spec = structure.merged(spec, other.element_spec)
        self._own_spec = spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        counts = [p._count() for p in self._parents[1:]]
        if all(c == INFINITE_CARDINALITY for c in counts):
            return self._parents[0]._count()
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        choices, *iterators = [p._elements(run) for p in self._parents]
        left: list[Iterator[Any] | None] = list(iterators)
        for choice in choices:
            at = int(choice)
            if not 0 <= at < len(left):
                raise InvalidArgumentError(f"selector_input must be in [0, {len(left)}), got {at}.")
            current = left[at]
            if current is None:
                continue
            element = next(current, _NOTHING)
            if element is _NOTHING:
                if self._stop:
                    return
                left[at] = None
                if not any(left):
                    return
                continue
            yield element


class Drawn(Dataset):
    """Numbers of datasets drawn by weight, without end; the choices of `sample_from_datasets`."""

    def __init__(self, weights: np.ndarray, seed: Any, reshuffle: bool) -> None:
        self._weights = weights / weights.sum()
        self._words = seed_of(seed)
        self.reshuffles = reshuffle
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64)

    def _count(self) -> int:
        return INFINITE_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        rng = run.generator(self)
        while True:
            yield from rng.choice(len(self._weights), 256, p=self._weights)


class WithOptions(Unary):
    """A dataset with options."""

    def __init__(self, parent: Dataset, options: Options) -> None:
        super().__init__(parent)
        self._own = options

    @property
    def _options(self) -> Options:
        return self._parent._options.merge(self._own)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        return self._parent._elements(run)

    def _vector(self, run: Run) -> Vector | None:
        return self._parent._vector(run)


class Arranged(Unary):
    """Elements with their parts in another structure.

    Args:
      parent: the dataset.
      arrange: from an element, or its spec, to the same parts in another structure.
    """

    def __init__(self, parent: Dataset, arrange: Callable[[Any], Any]) -> None:
        super().__init__(parent)
        self._arrange = arrange

    def _known_spec(self) -> Any:
        return self._arrange(self._parent.element_spec)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            yield self._arrange(element)


class AssertCardinality(Unary):
    """A dataset that must have so many elements."""

    def __init__(self, parent: Dataset, expected: Any) -> None:
        super().__init__(parent)
        self._expected = integer(expected, "expected_cardinality")

    def _count(self) -> int:
        return self._expected

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        number = 0
        for element in self._parent._elements(run):
            number += 1
            if 0 <= self._expected < number:
                raise _unexpected(self._expected, f"at least {number}")
            yield element
        if number != self._expected and self._expected >= 0:
            raise _unexpected(self._expected, str(number))


def _unexpected(expected: int, found: str) -> Exception:
    return FailedPreconditionError(
        f"Input dataset was expected to contain {expected} elements but contained {found} elements."
    )


class IgnoreErrors(Unary):
    """Elements that could be made; those that raise are left out."""

    def __init__(self, parent: Dataset, log_warning: bool) -> None:
        super().__init__(parent)
        self._warn = log_warning

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if hasattr(self._parent, "_without_errors"):
            parent = self._parent._without_errors(lambda error: _report(error, self._warn))
            yield from parent._elements(run)
            return
        if not isinstance(self._parent, Map):
            # An error ends what makes the elements; before a map nothing is lost by that.
            yield from _until_error(self._parent._elements(run), self._warn)
            return
        for element in self._parent._parent._elements(run):
            try:
                result = self._parent.function(element)
            except Exception as error:
                _report(error, self._warn)
                continue
            yield result


def _until_error(elements: Iterator[Any], warn: bool) -> Iterator[Any]:
    while True:
        try:
            element = next(elements, _NOTHING)
        except Exception as error:
            _report(error, warn)
            continue
        if element is _NOTHING:
            return
        yield element


def _report(error: Exception, warn: bool) -> None:
    if warn:
        import logging

        logging.getLogger("meshflow").warning("An element was left out: %s", error)
    if isinstance(error, OutOfRangeError):
        return
