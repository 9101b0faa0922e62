"""Flat lists of equations, the form of a jaxpr that the converters for LiteRT and ONNX lower.

Calls are inlined and constants are folded. A broadcast is only recorded: its result refers to the
value before broadcasting, which elementwise equations read because they broadcast implicitly.
Other equations read the result of an explicit "broadcast" equation. Programs of loops and
branches are nested in the parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import jax
import numpy as np

from meshflow.deployment.newer_primitives import find_expansion
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, Jaxpr, JaxprEqn
from meshflow.kernels.composite_primitives import composites
from meshflow.saved_model.programs.module_ops import read_jaxpr

# The size of a dimension: an int, or a symbolic size of `jax.export`.
DimSize: TypeAlias = Any
Shape: TypeAlias = tuple[DimSize, ...]

# Primitives of which an output element depends only on the operand elements at the same index.
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite",
    "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "sub", "tan", "tanh", "xor",
})  # fmt: skip
_IDENTITY_PRIMITIVES = frozenset(
    [
        "stop_gradient",
        "copy",
        "copy_p",
        "optimization_barrier",
        "sharding_constraint",
        "bounds_check",
    ]
)
_CALL_PRIMITIVES = frozenset({
    "jit", "pjit", "closed_call", "core_call", "call", "checkpoint", "remat2",
    "custom_jvp_call", "custom_vjp_call",
})  # fmt: skip
# Composite primitives that other runtimes have as one operator, so they are not expanded.
_NATIVE_COMPOSITES = frozenset({"max_windows"})
# Functions that are not inlined, because other runtimes generate random numbers themselves.
_RANDOM_FUNCTIONS = frozenset({"philox_uniform", "philox_normal"})
# Limit on the elements of folded results: folding must not make the constants larger than the
# program.
_MAX_FOLDED_ELEMENTS = 1 << 26


@dataclasses.dataclass(eq=False)
class Value:
    """Operand or result of an equation.

    Attributes:
      shape: sizes, symbolic where they are unknown.
      dtype: element type.
      data: elements of a constant.
      broadcast_source: for a broadcast value, the value before broadcasting.
    """

    shape: Shape
    dtype: np.dtype
    data: np.ndarray | None = None
    broadcast_source: Value | None = None

    @property
    def base(self) -> Value:
        """Return the value before broadcasting, which is the value itself if it is not a broadcast."""
        return self if self.broadcast_source is None else self.broadcast_source

    @property
    def constant(self) -> np.ndarray | None:
        """Return the elements of a constant before broadcasting, or None for other values."""
        return self.base.data


@dataclasses.dataclass(eq=False)
class Equation:
    """Application of a primitive.

    Attributes:
      name: name of the primitive or of a fused pattern.
      inputs, outputs: operands and results.
      params: parameters of the primitive; nested programs are `Program` objects.
      scope: layer in which the equation was traced, as "model/layer".
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    params: dict[str, Any]
    scope: str = ""


@dataclasses.dataclass(eq=False)
class Program:
    """Equations in topological order, with inputs and outputs."""

    inputs: list[Value]
    outputs: list[Value]
    equations: list[Equation]


def flatten_jaxpr(closed: ClosedJaxpr, constants: Sequence[Any] = ()) -> Program:
    """Flatten a closed jaxpr.

    Args:
      closed: the jaxpr.
      constants: arrays for the last inputs, such as weights; None for those that remain inputs.
    """
    jaxpr = closed.jaxpr
    arrays = [*[None] * (len(jaxpr.invars) - len(constants)), *constants]
    values = [
        _make_value(v) if a is None else _make_constant(np.asarray(a))
        for v, a in zip(jaxpr.invars, arrays, strict=True)
    ]
    inputs = [v for v, a in zip(values, arrays, strict=True) if a is None]
    return _flatten_program(jaxpr, closed.consts, values, inputs)


def remove_unused_equations(program: Program) -> Program:
    """Remove the equations on which no output depends (dead-code elimination)."""
    needed = set()
    for value in program.outputs:
        needed |= {value, value.base}
    used = []
    for equation in reversed(program.equations):
        if needed.intersection(equation.outputs):
            used.append(equation)
            for value in equation.inputs:
                needed |= {value, value.base}
    return Program(program.inputs, program.outputs, used[::-1])


