"""A jaxpr as one flat list of equations: calls inlined, constants folded, broadcasts left to who reads them.

What other runtimes compute is written from this list, by tables of one function for each primitive.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.deployment import stablehlo_ops  # noqa: F401 - it fills the table of ops
from meshflow.deployment.newer_primitives import find_expansion
from meshflow.deployment.stablehlo import jaxpr_of
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.kernels.composite_primitives import composites

__all__ = ["ELEMENTWISE", "Equation", "Program", "Value", "flattened", "without_unused"]

# Primitives of which an element depends on the same element of each operand only.
ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "clamp",
        "convert_element_type",
        "cos",
        "cosh",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "not",
        "or",
        "pow",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)
_SAME = frozenset(
    {"stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint"}
)
_CALLS = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "call",
        "checkpoint",
        "remat2",
        "custom_jvp_call",
        "custom_vjp_call",
    ]
)
# Of the primitives that stand for several equations, those that other runtimes have.
_WHOLE = frozenset({"max_windows"})
# Functions whose calls are kept: random numbers, which other runtimes draw themselves.
_DRAWN = frozenset({"philox_uniform", "philox_normal"})
# Folding may not make constants larger than the program.
_MOST_FOLDED = 1 << 26


@dataclasses.dataclass(eq=False)
class Value:
    """What an equation reads or makes.

    Attributes:
      shape: sizes; symbols of JAX where they are not known.
      dtype: the element type.
      known: the elements of a constant.
      narrow: the value that this one is when broadcast: of size 1 where this one repeats itself.
    """

    shape: tuple[Any, ...]
    dtype: np.dtype
    known: np.ndarray | None = None
    narrow: Value | None = None

    @property
    def least(self) -> Value:
        """The value without what broadcasting repeats."""
        return self if self.narrow is None else self.narrow

    @property
    def constant(self) -> np.ndarray | None:
        """The elements of a constant, without what broadcasting repeats."""
        return self.least.known


@dataclasses.dataclass(eq=False)
class Equation:
    """One computation.

    Attributes:
      name: the primitive's.
      inputs, outputs: values.
      params: the primitive's parameters; programs inside are `Program`s.
      scope: where in the model it was traced, as "model/layer".
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    params: dict[str, Any]
    scope: str = ""


@dataclasses.dataclass(eq=False)
class Program:
    """Equations between inputs and outputs."""

    inputs: list[Value]
    outputs: list[Value]
    equations: list[Equation]


def flattened(closed: Any, constants: Sequence[Any] = ()) -> Program:
    """A closed jaxpr as a program.

    Args:
      closed: the jaxpr.
      constants: arrays that its last inputs are, such as weights; None for those that stay inputs.
    """
    jaxpr = closed.jaxpr
    known = [*[None] * (len(jaxpr.invars) - len(constants)), *constants]
    given = [
        Value(tuple(v.aval.shape), v.aval.dtype) if c is None else _constant(np.asarray(c))
        for v, c in zip(jaxpr.invars, known, strict=True)
    ]
    inputs = [v for v, c in zip(given, known, strict=True) if c is None]
    return _program(jaxpr, closed.consts, given, inputs)


def without_unused(program: Program) -> Program:
    """The program without equations that no output depends on."""
    needed = set()
    for value in program.outputs:
        needed |= {value, value.least}
    kept = []
    for equation in reversed(program.equations):
        if needed.intersection(equation.outputs):
            kept.append(equation)
            for value in equation.inputs:
                needed |= {value, value.least}
    return Program(program.inputs, program.outputs, kept[::-1])


def _program(
    jaxpr: Any, consts: Iterable[Any], given: list[Value], inputs: list[Value], scope: str = ""
) -> Program:
    flat = _Flat()
    outputs = flat.run(jaxpr, consts, given, scope)
    return without_unused(Program(inputs, [flat.full(v) for v in outputs], flat.equations))


def _constant(array: np.ndarray) -> Value:
    return Value(array.shape, array.dtype, array)


def _fixed(shape: Iterable[Any]) -> bool:
    return all(isinstance(d, (int, np.integer)) for d in shape)


