"""Elements that a compiled function takes from an iterator of the program around it.

`next(iterator)` in a traced function means: one element at every call. Outside of loops the element
is fetched before the program runs and given to it as an input (a *pull*). In a loop or a branch
the program calls back for it (a *feed*), as only the running program knows how many it needs.

Shapes are those of the element that is next when the function is traced; it is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from meshflow.core import dtypes, nest
from meshflow.core.context import context
from meshflow.core.dispatch import apply
from meshflow.core.errors import InvalidArgumentError, OutOfRangeError
from meshflow.core.host_calls import keep_error, keeping_errors
from meshflow.core.operation import Op
from meshflow.core.specs import TensorSpec
from meshflow.core.tensor import Tensor
from meshflow.core.trace import TraceContext, bind_capture, enter


class EndOfElements(OutOfRangeError, StopIteration):
    """An iterator has no more elements: the error of compiled functions, and Python's own."""


class Source:
    """Base of iterators whose elements compiled functions can take."""

    def __init__(self) -> None:
        self._given_back: list[Any] = []
        # Made while a function is traced, it belongs to that run: its elements are constants.
        self._made_in_trace = context.trace is not None

    def _produce(self) -> Any:
        """The next element.

        Raises:
          StopIteration: at the end.
        """
        raise NotImplementedError

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> Any:
        return self.pull()

    def get_next(self) -> Any:
        """The next element.

        Raises:
          OutOfRangeError: at the end.
        """
        try:
            return self.pull()
        except StopIteration:
            raise OutOfRangeError("End of sequence") from None

    def _kind(self) -> Hashable:
        """What functions are cached by when they get this iterator as an argument."""
        return id(self)

    def take(self) -> Any:
        """The next element, now."""
        if self._given_back:
            return self._given_back.pop()
        with enter(None, False), jax.ensure_compile_time_eval():
            return self._produce()

    def give_back(self, element: Any) -> None:
        """Makes an element the next one again."""
        self._given_back.append(element)

    def pull(self) -> Any:
        """The next element in the present context; symbolic while a function is traced.

        Raises:
          StopIteration: at the end; in a function, an error that is also an OutOfRangeError.
        """
        scope = context.trace
        if scope is None or self._made_in_trace:
            return self.take()
        kept = scope.offered.get(id(self))
        if kept:
            return kept.pop()
        # What is taken after a loop that took elements comes after those.
        if scope.once and all(source is not self for _, source in scope.feeds):
            return _captured(self, scope)
        return _called(self)[0]

    def pull_if_any(self) -> tuple[Any, Any]:
        """The next element, and whether there is one: a bool, or a tensor while a function is traced.

        Where there is none, the element is None or, in a function, zeros.
        """
        scope = context.trace
        try:
            if scope is None or self._made_in_trace:
                return self.take(), True
        except StopIteration:
            return None, False
        kept = scope.offered.get(id(self))
        if kept:
            return kept.pop(), True
        return _called(self, optional=True)

    def _stand_in(self) -> Any:
        """Zeros like an element, or None when its shapes are not known."""
        specs = getattr(self, "element_spec", None)
        leaves = [s for s in nest.flatten(specs) if isinstance(s, TensorSpec)]
        if not leaves or len(leaves) != len(nest.flatten(specs)):
            return None
        if not all(spec.shape.is_fully_defined() for spec in leaves):
            return None
        return nest.map_structure(
            lambda s: Tensor(np.zeros(s.shape.as_list(), s.dtype.dtype)), specs
        )


class Pull:
    """One element that a function takes at each call.

    Attributes:
      source: the iterator.
      position: its place among the function's arguments, or None when it is used without being one.
      tree: the element's structure.
      specs: shape and dtype of each leaf.
      leaves: the leaves as captures.
      element: the arrays for the next call, or None.
    """

    def __init__(self, source: Source, element: Any) -> None:
        self.source: Source | None = source
        self.position: int | None = None
        arrays, self.tree = _flat(element)
        self.specs = _specs(arrays)
        self.leaves = [PulledLeaf(self, i, *spec) for i, spec in enumerate(self.specs)]
        self.element: list[Any] | None = None
        self._structure: Any = None

    def fetch(self) -> bool:
        """Takes the element for the next call; False, with it put back, when its shapes are others.

        Raises:
          EndOfElements: when there is none.
        """
        source = self.source
        if source is None:
            raise InvalidArgumentError(
                "A function that takes elements of an iterator must be called with the iterator."
            )
        try:
            element = source.pull()
        except EndOfElements:
            raise
        except StopIteration:
            raise EndOfElements("End of sequence") from None
        arrays, tree = _flat(element)
        if tree != self.tree or _specs(arrays) != self.specs:
            put_back(source, element)
            return False
        self.element, self._structure = arrays, element
        return True

    def next_shapes(self) -> tuple[Any, ...]:
        """Shapes and dtypes of the element that is next."""
        assert self.source is not None
        element = self.source.pull()
        put_back(self.source, element)
        arrays, tree = _flat(element)
        return tree, tuple(_specs(arrays))

    def put_back(self) -> None:
        """Puts a fetched element back."""
        if self.element is not None and self.source is not None:
            put_back(self.source, self._structure)
        self.element = self._structure = None


