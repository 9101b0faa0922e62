"""Operands and writes of several traced functions, merged into the operands and results of one op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, is_inexact
from meshflow.core.runtime.context import context, suspend_autocast
from meshflow.core.tracing.trace import TracedFunction, read_as_variables
from meshflow.core.values.tensor import Tensor, read_tensors


class MergedOperands:
    """The captures and the written variables of one or more traced functions.

    Attributes:
      captures: Outer tensors and variables, without duplicates.
      writes: Variables that any of the functions writes, without duplicates.
      write_positions: For each written variable, its position in `captures`.
    """

    def __init__(self, functions: Sequence[TracedFunction]) -> None:
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
        self._fed = {key for traced in functions for key in traced.fed_iterators}
        self.write_positions = [positions[id(variable)] for variable in self.writes]

    def read_captures(self) -> list[Tensor]:
        """Return the captures as tensors of the current context; variables keep their own dtype."""
        with suspend_autocast():
            return read_tensors(self.captures)

    def select_captures(self, traced: TracedFunction, values: Sequence[Any]) -> list[Any]:
        """Return the values that one of the functions captured, from those of `captures`."""
        return [values[self._positions[id(c)]] for c in traced.captures]

    def merge_written_values(
        self, traced: TracedFunction, results: Sequence[Any], values: Sequence[Any]
    ) -> list[Any]:
        """Return the values of all written variables after one of the functions ran."""
        new_values = {id(v): r for v, r in zip(traced.writes, results, strict=True)}
        return [
            new_values.get(id(variable), values[position])
            for variable, position in zip(self.writes, self.write_positions, strict=True)
        ]

    def carry_written_values(
        self, body: TracedFunction, results: Sequence[Any], values: Sequence[Any]
    ) -> list[Any]:
        """Return the values of all written variables for the next iteration of a loop.

        Each iteration reads the variables, so their derivatives are those before the loop.
        """
        carry = self.merge_written_values(body, results, values)
        before = [values[position] for position in self.write_positions]
        chosen = [i for i, value in enumerate(carry) if is_inexact(value)]
        if chosen:
            reads = read_as_variables([carry[i] for i in chosen], [before[i] for i in chosen])
            for i, value in zip(chosen, reads, strict=True):
                carry[i] = value
        return carry

    def record_infeed_token(self, outputs: Sequence[Tensor]) -> None:
        """Record the result for which later requests to the same iterators have to wait."""
        if self._fed and outputs and context.trace is not None:
            smallest = min(outputs, key=lambda t: math.prod(t.array.shape))
            context.trace.infeed_tokens.update(dict.fromkeys(self._fed, smallest))

    def assign_variables(self, values: Sequence[Tensor]) -> None:
        """Write new values to the written variables."""
        for variable, value in zip(self.writes, values, strict=True):
            variable._write(value)


def run_as_op(name: str, call: Callable[..., list[Any]], *operands: list[Tensor]) -> list[Tensor]:
    """Run a function of lists of arrays as one op."""
    # An operand that is not a constant prevents the dispatcher from running the op at trace time,
    # which would also print and assert at trace time.
    token = Tensor(jnp.zeros((), jnp.int32))
    op = Op(name, lambda operands, _: call(*operands[:-1]), heavy=True, is_opaque=True)
    return apply(op, (*operands, [token]))
