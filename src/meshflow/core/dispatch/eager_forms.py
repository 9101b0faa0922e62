"""The array function of an op in eager mode: op by op for small arrays, compiled for large ones.

Whether arrays are small depends only on the shapes of the operands, so an eager program computes the
same bits in each run.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.tiers import (
    TierSettings,
    are_local,
    can_run_plan,
    check_outputs,
    is_interpreter_enabled,
)
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.runtime.memory_errors import await_large_results
from meshflow.core.values.trace_families import TraceFamily
from meshflow.environment.jax_internals import DeviceArray
from meshflow.environment.types import Array, ClosedJaxpr, PyTree
from meshflow.interpreter import CostEstimate, UnsupportedPrimitive, build_plan

_log = logging.getLogger("meshflow")

# Calls that take at most this time with the interpreter, in seconds, are never compiled.
_MAX_INTERPRETED_SECONDS = 2e-4
# The limit in functions of elements of input pipelines, which run in threads of their own: a compiled op would wake
# up another thread.
_MAX_SECONDS_ON_HOST = 1e-3
# Results of at most this number of elements remain on the host, where the next op needs them.
_MAX_HOST_SIZE = 1 << 16
# Operands of at most this number of bytes are passed to the NumPy function of an op, if it has one.
_MAX_HOST_BYTES = 1 << 20
# A form caches at most this number of combinations of shapes.
_MAX_CACHED_KEYS = 1024

_Call = Callable[..., PyTree]


class _InterpretedForm:
    """The plan of a form with its costs and the structure of its results."""

    __slots__ = ("_costs", "_plan", "_tree")

    def __init__(self, closed: ClosedJaxpr, tree: Any) -> None:
        self._plan, self._costs, self._tree = build_plan(closed), CostEstimate(closed), tree

    def bind(self, shapes: Sequence[tuple[int, ...]], is_flat: bool) -> _Call | None:
        """Return a function for operands of these shapes; None if calls with them are compiled.

        Args:
          shapes: Shapes of the operands.
          is_flat: Whether the arguments of the function are arrays, not structures of them.
        """
        seconds = self._costs.bind(shapes).run_seconds
        on_host = context.computes_on_host
        limit = _MAX_SECONDS_ON_HOST if on_host else _MAX_INTERPRETED_SECONDS
        is_fast = TierSettings.tier == "interpret" or seconds <= limit
        if not (is_fast and can_run_plan(self._plan, shapes)):
            return None
        plan, tree, bound = self._plan, self._tree, self._plan.bind(shapes)
        # The tree of None is a leaf, too.
        is_single = tree.num_leaves == 1 and jax.tree_util.treedef_is_leaf(tree)
        convert = (lambda array: array) if on_host else _to_tensor_value

        def call(*values: Any) -> PyTree:
            arrays = [np.asarray(v) for v in (values if is_flat else jax.tree.leaves(values))]
            outputs = check_outputs(plan.run_bound(bound, arrays))
            if is_single:
                return convert(outputs[0])
            return jax.tree.unflatten(tree, map(convert, outputs))

        return call


def _to_tensor_value(array: np.ndarray) -> Array:
    return array if array.size <= _MAX_HOST_SIZE else transfers.to_device(array)


class EagerForm:
    """A function of arrays that is called in eager mode.

    Args:
      function: The function of arrays, None and lists of arrays.
      donated: Indices of the operands with buffers that the function takes over.
      host_function: Computes the function of a list of its arguments as host arrays with NumPy, or returns None.
      general: A form that computes the same, so that this one is not traced, with its first operand; or None.

    Example:
      >>> form = EagerForm(lambda x: x + 1)
      >>> form(np.arange(3.0)).tolist()
      [1.0, 2.0, 3.0]
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_donated",
        "_families",
        "_function",
        "_general",
        "_host",
        "_program",
    )

    def __init__(
        self,
        function: _Call,
        donated: Sequence[int] = (),
        host_function: Callable[[list[PyTree]], PyTree] | None = None,
        general: tuple[EagerForm, Array | np.ndarray] | None = None,
    ) -> None:
        self._general = general
        self._function, self._donated, self._host = function, tuple(donated), host_function
        self._program: _Call | None = None
        self._calls: dict[Hashable, _Call] = {}
        # None for operands for which the interpreter does not support the function.
        self._families: dict[Hashable, TraceFamily[_InterpretedForm] | None] = {}

    def __call__(self, *values: Any) -> PyTree:
        """Call the function on arrays."""
        return self._find(values)(*values)

    def is_interpreted(self, values: Sequence[Any]) -> bool:
        """Check whether a call with these operands uses the interpreter."""
        if self._general is not None:
            form, first = self._general
            return form.is_interpreted([first, *values])
        return self._find(values) is not self._program

    @property
    def _jitted(self) -> _Call:
        if self._program is None:
            jitted = jax.jit(self._function, donate_argnums=self._donated)
            self._program = await_large_results(jitted)
        return self._program

    def _find(self, values: Sequence[Any]) -> _Call:
        is_placed = context.device is not None or context.place_output is not None
        key = None if is_placed else _make_key(values)
        if key is None:
            return self._jitted
        if context.computes_on_host:
            key = key, True
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MAX_CACHED_KEYS:
                self._calls.clear()
            call = self._calls[key] = self._choose(values)
        return call

    def _choose(self, values: Sequence[Any]) -> _Call:
        _Devices.count()
        leaves = jax.tree.leaves(values)
        if not (is_interpreter_enabled() and are_local(leaves)):
            return self._jitted
        if self._host is not None and sum(a.nbytes for a in leaves) <= _MAX_HOST_BYTES:
            return self._call_host
        return self._choose_plan(values)

    def _call_host(self, *values: Any) -> PyTree:
        assert self._host is not None
        try:
            result = self._host(_to_host_arrays(values))
        except Exception as error:
            # The trace raises JAX's error.
            _log.debug("The op is traced: %r", error)
            result = None
        if result is None:
            # The function rejects these shapes or values.
            key = _make_key(values)
            call = self._choose_plan(values)
            self._calls[(key, True) if context.computes_on_host else key] = call
            return call(*values)
        if type(result) is tuple:
            return tuple(map(_to_tensor_value, check_outputs(list(result))))
        check_outputs([result])
        return _to_tensor_value(result if result.base is None else result.copy())

    def _choose_plan(self, values: Sequence[Any]) -> _Call:
        """Return the general form or the plan of the function for some operands, or the jitted function."""
        if self._general is not None:
            general, first = self._general
            return functools.partial(general._find((first, *values)), first)
        leaves, tree = jax.tree.flatten(values)
        is_flat = len(leaves) == len(values) and not any(isinstance(v, list) for v in values)
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
        return form.bind(shapes, is_flat) or self._jitted


def _to_host_arrays(values: Sequence[Any]) -> list[PyTree]:
    return [
        v
        if v is None or type(v) is np.ndarray
        else _to_host_arrays(v)
        if isinstance(v, (list, tuple))
        else np.asarray(v)
        for v in values
    ]


class UncompiledForm(EagerForm):
    """A function that is called once, as plain Python."""

    __slots__ = ()

    def __init__(self, function: _Call) -> None:
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
