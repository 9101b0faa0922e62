"""Errors of Python code that a compiled program calls (checks, `py_function`).

XLA reports a failed callback as an error of its own that quotes a traceback. The callbacks keep
the original exception here, and whoever runs the program raises that instead.
"""

from __future__ import annotations

import collections
import functools
import logging
from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import jex_core

_failures: collections.deque[BaseException] = collections.deque(maxlen=8)


class _Unkept(logging.Filter):
    """Leaves out what JAX logs of errors that are kept: who runs the program raises them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not any(error is kept for kept in _failures)


for _name in ("jax._src.debugging", "jax._src.callback"):
    logging.getLogger(_name).addFilter(_Unkept())


def keeping_errors(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose exception `finish` can raise again."""

    @functools.wraps(callback)
    def wrapped(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:
            _failures.append(error)
            raise

    return wrapped


def check(callback: Callable[..., None]) -> Callable[..., None]:
    """A callback that gives nothing, and whose exception ends the program that calls it.

    On several devices the program goes on to its end first: the others would wait for a device that
    stopped, and XLA ends processes in which devices wait too long.
    """
    kept = keeping_errors(callback)

    @functools.wraps(callback)
    def wrapped(*args: Any) -> None:
        try:
            kept(*args)
        except Exception:
            if not _Running.on_several:
                raise

    return wrapped


class _Running:
    """Whether the program that runs, and calls Python, is one on several devices."""

    on_several = False


def _lies_on_several(array: Any) -> bool:
    return isinstance(array, jax.Array) and len(array.sharding.device_set) > 1


def callbacks_are_ordered() -> bool:
    """Whether what is traced calls Python in program order: JAX does so on one device only."""
    return context.replicas is None


def keep_error(error: BaseException) -> None:
    """Keeps an error that `finish` raises when the program has ended."""
    _failures.append(error)


def finish(run: Callable[..., Any], *args: Any) -> Any:
    """Runs a program that calls Python and waits for its end, as its checks are part of it.

    Raises:
      Exception: the first one that the called Python code raised.
    """
    _failures.clear()
    _Running.on_several = any(map(_lies_on_several, args))
    try:
        outputs = run(*args)
        jax.block_until_ready(outputs)
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        if _failures:
            raise _failures[0] from None
        raise
    if _failures:
        raise _failures[0]
    return outputs


_NOT_ORDERED = "ordered effects are not supported"


def needs_no_order(error: Exception) -> bool:
    """Whether JAX refuses a program because it calls Python in order, on several devices."""
    return isinstance(error, ValueError) and _NOT_ORDERED in str(error)


def unordered(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A program that calls Python in any order, as one on several devices must."""
    return jex_core.ClosedJaxpr(_unordered(closed.jaxpr), closed.consts)


@functools.cache
def _without_order() -> dict[str, Any]:
    """Calls without order, by the name of their primitive."""

    def program() -> None:
        jax.debug.callback(lambda: None)
        jax.experimental.io_callback(lambda: None, None)

    found = jax.make_jaxpr(program)().eqns
    return {str(equation.primitive): equation for equation in found}


def _unordered(jaxpr: Any) -> Any:
    equations = [_without(e) if e.effects else e for e in jaxpr.eqns]
    effects = set().union(*(e.effects for e in equations))
    return jaxpr.replace(eqns=equations, effects=effects)


def _without(equation: Any) -> Any:
    calls = _without_order()
    if str(equation.primitive) in calls:
        free = calls[str(equation.primitive)]
        order = {k: v for k, v in free.params.items() if k in ("ordered", "effect")}
        return equation.replace(params={**equation.params, **order}, effects=free.effects)

    def inner(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(inner(v) for v in value)
        if isinstance(value, jex_core.ClosedJaxpr):
            return unordered(value)
        return _unordered(value) if isinstance(value, jex_core.Jaxpr) else value

    params = {name: inner(value) for name, value in equation.params.items()}
    found = [
        v for value in params.values() for v in (value if isinstance(value, tuple) else [value])
    ]
    effects = set().union(*(getattr(v, "effects", ()) for v in found))
    return equation.replace(params=params, effects=effects or equation.effects)
