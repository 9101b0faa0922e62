"""Elements that a running program calls back for: `next(iterator)` in a loop or a branch, and loops over
iterators.

Where the program runs on one device JAX keeps the calls in order. On several, each call takes a result
of the one before as an operand, also where that was in a loop or a branch.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import Tracing, context
from meshflow.core.runtime.errors import InvalidArgumentError, OutOfRangeError
from meshflow.core.staging.loops import Stream
from meshflow.core.tracing.host_callbacks import keep_error, keeping_errors
from meshflow.core.values.tensor import Tensor


class Elements(Protocol):
    """An iterator that programs take elements from; `Source` in `core/iterators/iterator_captures.py`."""

    def take(self) -> Any:
        """The next element, now."""
        ...

    def give_back(self, element: Any) -> None:
        """Makes an element the next one again."""
        ...


class EndOfElements(OutOfRangeError, StopIteration):
    """An iterator has no more elements: the error of compiled functions, and Python's own."""


def flat(element: Any) -> tuple[list[Any], Any]:
    arrays, tree = jax.tree.flatten(element)
    if any(np.dtype(a.dtype) == object for a in arrays):
        raise InvalidArgumentError(
            "next(iterator) in a compiled function: elements hold strings, which compiled programs cannot. "
            "Map them to numbers in the dataset, or take the element outside of the function."
        )
    return arrays, tree


def specs_of(arrays: list[Any]) -> list[tuple[tuple[int, ...], Any]]:
    return [(tuple(np.shape(a)), np.dtype(a.dtype)) for a in arrays]


class Infeed:
    """Hands elements of an iterator to a running program.

    Args:
      source: the iterator.
      element: an element like those to come.
      optional: whether the end is no error: what is handed over begins with a bool, and is zeros
        after the end.

    Attributes:
      source: the iterator.
      position: its place among the function's arguments, or None.
    """

    def __init__(self, source: Elements, element: Any, optional: bool = False) -> None:
        self.optional = optional
        self.source: Elements | None = source
        self.position: int | None = None
        arrays, self._tree = flat(element)
        self._specs = specs_of(arrays)

    def next(self, *after: Any) -> list[np.ndarray]:
        """The leaves of the next element.

        Raises:
          EndOfElements: when there is none.
          InvalidArgumentError: when its shapes are others.
        """
        del after
        assert self.source is not None
        try:
            arrays, tree = jax.tree.flatten(self.source.take())
        except StopIteration:
            if self.optional:
                return self._nothing()
            raise EndOfElements("End of sequence") from None
        if tree != self._tree or specs_of(arrays) != self._specs:
            raise InvalidArgumentError(
                f"next(iterator) in a loop of a compiled function: an element has shapes {specs_of(arrays)}, "
                f"the function was traced for {self._specs}. Batch with drop_remainder=True."
            )
        found = [np.asarray(a) for a in arrays]
        return [np.array(True), *found] if self.optional else found

    def _nothing(self) -> list[np.ndarray]:
        zeros = [np.zeros(shape, dtype) for shape, dtype in self._specs]
        return [np.array(False), *zeros] if self.optional else zeros

    def next_or_zeros(self, *after: Any) -> list[np.ndarray]:
        """Like `next`; an error is kept until the program ends, as its other devices wait for this one."""
        try:
            return self.next(*after)
        except Exception as error:
            keep_error(error)
            return self._nothing()


def _call(operands: Any, static: tuple[Any, ...]) -> list[Any]:
    feed, specs, shardings = static
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    several = any(s is not None for s in shardings)
    callback = feed.next_or_zeros if several else keeping_errors(feed.next)
    # JAX orders calls of programs on one device only.
    results = jax.experimental.io_callback(callback, shapes, *operands, ordered=not several)
    return [_spread(r, s) for r, s in zip(results, shardings, strict=True)]


def _spread(array: Any, sharding: Any) -> Any:
    if sharding is None:
        return array
    # One device called; from there it goes to all, of which each keeps its part.
    everywhere = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    array = jax.lax.with_sharding_constraint(array, everywhere)
    return jax.lax.with_sharding_constraint(array, sharding)


_next = Op("iterator_next", _call, differentiable=False, is_foldable=False)


