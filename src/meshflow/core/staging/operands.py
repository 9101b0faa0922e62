"""Operands and writes of several traced functions, merged into the operands and results of one op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import as_stored, context
from meshflow.core.tracing.trace import Traced
from meshflow.core.values.tensor import Tensor


class Operands:
    """The captures and the written variables of one or more traced functions.

    Attributes:
      captures: Outer tensors and variables, without duplicates.
      writes: Variables that any of the functions writes, without duplicates.
      write_positions: For each written variable, its position in `captures`.
    """

    def __init__(self, functions: Sequence[Traced]) -> None:
        self.captures: list[Any] = []
        self.writes: list[Any] = []
        positions: dict[int, int] = {}
        for traced in functions:
            for capture in traced.captures:
                if id(capture) not in positions:
                    positions[id(capture)] = len(self.captures)
                    self.captures.append(capture)
            for variable in traced.writes:
                if all(variable is not known for known in self.writes):
                    self.writes.append(variable)
        self._positions = positions
        self._fed = {key for traced in functions for key in traced.fed}
        self.written_at = [positions[id(variable)] for variable in self.writes]

    def tensors(self) -> list[Tensor]:
        """Return the captures as tensors of the current context; variables keep their own dtype."""
        with as_stored():
            return [c if isinstance(c, Tensor) else c._as_tensor() for c in self.captures]

    def captures_of(self, traced: Traced, values: Sequence[Any]) -> list[Any]:
        """Return the values that one of the functions captured, from those of `captures`."""
        return [values[self._positions[id(c)]] for c in traced.captures]

    def written_values(
        self, traced: Traced, results: Sequence[Any], values: Sequence[Any]
    ) -> list[Any]:
        """Return the values of all written variables after one of the functions ran."""
        new_values = {id(v): r for v, r in zip(traced.writes, results, strict=True)}
        return [
            new_values.get(id(variable), values[position])
            for variable, position in zip(self.writes, self.written_at, strict=True)
        ]

    def finished(self, outputs: Sequence[Tensor]) -> None:
        """Record the result for which later requests to the same iterators have to wait."""
        if self._fed and outputs and context.trace is not None:
            smallest = min(outputs, key=lambda t: math.prod(t._value.shape))
            context.trace.last_fed.update(dict.fromkeys(self._fed, smallest))

    def assign(self, values: Sequence[Tensor]) -> None:
        """Write new values to the written variables."""
        for variable, value in zip(self.writes, values, strict=True):
            variable._write(value)


def run(name: str, call: Callable[..., list[Any]], *operands: list[Tensor]) -> list[Tensor]:
    """Run a function of lists of arrays as one op."""
    # An operand that is not a constant prevents the dispatcher from running the op at trace time,
    # which would also print and assert at trace time.
    token = Tensor(jnp.zeros((), jnp.int32))
    op = Op(name, lambda operands, _: call(*operands[:-1]), heavy=True, is_opaque=True)
    return apply(op, (*operands, [token]))
