"""Several datasets made one: side by side, after one another, in turns."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import dtypes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.random import call_keys
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset, Vector
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunk_reordering, chunks
from meshflow.data.execution.affine import AffineMap
from meshflow.data.execution.batched_gather import Gather, joined
from meshflow.data.execution.resumable import Failed, Raising, caught
from meshflow.data.execution.round_robin import in_turn
from meshflow.data.sources import index_blocks, seed_of
from meshflow.data.specs import DatasetSpec
from meshflow.data.transformations.base import Fixed, RandomTransformation

_NOTHING = object()


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

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        return Raising(e for parent in self._parents for e in caught(parent._elements(epoch)))

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.stackable(self._own_spec):
            return None
        first, second = (p._in_chunks(epoch) for p in self._parents)
        if first is None and second is None:
            return None
        return itertools.chain.from_iterable(
            chunks.singles(caught(parent._elements(epoch))) if found is None else found
            for found, parent in zip((first, second), self._parents, strict=True)
        )

    def _vector(self, epoch: Epoch) -> Vector | None:
        if not chunks.stackable(self._own_spec):
            return None
        first, second = (p._vector(epoch) for p in self._parents)
        if first is None or second is None or first.reach is not None or second.reach is not None:
            return None
        if first.extent is None or second.extent is None:
            return None
        extent = first.extent
        return Vector(
            chunk_reordering.gather_of_two(first.gather, second.gather, extent),
            itertools.chain(first.blocks, (block + extent for block in second.blocks)),
            in_order=first.in_order and second.in_order,
            extent=extent + second.extent,
        )


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

    def _vector(self, epoch: Epoch) -> Vector | None:
        vectors = [p._vector(epoch) for p in self._parents]
        parts = [v for v in vectors if v is not None and v.in_order]
        if len(parts) < len(vectors) or self._count() < 0:
            return None
        order, starts = self._order()

        def mapped(wanted: list[AffineMap]) -> Gather:
            places = [bisect.bisect(starts, order[affine_map.leaf]) - 1 for affine_map in wanted]
            gathers, found = [], []
            for number, (part, start) in enumerate(zip(parts, starts, strict=False)):
                own = [i for i, place in enumerate(places) if place == number]
                leaves = [wanted[i]._replace(leaf=order[wanted[i].leaf] - start) for i in own]
                gathers.append(part.mapped(leaves))  # type: ignore[misc]
                found += own
            return joined(gathers, [found.index(i) for i in range(len(wanted))])

        reaches = [part.reach for part in parts if part.reach is not None]
        return Vector(
            joined([part.gather for part in parts], order),
            index_blocks(self._count()),
            min(reaches, default=None),
            mapped if all(part.mapped is not None for part in parts) else None,
            in_order=True,
            extent=self._count(),
        )

    def _order(self) -> tuple[list[int], list[int]]:
        """Which of the leaves of all parts in a row the elements' leaves are, and where each part begins."""
        sizes = [len(structure.nest.flatten(p.element_spec)) for p in self._parents]
        starts = [0, *itertools.accumulate(sizes)]
        numbers = (
            structure.nest.pack_sequence_as(p.element_spec, list(range(start, start + size)))
            for p, start, size in zip(self._parents, starts, sizes, strict=False)
        )
        return structure.nest.flatten(_filled(self._tree, iter(list(numbers)))), starts

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        streams = []
        for parent in self._parents:
            stream = parent._in_chunks(epoch)
            if stream is None:
                return None
            streams.append(stream)
        order, _ = self._order()
        return (
            item if type(item) is Failed else [list(itertools.chain(*item))[i] for i in order]
            for item in chunk_reordering.side_by_side(streams)
        )

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        if rows is not None:
            return rows
        iterators = [p._elements(epoch) for p in self._parents]

        def filled() -> Iterator[Any]:
            try:
                for parts in zip(*map(caught, iterators), strict=False):
                    failed = [part for part in parts if type(part) is Failed]
                    yield failed[0] if failed else _filled(self._tree, iter(parts))
            finally:
                for iterator in iterators:
                    iterator.close()

        return Raising(filled())


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