class _Flat:
    """Gathers equations."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self._made: dict[Value, Value] = {}

    def run(
        self, jaxpr: Any, consts: Iterable[Any], given: Sequence[Value], scope: str
    ) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, given, strict=True))
        for variable, const in zip(jaxpr.constvars, consts, strict=True):
            values[variable] = const if isinstance(const, Value) else _constant(np.asarray(const))

        def read(atom: Any) -> Value:
            if isinstance(atom, jex_core.Literal):
                aval: Any = atom.aval
                return _constant(np.asarray(atom.val, aval.dtype))
            return values[atom]

        for eqn in jaxpr.eqns:
            inside = str(eqn.source_info.name_stack)
            place = "/".join(part for part in (scope, inside) if part)
            results = self._equation(eqn, [read(a) for a in eqn.invars], place)
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def full(self, value: Value) -> Value:
        """The value itself, where others than elementwise equations read it."""
        if value.narrow is None or value.narrow.known is not None:
            return value
        if value not in self._made:
            made = Value(value.shape, value.dtype)
            self.equations.append(Equation("broadcast", [value.narrow], [made], {}))
            self._made[value] = made
        return self._made[value]

    def _equation(self, eqn: Any, inputs: list[Value], scope: str) -> list[Value]:
        name = eqn.primitive.name
        if name in _SAME:
            return inputs
        if name in _CALLS:
            if eqn.params.get("name") in _DRAWN and inputs[0].constant is None:
                drawn = [Value(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]
                place = [self.full(inputs[0])]
                self.equations.append(Equation(eqn.params["name"], place, drawn, {}, scope))
                return drawn
            body = next(
                eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params
            )
            if isinstance(body, jex_core.ClosedJaxpr):
                return self.run(body.jaxpr, body.consts, inputs, scope)
            return self.run(body, (), inputs, scope)
        if name == "call_exported":
            body = jaxpr_of(eqn.params["exported"], [v.aval for v in eqn.invars])
            return self.run(body.jaxpr, body.consts, inputs, scope)
        expansion = find_expansion(eqn)
        if expansion is not None:
            body = jax.make_jaxpr(expansion)(*(v.aval for v in eqn.invars))
            return self.run(body.jaxpr, body.consts, inputs, scope)
        if name in ELEMENTWISE:
            return [self._elementwise(eqn, inputs, scope)]
        if eqn.primitive in composites and name not in _WHOLE:
            composite = functools.partial(composites[eqn.primitive], **eqn.params)
            body = jax.make_jaxpr(composite)(*(v.aval for v in eqn.invars))
            return self.run(body.jaxpr, body.consts, inputs, scope)
        if name == "broadcast_in_dim":
            return [self._broadcast(eqn, inputs, scope)]
        if name == "iota":
            return [self._iota(eqn, inputs, scope)]
        folded = self._folded(eqn, inputs)
        if folded is not None:
            return folded
        outputs = [Value(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]
        inputs = [self.full(v) for v in inputs]
        params = self._with_programs(eqn, inputs, scope)
        self.equations.append(Equation(name, inputs, outputs, params, scope))
        return outputs

    def _folded(self, eqn: Any, inputs: list[Value]) -> list[Value] | None:
        avals = [v.aval for v in eqn.outvars]
        shapes = [*(v.shape for v in inputs), *(a.shape for a in avals)]
        if any(v.constant is None for v in inputs) or not all(map(_fixed, shapes)):
            return None
        if not inputs or eqn.effects or sum(int(a.size) for a in avals) > _MOST_FOLDED:
            return None
        return [_constant(a) for a in _evaluated(eqn, [expanded(v) for v in inputs])]

    def _elementwise(self, eqn: Any, inputs: list[Value], scope: str) -> Value:
        aval = eqn.outvars[0].aval
        least = [v.least for v in inputs]
        same = _simplified(eqn, least)
        if same is None:
            shape = _joined([v.shape for v in least])
            if all(v.known is not None for v in least):
                arrays = [np.broadcast_to(v.known, shape) for v in least]  # type: ignore[arg-type]
                same = _constant(_evaluated(eqn, arrays)[0])
            else:
                same = Value(shape, aval.dtype)
                self.equations.append(
                    Equation(eqn.primitive.name, least, [same], dict(eqn.params), scope)
                )
        return _widened(same, tuple(aval.shape))

    def _broadcast(self, eqn: Any, inputs: list[Value], scope: str) -> Value:
        shape = tuple(eqn.outvars[0].aval.shape)
        source = inputs[0].least
        sizes: list[Any] = [1] * len(shape)
        for size, place in zip(source.shape, eqn.params["broadcast_dimensions"], strict=True):
            sizes[place] = size
        return _widened(self._reshaped(source, tuple(sizes), scope), shape)

    def _reshaped(self, value: Value, shape: tuple[Any, ...], scope: str) -> Value:
        if value.shape == shape:
            return value
        if value.known is not None:
            return _constant(value.known.reshape(shape))
        made = Value(shape, value.dtype)
        self.equations.append(Equation("reshape", [value], [made], {"new_sizes": shape}, scope))
        return made

    def _iota(self, eqn: Any, inputs: list[Value], scope: str) -> Value:
        aval, place = eqn.outvars[0].aval, eqn.params["dimension"]
        shape, size = tuple(aval.shape), aval.shape[eqn.params["dimension"]]
        line = [size if i == place else 1 for i in range(len(shape))]
        if _fixed([size]):
            numbers = _constant(np.arange(size).astype(aval.dtype).reshape(line))
        else:
            numbers = Value((size,), aval.dtype)
            self.equations.append(Equation("iota", [], [numbers], {"size": size}, scope))
            numbers = self._reshaped(numbers, tuple(line), scope)
        return _widened(numbers, shape)

    def _with_programs(self, eqn: Any, inputs: list[Value], scope: str) -> dict[str, Any]:
        """The parameters, with constants folded into the programs of loops and branches."""
        name, params = eqn.primitive.name, dict(eqn.params)
        if name == "scan":
            consts, carry = count_scan_operands(params)
            params |= {"num_consts": consts, "num_carry": carry}
            params["body"] = _inner(params["jaxpr"], inputs[:consts], scope)
        elif name == "while":
            first, second = params["cond_nconsts"], params["body_nconsts"]
            params["test"] = _inner(params["cond_jaxpr"], inputs[:first], scope)
            params["body"] = _inner(params["body_jaxpr"], inputs[first : first + second], scope)
        elif name == "cond":
            params["programs"] = [_inner(b, inputs[1:], scope) for b in params["branches"]]
        return params


def _inner(closed: Any, leading: Sequence[Value], scope: str) -> Program:
    """A program inside an equation; of its first operands those that are constants are folded into it."""
    variables = closed.jaxpr.invars
    inputs = [Value(tuple(v.aval.shape), v.aval.dtype) for v in variables]
    given = [
        Value(i.shape, i.dtype, v.known, v.narrow) if v.constant is not None else i
        for v, i in zip(leading, inputs, strict=False)
    ]
    return _program(closed.jaxpr, closed.consts, [*given, *inputs[len(given) :]], inputs, scope)


def _evaluated(eqn: Any, arrays: Sequence[Any]) -> list[np.ndarray]:
    found = eqn.primitive.bind(*map(np.asarray, arrays), **eqn.params)
    return [np.asarray(a) for a in (found if eqn.primitive.multiple_results else [found])]


def _joined(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The shape that shapes broadcast to."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in sizes if d != 1), 1) for sizes in zip(*padded, strict=True))


def _widened(value: Value, shape: tuple[Any, ...]) -> Value:
    if value.shape == shape:
        return value
    if len(value.shape) < len(shape):
        # Of one element: the operands of an elementwise equation have the same rank or none.
        assert value.shape == (), (value.shape, shape)
    if value.known is not None and _fixed(shape) and int(np.prod(shape)) <= 1:
        return _constant(np.broadcast_to(value.known, shape))
    return Value(shape, value.dtype, narrow=value)


def expanded(value: Value) -> np.ndarray:
    """The elements of a constant of known shape."""
    assert value.constant is not None
    return np.broadcast_to(value.constant, value.shape)


# ---- equations that say nothing ------------------------------------------------------------


def _all(value: Value, number: Any) -> bool:
    return value.known is not None and value.known.size > 0 and bool((value.known == number).all())


def _simplified(eqn: Any, inputs: list[Value]) -> Value | None:
    """What an elementwise equation gives without computing it, or None.

    No runtime but XLA keeps NaNs in maxima and comparisons apart, so tests for them are false.
    """
    rule = _RULES.get(eqn.primitive.name)
    same = rule(eqn, inputs) if rule else None
    return same if same is None or same.dtype == eqn.outvars[0].aval.dtype else None


def _first_unless(number: Any, commutes: bool = True) -> Callable[[Any, list[Value]], Value | None]:
    def rule(eqn: Any, inputs: list[Value]) -> Value | None:
        one, other = inputs
        if _all(other, number) and _joined([one.shape, other.shape]) == one.shape:
            return one
        if commutes and _all(one, number) and _joined([one.shape, other.shape]) == other.shape:
            return other
        return None

    return rule


def _differs(eqn: Any, inputs: list[Value]) -> Value | None:
    return _constant(np.zeros((), bool)) if inputs[0] is inputs[1] else None


def _chosen(eqn: Any, inputs: list[Value]) -> Value | None:
    which, *cases = inputs
    if which.known is None or not which.known.size or len(cases) != 2:
        return None
    same = bool((which.known == which.known.flat[0]).all())
    return cases[int(which.known.flat[0])] if same else None


_RULES: dict[str, Callable[[Any, list[Value]], Value | None]] = {
    "ne": _differs,
    "select_n": _chosen,
    "max": _first_unless(-np.inf),
    "min": _first_unless(np.inf),
    "add": _first_unless(0),
    "sub": _first_unless(0, commutes=False),
    "mul": _first_unless(1),
    "div": _first_unless(1, commutes=False),
    "convert_element_type": lambda eqn, inputs: inputs[0],
}
