"""What traced functions use and write, united into the operands and results of one op."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
      captures: outer tensors and variables, each once.
      writes: variables written by any of the functions, each once.
      written_at: for each written variable, its position in `captures`.
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
        """The captures as tensors of the present context; variables are read in their own dtype."""
        with as_stored():
            return [c if isinstance(c, Tensor) else c._as_tensor() for c in self.captures]

    def captures_of(self, traced: Traced, values: Sequence[Any]) -> list[Any]:
        """The values that one of the functions captured, out of those of `captures`."""
        return [values[self._positions[id(c)]] for c in traced.captures]

    def written_values(
        self, traced: Traced, results: Sequence[Any], values: Sequence[Any]
    ) -> list[Any]:
        """New values of all written variables after one of the functions ran."""
        own = {id(v): r for v, r in zip(traced.writes, results, strict=True)}
        return [
            own.get(id(variable), values[at])
            for variable, at in zip(self.writes, self.written_at, strict=True)
        ]

    def finished(self, outputs: Sequence[Tensor]) -> None:
        """Notes the results that whoever takes further elements of the same iterators has to wait for."""
        if self._fed and outputs and context.trace is not None:
            smallest = min(outputs, key=lambda t: math.prod(t._value.shape))
            context.trace.last_fed.update(dict.fromkeys(self._fed, smallest))

    def assign(self, values: Sequence[Tensor]) -> None:
        """Writes new values to the written variables."""
        for variable, value in zip(self.writes, values, strict=True):
            variable._write(value)


def run(name: str, call: Any, *operands: list[Tensor]) -> list[Tensor]:
    """Runs an array function of lists of arrays as one op."""
    # An operand that is no constant keeps the dispatcher from running the op at trace time, which
    # would also print and assert at trace time.
    token = Tensor(jnp.zeros((), jnp.int32))
    op = Op(name, lambda operands, _: call(*operands[:-1]), heavy=True, is_opaque=True)
    result: list[Tensor] = apply(op, (*operands, [token]))
    return result
