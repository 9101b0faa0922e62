"""Traces with symbols in place of sizes, and the conditions under which they are valid.

A program that is called with arrays of many sizes is traced once, with a symbol for each size that
varies. Python code that compares such a size decides by the sizes of the call that caused the trace,
its *hints*, and the comparison becomes a *guard*. The trace is valid for all sizes for which every
guard has the same result, so it never computes anything other than a trace for the exact sizes would.

A size that depends on values, such as the number of true elements of a mask, is a symbol without a
hint. The interpreter assigns its value when the running program has computed it, and checks its guards
then. If one fails, the function is traced again with the computed sizes as hints.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.errors import InconclusiveDimensionOperation

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import (
    SizeDecisions,
    decide_sizes_by_hints,
    evaluate_size,
    list_dimensions,
)

Shape = Sequence[int]

# The value by which comparisons of a size that depends on values are decided at first.
_DEFAULT_HINT = 2
# The value by which comparisons of the first size of the arguments of a saved function are decided.
_FIRST_HINT = 11


class SizeScope:
    """Symbols for the sizes of one trace, with guards for the decisions of the trace.

    Args:
      hints: Values of symbols by name.
      may_equal: Whether different sizes of arguments are equal in comparisons, and in operands.

    Attributes:
      num_unknown: Number of sizes that depend on values.

    Example:
      >>> sizes = SizeScope({})
      >>> with sizes.record():
      ...     size = sizes.add_unknown()
      >>> size + 1
      u0 + 1
    """

    def __init__(self, hints: Mapping[str, int], may_equal: bool = False) -> None:
        self._scope = jax.export.SymbolicScope()
        self._may_equal = may_equal
        self._hints = dict(hints)
        self._decisions = SizeDecisions({})
        self._decisions.may_equal = may_equal
        self.num_unknown = 0
        # JAX omits equations with results that no object refers to.
        self.anchors: list[Any] = []

    def add_unknown(self, varies: bool = False) -> Any:
        """Return a new symbol for a size that depends on values.

        Args:
          varies: Whether each iteration of a loop has another size.
        """
        name = f"{'v' if varies else 'u'}{self.num_unknown}"
        self.num_unknown += 1
        self._decisions.hints[name] = self._hints.get(name, _DEFAULT_HINT)
        self._decisions.unknown.add(name)
        if name not in self._hints:
            self._decisions.guessed.add(name)
        context.has_symbolic_sizes = True
        return self._make_symbol(name)

    def add_argument_size(self, text: str) -> Any:
        """Return the size of an argument of a function that is saved, for a symbol or an expression of symbols."""
        size, hints = self._make_symbol(text), self._decisions.hints
        for name in list_dimensions(size):
            hints.setdefault(name, _FIRST_HINT + (0 if self._may_equal else len(hints)))
            if self._may_equal:
                self._decisions.unknown.add(name)
                self._decisions.guessed.add(name)
        return size

    def list_guards(self) -> list[tuple[str, str, bool]]:
        """List the comparisons with zero: a size, "==" or ">=", and the result."""
        return [guard for guard in self._decisions.list_results() if _can_fail(*guard)]

    def list_equal_sizes(self) -> dict[str, str | int]:
        """Return integers or other symbols for the symbols that the trace assumed to be equal to these."""
        equal: dict[str, str | int] = {}
        for text, relation, result in self._decisions.list_results():
            size = jax.export.symbolic_shape(text)[0]
            names = sorted(list_dimensions(size))
            if relation != "==" or not result or len(names) > 2:
                continue
            value = self._decisions.hints[names[0]]
            if evaluate_size(size, dict.fromkeys(names, value)) != 0:
                continue
            symbol: str | int = equal.get(names[0], names[0])
            target: str | int = value if len(names) == 1 else equal.get(names[1], names[1])
            # Row splits refer to the symbol of the batch.
            if isinstance(symbol, int) or symbol == "batch":
                target, symbol = symbol, target
            if isinstance(symbol, str) and target != symbol:
                equal = {n: target if e == symbol else e for n, e in equal.items()}
                equal[symbol] = target
        return equal

    def assume_zero(self, difference: Any) -> bool:
        """Assume that a size is zero; return whether it may depend on values and this was not disproved.

        Args:
          difference: A symbolic size.
        """
        return self._decisions.assume_zero(difference)

    def is_known(self, size: Any) -> bool:
        """Check whether a size does not depend on values, so that its comparisons become guards."""
        return list_dimensions(size).isdisjoint(self._decisions.unknown)

    def _make_symbol(self, name: str) -> Any:
        return jax.export.symbolic_shape(name, scope=self._scope)[0]

    @contextlib.contextmanager
    def record(self, has_symbols: bool = False) -> Iterator[None]:
        """Record the decisions of a trace as guards.

        Args:
          has_symbols: Whether sizes of the arguments are symbols.
        """
        saved = context.has_symbolic_sizes, context.unknown_sizes
        context.has_symbolic_sizes, context.unknown_sizes = has_symbols, self
        try:
            with decide_sizes_by_hints(self._scope, self._decisions):
                yield
        finally:
            context.has_symbolic_sizes, context.unknown_sizes = saved
            self.anchors.clear()


def _can_fail(size: str, relation: str, result: bool) -> bool:
    """Check whether a comparison with zero may have another result for positive symbols."""
    difference = jax.export.symbolic_shape(size)[0]
    with contextlib.suppress(InconclusiveDimensionOperation):
        if relation == ">=":
            return bool(difference >= 0) is not result
        return not (result is False and (difference >= 1 or -difference >= 1))
    return True


class GuardedSizes(SizeScope):
    """Symbols for the sizes of a program that vary, with guards for the decisions of its trace.

    Args:
      calls: Shapes of the arguments of two or more calls. Sizes that differ become symbols, with the
        sizes of the last call as hints; equal ones get the same symbol, and lengths of vectors that are larger by 1 get
        the symbol plus 1.

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
        super().__init__({})
        columns = [list(zip(*shapes, strict=True)) for shapes in zip(*calls, strict=True)]
        varying = {column for shape in columns for column in shape if len(set(column)) > 1}
        # Row splits are vectors. The number of elements of a sparse tensor is also that of the rows of its indices, and
        # is larger by 1 than another number only by chance.
        self._num_rows = {shape[0] for shape in columns if len(shape) > 1}
        self._symbols: dict[tuple[int, ...], Any] = {}
        self.shapes: list[tuple[int, ...]] = [
            tuple(
                [
                    self._make_size(column, varying) if column in varying else column[0]
                    for column in shape
                ]
            )
            for shape in columns
        ]
        self.names = tuple(self._decisions.hints)
        # For each axis, the name of its symbol, or an empty string, and the number that is added to it.
        self._axes = [[_split_size(size) for size in shape] for shape in self.shapes]
        self._lock = threading.Lock()
        self._num_compiled = -1
        self._is_valid: Callable[..., bool] = lambda *_: True

    def _make_size(self, column: tuple[int, ...], varying: set[tuple[int, ...]]) -> Any:
        """Return the symbol for the sizes of an axis in all calls, or that of another axis plus 1, as for row splits."""
        size = self._symbols.get(column)
        if size is None:
            previous = tuple([n - 1 for n in column])
            if previous in varying and column not in self._num_rows:
                size = self._make_size(previous, varying) + 1
            else:
                name = f"d{len(self._decisions.hints)}"
                self._decisions.hints[name] = column[-1]
                size = self._make_symbol(name)
            self._symbols[column] = size
        return size

    @contextlib.contextmanager
    def record(self, has_symbols: bool = True) -> Iterator[None]:
        """Record the decisions of a trace as guards."""
        with super().record(has_symbols):
            yield

    @contextlib.contextmanager
    def trace_rules(self, shapes: Sequence[Shape]) -> Iterator[None]:
        """Record the decisions of derivative rules, which are traced later, for a program for known sizes.

        Raises:
          NotImplementedError: If the sizes require other decisions.
        """
        with self.record():
            yield
        if self.bind(shapes) is None:
            raise NotImplementedError(
                "The gradient of a function with unknown sizes has other steps for these sizes than for those of its "
                "first call. Remove the input signature, so that the function is traced for each size."
            )

    def bind(self, shapes: Sequence[Shape]) -> dict[str, int] | None:
        """Return the values of the symbols for a call, or None if the trace is not valid for it.

        Args:
          shapes: Shapes of the arguments.
        """
        values: dict[str, int] = {}
        for axes, shape in zip(self._axes, shapes, strict=True):
            if len(axes) != len(shape):
                return None
            for (name, number), size in zip(axes, shape, strict=True):
                value = size - number
                if not name:
                    if value:
                        return None
                elif value < 1 or values.setdefault(name, value) != value:
                    # JAX assumes that symbols are at least 1.
                    return None
        if self._num_compiled != len(self._decisions):
            self._compile_guards()
        return values if self._is_valid(*[values[name] for name in self.names]) else None

    def _compile_guards(self) -> None:
        with self._lock:
            count = len(self._decisions)
            self._is_valid = self._decisions.compile(self.names)
            self._num_compiled = count


def _split_size(size: Any) -> tuple[str, int]:
    if isinstance(size, int):
        return "", size
    (name,) = list_dimensions(size)
    return name, evaluate_size(size, {name: 0})
