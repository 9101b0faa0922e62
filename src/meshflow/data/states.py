"""Functions of a state and an element: `scan`, `reduce` and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.execution.map_function import ElementFunction


def function_of_state(
    fn: Callable[..., Any],
    state: Any,
    element_spec: Any,
    what: str,
    next_state: Callable[[Any], Any] = lambda found: found,
) -> ElementFunction:
    """A user's function of a state and an element, for states of all the shapes that it makes of the first.

    Args:
      fn: the function.
      state: the first state, host arrays.
      element_spec: the spec of the elements.
      what: the transformation, for errors.
      next_state: from the spec of the function's results to that of the next state.

    Raises:
      TypeError: when the next state is known to be of another dtype.
      InvalidArgumentError: when it is known to be of another structure.
    """
    spec = structure.spec_of(state)
    while True:
        function = ElementFunction(fn, (spec, element_spec), what)
        if function.output_spec is None:
            return function
        found = next_state(function.output_spec)
        _check(spec, found, what)
        wider = structure.merged(spec, found)
        if wider == spec:
            return function
        spec = wider


def _check(spec: Any, found: Any, what: str) -> None:
    try:
        nest.assert_same_structure(spec, found)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{what}: the new state must have the structure of the initial state, {spec}; got {found}. {error}"
        ) from None
    for first, following in zip(nest.flatten(spec), nest.flatten(found), strict=True):
        if isinstance(first, TensorSpec) and first.dtype is not following.dtype:
            raise TypeError(
                f"{what}: the element types for the new state must match the initial state. Expected "
                f"{first.dtype.name}, got {following.dtype.name}."
            )
