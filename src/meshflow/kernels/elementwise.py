"""Elementwise functions of float32 arrays as short programs, which handlers compute block by block.

XLA's code makes a pass over memory for each array that it gathers or scatters; a handler makes one
pass for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, JaxprEqn
from meshflow.kernels.composite_primitives import composites

# Operations by the names of JAX's primitives, in the order of elementwise.h.
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
# Fused multiply-adds, as in XLA's code, by the operation and the index of the operand that is the
# product.
_FUSED = {
    ("add", 0): "mul add",
    ("add", 1): "mul add",
    ("sub", 0): "mul sub",
    ("sub", 1): "sub mul",
}
_CODES = {name: code for code, name in enumerate((*_OPERATIONS, *dict.fromkeys(_FUSED.values())))}
# Primitives that only call another function.
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call")


class ElementwiseStep(NamedTuple):
    """An operation.

    Attributes:
      operation: Its name.
      operands: Ids of values, as in `ElementwiseProgram`.
    """

    operation: str
    operands: tuple[int, ...]


class ElementwiseProgram(NamedTuple):
    """An elementwise function as a list of operations on values with ids.

    Arrays have the ids 0, 1, ..., followed by the result of each step; scalar n has the id `~n`.

    Attributes:
      num_arrays: Number of array operands.
      num_scalars: Number of scalar operands.
      steps: Operations in order.
      results: Ids of the returned values.
    """

    num_arrays: int
    num_scalars: int
    steps: tuple[ElementwiseStep, ...]
    results: tuple[int, ...]

    def __call__(
        self, arrays: Sequence[jax.Array], scalars: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Compute the results with JAX's operations.

        Args:
          arrays: Arrays of one shape.
          scalars: Scalars of their dtype.
        """
        values = list(arrays)
        read = lambda value_id: values[value_id] if value_id >= 0 else scalars[~value_id]
        for operation, operands in self.steps:
            values.append(_OPERATIONS[operation](*map(read, operands)))
        results = [jnp.asarray(read(value_id)) for value_id in self.results]
        return jnp.broadcast_arrays(*results, arrays[0])[:-1]

    def encode(self) -> np.ndarray:
        """Encode the program for a handler and assign registers to its values.

        Arrays and scalars have the first registers, which are never reused.

        Returns:
          int64: the numbers of registers, arrays, scalars, results and steps; the registers of the
            results; and for each step its code, the register of its result and those of three
            operands.
        """
        steps = self._fuse_products()
        last_use = {n: i for i, (_, step) in enumerate(steps) for n in step.operands}
        last_use.update((n, len(steps)) for n in self.results)
        registers = {n: n for n in range(self.num_arrays)}
        registers.update((~n, self.num_arrays + n) for n in range(self.num_scalars))
        count = self.num_arrays + self.num_scalars
        free: list[int] = []
        codes: list[int] = []
        for index, (value_id, step) in enumerate(steps):
            operands = [registers[n] for n in step.operands]
            released = {n for n in step.operands if n >= self.num_arrays and last_use[n] == index}
            free.extend(registers[n] for n in released)
            if free:
                registers[value_id] = free.pop()
            else:
                registers[value_id], count = count, count + 1
            padding = [0] * (3 - len(operands))
            codes += [_CODES[step.operation], registers[value_id], *operands, *padding]
        results = [registers[n] for n in self.results]
        head = [count, self.num_arrays, self.num_scalars, len(results), len(steps)]
        return np.array([*head, *results, *codes], np.int64)

    def _fuse_products(self) -> list[tuple[int, ElementwiseStep]]:
        """Return the steps by value ids, with products that are only added or subtracted fused."""
        uses = [n for step in self.steps for n in step.operands] + list(self.results)
        fused: dict[int, ElementwiseStep] = {}
        for value_id, step in enumerate(self.steps, self.num_arrays):
            fused[value_id] = step
            for side, operand in enumerate(step.operands):
                name = _FUSED.get((step.operation, side))
                product = fused.get(operand)
                if name and product and product.operation == "mul" and uses.count(operand) == 1:
                    fused[value_id] = ElementwiseStep(
                        name, (*product.operands, step.operands[1 - side])
                    )
                    del fused[operand]
                    break
        return list(fused.items())


