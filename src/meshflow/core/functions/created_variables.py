"""Checks of the variables that functions create and capture."""

from __future__ import annotations

import gc
import inspect
import sys
from typing import Any

import jax

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.tensor import Tensor
from meshflow.environment.garbage_collection import LOCAL_REFERENCES


def check_created_variables(
    name: str, variables: list[Any], holders: list[Any], is_first: bool
) -> None:
    """Check that a function created variables in its first trace, and that something keeps them.

    Args:
      name: Name of the function.
      variables: The variables.
      holders: Records of the trace, which also refer to them.
      is_first: Whether this is the first trace.

    Raises:
      ValueError: If it did not.
    """
    if not is_first or _is_unreferenced(variables, holders):
        raise ValueError(
            "tf.function only supports singleton tf.Variables created on the first call. Make sure "
            f"the tf.Variable is only created once or created outside tf.function. {name} "
            f"created {[v.name for v in variables]} in a later call, or did not keep it. See "
            "https://www.tensorflow.org/guide/function#creating_tfvariables for more information."
        )


def _is_unreferenced(variables: list[Any], holders: list[Any]) -> bool:
    """Check whether only the records of its trace refer to one of the variables."""
    known = {id(holder) for holder in [*holders, variables]}
    # A generator over the variables would be a holder, too.
    for variable in variables:
        key = id(variable)
        referrers = gc.get_referrers(variable)
        # `gc.get_referrers` omits objects that imports have frozen, so their references are counted.
        hidden = sys.getrefcount(variable) - LOCAL_REFERENCES
        for referrer in referrers:
            hidden -= list(map(id, gc.get_referents(referrer))).count(key)
        if not hidden and all(id(r) in known or inspect.isframe(r) for r in referrers):
            return True
    return False


def captures_tracers(traced: TracedFunction) -> bool:
    """Check whether a function uses tensors of an outer trace, so that it cannot be called again."""
    return any(
        isinstance(c, Tensor) and isinstance(c.array, jax.core.Tracer) for c in traced.captures
    )
