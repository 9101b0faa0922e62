"""Elementwise functions of float32 arrays as short programs, which handlers compute block by block: what XLA's code does in a
pass over memory for each array that it gathers or scatters, they do in one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.composite_primitives import composites

__all__ = ["Program", "read"]

# By the names of JAX's primitives, in the order of elementwise.h.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "neg": jnp.negative,
    "abs": jnp.abs,
    "sqrt": jnp.sqrt,
}
# Products and what is added to them, or they are taken from, in one operation, as XLA's code has them: by the operation and
# which operand is the product.
_FUSED = {
    ("add", 0): "mul add",
    ("add", 1): "mul add",
    ("sub", 0): "mul sub",
    ("sub", 1): "sub mul",
}
_CODES = {name: code for code, name in enumerate((*_OPERATIONS, *dict.fromkeys(_FUSED.values())))}
# What only stands for another function.
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call")


class Step(NamedTuple):
    """An operation.

    Attributes:
      operation: its name.
      operands: numbers of values, as in `Program`.
    """

    operation: str
    operands: tuple[int, ...]


class Program(NamedTuple):
    """What an elementwise function does. Values have numbers: arrays from 0 on, then each step's; `~n` is scalar n.

    Attributes:
      arrays: how many arrays it takes.
      scalars: how many scalars.
      steps: operations in their order.
      results: the numbers of what it returns.
    """

    arrays: int
    scalars: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __call__(self, arrays: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
        """The results, by JAX's operations.

        Args:
          arrays: arrays of one shape.
          scalars: scalars of their dtype.
        """
        values = list(arrays)
        at = lambda number: values[number] if number >= 0 else scalars[~number]
        for operation, operands in self.steps:
            values.append(_OPERATIONS[operation](*map(at, operands)))
        like = jnp.broadcast_arrays(*[jnp.asarray(at(n)) for n in self.results], arrays[0])
        return like[:-1]

    def packed(self) -> np.ndarray:
        """The program for a handler, int64: the counts of registers, arrays, scalars, results and steps, the registers of the
        results, and of each step code, result and three operands. Arrays and scalars have the first registers, which they keep."""
        steps = self._fused()
        last = {n: at for at, (_, step) in enumerate(steps) for n in step.operands}
        last.update((n, len(steps)) for n in self.results)
        place = {n: n for n in range(self.arrays)}
        place.update((~n, self.arrays + n) for n in range(self.scalars))
        count = self.arrays + self.scalars
        free: list[int] = []
        coded: list[int] = []
        for at, (number, step) in enumerate(steps):
            operands = [place[n] for n in step.operands]
            done = {n for n in step.operands if n >= self.arrays and last[n] == at}
            free.extend(place[n] for n in done)
            if free:
                place[number] = free.pop()
            else:
                place[number], count = count, count + 1
            more = [0] * (3 - len(operands))
            coded += [_CODES[step.operation], place[number], *operands, *more]
        results = [place[n] for n in self.results]
        head = [count, self.arrays, self.scalars, len(results), len(steps)]
        return np.array([*head, *results, *coded], np.int64)

    def _fused(self) -> list[tuple[int, Step]]:
        """The steps with the numbers of their values; products that are only added to something are no steps."""
        uses = [n for step in self.steps for n in step.operands] + list(self.results)
        found: dict[int, Step] = {}
        for number, step in enumerate(self.steps, self.arrays):
            found[number] = step
            for side, operand in enumerate(step.operands):
                name = _FUSED.get((step.operation, side))
                product = found.get(operand)
                if name and product and product.operation == "mul" and uses.count(operand) == 1:
                    found[number] = Step(name, (*product.operands, step.operands[1 - side]))
                    del found[operand]
                    break
        return list(found.items())


class _UnreadableError(Exception):
    """A function does what programs do not know."""


class _Value(int):
    """The number of a value, where a scalar of JAX may stand as well."""


class _Reader:
    """Reads a jaxpr.

    Args:
      arrays: how many arrays it takes.

    Attributes:
      scalars: scalars that the function uses, arrays of JAX or tracers.
      steps: what was read.
    """

    def __init__(self, arrays: int) -> None:
        self._arrays = arrays
        self.scalars: list[Any] = []
        self.steps: list[Step] = []

    def read(self, closed: Any, given: Sequence[Any]) -> list[Any]:
        """The values of a jaxpr's results.

        Raises:
          _UnreadableError: when there is none for them.
        """
        jaxpr = closed.jaxpr
        known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, given, strict=True))

        def at(v: Any) -> Any:
            if isinstance(v, jex_core.Literal):
                return np.dtype(v.val.dtype).type(v.val)
            return known[v]

        for eqn in jaxpr.eqns:
            known.update(
                zip(eqn.outvars, self._results(eqn, [at(v) for v in eqn.invars]), strict=True)
            )
        return [at(v) for v in jaxpr.outvars]

    def _results(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        name, made = eqn.primitive.name, eqn.outvars[0].aval
        if name in _CALLS:
            inner = next(eqn.params[n] for n in ("jaxpr", "call_jaxpr") if n in eqn.params)
            return self.read(inner, given)
        if eqn.primitive in composites:
            equations = functools.partial(composites[eqn.primitive], **eqn.params)
            shapes = [v.aval for v in eqn.invars]
            return self.read(jax.make_jaxpr(equations)(*shapes), given)
        if not any(isinstance(g, _Value) for g in given):
            if name == "broadcast_in_dim" and np.ndim(given[0]) == 0:
                # Every operation takes scalars as they are.
                return given[:1]
            if made.ndim == 0 and not eqn.primitive.multiple_results:
                return [eqn.primitive.bind(*given, **eqn.params)]
        elif name == "convert_element_type" and made.dtype == np.float32:
            return given
        elif name in _OPERATIONS:
            self.steps.append(Step(name, tuple(self.number(g) for g in given)))
            return [_Value(self._arrays + len(self.steps) - 1)]
        raise _UnreadableError(name)

    def number(self, given: Any) -> int:
        """The number of a value or scalar.

        Raises:
          _UnreadableError: for anything else.
        """
        if isinstance(given, _Value):
            return int(given)
        if np.ndim(given) or jnp.result_type(given) != np.float32:
            raise _UnreadableError("an array that is no argument")
        # Numbers of a program's text are other objects each time.
        text = type(given) is np.float32
        known = [
            s is given or (text and type(s) is np.float32 and s == given) for s in self.scalars
        ]
        if not any(known):
            known.append(True)
            self.scalars.append(given)
        return ~known.index(True)


def read(
    function: Callable[..., Any], arrays: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Program, list[Any]] | None:
    """The program of an elementwise function, and the scalars that it uses; None for a function that is more.

    Args:
      function: takes arrays of one shape and returns such arrays.
      arrays: their shapes and dtypes.
    """
    if any(a.dtype != np.float32 or a.shape != arrays[0].shape for a in arrays):
        return None
    reader = _Reader(len(arrays))
    try:
        closed = jax.make_jaxpr(function)(*arrays)
        found = reader.read(closed, [_Value(n) for n in range(len(arrays))])
        results = tuple(reader.number(value) for value in found)
    except _UnreadableError:
        return None
    scalars = [jnp.asarray(s, np.float32) for s in reader.scalars]
    return Program(len(arrays), len(scalars), tuple(reader.steps), results), scalars