def infeed_element(feed: Infeed, element: Any, operands: Any = ()) -> tuple[Any, Tensor]:
    """An element that the program asks a feed for, and a tensor that is there when it was given.

    Args:
      feed: the feed.
      element: an element like it.
      operands: what the feed is called with.
    """
    arrays, tree = flat(element)
    found = [getattr(a, "sharding", None) for a in arrays]
    shardings = tuple(s if isinstance(s, jax.sharding.NamedSharding) else None for s in found)
    specs = tuple(specs_of(arrays))
    if feed.optional:
        specs, shardings = (((), np.dtype(bool)), *specs), (None, *shardings)
    results = apply(_next, list(operands), (feed, specs, shardings))
    leaves = results[1:] if feed.optional else results
    return jax.tree.unflatten(tree, [t._value for t in leaves]), results[0]


def called(source: Elements, like: Any, optional: bool = False) -> tuple[Any, Tensor]:
    """The element as the result of a call that the program makes, and that call's first result.

    Args:
      source: the iterator.
      like: an element like the one to come.
      optional: whether the end is no error; the first result is then whether there is an element.
    """
    return fed(Infeed(source, like, optional), like)


def fed(feed: Infeed, like: Any, operands: Any = ()) -> tuple[Any, Tensor]:
    """The element that a feed gives to the function that is traced, after those it gave before.

    Args:
      feed: the feed.
      like: an element like the one to come.
      operands: what the feed is called with.
    """
    scope = context.trace
    assert scope is not None
    owner, source = scope, feed.source
    while not owner.once and owner.parent is not None:
        owner = owner.parent
    several = any(
        isinstance(getattr(a, "sharding", None), jax.sharding.NamedSharding)
        for a in jax.tree.leaves(like)
    )
    after = scope.last_fed.get(id(source))
    if after is None and several:
        after = _fed_around(scope, owner, source)
    before = any(known is source for _, known in owner.infeeds)
    if after is None and several and before and scope is owner:
        raise NotImplementedError(
            "next(iterator) after a loop or a branch that took elements of the same iterator and computed "
            "nothing, in a function on several devices: nothing says when it is over. Use Dataset.skip to leave "
            "elements out."
        )
    if all(known is not feed for known, _ in owner.infeeds):
        owner.infeeds.append((feed, source))
    # Several elements taken by one run of a loop's body come in order: each call waits for the last.
    found, first = infeed_element(feed, like, [*operands, *([] if after is None else [after])])
    scope.last_fed[id(source)] = first
    return found, first


def _fed_around(scope: Tracing, owner: Tracing, source: Any) -> Tensor | None:
    """What a call has to wait for that is the first in its loop's body or branch."""
    while scope is not owner and scope.parent is not None:
        scope = scope.parent
        if id(source) in scope.last_fed:
            return scope.last_fed[id(source)]
    return None


def stream(source: Elements, like: Any, last: Any = None) -> Stream:
    """What a staged `for` loop over an iterator runs over: all elements that are left.

    Args:
      source: the iterator.
      like: an element like those to come.
      last: an element like the last one, where that has another shape.
    """
    rest = None if last is None else _Streamed(source, last, None)
    return Stream(_Streamed(source, like, last), rest)


class _Streamed(Infeed):
    """Gives a loop its next element, unless the loop has ended or the element is of the last one's shape."""

    def __init__(self, source: Elements, like: Any, last: Any) -> None:
        super().__init__(source, like, optional=True)
        self._like = like
        self._last = None if last is None else specs_of(flat(last)[0])

    def next(self, wanted: Any = True, *after: Any) -> list[np.ndarray]:
        """Whether there is an element, and its leaves.

        Args:
          wanted: whether the loop goes on.
          after: what it has to wait for.
        """
        if not wanted:
            return self._nothing()
        if self._last is not None:
            assert self.source is not None
            try:
                element = self.source.take()
            except StopIteration:
                return self._nothing()
            self.source.give_back(element)
            if specs_of(flat(element)[0]) == self._last != self._specs:
                return self._nothing()
        return super().next()

    def __call__(self, wanted: Tensor, given: Tensor) -> tuple[Any, Tensor]:
        del given
        return fed(self, self._like, [wanted])