class FlatMap(RandomTransformation):
    """The elements of the datasets that a function gives, some of them in turn.

    Args:
      parent: the dataset.
      fn: from an element to a dataset.
      cycle: how many of them are open at a time.
      block: how many elements of each follow each other; all where it is not given.

    Raises:
      InvalidArgumentError: for numbers that are not greater than zero.
    """

    def __init__(
        self, parent: Dataset, fn: Callable[..., Any], cycle: int = 1, block: int | None = None
    ) -> None:
        super().__init__(parent)
        for name, number in (("cycle_length", cycle), ("block_length", block)):
            if number is not None and number < 1:
                raise InvalidArgumentError(f"`{name}` must be greater than zero, got {number}.")
        if not callable(fn):
            raise InvalidValueError(f"`map_func` must be a callable, got {fn!r}.")
        self._fn, self._cycle, self._block = fn, cycle, block
        self._unpack = type(parent.element_spec) is tuple
        # Whether the first of the datasets have chunks.
        self._in_parts = False
        if structure.static(parent.element_spec):
            self._try()

    def _try(self) -> None:
        """Looks what the function gives, where that can be seen without an element."""
        given: list[Any] = []

        def probe(element: Any) -> tuple[()]:
            given.append(self._fn(*element) if self._unpack else self._fn(element))
            return ()

        # What else is wrong with it shows when it gets an element.
        with contextlib.suppress(Exception):
            trace_shapes(probe, (self._parent.element_spec,), {})
        if given:
            self._check(given[0])

    def _inner(self, element: Any, number: int = 0) -> Dataset:
        tensors = structure.to_tensors(element)
        with call_keys(number):
            return self._check(self._fn(*tensors) if self._unpack else self._fn(tensors))

    @staticmethod
    def _check(dataset: Any) -> Dataset:
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"The `map_func` argument must return a `Dataset` object. Got {type(dataset)}."
            )
        return dataset

    def _known_spec(self) -> Any:
        elements = self._parent._elements(Epoch(self._parent))
        try:
            some = list(itertools.islice(elements, 2))
        finally:
            elements.close()
        some = some or [structure.map_specs(_blank, self._parent.element_spec)]
        inner = [self._inner(element, number) for number, element in enumerate(some)]
        self._in_parts = all(d._in_chunks(Epoch(d)) is not None for d in inner)
        # Sizes may differ from dataset to dataset.
        return functools.reduce(structure.merged, [d.element_spec for d in inner])

    def _count(self) -> int:
        endless = self._block is not None and self._parent._count() == INFINITE_CARDINALITY
        return INFINITE_CARDINALITY if endless else UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        opened = self._opener(
            lambda inner: caught(inner._elements(epoch.within(self, inner))), epoch
        )
        parent = self._parent._elements(epoch)
        return Raising(in_turn(caught(parent), opened, self._cycle, self._block or sys.maxsize))

    def _opener(
        self, items: Callable[[Dataset], Iterator[Any]], epoch: Epoch
    ) -> Callable[[Any], Iterator[Any]]:
        """A function from an element to what is taken of its dataset."""
        numbers = epoch.random_states.numbers(self)

        def opened(element: Any) -> Iterator[Any]:
            if type(element) is Failed:
                return iter([element])
            try:
                return items(self._inner(element, next(numbers)))
            except Exception as error:
                return iter([Failed(error)])

        return opened

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.stackable(self.element_spec) or not self._in_parts:
            return None

        def taken(inner: Dataset) -> Iterator[Any]:
            within = epoch.within(self, inner)
            found = inner._in_chunks(within)
            return chunks.singles(caught(inner._elements(within))) if found is None else found

        parent = caught(self._parent._elements(epoch))
        return chunk_reordering.in_turn(
            parent, self._opener(taken, epoch), self._cycle, self._block or sys.maxsize
        )


def _blank(spec: Any) -> Any:
    """A leaf that a spec describes, without anything in it."""
    if isinstance(spec, DatasetSpec):
        return Fixed([], spec.element_spec)
    return structure.zeros(spec)


class Choose(Dataset):
    """Elements of several datasets, each time of the one that a number names."""

    def __init__(self, datasets: list[Dataset], choices: Dataset, stop_on_empty: bool) -> None:
        kind = choices.element_spec
        if not (
            isinstance(kind, TensorSpec) and kind.is_compatible_with(TensorSpec([], dtypes.int64))
        ):
            raise TypeError(
                f"Invalid `choice_dataset`. Its elements must be scalar `tf.int64` tensors but are {kind}."
            )
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

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.stackable(self._own_spec):
            return None
        found = [p._in_chunks(epoch) for p in self._parents]
        streams = [s for s in found if s is not None]
        if len(streams) < len(found):
            return None
        return chunk_reordering.chosen(streams[0], streams[1:], self._stop)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        return Raising(self._one_by_one(epoch)) if rows is None else rows

    def _one_by_one(self, epoch: Epoch) -> Iterator[Any]:
        choices, *iterators = [caught(p._elements(epoch)) for p in self._parents]
        left: list[Iterator[Any] | None] = list(iterators)
        for choice in choices:
            if type(choice) is Failed:
                yield choice
                continue
            at = int(choice)
            if not 0 <= at < len(left):
                yield chunk_reordering.no_such(at, len(left))
                return
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
    """Numbers of datasets drawn by weight; the choices of `sample_from_datasets`.

    Args:
      weights: of each dataset, for all draws, or a dataset of the weights of each draw.
      seed: of the draws.
      reshuffle: whether later passes differ.
    """

    def __init__(self, weights: np.ndarray | Dataset, seed: Any, reshuffle: bool) -> None:
        self._weights = weights
        if isinstance(weights, Dataset):
            self._parents = (weights,)
        self._words = seed_of(seed)
        self.seeded = seed is not None
        self.reshuffles = reshuffle
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64)

    def _count(self) -> int:
        return INFINITE_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        return Raising(self._drawn(epoch)) if rows is None else rows

    def _drawn(self, epoch: Epoch) -> Iterator[Any]:
        rng = epoch.generator(self)
        assert isinstance(self._weights, Dataset)
        for weights in self._weights._elements(epoch):
            yield np.asarray(rng.choice(len(weights), p=weights / weights.sum()))

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return None if isinstance(self._weights, Dataset) else self._drawn_at_once(epoch)

    def _drawn_at_once(self, epoch: Epoch) -> Iterator[Any]:
        assert isinstance(self._weights, np.ndarray)
        rng, shares = epoch.generator(self), self._weights / self._weights.sum()
        while True:
            yield [rng.choice(len(shares), chunks.BLOCK, p=shares)]
