"""Functions of a state and an element, as `scan` and `reduce` call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.execution.map_function import ElementFunction
from meshflow.environment.types import PyTree


def make_state_function(
    fn: Callable[..., Any],
    state: PyTree,
    element_spec: PyTree,
    caller: str,
    next_state: Callable[[Any], Any] = lambda found: found,
) -> ElementFunction:
    """Compile a user's function of a state and an element.

    The spec of the state is relaxed until it covers all states that the function returns for it, so
    a state may change its shape from element to element.

    Args:
      fn: Function of (state, element).
      state: The first state, a structure of host arrays.
      element_spec: Spec of the elements.
      caller: Name of the transformation, for errors.
      next_state: Function from the spec of the results to the spec of the next state.

    Raises:
      TypeError: If the dtypes of the next state differ from those of the first state.
      InvalidArgumentError: If the structure of the next state differs.
    """
    spec = structure.infer_spec(state)
    while True:
        function = ElementFunction(fn, (spec, element_spec), caller)
        if function.output_spec is None:
            return function
        next_spec = next_state(function.output_spec)
        _check_next_spec(spec, next_spec, caller)
        merged_spec = structure.merge_specs(spec, next_spec)
        if merged_spec == spec:
            return function
        spec = merged_spec


def _check_next_spec(spec: PyTree, next_spec: PyTree, caller: str) -> None:
    """Check that the spec of the next state has the structure and dtypes of the state."""
    try:
        nest.assert_same_structure(spec, next_spec)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{caller}: the new state must have the structure of the initial state, {spec}; got {next_spec}. {error}"
        ) from None
    for first, following in zip(nest.flatten(spec), nest.flatten(next_spec), strict=True):
        if isinstance(first, TensorSpec) and first.dtype is not following.dtype:
            raise TypeError(
                f"{caller}: The element types for the new state must match the initial state. Expected "
                f"{first.dtype.name}, got {following.dtype.name}."
            )
