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

from meshflow.core.dispatch.tiers import TierSettings, is_interpreter_enabled, is_local, run_plan
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.environment.jax_internals import DeviceArray
from meshflow.environment.types import Array, PyTree
from meshflow.interpreter import Plan, UnsupportedPrimitive, build_plan, estimate_costs

__all__ = ["EagerForm", "UncompiledForm"]

_log = logging.getLogger("meshflow")

# Calls that take at most this time with the interpreter, in seconds, are never compiled.
_MAX_INTERPRETED_SECONDS = 2e-4
# Results of at most this number of elements remain on the host, where the next op needs them.
_MAX_HOST_SIZE = 4096
# A form caches at most this number of combinations of shapes.
_MAX_CACHED_KEYS = 4096
# Traces with symbolic sizes per number and dtype of operands, after which each shape is traced.
_MAX_GENERAL_TRACES = 3


class _InterpretedForm:
    """The plan of a form with the structure of its results."""

    __slots__ = ("_plan", "_tree")

    def __init__(self, plan: Plan, tree: Any) -> None:
        self._plan, self._tree = plan, tree

    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Check whether the plan supports operands of these shapes, and prepare it."""
        try:
            self._plan.prepare(shapes)
        except UnsupportedPrimitive:
            return False
        return True

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
        self._families: dict[Hashable, _Family] = {}

    def __call__(self, *values: Any) -> PyTree:
        """Call the function on arrays."""
        return self._find(values)(*values)

    def is_interpreted(self, values: Sequence[Any]) -> bool:
        """Check whether a call with these operands runs op by op."""
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
        family_key = tree, tuple([(a.ndim, a.dtype) for a in leaves])
        family = self._families.get(family_key)
        if family is None:
            family = self._families[family_key] = _Family(self._function, tree, leaves)
        return family.find([a.shape for a in leaves]) or self._jitted


class UncompiledForm(EagerForm):
    """A function that is called once, as plain Python."""

    __slots__ = ()

    def __call__(self, *values: Any) -> PyTree:
        """Call the function on arrays."""
        return self._function(*values)

    def is_interpreted(self, values: Sequence[Any]) -> bool:
        """Return False: JAX runs the equations of the function."""
        return False


class _Family:
    """The plans of a form for operands that differ only in their sizes."""

    def __init__(self, function: Callable[..., PyTree], tree: Any, leaves: Sequence[Any]) -> None:
        self._function, self._tree = function, tree
        self._dtypes = [a.dtype for a in leaves]
        self._calls: list[list[tuple[int, ...]]] = []
        self._general: list[tuple[GuardedSizes, _InterpretedForm, Any]] = []
        self._num_attempts = 0
        self._is_supported = True

    def find(self, shapes: list[tuple[int, ...]]) -> Callable[..., PyTree] | None:
        """Return a function for operands of these shapes; None if it must be compiled."""
        if not self._is_supported:
            return None
        for sizes, form, costs in self._general:
            if sizes.bind(shapes) is not None:
                return form if _is_fast(costs, shapes) and form.prepare(shapes) else None
        if self._calls and self._num_attempts < _MAX_GENERAL_TRACES:
            self._num_attempts += 1
            sizes = GuardedSizes([*self._calls, shapes])
            try:
                with sizes.record():
                    form, costs = self._trace(sizes.shapes)
            except Exception:  # The function needs the value of a size.
                self._num_attempts = _MAX_GENERAL_TRACES
            else:
                self._general.insert(0, (sizes, form, costs))
                if sizes.bind(shapes) is not None:
                    return form if _is_fast(costs, shapes) and form.prepare(shapes) else None
        self._calls = [*self._calls[:1], shapes]
        try:
            form, costs = self._trace(shapes)
        except Exception as error:
            # XLA compiles every op, and JAX raises errors about the operands again.
            _log.debug("The op is compiled: %r", error)
            self._is_supported = not isinstance(error, UnsupportedPrimitive)
            return None
        return form if _is_fast(costs, shapes) and form.prepare(shapes) else None

    def _trace(self, shapes: Sequence[tuple[int, ...]]) -> tuple[_InterpretedForm, Any]:
        specs = map(jax.ShapeDtypeStruct, shapes, self._dtypes)
        closed, results = jax.make_jaxpr(self._function, return_shape=True)(
            *jax.tree.unflatten(self._tree, specs)
        )
        form = _InterpretedForm(build_plan(closed), jax.tree.structure(results))
        return form, estimate_costs(closed)


def _is_fast(costs: Any, shapes: Sequence[tuple[int, ...]]) -> bool:
    is_fixed = TierSettings.tier == "interpret"
    return is_fixed or costs.bind(shapes).run_seconds <= _MAX_INTERPRETED_SECONDS


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
