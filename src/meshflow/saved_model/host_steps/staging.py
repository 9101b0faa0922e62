"""Division of functions with sizes that depend on values into stages.

Such a function runs op by op. It is saved as programs, with a step on the host between them where the values of
sizes become known: the call of a NumPy function by its name, the assignment of new symbols, or a branch or loop
that contains such a step. A program is shape-polymorphic: it reads its symbols from the shapes of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax.export import is_symbolic_dim

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.staging.dynamic_loop import is_dynamic_loop
from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.values.unknown_sizes import SIZE_PRIMITIVES
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import (
    count_scan_operands,
    dce_jaxpr,
    evaluate_size,
    jex_core,
    list_dimensions,
)
from meshflow.environment.types import Atom, ClosedJaxpr, JaxprEqn, PyTree, Var
from meshflow.passes.jaxprs import (
    extract_program,
    get_aval,
    inline_calls,
    is_plain_call,
    select_variables,
    summarize_jaxpr,
)
from meshflow.saved_model.host_steps.host_functions import pack_function
from meshflow.saved_model.host_steps.plan import (
    ProgramStep,
    StagedFunction,
    StagePlan,
    StageStep,
)
from meshflow.saved_model.manifest.composite_values import ComponentFunction
from meshflow.saved_model.programs.stablehlo import trace_in_stages


def stage_function(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> StagedFunction:
    """Divide a function into stages.

    Args:
      name: Name of the function.
      function: The function.
      args: Its arguments, with `TensorSpec`s for tensors.
      kwargs: Its keyword arguments, with `TensorSpec`s for tensors.

    Raises:
      UnimplementedError: If a step has no name in files.
    """
    components = ComponentFunction(function, args, kwargs)
    traced, sizes = trace_in_stages(components, *components.arguments)
    traced.structure = components.join_slots(traced.structure)
    with sizes.record():
        plan = _StageBuilder(name, traced.closed_jaxpr).build()
    return StagedFunction(traced, plan, sizes, (args, kwargs))


class _StageBuilder:
    """Builder of the plan of a program.

    A step on the host of level n needs the programs up to level n, and its results have level n + 1.

    Args:
      name: Name of the function.
      closed: The program.
      more_inputs: Variables of the outer program that are inputs after those of the program, because their sizes
        are used.
    """

    def __init__(self, name: str, closed: ClosedJaxpr, more_inputs: Sequence[Var] = ()) -> None:
        if any(_is_inlined(e) and _has_unknown_sizes(e) for e in closed.jaxpr.eqns):
            closed = inline_calls(closed, _is_inlined)
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
        self._name, self._closed = name, jex_core.ClosedJaxpr(jaxpr, closed.consts)
        self._indices: dict[Any, int] = {}
        self._levels: dict[Any, int] = {}
        self._sources: dict[str, Var] = {}
        self._sizes: dict[int, list[tuple[int, str, int]]] = {}
        self._count = 0
        self._equations: dict[int, list[JaxprEqn]] = {}
        self._outputs: dict[int, list[Atom]] = {}
        self._steps: dict[int, list[StageStep]] = {}
        for variable in (*jaxpr.invars, *more_inputs):
            self._add_value(variable, 0)

    def build(self) -> StagePlan:
        """Return the plan."""
        jaxpr = self._closed.jaxpr
        for equation in jaxpr.eqns:
            self._add(equation)
        results = [self._get_index(atom) for atom in jaxpr.outvars]
        # An input of a program may be an output of an earlier one, so these are listed from the last level on.
        inputs: dict[int, list[Var]] = {}
        for level in sorted({*self._equations, *self._outputs, 0}, reverse=True):
            inputs[level] = self._find_inputs(level)
        steps: list[ProgramStep | StageStep] = []
        for level in sorted({*inputs, *self._steps}):
            outputs = self._outputs.get(level, [])
            if outputs:
                steps.append(self._make_program(level, inputs[level], outputs))
            steps += self._steps.get(level, [])
        return StagePlan(steps, results, self._sizes)

    def _add_value(self, variable: Var, level: int, index: int | None = None) -> int:
        """Add a value that exists after a step of the level before; return its index."""
        if index is None:
            index, self._count = self._count, self._count + 1
        self._indices[variable], self._levels[variable] = index, level
        for axis, name, offset in _list_determined_sizes(variable):
            if name not in self._sources:
                self._sources[name] = variable
                self._sizes.setdefault(index, []).append((axis, name, offset))
        return index

    def _get_index(self, atom: Atom) -> int:
        """Return the index of a value; one of a program becomes its output."""
        # Literals have no hashes.
        is_computed = not isinstance(atom, jex_core.Literal) and atom in self._levels
        key = atom if is_computed else id(atom)
        if key not in self._indices:
            self._indices[key], self._count = self._count, self._count + 1
            level = self._levels[atom] if is_computed else 0
            self._outputs.setdefault(level, []).append(atom)
        return self._indices[key]

    def _find_level(self, atoms: Iterable[Atom], names: Iterable[str]) -> int:
        variables = [*select_variables(atoms), *self._list_sources(names)]
        return max([self._levels.get(v, 0) for v in variables], default=0)

    def _list_sources(self, names: Iterable[str]) -> list[Var]:
        """List the variables that determine the values of symbols."""
        return list(dict.fromkeys(self._sources[n] for n in sorted(names) if n in self._sources))

    def _add(self, equation: JaxprEqn) -> None:
        if equation.primitive.name == "set_sizes":
            (source,), (result,) = equation.invars, equation.outvars
            self._add_value(result, self._find_level([source], ()) + 1, self._get_index(source))
            return
        level = self._find_level(equation.invars, _list_symbols(equation))
        if _has_unknown_sizes(equation):
            self._add_step(equation, level)
            return
        self._equations.setdefault(level, []).append(equation)
        self._levels |= dict.fromkeys(equation.outvars, level)

    def _add_step(self, equation: JaxprEqn, level: int) -> None:
        params, kind = equation.params, equation.primitive.name
        inner: list[ClosedJaxpr] = []
        parameters: dict[str, Any] = {}
        if kind == "host_computation":
            kind = "host"
            parameters["function"] = pack_function(params["function"])
            parameters["use"] = params["use"]
            parameters["results"] = [
                [list(map(_pack_size, get_aval(a).shape)), get_aval(a).dtype.name]
                for a in equation.outvars
            ]
        elif kind == "cond":
            inner = list(params["branches"])
        elif kind == "while":
            inner = [params["cond_jaxpr"], params["body_jaxpr"]]
            parameters["counts"] = [params["cond_nconsts"], params["body_nconsts"]]
        elif kind == "scan":
            inner = [params["jaxpr"]]
            parameters["counts"] = list(count_scan_operands(params))
            parameters |= {"length": _pack_size(params["length"]), "reverse": params["reverse"]}
        elif kind != "write_row":
            raise UnimplementedError(
                f"{self._name} has sizes that depend on values inside of {kind}, which cannot be saved."
            )
        used = {name for closed in inner for name in _list_symbols(closed.jaxpr)}
        sources = self._list_sources(used) if inner else []
        plans = [_StageBuilder(self._name, closed, sources).build() for closed in inner]
        inputs = [self._get_index(a) for a in (*equation.invars, *sources)]
        parameters["num_sources"] = len(sources)
        outputs = [self._add_value(v, level + 1) for v in equation.outvars]
        self._steps.setdefault(level, []).append(
            StageStep(kind, inputs, outputs, parameters, plans)
        )

    def _find_inputs(self, level: int) -> list[Var]:
        """Return the inputs of the program of a level."""
        equations, outputs = self._equations.get(level, []), self._outputs.get(level, [])
        if not outputs:
            return []
        own = {v for e in equations for v in e.outvars} | set(self._closed.jaxpr.constvars)
        read = select_variables([*(a for e in equations for a in e.invars), *outputs])
        inputs = list(dict.fromkeys(v for v in read if v not in own))
        names = {n for e in equations for n in _list_symbols(e)} | _list_symbols(inputs)
        inputs += [v for v in self._list_sources(names) if v not in inputs]
        for variable in inputs:
            self._get_index(variable)
        return inputs

    def _make_program(self, level: int, inputs: list[Var], outputs: list[Atom]) -> ProgramStep:
        equations = self._equations.get(level, [])
        closed = extract_program(self._closed, inputs, outputs, equations)
        slots = [TensorSlot(i) for i in range(len(outputs))]
        traced = TracedFunction(self._name, closed, [], [], slots, len(outputs))
        return ProgramStep(
            traced, [self._indices[v] for v in inputs], [self._get_index(a) for a in outputs]
        )


def _is_inlined(equation: JaxprEqn) -> bool:
    """Check whether an equation is a call, or a loop, of which the steps are differentiated one by one."""
    return is_plain_call(equation) or is_dynamic_loop(equation)


def _has_unknown_sizes(equation: JaxprEqn) -> bool:
    if equation.primitive.name in SIZE_PRIMITIVES:
        return True
    inner = map(to_open_jaxpr, find_inner_jaxprs(equation))
    return not all(SIZE_PRIMITIVES.isdisjoint(summarize_jaxpr(j).primitives) for j in inner)


def _pack_size(size: Any) -> int | str:
    return str(size) if is_symbolic_dim(size) else int(size)


def _list_determined_sizes(variable: Var) -> list[tuple[int, str, int]]:
    """List the axes of a variable with a symbol plus a number: the axis, the symbol, and the number."""
    found = []
    for axis, size in enumerate(getattr(variable.aval, "shape", ())):
        names = list_dimensions(size)
        if len(names) == 1:
            (name,) = names
            offset = evaluate_size(size, {name: 1}) - 1
            if str(size - offset) == name:
                found.append((axis, name, offset))
    return found


def _list_symbols(value: PyTree) -> set[str]:
    """Return the names of the symbols in variables, equations, programs and parameters."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return {name for item in value for name in _list_symbols(item)}
    if isinstance(value, jex_core.ClosedJaxpr):
        value = value.jaxpr
    if isinstance(value, jex_core.Jaxpr):
        return _list_symbols([*value.invars, *value.eqns, *value.outvars])
    if isinstance(value, jex_core.JaxprEqn):
        return _list_symbols([*value.invars, *value.outvars, value.params])
    if isinstance(value, (jex_core.Var, jex_core.Literal)):
        return _list_symbols(tuple(getattr(value.aval, "shape", ())))
    if hasattr(value, "shape") and isinstance(value.shape, tuple):
        return _list_symbols(value.shape)
    return list_dimensions(value)
