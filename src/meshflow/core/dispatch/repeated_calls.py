"""Copies of the equations of equal calls in a trace.

A network calls many layers with equal shapes. JAX would run the array function and the derivative rules of each op again,
which takes about a hundred times as long as a copy of the resulting equations. So a trace keeps the equations of each
call of an op or pullback, and copies them for later calls with the same function, static arguments, and types of operands.
The copies are equal to the equations of a second run, because array functions depend on nothing else that changes during
a trace; calls that have other effects on the trace are never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.philox import current_draws
from meshflow.environment.jax_internals import (
    JaxprTracer,
    find_jaxpr_trace,
    jex_core,
    read_trace_context,
    source_info_util,
)
from meshflow.environment.types import Atom, Primitive, PyTree

# Host arrays of at most this number of bytes are compared by value.
_MAX_CONSTANT_BYTES = 64


class RepeatedCalls:
    """The calls of one trace, with the equations that equal calls copy.

    Args:
      unique: Primitive with equations that may not be copied.

    Example:
      >>> import functools, numpy as np
      >>> calls = RepeatedCalls(jex_core.Primitive("capture"))
      >>> double = lambda x: calls.run(functools.partial(lambda x: 2 * x, x), "double", x)
      >>> jax.make_jaxpr(lambda x, y: [double(x), double(y)])(*np.float32([1, 3]))
      { lambda ; a:f32[] b:f32[]. let
          c:f32[] = mul 2.0:f32[] a
          d:f32[] = mul 2.0:f32[] b
        in (c, d) }
    """

    def __init__(self, unique: Primitive) -> None:
        self._unique = unique
        # None for calls that may not be copied.
        self._records: dict[Hashable, _Record | None] = {}

    def run(
        self,
        function: Callable[[], PyTree],
        key: Hashable,
        *operands: PyTree,
        pullback: ScopedPullback | None = None,
    ) -> PyTree:
        """Call a function of arrays, or copy the equations of an equal call.

        Args:
          function: Function of the operands, without parameters.
          key: Identity of the function, with its static arguments.
          *operands: Nested arrays.
          pullback: The pullback that is applied, if the function applies one.

        Returns:
          The result of the function.
        """
        trace, scope, sizes = find_jaxpr_trace(), context.trace, context.unknown_sizes
        if (
            trace is None
            or scope is None
            or context.value_probe is not None
            or context.size_probe is not None
            or current_draws.draws is not None
        ):
            return function()
        leaves, tree = jax.tree.flatten(operands)
        types = _describe(trace, leaves)
        if types is None:
            return function()
        # A function that JAX transforms inside has a trace of its own, with constants of its own.
        key = key, trace, tree, types, context.in_shard_region, read_trace_context()
        if key in self._records:
            record = self._records[key]
            return function() if record is None else record.copy(trace, leaves, pullback)
        equations, start = trace.frame.tracing_eqns, len(trace.frame.tracing_eqns)

        def count_effects() -> tuple[Any, ...]:
            counts = len(scope.sources), len(scope.writes), scope.num_random_ops
            return counts if sizes is None else (*counts, sizes.num_unknown, len(sizes.anchors))

        before = count_effects()
        results = function()
        self._records[key] = None
        # Calls with other effects on the trace run again.
        if count_effects() != before:
            return results
        new = equations[start:]
        for equation in new:
            if equation.effects or equation.primitive is self._unique:
                return results
        outer = source_info_util.current_name_stack().stack
        if pullback is not None and pullback.recorded != pullback.scopes:
            _correct_scopes(new, outer, pullback)
        inner = None if pullback is None else pullback.scopes
        self._records[key] = _Record(leaves, new, results, outer, inner)
        return results

    def clear(self) -> None:
        """Forget all calls, because their tracers would keep the trace alive."""
        self._records.clear()


class ScopedPullback:
    """A pullback of JAX, and the name scopes of the call that it belongs to.

    Copies share the linear program of the first call, and its equations have the scopes of that call.

    Args:
      pullback: The pullback.
      recorded: The name scopes of the linear program.
    """

    __slots__ = ("pullback", "recorded", "scopes")

    def __init__(self, pullback: Callable[..., Any], recorded: Any) -> None:
        self.pullback, self.recorded = pullback, recorded.stack
        self.scopes = source_info_util.current_name_stack().stack


class _Record(NamedTuple):
    """The equations of a call, and the values that copies replace.

    Attributes:
      operands: Arrays of the call.
      equations: Equations of the call.
      results: Result of the call.
      outer: Name scopes of the call.
      inner: Name scopes of the pullback that was applied, or None.
    """

    operands: Sequence[Any]
    equations: Sequence[Any]
    results: PyTree
    outer: tuple[Any, ...]
    inner: tuple[Any, ...] | None

    def copy(self, trace: Any, operands: Sequence[Any], pullback: ScopedPullback | None) -> PyTree:
        """Add the equations for other operands to a trace, and return the results."""
        values: dict[Atom, PyTree] = {
            old.val: new
            for old, new in zip(self.operands, operands, strict=True)
            if isinstance(old, JaxprTracer)
        }
        source = source_info_util.current()
        rename = _Renaming(
            (self.outer, source.name_stack.stack),
            (self.inner, None if pullback is None else pullback.scopes),
        )
        for equation in self.equations:
            outputs = trace.emit_eqn(
                [_replace(values, t) for t in equation.in_tracers],
                [v.aval for v in equation.outvars],
                equation.primitive,
                equation.params,
                equation.effects,
                source.replace(name_stack=rename(equation.source_info.name_stack)),
                equation.ctx,
            )
            values.update(zip(equation.outvars, outputs, strict=True))
        return jax.tree.map(lambda result: _replace(values, result), self.results)


def _correct_scopes(
    equations: Sequence[Any], outer: tuple[Any, ...], pullback: ScopedPullback
) -> None:
    """Replace the scopes of a linear program by those of the call that the pullback belongs to."""
    rename = _Renaming((outer, outer), (pullback.recorded, pullback.scopes))
    for equation in equations:
        info = equation.source_info
        equation.source_info = info.replace(name_stack=rename(info.name_stack))


class _Renaming:
    """A function of name stacks that replaces their first scopes, and those of a pullback inside."""

    def __init__(
        self,
        outer: tuple[tuple[Any, ...], tuple[Any, ...]],
        inner: tuple[tuple[Any, ...] | None, tuple[Any, ...] | None],
    ) -> None:
        self._outer, self._inner = outer, inner
        self._stacks: dict[Any, Any] = {}

    def __call__(self, stack: Any) -> Any:
        renamed = self._stacks.get(stack)
        if renamed is None:
            renamed = self._stacks[stack] = type(stack)(self._rename(stack.stack))
        return renamed

    def _rename(self, scopes: tuple[Any, ...]) -> tuple[Any, ...]:
        old, new = self._outer
        if scopes[: len(old)] != old:
            return scopes
        rest = scopes[len(old) :]
        inner, replacement = self._inner
        if inner and replacement is not None:
            for i in range(len(rest) - len(inner) + 1):
                if rest[i : i + len(inner)] == inner:
                    rest = (*rest[:i], *replacement, *rest[i + len(inner) :])
                    break
        return new + rest


def _replace(values: dict[Atom, PyTree], value: PyTree) -> PyTree:
    if isinstance(value, JaxprTracer) and isinstance(value.val, jex_core.Var):
        return values.get(value.val, value)
    return value


def _describe(trace: Any, leaves: Sequence[Any]) -> Hashable:
    """Return the types of operands and which of them are equal; None if equations depend on their values."""
    types: list[Hashable] = []
    first: dict[Any, int] = {}
    constants = trace.frame.constvar_to_val
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, JaxprTracer) and leaf._trace is trace:
            value = leaf.val
            if not isinstance(value, jex_core.Var) or value in constants:
                return None
            types.append((leaf.aval, first.setdefault(value, i)))
        elif (
            type(leaf) is np.ndarray and leaf.nbytes <= _MAX_CONSTANT_BYTES and leaf.dtype != object
        ):
            types.append((leaf.dtype, leaf.shape, leaf.tobytes()))
        else:
            return None
    return tuple(types)
