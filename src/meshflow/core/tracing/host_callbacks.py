"""Errors of Python code that a compiled program calls (checks, `py_function`).

XLA reports a failed callback as its own error that quotes a traceback. The callbacks store the
original exception here, and the caller of the program raises it instead.
"""

from __future__ import annotations

import collections
import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr, Jaxpr, JaxprEqn

P = ParamSpec("P")
T = TypeVar("T")

_failures: collections.deque[BaseException] = collections.deque(maxlen=8)


class _StoredErrorFilter(logging.Filter):
    """Drops JAX's log records about stored errors, which the caller of the program raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not any(error is stored for stored in _failures)


for _name in ("jax._src.debugging", "jax._src.callback"):
    logging.getLogger(_name).addFilter(_StoredErrorFilter())


def store_errors(callback: Callable[P, T]) -> Callable[P, T]:
    """Wrap a callback so that `run_to_completion` can raise its exception."""

    @functools.wraps(callback)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return callback(*args, **kwargs)
        except Exception as error:
            _failures.append(error)
            raise

    return wrapper


def make_check_callback(callback: Callable[P, None]) -> Callable[P, None]:
    """Wrap a callback without results so that its exception stops the calling program.

    On several devices, the program first runs to its end: the other devices would wait for a
    stopped device, and XLA terminates a process in which devices wait too long.
    """
    store = store_errors(callback)

    @functools.wraps(callback)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            store(*args, **kwargs)
        except Exception:
            if not _RunningProgram.uses_several_devices:
                raise

    wrapper.is_check = True  # type: ignore[attr-defined]
    return wrapper


def is_check(equation: JaxprEqn) -> bool:
    """Check whether an equation calls a function of `make_check_callback`, which has no other effect than its error."""
    if str(equation.primitive) != "debug_callback":
        return False
    function = equation.params["callback"]
    # JAX wraps the callback in a function that takes flat arguments.
    cells = getattr(function, "__closure__", None) or ()
    return any(getattr(cell.cell_contents, "is_check", False) for cell in cells)


class _RunningProgram:
    """State of the running program that calls Python: whether it uses several devices."""

    uses_several_devices = False


def _is_on_several_devices(array: object) -> bool:
    return isinstance(array, jax.Array) and len(array.sharding.device_set) > 1


def are_callbacks_ordered() -> bool:
    """Check whether a traced program calls Python in program order.

    JAX only supports ordered callbacks on one device.
    """
    return context.replica_program is None


def store_error(error: BaseException) -> None:
    """Store an error that `run_to_completion` raises at the end of the program."""
    _failures.append(error)


def run_to_completion(run: Callable[..., T], *args: Any) -> T:
    """Run a program that calls Python, and wait until it and its callbacks have finished.

    Args:
      run: The program.
      *args: Arguments of the program.

    Returns:
      The outputs of the program.

    Raises:
      Exception: The first exception of a callback.
    """
    _failures.clear()
    _RunningProgram.uses_several_devices = any(map(_is_on_several_devices, args))
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


_ORDERING_MESSAGE = "ordered effects are not supported"


def is_ordering_error(error: Exception) -> bool:
    """Check whether JAX rejected a program on several devices because of ordered callbacks."""
    return isinstance(error, ValueError) and _ORDERING_MESSAGE in str(error)


def remove_ordering(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program with unordered callbacks, as required on several devices."""
    return jex_core.ClosedJaxpr(_remove_jaxpr_ordering(closed.jaxpr), closed.consts)


@functools.cache
def _trace_unordered_callbacks() -> dict[str, JaxprEqn]:
    """Return the equations of unordered callbacks, by the name of their primitive."""

    def program() -> None:
        jax.debug.callback(lambda: None)
        jax.experimental.io_callback(lambda: None, None)

    equations = jax.make_jaxpr(program)().eqns
    return {str(equation.primitive): equation for equation in equations}


def _remove_jaxpr_ordering(jaxpr: Jaxpr) -> Jaxpr:
    equations = [_remove_equation_ordering(e) if e.effects else e for e in jaxpr.eqns]
    effects = set().union(*(e.effects for e in equations))
    return jaxpr.replace(eqns=equations, effects=effects)


def _remove_equation_ordering(equation: JaxprEqn) -> JaxprEqn:
    calls = _trace_unordered_callbacks()
    if str(equation.primitive) in calls:
        unordered_call = calls[str(equation.primitive)]
        order = {k: v for k, v in unordered_call.params.items() if k in ("ordered", "effect")}
        return equation.replace(params={**equation.params, **order}, effects=unordered_call.effects)

    def rewrite(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(rewrite(v) for v in value)
        if isinstance(value, jex_core.ClosedJaxpr):
            return remove_ordering(value)
        return _remove_jaxpr_ordering(value) if isinstance(value, jex_core.Jaxpr) else value

    params = {name: rewrite(value) for name, value in equation.params.items()}
    values = [v for p in params.values() for v in (p if isinstance(p, tuple) else [p])]
    effects = set().union(*(getattr(v, "effects", ()) for v in values))
    return equation.replace(params=params, effects=effects or equation.effects)
