"""Elements that a compiled function takes from an iterator of the program around it.

`next(iterator)` in a traced function means: one element at every call. Outside of loops the element
is fetched before the program runs and given to it as an input (a *capture*). In a loop or a branch
the program calls back for it (a *feed*), as only the running program knows how many it needs.

Shapes are those of the element that is next when the function is traced; it is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from meshflow.core.iterators.callback_infeed import EndOfElements, called, flat, specs_of, stream
from meshflow.core.runtime.context import Tracing, context
from meshflow.core.runtime.errors import InvalidArgumentError, OutOfRangeError
from meshflow.core.tracing.trace import bind_capture, enter
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import trace_state_clean


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
        if context.trace is None and not context.tapes and trace_state_clean():
            return self._produce()
        with enter(None, False), jax.core.eval_context():
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
        if scope.once and all(source is not self for _, source in scope.infeeds):
            return _captured(self, scope)
        return called(self, self._like())[0]

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
        return called(self, self._like(optional=True), optional=True)

    def __autograph_for__(self) -> Any:
        return None if self._made_in_trace else stream(self, *self._likes())

    def _likes(self) -> tuple[Any, Any]:
        """Elements like those to come: all but the last, and the last, None where it is no other."""
        return self._like(optional=True), None

    def _like(self, optional: bool = False) -> Any:
        """An element like the next: that itself, or zeros where there is none and that is no error."""
        try:
            element = self.take()
            self.give_back(element)
        except StopIteration:
            element = self._stand_in() if optional else None
            if element is None:
                raise EndOfElements("End of sequence") from None
        return element

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


class IteratorCapture:
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
        arrays, self.tree = flat(element)
        self.specs = specs_of(arrays)
        self.leaves = [CapturedLeaf(self, i, *spec) for i, spec in enumerate(self.specs)]
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
        arrays, tree = flat(element)
        if tree != self.tree or specs_of(arrays) != self.specs:
            put_back(source, element)
            return False
        self.element, self._structure = arrays, element
        return True

    def next_shapes(self) -> tuple[Any, ...]:
        """Shapes and dtypes of the element that is next."""
        assert self.source is not None
        element = self.source.pull()
        put_back(self.source, element)
        arrays, tree = flat(element)
        return tree, tuple(specs_of(arrays))

    def put_back(self) -> None:
        """Puts a fetched element back."""
        if self.element is not None and self.source is not None:
            put_back(self.source, self._structure)
        self.element = self._structure = None


class CapturedLeaf:
    """One leaf of a pulled element: a capture whose value is another at each call."""

    def __init__(
        self, capture: IteratorCapture, index: int, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self._capture, self._index, self._shape, self.dtype = (
            capture,
            index,
            shape,
            dtypes.as_dtype(dtype),
        )

    @property
    def _value(self) -> Any:
        capture = self._capture
        if capture.element is None and not capture.fetch():
            raise InvalidArgumentError(
                f"The next element of {capture.source!r} has other shapes than those the function was traced "
                f"for, {capture.specs}."
            )
        assert capture.element is not None
        value = capture.element[self._index]
        if self._index == len(capture.leaves) - 1:
            capture.element = capture._structure = None
        return value

    def _as_tensor(self) -> Tensor:
        return Tensor(self._value)


def put_back(source: Source, element: Any) -> None:
    """Makes an element the next one of a source again, in the present context."""
    if context.trace is None:
        source.give_back(element)
    else:
        context.trace.offered.setdefault(id(source), []).append(element)


def _captured(source: Source, scope: Tracing) -> Any:
    """The element as captures of a function that runs once a call."""
    try:
        element = source.take()
    except StopIteration:
        raise EndOfElements("End of sequence") from None
    scope.taken.append((source, element))
    capture = IteratorCapture(source, element)
    scope.iterator_captures.append(capture)
    values = []
    for leaf, (shape, dtype) in zip(capture.leaves, capture.specs, strict=True):
        values.append(bind_capture(len(scope.sources), shape, dtype))
        scope.sources.append(leaf)
    return jax.tree.unflatten(capture.tree, values)
