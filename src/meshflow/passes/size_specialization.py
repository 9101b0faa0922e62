"""Specialization of programs with symbolic sizes to known sizes.

A function with unknown sizes is traced once, with symbols. Its programs for certain sizes have the same
equations with the values of the symbols, so the Python function does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any, NoReturn

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.dtypes import float0
from jax.export import is_symbolic_dim

from meshflow.environment.inner_jaxprs import AnyJaxpr, find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import ad, evaluate_size, jex_core, linear_util, split_logs
from meshflow.environment.types import (
    Array,
    ArrayLike,
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    PyTree,
    Var,
)
from meshflow.interpreter.symbolic_sizes import InputSizes
from meshflow.interpreter.table import RULES, Equation, Spec, Writer
from meshflow.passes.jaxprs import get_aval

_CALLS = frozenset(["jit", "pjit"])
# Arithmetic on sizes, which has exact results.
_SIZE_ARITHMETIC = frozenset(
    [
        *("convert_element_type", "add", "sub", "mul", "div", "rem", "neg", "sign"),
        *("max", "min", "clamp", "and", "or", "not", "select_n"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    ]
)


class SizeSpecializer:
    """Replaces the symbolic sizes of programs by known sizes.

    Args:
      patterns: Shapes of the inputs with symbols.
      shapes: The same shapes without symbols.
      trace_rules: Returns a context in which derivative rules are traced with symbols.

    Example:
      >>> (size,) = jax.export.symbolic_shape("n")
      >>> spec = jax.ShapeDtypeStruct((size, 2), "float32")
      >>> program = jax.make_jaxpr(lambda x: x.reshape(-1) * x.shape[0])(spec)
      >>> SizeSpecializer([(size, 2)], [(3, 2)]).specialize(program).out_avals
      [ShapedArray(float32[6])]
    """

    def __init__(
        self,
        patterns: Sequence[Sequence[Any]],
        shapes: Sequence[Sequence[int]],
        trace_rules: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._trace_rules = trace_rules
        sizes = InputSizes(patterns)
        self._dims = sizes.solve(sizes.read(shapes))
        self._sizes: dict[Any, int] = {}
        # The results by the `id` of the inner programs, with these, because ids are reused.
        self._inner: dict[int, tuple[AnyJaxpr, AnyJaxpr]] = {}
        self.atoms: dict[Any, Atom] = {}

    def specialize(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return a program with known sizes; `atoms` then maps its variables."""
        jaxpr, self.atoms = self._rewrite(closed.jaxpr)
        return jex_core.ClosedJaxpr(jaxpr, closed.consts)

    def replace(self, value: PyTree) -> PyTree:
        """Replace symbolic sizes in a value: a size, a type, a program, or a nested tuple or list of these."""
        if isinstance(value, (tuple, list)):
            items = list(map(self.replace, value))
            return getattr(value, "_make", type(value))(items)
        if is_symbolic_dim(value):
            if (size := self._sizes.get(value)) is None:
                size = self._sizes[value] = evaluate_size(value, self._dims)
            return size
        if isinstance(value, (jax.core.ShapedArray, jax.ShapeDtypeStruct)):
            return value.update(shape=self.replace(value.shape))
        if isinstance(value, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
            if id(value) not in self._inner:
                inner, _ = self._rewrite(to_open_jaxpr(value))
                result = (
                    jex_core.ClosedJaxpr(inner, value.consts)
                    if isinstance(value, jex_core.ClosedJaxpr)
                    else inner
                )
                self._inner[id(value)] = value, result
            return self._inner[id(value)][1]
        return value

    def _rewrite(self, jaxpr: Jaxpr) -> tuple[Jaxpr, dict[Any, Atom]]:
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        atoms: dict[Any, Atom] = {v: self._make_variable(v) for v in inputs}
        eqns: list[JaxprEqn] = []
        self._visit(jaxpr, atoms, eqns)
        count = len(jaxpr.constvars)
        variables: list[Any] = list(map(atoms.__getitem__, inputs))
        new = jaxpr.replace(
            constvars=variables[:count],
            invars=variables[count:],
            outvars=[_read(atoms, a) for a in jaxpr.outvars],
            eqns=eqns,
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        return new, atoms

    def _make_variable(self, variable: Var) -> Var:
        return jex_core.Var(self.replace(variable.aval))

    def _visit(self, jaxpr: Jaxpr, atoms: dict[Any, Atom], eqns: list[JaxprEqn]) -> None:
        """Append the equations of a program for known sizes, and map its variables."""
        for eqn in jaxpr.eqns:
            operands = [_read(atoms, a) for a in eqn.invars]
            results: Any = self._fold(eqn, operands, eqns)
            if results is None:
                results = list(map(self._make_variable, eqn.outvars))
                params = {name: self.replace(value) for name, value in eqn.params.items()}
                if eqn.primitive.name == "custom_jvp_call":
                    params["jvp_jaxpr_fun"] = self._wrap_rule(eqn.params["jvp_jaxpr_fun"])
                if eqn.primitive.name == "custom_vjp_call":
                    params |= self._wrap_gradient(eqn.params)
                eqns.append(eqn.replace(invars=operands, outvars=results, params=params))
            atoms.update(zip(eqn.outvars, results, strict=True))

    def _fold(
        self, eqn: JaxprEqn, operands: list[Any], eqns: list[JaxprEqn]
    ) -> Sequence[Atom] | None:
        """Return the results of an equation on sizes, of an equation without effect, or of the branch that a size selects.

        Returns:
          None for other equations.
        """
        name = eqn.primitive.name
        if name == "dim_as_value":
            return [_make_literal(self.replace(eqn.params["dim"]), eqn.outvars[0])]
        if name == "pad" and not any(map(any, self.replace(eqn.params["padding_config"]))):
            return operands[:1]
        constants = [a.val for a in operands if isinstance(a, jex_core.Literal)]
        if name == "cond" and isinstance(operands[0], jex_core.Literal):
            branches = eqn.params["branches"]
            index = min(max(int(operands[0].val), 0), len(branches) - 1)
            return self._inline(branches[index], operands[1:], eqns)
        if len(constants) < len(operands) or not constants:
            return None
        if name in _CALLS:
            return self._inline(find_inner_jaxprs(eqn)[0], operands, eqns)
        if name not in _SIZE_ARITHMETIC or any(get_aval(v).shape for v in eqn.outvars):
            return None
        inputs = tuple([Spec((), get_aval(a).dtype) for a in operands])
        arrays = [np.asarray(c, s.dtype) for c, s in zip(constants, inputs, strict=True)]
        outputs = (Spec((), get_aval(eqn.outvars[0]).dtype),)
        equation = Equation(name, eqn.params, inputs, outputs, tuple(arrays), _refuse)
        compute = RULES[name].build(equation)
        run = compute.run if isinstance(compute, Writer) else compute
        return [_make_literal(run(*arrays), eqn.outvars[0])]

    def _inline(
        self, program: AnyJaxpr, operands: Sequence[Atom], eqns: list[JaxprEqn]
    ) -> Sequence[Atom] | None:
        if getattr(program, "consts", ()):
            return None
        jaxpr = to_open_jaxpr(program)
        atoms: dict[Any, Atom] = dict(zip(jaxpr.invars, operands, strict=True))
        self._visit(jaxpr, atoms, eqns)
        return [_read(atoms, a) for a in jaxpr.outvars]

    def _wrap_rule(self, rule: Any, types: list[Any] | None = None) -> Any:
        """Return a rule that makes a program and more values, for known sizes; store its result types in `types`."""

        def make_program(*flags: bool) -> tuple[Any, ...]:
            with self._trace_rules():
                jaxpr, *others = rule.call_wrapped(*flags)
            if types is not None:
                types[:] = [v.aval for v in jaxpr.outvars]
            return (self.replace(jaxpr), *others)

        return linear_util.wrap_init(make_program, debug_info=rule.debug_info)

    def _wrap_gradient(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rules of a custom gradient for known sizes."""
        closed, find_structures, rule = params["call_jaxpr"], params["out_trees"], params["bwd"]
        types: list[Any] = []

        def run_backward(*operands: Any) -> PyTree:
            # Residuals that are operands of the function are not results of the forward program.
            results = iter(types)
            residuals = [
                next(results) if index is None else closed.in_avals[index]
                for index in find_structures()[2]
            ]
            symbolic = [*residuals, *closed.out_avals]
            is_array = [not isinstance(o, SymbolicZero) and o.dtype != float0 for o in operands]
            zeros: list[Any] = []
            logs: list[Any] = []

            def run(*arrays: Array) -> list[Array]:
                rest = iter(arrays)
                full = [
                    next(rest) if found else SymbolicZero(aval.to_tangent_aval())
                    for aval, found in zip(symbolic, is_array, strict=True)
                ]
                gradients, logs[:] = split_logs(rule.call_wrapped(*full))
                zeros[:] = [g if type(g) is ad.Zero else None for g in gradients]
                return [g for g in gradients if type(g) is not ad.Zero]

            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in compress(symbolic, is_array)]
            with self._trace_rules():
                program = jax.make_jaxpr(run)(*specs)
            inner = jex_core.ClosedJaxpr(self.replace(program.jaxpr), program.consts)
            gradients = iter(jex_core.jaxpr_as_fun(inner)(*compress(operands, is_array)))
            found = [
                next(gradients) if zero is None else ad.Zero(self.replace(zero.aval))
                for zero in zeros
            ]
            return (found, *logs) if logs else found

        return {
            "fwd_jaxpr_thunk": self._wrap_rule(params["fwd_jaxpr_thunk"], types),
            "bwd": linear_util.wrap_init(run_backward, debug_info=rule.debug_info),
        }


def can_differentiate(closed: ClosedJaxpr) -> bool:
    """Check whether a program for known sizes has the derivatives of the one with symbols.

    A loop over a known number of iterations would be a `scan`, which has a gradient.
    """
    return not _contains_loop(closed.jaxpr)


def _contains_loop(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name == "while"
        or (
            eqn.primitive.name != "custom_vjp_call"
            and any(_contains_loop(to_open_jaxpr(inner)) for inner in find_inner_jaxprs(eqn))
        )
        for eqn in jaxpr.eqns
    )


def _read(atoms: Mapping[Any, Atom], atom: Atom) -> Atom:
    return atom if isinstance(atom, jex_core.Literal) else atoms[atom]


def _make_literal(value: ArrayLike, variable: Var) -> Atom:
    return jex_core.Literal(np.asarray(value, get_aval(variable).dtype)[()], variable.aval)


def _refuse(*_: object) -> NoReturn:
    raise NotImplementedError("arithmetic on sizes has no inner programs")
