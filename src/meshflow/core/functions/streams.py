"""Programs that read variables in files where they first need them, and write them where they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.tracing.trace import Traced
from meshflow.environment.jax_internals import jex_core

__all__ = ["Streams", "in_files"]

# What a program is given, and gives, in the place of a variable in a file.
_NOTHING = np.zeros((0,), np.float32)


def in_files(value: Any) -> bool:
    """Whether a captured value is a variable whose value lies in a file."""
    return getattr(value, "_held", None) is not None


class Streams:
    """The variables of a traced function that lie in files.

    Args:
      traced: the function.
    """

    def __init__(self, traced: Traced) -> None:
        self._count, self._writes = traced.count, len(traced.writes)
        self._offset = len(traced.closed.in_avals) - len(traced.captures)
        self._read = {i: c._held for i, c in enumerate(traced.captures) if in_files(c)}
        self._written = {i: v._held for i, v in enumerate(traced.writes) if in_files(v)}
        held = [*self._read.values(), *self._written.values()]
        self.stores = list({id(h.store): h.store for h in held}.values())

    def __bool__(self) -> bool:
        return bool(self.stores)

    def operands(self, captured: Sequence[Any]) -> list[Any]:
        """What the program takes for its captures."""
        values = [_NOTHING if i in self._read else v for i, v in enumerate(captured)]
        return [*values, *(store.token for store in self.stores)]

    def taken(self, outputs: list[Any]) -> list[Any]:
        """The outputs of a program without its tokens, which the stores take."""
        end = self._writes + len(self.stores)
        for store, token in zip(self.stores, outputs[self._writes : end], strict=True):
            store.token = token
        return [*outputs[: self._writes], *outputs[end:]]

    def assigned(self, number: int) -> bool:
        """Whether a written variable, by its number, has its value from the program's outputs."""
        return number not in self._written

    def program(self, closed: Any) -> Callable[..., list[Any]]:
        """The function as one that reads and writes files; it takes tokens last, and gives them last."""

        def run(*arrays: Any) -> list[Any]:
            tokens = dict(zip(map(id, self.stores), arrays[-len(self.stores) :], strict=True))
            return _Run(self, closed, arrays[: -len(self.stores)], tokens).outputs()

        return run


class _Run:
    """One evaluation of a program."""

    def __init__(
        self, streams: Streams, closed: Any, values: Sequence[Any], tokens: dict[int, Any]
    ) -> None:
        self._streams, self._jaxpr, self._tokens = streams, closed.jaxpr, tokens
        inputs = closed.jaxpr.invars
        self._waiting = {inputs[streams._offset + i]: h for i, h in streams._read.items()}
        self._known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._known |= {v: a for v, a in zip(inputs, values, strict=True) if v not in self._waiting}

    def outputs(self) -> list[Any]:
        outputs, first = self._jaxpr.outvars, self._streams._count
        goals: dict[Any, list[Any]] = {}
        last = []
        for number, held in self._streams._written.items():
            variable = outputs[first + number]
            if isinstance(variable, jex_core.Literal) or variable in self._jaxpr.invars:
                last.append((variable, held))
            else:
                goals.setdefault(variable, []).append(held)
        for equation in self._jaxpr.eqns:
            self._compute(equation, goals)
        for variable, held in last:
            self._write(held, self._value(variable))
        numbers = self._streams._written
        found = [
            jnp.zeros((0,)) if i - first in numbers else self._value(v)
            for i, v in enumerate(outputs)
        ]
        return [*found, *(self._tokens[id(store)] for store in self._streams.stores)]

    def _compute(self, equation: Any, goals: dict[Any, list[Any]]) -> None:
        operands = [self._value(v) for v in equation.invars]
        primitive = equation.primitive
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
        results = results if primitive.multiple_results else [results]
        for variable, result in zip(equation.outvars, results, strict=True):
            self._known[variable] = result
            for held in goals.get(variable, ()):
                self._write(held, result)

    def _value(self, variable: Any) -> Any:
        if isinstance(variable, jex_core.Literal):
            return variable.val
        if variable in self._waiting:
            held = self._waiting.pop(variable)
            key = id(held.store)
            self._known[variable], self._tokens[key] = held.read(self._tokens[key])
        return self._known[variable]

    def _write(self, held: Any, value: Any) -> None:
        key = id(held.store)
        self._tokens[key] = held.write(value, self._tokens[key])
