"""The equation of a program that computes its first NaN or infinity.

One run of the program computes, for each value, whether it contains a NaN or an infinity. From the
outputs that do, the search follows such values backwards to equations with inputs that do not, and
continues inside of the equation if it contains a program. A NaN that no output depends on, such as a
value that `where` replaces, is therefore not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshflow.passes.jaxprs import bind_equation
from meshflow.passes.sub_jaxprs import find_regions

# A while loop is searched up to this number of iterations.
_MAX_ITERATIONS = 10_000


@dataclass
class NaNOrigin:
    """The equation, or the operand of the program, that has the first non-finite value.

    Attributes:
      equation: The equation; None if an operand of the program has the value.
      operand: Index of this operand.
      scopes: Name stacks of the equation and of the equations that contain it, the outermost first.
      inputs: Operands of the equation.
      outputs: Its results, or the operand of the program.
      iteration: Index of the iteration of the innermost loop that contains the equation, or None.
      consequence: Origin of the NaN that the infinity of this origin leads to, or None.
    """

    equation: JaxprEqn | None
    operand: int | None = None
    scopes: list[str] = field(default_factory=list)
    inputs: list[np.ndarray] = field(default_factory=list)
    outputs: list[np.ndarray] = field(default_factory=list)
    iteration: int | None = None
    consequence: NaNOrigin | None = None


def has_non_finite(value: Array) -> Array:
    """Check whether an array contains a NaN or an infinity; returns a Boolean scalar."""
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.zeros((), bool)
    return ~jnp.isfinite(value).all()


def find_origin(
    program: ClosedJaxpr, operands: Sequence[Any], outputs: Sequence[int]
) -> NaNOrigin | None:
    """Find the first NaN, or without a NaN the first infinity, on which outputs depend.

    Args:
      program: The program.
      operands: Its operands.
      outputs: Indices of outputs that may contain such a value.

    Returns:
      The origin, or None if the outputs are finite. If an infinity leads to the first NaN, the
      origin of the infinity.
    """
    return _Search(program, list(operands)).find([program.jaxpr.outvars[i] for i in outputs])


class _Search:
    """The flags of all values of one run of a program."""

    def __init__(self, program: ClosedJaxpr, operands: list[Any]) -> None:
        self._jaxpr = program.jaxpr
        self._consts = list(program.consts)
        self._operands = operands
        # Index of the equation that the latest search found.
        self._found: int | None = None
        jaxpr = program.jaxpr
        variables = [*jaxpr.constvars, *jaxpr.invars]
        variables += [v for eqn in jaxpr.eqns for v in eqn.outvars]
        flags = np.asarray(
            jax.jit(lambda *values: self._compute_flags(variables, values))(*operands)
        )
        self._is_nan = {v: bool(f[0]) for v, f in zip(variables, flags, strict=True)}
        self._is_inf = {v: bool(f[1]) for v, f in zip(variables, flags, strict=True)}

    def _evaluate(self, operands: Sequence[Any], count: int | None = None) -> dict[Var, Any]:
        """Run the first equations, and return the values of all variables."""
        jaxpr = self._jaxpr
        values: dict[Var, Any] = dict(zip(jaxpr.constvars, self._consts, strict=True))
        values |= dict(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns[:count]:
            results = bind_equation(eqn, [_read(values, v) for v in eqn.invars])
            values |= dict(zip(eqn.outvars, results, strict=True))
        return values

    def _compute_flags(self, variables: list[Var], operands: Sequence[Any]) -> Array:
        values = self._evaluate(operands)
        return jnp.stack([_flag(values[v]) for v in variables]) if variables else jnp.zeros((0, 2))

    def _compute_inputs(self, index: int) -> list[Any]:
        """Compute the operands of an equation."""
        invars = self._jaxpr.eqns[index].invars

        def run(*operands: Array) -> list[Any]:
            values = self._evaluate(operands, index)
            return [_read(values, v) for v in invars]

        return jax.jit(run)(*self._operands)

    def find(self, outputs: Iterable[Any]) -> NaNOrigin | None:
        variables = [v for v in outputs if not isinstance(v, Literal)]
        for flags in (self._is_nan, self._is_inf):
            targets = [v for v in variables if flags[v]]
            if targets:
                origin = self._trace_back(flags, targets, len(self._jaxpr.eqns))
                return origin and self._find_infinity(origin)
        return None

    def _find_infinity(self, origin: NaNOrigin) -> NaNOrigin:
        """Return the origin of the infinity that an equation turns into a NaN, if there is one."""
        index = self._found
        if index is None:
            return origin
        invars = self._jaxpr.eqns[index].invars
        targets = [v for v in invars if not isinstance(v, Literal) and self._is_inf[v]]
        earlier = self._trace_back(self._is_inf, targets, index) if targets else None
        if earlier is None:
            return origin
        earlier.consequence = origin
        return earlier

    def _trace_back(self, flags: dict[Var, bool], targets: list[Var], end: int) -> NaNOrigin | None:
        """Follow flagged values from variables to the first equation without flagged operands."""
        needed = set(targets)
        found: list[int] = []
        for index in reversed(range(end)):
            eqn = self._jaxpr.eqns[index]
            if not needed.intersection(eqn.outvars) or not any(flags[v] for v in eqn.outvars):
                continue
            flagged = [v for v in eqn.invars if not isinstance(v, Literal) and flags[v]]
            constants = [v.val for v in eqn.invars if isinstance(v, Literal)]
            if flagged:
                needed.update(flagged)
            elif all(np.all(np.isfinite(c)) for c in constants if np.asarray(c).dtype.kind in "fc"):
                found.append(index)
        for position, variable in enumerate(self._jaxpr.invars):
            if variable in needed and flags[variable]:
                return NaNOrigin(None, position, outputs=[np.asarray(self._operands[position])])
        if not found:
            return None
        self._found = found[-1]
        return self._describe(found[-1])

    def _describe(self, index: int) -> NaNOrigin:
        eqn = self._jaxpr.eqns[index]
        inputs = self._compute_inputs(index)
        scope = str(eqn.source_info.name_stack)
        inner = _search_inside(eqn, inputs)
        if inner is not None and inner.operand is None:
            inner.scopes.insert(0, scope)
            return inner
        outputs = [np.asarray(o) for o in bind_equation(eqn, inputs)]
        return NaNOrigin(eqn, None, [scope], [np.asarray(i) for i in inputs], outputs)


def _search_inside(eqn: JaxprEqn, inputs: list[Any]) -> NaNOrigin | None:
    """Search the program of a call, the taken branch, or the iterations of a loop."""
    regions = find_regions(eqn)
    name = eqn.primitive.name
    if not regions or name == "shard_map":
        return None
    if name == "scan":
        return _search_scan(eqn, inputs)
    if name == "while":
        return _search_while(eqn, inputs)
    region = regions[0]
    if name == "cond":
        taken = int(np.clip(int(inputs[0]), 0, len(regions) - 1))
        region = regions[taken]
    program = jex_core.ClosedJaxpr(region.jaxpr, region.consts)
    return _search_program(program, [inputs[i] for i, _ in region.feeds])


def _search_program(program: ClosedJaxpr, operands: list[Any]) -> NaNOrigin | None:
    return find_origin(program, operands, range(len(program.jaxpr.outvars)))


def _search_iteration(program: ClosedJaxpr, operands: list[Any], index: int) -> NaNOrigin | None:
    origin = _search_program(program, operands)
    if origin is not None and origin.iteration is None:
        origin.iteration = index
    return origin


def _search_scan(eqn: JaxprEqn, inputs: list[Any]) -> NaNOrigin | None:
    num_consts, num_carry = count_scan_operands(eqn.params)
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    rows = inputs[num_consts + num_carry :]
    length, body = eqn.params["length"], eqn.params["jaxpr"]
    step = _make_step(body)
    for i in range(length):
        index = length - 1 - i if eqn.params["reverse"] else i
        operands = [*consts, *carry, *(row[index] for row in rows)]
        outputs, is_bad = step(*operands)
        if is_bad:
            origin = _search_iteration(body, operands, index)
            if origin is not None:
                return origin
        carry = outputs[:num_carry]
    return None


def _search_while(eqn: JaxprEqn, inputs: list[Any]) -> NaNOrigin | None:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts = inputs[:first], inputs[first : first + second]
    carry = inputs[first + second :]
    test, body = jax.jit(jex_core.jaxpr_as_fun(params["cond_jaxpr"])), params["body_jaxpr"]
    step = _make_step(body)
    for index in range(_MAX_ITERATIONS):
        if not bool(test(*test_consts, *carry)[0]):
            return None
        operands = [*body_consts, *carry]
        outputs, is_bad = step(*operands)
        if is_bad:
            origin = _search_iteration(body, operands, index)
            if origin is not None:
                return origin
        carry = outputs
    return None


def _make_step(program: ClosedJaxpr) -> Callable[..., tuple[list[Any], Any]]:
    """Compile a program that also returns whether an output is not finite."""

    def run(*operands: Array) -> tuple[list[Any], Any]:
        outputs = jex_core.jaxpr_as_fun(program)(*operands)
        return outputs, jnp.stack([has_non_finite(jnp.asarray(o)) for o in outputs]).any()

    return jax.jit(run)


def _read(values: dict[Var, Any], variable: Atom) -> Array:
    return variable.val if isinstance(variable, Literal) else values[variable]


def _flag(value: Array) -> Array:
    """Return whether a value contains a NaN, and whether it contains an infinity."""
    if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
        return jnp.zeros(2, bool)
    return jnp.stack([jnp.isnan(value).any(), jnp.isinf(value).any()])
