"""Traces with symbols in place of sizes, and the conditions under which they are valid.

A program that is called with arrays of many sizes is traced once, with a symbol for each size that
varies. Python code that compares such a size decides by the sizes of the call that caused the trace,
its *hints*, and the comparison becomes a *guard*. The trace is valid for all sizes for which every
guard has the same result, so it never computes anything other than a trace for the exact sizes would.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence

import jax

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import SizeDecisions, decide_sizes_by_hints

__all__ = ["GuardedSizes"]

Shape = Sequence[int]


# The functions in the text of a symbolic size.
_EXPRESSION_NAMES = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}


class GuardedSizes:
    """Symbols for the sizes of a program that vary, with guards for the decisions of its trace.

    Args:
      calls: Shapes of the arguments of two or more calls. Sizes that differ become symbols, with the
        sizes of the last call as hints; equal ones get the same symbol.

    Attributes:
      shapes: Shapes with symbols.
      names: Names of the symbols.

    Example:
      >>> sizes = GuardedSizes([[(8, 10), (8, 1)], [(8, 12), (8, 1)]])
      >>> sizes.shapes
      [(8, d0), (8, 1)]
      >>> sizes.bind([(8, 30), (8, 1)])
      {'d0': 30}
    """

    def __init__(self, calls: Sequence[Sequence[Shape]]) -> None:
        self._scope = jax.export.SymbolicScope()
        names: dict[tuple[int, ...], str] = {}
        hints: dict[str, int] = {}
        self.shapes: list[tuple[int, ...]] = []
        for shapes in zip(*calls, strict=True):
            sizes = []
            for column in zip(*shapes, strict=True):
                if len(set(column)) == 1:
                    sizes.append(column[0])
                    continue
                name = names.setdefault(column, f"d{len(names)}")
                hints[name] = column[-1]
                sizes.append(jax.export.symbolic_shape(name, scope=self._scope)[0])
            self.shapes.append(tuple(sizes))
        self.names = tuple(hints)
        self._decisions = SizeDecisions(hints)
        self._lock = threading.Lock()
        self._num_compiled = -1
        self._is_valid: Callable[..., bool] = lambda *_: True

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Record the decisions of a trace as guards."""
        saved, context.has_symbolic_sizes = context.has_symbolic_sizes, True
        try:
            with decide_sizes_by_hints(self._scope, self._decisions):
                yield
        finally:
            context.has_symbolic_sizes = saved

    def bind(self, shapes: Sequence[Shape]) -> dict[str, int] | None:
        """Return the values of the symbols for a call, or None if the trace is not valid for it.

        Args:
          shapes: Shapes of the arguments.
        """
        values: dict[str, int] = {}
        for pattern, shape in zip(self.shapes, shapes, strict=True):
            if len(pattern) != len(shape):
                return None
            for expected, size in zip(pattern, shape, strict=True):
                if isinstance(expected, int):
                    if size != expected:
                        return None
                elif size < 1 or values.setdefault(str(expected), size) != size:
                    # JAX assumes that symbols are at least 1.
                    return None
        if self._num_compiled != len(self._decisions):
            self._compile_guards()
        return values if self._is_valid(*[values[name] for name in self.names]) else None

    def _compile_guards(self) -> None:
        with self._lock:
            guards, count = self._decisions.format(), len(self._decisions)
            source = f"lambda {', '.join(self.names)}: {' and '.join(guards) or True}"
            self._is_valid = eval(source, dict(_EXPRESSION_NAMES))
            self._num_compiled = count
