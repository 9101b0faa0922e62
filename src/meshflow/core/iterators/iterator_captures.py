"""Elements that a compiled function takes from an outer iterator.

`next(iterator)` in a traced function takes one element in each call. Outside of loops, the element
is fetched before the program runs and is an input (a *capture*). In a loop or a branch, the program
requests it by a callback (a *feed*), because their number is only known at run time.

The shapes are those of the next element while the function is traced; it is returned afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np

from meshflow.core.iterators.callback_infeed import (
    EndOfElements,
    flatten_element,
    list_specs,
    make_stream,
    request_element,
)
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.runtime.errors import InvalidArgumentError, OutOfRangeError
from meshflow.core.staging.loops import LoopStream
from meshflow.core.tracing.trace import bind_capture, enter_trace
from meshflow.core.values import dtypes, nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import trace_state_clean
from meshflow.environment.types import PyTree

# Type of the elements of a dataset or iterator.
Element = TypeVar("Element", covariant=True)


class IteratorSource(Generic[Element]):
    """Base class of iterators from which compiled functions can take elements."""

    def __init__(self) -> None:
        self._returned_elements: list[Any] = []
        # An iterator that is created in a trace belongs to it: its elements are constants.
        self._is_created_in_trace = context.trace is not None

    def _produce(self) -> PyTree:
        """Return the next element.

        Raises:
          StopIteration: At the end.
        """
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Element:
        return self.pull()

    def get_next(self) -> Element:
        """Return the next element.

        Raises:
          OutOfRangeError: At the end.
        """
        try:
            return self.pull()
        except StopIteration:
            raise OutOfRangeError("End of sequence") from None

    def _make_cache_key(self) -> Hashable:
        """Return the cache key of functions that have this iterator as an argument."""
        return id(self)

    def take(self) -> PyTree:
        """Return the next element, immediately."""
        if self._returned_elements:
            return self._returned_elements.pop()
        if context.trace is None and not context.tapes and trace_state_clean():
            return self._produce()
        with enter_trace(None, False), jax.core.eval_context():
            return self._produce()

    def give_back(self, element: PyTree) -> None:
        """Make an element the next one again."""
        self._returned_elements.append(element)

    def pull(self) -> PyTree:
        """Return the next element in the current context; it is symbolic while a function is traced.

        Raises:
          StopIteration: At the end; in a function, the error is also an OutOfRangeError.
        """
        scope = context.trace
        if scope is None or self._is_created_in_trace:
            return self.take()
        returned = scope.returned_elements.get(id(self))
        if returned:
            return returned.pop()
        # After a loop that took elements, the program must request the next one.
        if scope.runs_once_per_call and all(source is not self for _, source in scope.infeeds):
            return _capture_element(self, scope)
        return request_element(self, self._make_example())[0]

    def pull_if_any(self) -> tuple[PyTree, bool | Tensor]:
        """Return the next element and whether there is one (a tensor while a function is traced).

        If there is none, the element is None or, in a function, zeros.
        """
        scope = context.trace
        try:
            if scope is None or self._is_created_in_trace:
                return self.take(), True
        except StopIteration:
            return None, False
        returned = scope.returned_elements.get(id(self))
        if returned:
            return returned.pop(), True
        return request_element(self, self._make_example(optional=True), optional=True)

    def __autograph_for__(self) -> LoopStream | None:
        return None if self._is_created_in_trace else make_stream(self, *self._make_examples())

    def _make_examples(self) -> tuple[PyTree, PyTree]:
        """Return an example of the elements, and of the last one if it differs, or None."""
        return self._make_example(optional=True), None

    def _make_example(self, optional: bool = False) -> PyTree:
        """Return the next element without taking it, or zeros if there is none and it is optional."""
        try:
            element = self.take()
            self.give_back(element)
        except StopIteration:
            element = self._make_zeros() if optional else None
            if element is None:
                raise EndOfElements("End of sequence") from None
        return element

    def _make_zeros(self) -> PyTree:
        """Return zeros like an element, or None if its shapes are unknown."""
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
    """One element that a function takes in each call.

    Attributes:
      source: The iterator.
      position: Index of the iterator among the arguments of the function, or None.
      tree: Structure of the element.
      specs: Shape and dtype of each leaf.
      leaves: The leaves as captures.
      element: The arrays for the next call, or None.
    """

    def __init__(self, source: IteratorSource, element: PyTree) -> None:
        self.source: IteratorSource | None = source
        self.position: int | None = None
        arrays, self.tree = flatten_element(element)
        self.specs = list_specs(arrays)
        self.leaves = [CapturedLeaf(self, i, *spec) for i, spec in enumerate(self.specs)]
        self.element: list[Any] | None = None
        self._structure: PyTree = None

    def fetch(self) -> bool:
        """Take the element for the next call; return False and undo it if its shapes differ.

        Raises:
          EndOfElements: If there is no element.
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
        arrays, tree = flatten_element(element)
        if tree != self.tree or list_specs(arrays) != self.specs:
            put_back(source, element)
            return False
        self.element, self._structure = arrays, element
        return True

    def get_next_shapes(self) -> tuple[Any, ...]:
        """Return the structure, shapes and dtypes of the next element."""
        assert self.source is not None
        element = self.source.pull()
        put_back(self.source, element)
        arrays, tree = flatten_element(element)
        return tree, tuple(list_specs(arrays))

    def put_back(self) -> None:
        """Return a fetched element to the iterator."""
        if self.element is not None and self.source is not None:
            put_back(self.source, self._structure)
        self.element = self._structure = None


class CapturedLeaf:
    """One leaf of an element: a capture with a new value in each call."""

    def __init__(
        self, capture: IteratorCapture, index: int, shape: tuple[int, ...], dtype: DTypeLike
    ) -> None:
        self._capture, self._index, self._shape = capture, index, shape
        self.dtype = dtypes.as_dtype(dtype)

    @property
    def _value(self) -> Any:
        capture = self._capture
        if capture.element is None and not capture.fetch():
            raise InvalidArgumentError(
                f"The shapes of the next element of {capture.source!r} differ from those for which the function "
                f"was traced, {capture.specs}."
            )
        assert capture.element is not None
        value = capture.element[self._index]
        if self._index == len(capture.leaves) - 1:
            capture.element = capture._structure = None
        return value

    def _as_tensor(self) -> Tensor:
        return Tensor(self._value)


def put_back(source: IteratorSource, element: PyTree) -> None:
    """Make an element the next one of a source again, in the current context."""
    if context.trace is None:
        source.give_back(element)
    else:
        context.trace.returned_elements.setdefault(id(source), []).append(element)


def _capture_element(source: IteratorSource, scope: ActiveTrace) -> PyTree:
    """Return the element as captures of a function that runs once in each call."""
    try:
        element = source.take()
    except StopIteration:
        raise EndOfElements("End of sequence") from None
    scope.borrowed_elements.append((source, element))
    capture = IteratorCapture(source, element)
    scope.iterator_captures.append(capture)
    values = []
    for leaf, (shape, dtype) in zip(capture.leaves, capture.specs, strict=True):
        values.append(bind_capture(len(scope.sources), shape, dtype))
        scope.sources.append(leaf)
    return jax.tree.unflatten(capture.tree, values)


def fetch_elements(captures: Sequence[IteratorCapture]) -> Hashable | None:
    """Fetch the next element of each capture.

    Returns:
      None, or the shapes of the first element that the trace is not valid for; all elements are put back then.
    """
    for count, capture in enumerate(captures):
        if not capture.fetch():
            for earlier in reversed(captures[:count]):
                earlier.put_back()
            return capture.get_next_shapes()
    return None