def _flatten_program(
    jaxpr: Jaxpr, consts: Iterable[Any], values: list[Value], inputs: list[Value], scope: str = ""
) -> Program:
    flattener = _Flattener()
    outputs = flattener.flatten(jaxpr, consts, values, scope)
    results = [flattener.materialize(v) for v in outputs]
    return remove_unused_equations(Program(inputs, results, flattener.equations))


def _make_value(atom: Atom) -> Value:
    aval = cast(jax.core.ShapedArray, atom.aval)
    return Value(tuple(aval.shape), aval.dtype)


def _make_constant(array: np.ndarray) -> Value:
    return Value(array.shape, array.dtype, array)


def _is_static(shape: Iterable[DimSize]) -> bool:
    return all(isinstance(d, (int, np.integer)) for d in shape)


class _Flattener:
    """Interpreter that records the equations of a jaxpr."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self._broadcasts: dict[Value, Value] = {}

    def flatten(
        self, jaxpr: Jaxpr, consts: Iterable[Any], inputs: Sequence[Value], scope: str
    ) -> list[Value]:
        """Record the equations of a jaxpr and return its outputs."""
        values: dict[Atom, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, const in zip(jaxpr.constvars, consts, strict=True):
            values[variable] = (
                const if isinstance(const, Value) else _make_constant(np.asarray(const))
            )

        def read(atom: Atom) -> Value:
            if isinstance(atom, jex_core.Literal):
                return _make_constant(np.asarray(atom.val, _make_value(atom).dtype))
            return values[atom]

        for eqn in jaxpr.eqns:
            path = "/".join(p for p in (scope, str(eqn.source_info.name_stack)) if p)
            results = self._add_equation(eqn, [read(a) for a in eqn.invars], path)
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def materialize(self, value: Value) -> Value:
        """Return a value with its broadcast as an explicit equation."""
        if value.broadcast_source is None or value.broadcast_source.data is not None:
            return value
        if value not in self._broadcasts:
            result = Value(value.shape, value.dtype)
            self.equations.append(Equation("broadcast", [value.broadcast_source], [result], {}))
            self._broadcasts[value] = result
        return self._broadcasts[value]

    def _add_equation(self, eqn: JaxprEqn, inputs: list[Value], scope: str) -> list[Value]:
        name = eqn.primitive.name
        if name in _IDENTITY_PRIMITIVES:
            return inputs
        if name in _CALL_PRIMITIVES:
            if eqn.params.get("name") in _RANDOM_FUNCTIONS and inputs[0].constant is None:
                results = [_make_value(v) for v in eqn.outvars]
                operands = [self.materialize(inputs[0])]
                self.equations.append(Equation(eqn.params["name"], operands, results, {}, scope))
                return results
            body = next(
                eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params
            )
            if isinstance(body, jex_core.ClosedJaxpr):
                return self.flatten(body.jaxpr, body.consts, inputs, scope)
            return self.flatten(body, (), inputs, scope)
        if name == "call_exported":
            body = read_jaxpr(eqn.params["exported"], [v.aval for v in eqn.invars])
            return self.flatten(body.jaxpr, body.consts, inputs, scope)
        expansion = find_expansion(eqn)
        if expansion is not None:
            body = jax.make_jaxpr(expansion)(*(v.aval for v in eqn.invars))
            return self.flatten(body.jaxpr, body.consts, inputs, scope)
        if name in ELEMENTWISE:
            return [self._add_elementwise(eqn, inputs, scope)]
        if eqn.primitive in composites and name not in _NATIVE_COMPOSITES:
            composite = functools.partial(composites[eqn.primitive], **eqn.params)
            body = jax.make_jaxpr(composite)(*(v.aval for v in eqn.invars))
            return self.flatten(body.jaxpr, body.consts, inputs, scope)
        if name == "broadcast_in_dim":
            return [self._add_broadcast(eqn, inputs, scope)]
        if name == "iota":
            return [self._add_iota(eqn, inputs, scope)]
        folded = self._fold_constants(eqn, inputs)
        if folded is not None:
            return folded
        outputs = [_make_value(v) for v in eqn.outvars]
        inputs = [self.materialize(v) for v in inputs]
        params = self._flatten_nested_jaxprs(eqn, inputs, scope)
        self.equations.append(Equation(name, inputs, outputs, params, scope))
        return outputs

    def _fold_constants(self, eqn: JaxprEqn, inputs: list[Value]) -> list[Value] | None:
        """Evaluate an equation of constants; None for other equations and for large results."""
        shapes = [v.shape for v in [*inputs, *map(_make_value, eqn.outvars)]]
        if any(v.constant is None for v in inputs) or not all(map(_is_static, shapes)):
            return None
        sizes = [math.prod(shape) for shape in shapes[len(inputs) :]]
        if not inputs or eqn.effects or sum(sizes) > _MAX_FOLDED_ELEMENTS:
            return None
        return [_make_constant(a) for a in _evaluate(eqn, [expand_constant(v) for v in inputs])]

    def _add_elementwise(self, eqn: JaxprEqn, inputs: list[Value], scope: str) -> Value:
        result = _make_value(eqn.outvars[0])
        bases = [v.base for v in inputs]
        base = _simplify(eqn, bases)
        if base is None:
            shape = broadcast_shapes(*(v.shape for v in bases))
            if all(v.data is not None for v in bases):
                arrays = [np.broadcast_to(v.data, shape) for v in bases]  # type: ignore[arg-type]
                base = _make_constant(_evaluate(eqn, arrays)[0])
            else:
                base = Value(shape, result.dtype)
                self.equations.append(
                    Equation(eqn.primitive.name, bases, [base], dict(eqn.params), scope)
                )
        return _broadcast_value(base, result.shape)

    def _add_broadcast(self, eqn: JaxprEqn, inputs: list[Value], scope: str) -> Value:
        shape = _make_value(eqn.outvars[0]).shape
        source = inputs[0].base
        sizes: list[DimSize] = [1] * len(shape)
        for size, axis in zip(source.shape, eqn.params["broadcast_dimensions"], strict=True):
            sizes[axis] = size
        return _broadcast_value(self._add_reshape(source, tuple(sizes), scope), shape)

    def _add_reshape(self, value: Value, shape: Shape, scope: str) -> Value:
        if value.shape == shape:
            return value
        if value.data is not None:
            return _make_constant(value.data.reshape(shape))
        result = Value(shape, value.dtype)
        self.equations.append(Equation("reshape", [value], [result], {"new_sizes": shape}, scope))
        return result

    def _add_iota(self, eqn: JaxprEqn, inputs: list[Value], scope: str) -> Value:
        result, axis = _make_value(eqn.outvars[0]), eqn.params["dimension"]
        size = result.shape[axis]
        shape = [size if i == axis else 1 for i in range(len(result.shape))]
        if _is_static([size]):
            indices = _make_constant(np.arange(size).astype(result.dtype).reshape(shape))
        else:
            indices = Value((size,), result.dtype)
            self.equations.append(Equation("iota", [], [indices], {"size": size}, scope))
            indices = self._add_reshape(indices, tuple(shape), scope)
        return _broadcast_value(indices, result.shape)

    def _flatten_nested_jaxprs(
        self, eqn: JaxprEqn, inputs: list[Value], scope: str
    ) -> dict[str, Any]:
        """Return the parameters, with flat programs for the bodies of loops and branches."""
        name, params = eqn.primitive.name, dict(eqn.params)
        if name == "scan":
            consts, carry = count_scan_operands(params)
            params |= {"num_consts": consts, "num_carry": carry}
            params["body"] = _flatten_nested_jaxpr(params["jaxpr"], inputs[:consts], scope)
        elif name == "while":
            first, second = params["cond_nconsts"], params["body_nconsts"]
            params["test"] = _flatten_nested_jaxpr(params["cond_jaxpr"], inputs[:first], scope)
            params["body"] = _flatten_nested_jaxpr(
                params["body_jaxpr"], inputs[first : first + second], scope
            )
        elif name == "cond":
            params["programs"] = [
                _flatten_nested_jaxpr(b, inputs[1:], scope) for b in params["branches"]
            ]
        return params


def _flatten_nested_jaxpr(closed: ClosedJaxpr, operands: Sequence[Value], scope: str) -> Program:
    """Flatten a nested jaxpr; its leading operands that are constants are folded into it."""
    inputs = [_make_value(v) for v in closed.jaxpr.invars]
    values = [
        Value(i.shape, i.dtype, v.data, v.broadcast_source) if v.constant is not None else i
        for v, i in zip(operands, inputs, strict=False)
    ]
    return _flatten_program(
        closed.jaxpr, closed.consts, [*values, *inputs[len(values) :]], inputs, scope
    )


def _evaluate(eqn: JaxprEqn, arrays: Sequence[Array]) -> list[np.ndarray]:
    results = eqn.primitive.bind(*map(np.asarray, arrays), **eqn.params)
    return [np.asarray(a) for a in (results if eqn.primitive.multiple_results else [results])]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to; sizes may be symbolic."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in sizes if d != 1), 1) for sizes in zip(*padded, strict=True))


def _broadcast_value(value: Value, shape: Shape) -> Value:
    if value.shape == shape:
        return value
    if len(value.shape) < len(shape):
        # Operands of an elementwise equation have the same rank or are scalars.
        assert value.shape == (), (value.shape, shape)
    if value.data is not None and _is_static(shape) and int(np.prod(shape)) <= 1:
        return _make_constant(np.broadcast_to(value.data, shape))
    return Value(shape, value.dtype, broadcast_source=value)


def expand_constant(value: Value) -> np.ndarray:
    """Return the elements of a constant of static shape after broadcasting."""
    assert value.constant is not None
    return np.broadcast_to(value.constant, value.shape)


# ---- simplification of elementwise equations -----------------------------------------------


def _is_filled_with(value: Value, number: float) -> bool:
    return value.data is not None and value.data.size > 0 and bool((value.data == number).all())


def _simplify(eqn: JaxprEqn, inputs: list[Value]) -> Value | None:
    """Return the result of an elementwise equation if it is an operand or a constant, else None.

    JAX tests for NaN by `x != x`. The test is false here, because only XLA propagates NaNs through
    maxima and comparisons as JAX defines.
    """
    rule = _SIMPLIFICATIONS.get(eqn.primitive.name)
    result = rule(eqn, inputs) if rule else None
    return None if result is None or result.dtype != _make_value(eqn.outvars[0]).dtype else result


def _make_identity_rule(neutral: float, commutes: bool = True) -> _Rule:
    def rule(eqn: JaxprEqn, inputs: list[Value]) -> Value | None:
        x, y = inputs
        if _is_filled_with(y, neutral) and broadcast_shapes(x.shape, y.shape) == x.shape:
            return x
        if (
            commutes
            and _is_filled_with(x, neutral)
            and broadcast_shapes(x.shape, y.shape) == y.shape
        ):
            return y
        return None

    return rule


def _simplify_not_equal(eqn: JaxprEqn, inputs: list[Value]) -> Value | None:
    return _make_constant(np.zeros((), bool)) if inputs[0] is inputs[1] else None


def _simplify_select(eqn: JaxprEqn, inputs: list[Value]) -> Value | None:
    condition, *cases = inputs
    if condition.data is None or not condition.data.size or len(cases) != 2:
        return None
    first = condition.data.flat[0]
    return cases[int(first)] if _is_filled_with(condition, first) else None


_Rule: TypeAlias = Callable[[JaxprEqn, list[Value]], Value | None]


_SIMPLIFICATIONS: dict[str, _Rule] = {
    "ne": _simplify_not_equal,
    "select_n": _simplify_select,
    "max": _make_identity_rule(-np.inf),
    "min": _make_identity_rule(np.inf),
    "add": _make_identity_rule(0),
    "sub": _make_identity_rule(0, commutes=False),
    "mul": _make_identity_rule(1),
    "div": _make_identity_rule(1, commutes=False),
    "convert_element_type": lambda eqn, inputs: inputs[0],
}