class PulledLeaf:
    """One leaf of a pulled element: a capture whose value is another at each call."""

    def __init__(self, pull: Pull, index: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._pull, self._index, self._shape, self.dtype = (
            pull,
            index,
            shape,
            dtypes.as_dtype(dtype),
        )

    @property
    def _value(self) -> Any:
        pull = self._pull
        if pull.element is None and not pull.fetch():
            raise InvalidArgumentError(
                f"The next element of {pull.source!r} has other shapes than those the function was traced "
                f"for, {pull.specs}."
            )
        assert pull.element is not None
        value = pull.element[self._index]
        if self._index == len(pull.leaves) - 1:
            pull.element = pull._structure = None
        return value

    def _as_tensor(self) -> Tensor:
        return Tensor(self._value)


def put_back(source: Source, element: Any) -> None:
    """Makes an element the next one of a source again, in the present context."""
    if context.trace is None:
        source.give_back(element)
    else:
        context.trace.offered.setdefault(id(source), []).append(element)


def _flat(element: Any) -> tuple[list[Any], Any]:
    arrays, tree = jax.tree.flatten(element)
    if any(np.dtype(a.dtype) == object for a in arrays):
        raise InvalidArgumentError(
            "next(iterator) in a compiled function: elements hold strings, which compiled programs cannot. "
            "Map them to numbers in the dataset, or take the element outside of the function."
        )
    return arrays, tree


def _specs(arrays: list[Any]) -> list[tuple[tuple[int, ...], Any]]:
    return [(tuple(np.shape(a)), np.dtype(a.dtype)) for a in arrays]


def _captured(source: Source, scope: TraceContext) -> Any:
    """The element as captures of a function that runs once a call."""
    try:
        element = source.take()
    except StopIteration:
        raise EndOfElements("End of sequence") from None
    scope.taken.append((source, element))
    pull = Pull(source, element)
    scope.pulls.append(pull)
    values = []
    for leaf, (shape, dtype) in zip(pull.leaves, pull.specs, strict=True):
        values.append(bind_capture(len(scope.sources), shape, dtype))
        scope.sources.append(leaf)
    return jax.tree.unflatten(pull.tree, values)


class Feed:
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

    def __init__(self, source: Source, element: Any, optional: bool = False) -> None:
        self.optional = optional
        self.source: Source | None = source
        self.position: int | None = None
        arrays, self._tree = _flat(element)
        self._specs = _specs(arrays)

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
        if tree != self._tree or _specs(arrays) != self._specs:
            raise InvalidArgumentError(
                f"next(iterator) in a loop of a compiled function: an element has shapes {_specs(arrays)}, "
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


_next = Op("iterator_next", _call, differentiable=False, constant=False)


def feed_element(feed: Feed, element: Any, operands: Any = ()) -> tuple[Any, Tensor]:
    """An element that the program asks a feed for, and a tensor that is there when it was given.

    Args:
      feed: the feed.
      element: an element like it.
      operands: what the feed is called with.
    """
    arrays, tree = _flat(element)
    found = [getattr(a, "sharding", None) for a in arrays]
    shardings = tuple(s if isinstance(s, jax.sharding.NamedSharding) else None for s in found)
    specs = tuple(_specs(arrays))
    if feed.optional:
        specs, shardings = (((), np.dtype(bool)), *specs), (None, *shardings)
    results = apply(_next, list(operands), (feed, specs, shardings))
    leaves = results[1:] if feed.optional else results
    return jax.tree.unflatten(tree, [t._value for t in leaves]), results[0]


def _called(source: Source, optional: bool = False) -> tuple[Any, Tensor]:
    """The element as the result of a call that the program makes, and that call's first result."""
    try:
        element = source.take()
        source.give_back(element)
    except StopIteration:
        element = source._stand_in() if optional else None
        if element is None:
            raise EndOfElements("End of sequence") from None
    scope = context.trace
    assert scope is not None
    feed = Feed(source, element, optional)
    owner = scope
    while not owner.once and owner.parent is not None:
        owner = owner.parent
    several = any(
        isinstance(getattr(a, "sharding", None), jax.sharding.NamedSharding)
        for a in jax.tree.leaves(element)
    )
    if several and scope is owner:
        raise NotImplementedError(
            "next(iterator) after a loop that took elements of the same iterator, in a function on several "
            "devices. Take the element before the loop, or in another tf.function."
        )
    owner.feeds.append((feed, source))
    # Several elements taken by one run of a loop's body come in order: each call waits for the last.
    after = scope.last_fed.get(id(source))
    found, first = feed_element(feed, element, [] if after is None else [after])
    scope.last_fed[id(source)] = first
    return found, first
