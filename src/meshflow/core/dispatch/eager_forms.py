"""The array function of an op in eager mode: op by op for small arrays, compiled for large ones.

Whether arrays are small depends only on the shapes of the operands, so an eager program computes the
same bits in each run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.tiers import (
    TierSettings,
    can_run_plan,
    is_interpreter_enabled,
    is_local,
    run_plan,
)
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.values.trace_families import TraceFamily
from meshflow.environment.jax_internals import DeviceArray
from meshflow.environment.types import Array, ClosedJaxpr, PyTree
from meshflow.interpreter import CostEstimate, UnsupportedPrimitive, build_plan

__all__ = ["EagerForm", "UncompiledForm"]

_log = logging.getLogger("meshflow")

# Calls that take at most this time with the interpreter, in seconds, are never compiled.
_MAX_INTERPRETED_SECONDS = 2e-4
# Results of at most this number of elements remain on the host, where the next op needs them.
_MAX_HOST_SIZE = 4096
# A form caches at most this number of combinations of shapes.
_MAX_CACHED_KEYS = 4096


class _InterpretedForm:
    """The plan of a form with its costs and the structure of its results."""

    __slots__ = ("_costs", "_plan", "_tree")

    def __init__(self, closed: ClosedJaxpr, tree: Any) -> None:
        self._plan, self._costs, self._tree = build_plan(closed), CostEstimate(closed), tree

    def should_run(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Check whether calls with operands of these shapes are not compiled."""
        seconds = self._costs.bind(shapes).run_seconds
        is_fast = TierSettings.tier == "interpret" or seconds <= _MAX_INTERPRETED_SECONDS
        return is_fast and can_run_plan(self._plan, shapes)

    def __call__(self, *values: Any) -> Any:
        arrays = [np.asarray(v) for v in jax.tree.leaves(values)]
        outputs = [_to_tensor_value(o) for o in run_plan(self._plan, arrays)]
        return jax.tree.unflatten(self._tree, outputs)


def _to_tensor_value(array: np.ndarray) -> Array:
    return array if array.size <= _MAX_HOST_SIZE else transfers.to_device(array)


class EagerForm:
    """A function of arrays that is called in eager mode.

    Args:
      function: The function of arrays, None and lists of arrays.
      donated: Indices of the operands with buffers that the function takes over.

    Example:
      >>> form = EagerForm(lambda x: x + 1)
      >>> form(np.arange(3.0)).tolist()
      [1.0, 2.0, 3.0]
    """

    __slots__ = ("__weakref__", "_calls", "_families", "_function", "_jitted")

    def __init__(self, function: Callable[..., PyTree], donated: Sequence[int] = ()) -> None:
        self._function = function
        self._jitted = jax.jit(function, donate_argnums=tuple(donated))
        self._calls: dict[Hashable, Callable[..., PyTree]] = {}
        # None for operands for which the interpreter does not support the function.
        self._families: dict[Hashable, TraceFamily[_InterpretedForm] | None] = {}

    def __call__(self, *values: Any) -> PyTree:
        """Call the function on arrays."""
        return self._find(values)(*values)

    def is_interpreted(self, values: Sequence[Any]) -> bool:
        """Check whether a call with these operands uses the interpreter."""
        return self._find(values) is not self._jitted

    def _find(self, values: Sequence[Any]) -> Callable[..., PyTree]:
        is_placed = context.device is not None or context.place_output is not None
        key = None if is_placed else _make_key(values)
        if key is None:
            return self._jitted
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MAX_CACHED_KEYS:
                self._calls.clear()
            call = self._calls[key] = self._choose(values)
        return call

    def _choose(self, values: Sequence[Any]) -> Callable[..., PyTree]:
        _Devices.count()
        leaves, tree = jax.tree.flatten(values)
        if not (is_interpreter_enabled() and all(map(is_local, leaves))):
            return self._jitted
        shapes, dtypes = [a.shape for a in leaves], [a.dtype for a in leaves]

        def trace(shapes: Sequence[tuple[int, ...]]) -> _InterpretedForm:
            specs = map(jax.ShapeDtypeStruct, shapes, dtypes)
            operands = jax.tree.unflatten(tree, specs)
            closed, results = jax.make_jaxpr(self._function, return_shape=True)(*operands)
            return _InterpretedForm(closed, jax.tree.structure(results))

        key = tree, tuple([(a.ndim, a.dtype) for a in leaves])
        family = self._families.setdefault(key, TraceFamily())
        if family is None:
            return self._jitted
        try:
            form = family.find(shapes, lambda sizes: trace(sizes.shapes)) or trace(shapes)
        except Exception as error:
            # XLA compiles every op, and JAX raises errors about the operands again.
            _log.debug("The op is compiled: %r", error)
            if isinstance(error, UnsupportedPrimitive):
                self._families[key] = None
            return self._jitted
        return form if form.should_run(shapes) else self._jitted


class UncompiledForm(EagerForm):
    """A function that is called once, as plain Python."""

    __slots__ = ()

    def __init__(self, function: Callable[..., PyTree]) -> None:
        self._function = function

    def __call__(self, *values: Any) -> PyTree:
        """Call the function on arrays."""
        return self._function(*values)

    def is_interpreted(self, values: Sequence[Any]) -> bool:
        """Return False: JAX runs the equations of the function."""
        return False


class _Devices:
    """Whether arrays may be on different devices."""

    has_several = True

    @classmethod
    def count(cls) -> None:
        """Count the devices, which starts JAX's backend."""
        cls.has_several = jax.device_count() > 1


def _make_key(values: Sequence[Any]) -> Hashable:
    """Return the shapes and dtypes of operands, or None if one of them has no value."""
    key: list[Hashable] = []
    for value in values:
        if isinstance(value, (np.ndarray, DeviceArray)):
            key.append((value.shape, value.dtype))
            if _Devices.has_several and isinstance(value, jax.Array):
                key.append(value.sharding)
        elif value is None:
            key.append(None)
        elif isinstance(value, (list, tuple)):
            inner = _make_key(value)
            if inner is None:
                return None
            key.append(inner)
        else:
            return None
    return tuple(key)