class _UnsupportedFunctionError(Exception):
    """A function contains an operation that programs do not support."""


class _ValueId(int):
    """The id of a value, distinct from a JAX scalar."""


class _JaxprReader:
    """Converter of a jaxpr to steps.

    Args:
      arrays: Number of array operands.

    Attributes:
      scalars: Scalars that the function uses, JAX arrays or tracers.
      steps: Steps read so far.
    """

    def __init__(self, arrays: int) -> None:
        self._arrays = arrays
        self.scalars: list[Any] = []
        self.steps: list[ElementwiseStep] = []

    def read(self, closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        """Add the steps of a jaxpr; return the ids or scalars of its results.

        Raises:
          _UnsupportedFunctionError: If an equation is not supported.
        """
        jaxpr = closed.jaxpr
        env: dict[Atom, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read_atom(v: Atom) -> Any:
            if isinstance(v, jex_core.Literal):
                return np.dtype(v.val.dtype).type(v.val)
            return env[v]

        for eqn in jaxpr.eqns:
            results = self._read_equation(eqn, [read_atom(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read_atom(v) for v in jaxpr.outvars]

    def _read_equation(self, eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        name, aval = eqn.primitive.name, cast(jax.core.ShapedArray, eqn.outvars[0].aval)
        if name in _CALLS:
            inner = next(eqn.params[n] for n in ("jaxpr", "call_jaxpr") if n in eqn.params)
            return self.read(inner, operands)
        if eqn.primitive in composites:
            equations = functools.partial(composites[eqn.primitive], **eqn.params)
            shapes = [v.aval for v in eqn.invars]
            return self.read(jax.make_jaxpr(equations)(*shapes), operands)
        if not any(isinstance(g, _ValueId) for g in operands):
            if name == "broadcast_in_dim" and np.ndim(operands[0]) == 0:
                # Every operation accepts scalars, so they need no broadcasting.
                return operands[:1]
            if aval.ndim == 0 and not eqn.primitive.multiple_results:
                return [eqn.primitive.bind(*operands, **eqn.params)]
        elif name == "convert_element_type" and aval.dtype == np.float32:
            return operands
        elif name in _OPERATIONS:
            self.steps.append(ElementwiseStep(name, tuple(self.find_id(g) for g in operands)))
            return [_ValueId(self._arrays + len(self.steps) - 1)]
        raise _UnsupportedFunctionError(name)

    def find_id(self, value: _ValueId | Array | np.generic) -> int:
        """Return the id of a value or scalar.

        Raises:
          _UnsupportedFunctionError: For an array that is not an operand.
        """
        if isinstance(value, _ValueId):
            return int(value)
        if np.ndim(value) or jnp.result_type(value) != np.float32:
            raise _UnsupportedFunctionError("an array that is not an operand")
        # Every occurrence of a literal is a different object, so literals are compared by value.
        is_literal = type(value) is np.float32
        matches = [
            s is value or (is_literal and type(s) is np.float32 and s == value)
            for s in self.scalars
        ]
        if not any(matches):
            matches.append(True)
            self.scalars.append(value)
        return ~matches.index(True)


def read_program(
    function: Callable[..., Any], arrays: Sequence[jax.ShapeDtypeStruct]
) -> tuple[ElementwiseProgram, list[Any]] | None:
    """Return the program of an elementwise function and the scalars it uses, or None.

    Args:
      function: Maps arrays of one shape to such arrays.
      arrays: Their shapes and dtypes.
    """
    if any(a.dtype != np.float32 or a.shape != arrays[0].shape for a in arrays):
        return None
    reader = _JaxprReader(len(arrays))
    try:
        closed = jax.make_jaxpr(function)(*arrays)
        values = reader.read(closed, [_ValueId(n) for n in range(len(arrays))])
        results = tuple(reader.find_id(v) for v in values)
    except _UnsupportedFunctionError:
        return None
    scalars = [jnp.asarray(s, np.float32) for s in reader.scalars]
    return ElementwiseProgram(len(arrays), len(scalars), tuple(reader.steps), results), scalars
