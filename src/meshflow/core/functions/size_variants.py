"""Traces of functions with sizes that depend on values; see `core/values/unknown_sizes.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from meshflow.core.dispatch.tiers import is_interpreter_enabled
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.tracebacks import is_raised_by_user
from meshflow.core.values.size_guards import SizeScope
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.types import PyTree
from meshflow.interpreter import SizeGuardError

T = TypeVar("T")

# Number of traces for the same arguments, with other decisions about sizes.
_MAX_VARIANTS = 4


@contextlib.contextmanager
def allow_unknown_sizes(hints: Mapping[str, int]) -> Iterator[Any]:
    """Let the outermost trace have sizes that depend on values, if its program may run op by op.

    Args:
      hints: Values of such sizes that determine the decisions of the trace.

    Yields:
      The source of symbols, or None.

    Raises:
      ValueNeededError: If code of the trace rejects a symbol.
    """
    outer = context.unknown_sizes
    sizes = outer
    if context.trace is None and not context.has_symbolic_sizes:
        can_interpret = is_interpreter_enabled() and not context.computes_on_host
        sizes = SizeScope(hints) if can_interpret else None
    try:
        with (
            sizes.record()
            if isinstance(sizes, SizeScope) and sizes is not outer
            else contextlib.nullcontext()
        ):
            yield sizes
    except (ValueNeededError, VariableNeedsEagerError):
        raise
    except Exception as error:
        if sizes is None or not sizes.num_unknown or context.trace is not None:
            raise
        is_decided = not isinstance(sizes, SizeScope) or bool(sizes.list_guards())
        if is_raised_by_user(error) and not is_decided:
            raise  # The error does not depend on a size that was guessed.
        raise ValueNeededError(f"{type(error).__name__}: {error}") from error


class SizeVariants(Generic[T]):
    """Traces of a function for the same arguments that decided differently about unknown sizes.

    Args:
      first: The first trace.
      trace: Traces the function again, given sizes by which comparisons are decided.

    Example:
      >>> def run(trace):
      ...     if trace != "3 rows":
      ...         raise SizeGuardError({"u0": 3})
      ...     return trace
      >>> SizeVariants("2 rows", lambda hints: f"{hints['u0']} rows").run(run)
      '3 rows'
    """

    def __init__(self, first: T, trace: Callable[[Mapping[str, int]], T]) -> None:
        self._traces = [first]
        self._trace = trace

    def run(self, run: Callable[[T], PyTree]) -> PyTree:
        """Run the first trace that is valid.

        Args:
          run: Runs a trace.

        Raises:
          SizeGuardError: If no trace is valid, or the program failed; it had no effects.
        """
        for trace in self._traces:
            try:
                result = run(trace)
            except SizeGuardError as error:
                if not error.sizes:
                    raise
                last = error
                continue
            if trace is not self._traces[0]:
                self._traces = [trace, *(other for other in self._traces if other is not trace)]
            return result
        if len(self._traces) == _MAX_VARIANTS:
            raise last
        try:
            self._traces = [self._trace(last.sizes), *self._traces]
        except ValueNeededError:
            raise last from None
        return run(self._traces[0])
