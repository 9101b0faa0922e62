"""Plans that run a jaxpr op by op with NumPy.

`Program` is what one jaxpr needs for any sizes: its equations with calls inlined, a slot for each
value, the last use of each value, and the arrays that results may overwrite. `Program.bind` makes a
closure of each equation for given sizes of the symbolic dimensions; closures of equations without
symbolic sizes are made once. A run calls the closures in order on a list of values.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr
from meshflow.interpreter.table import CALL_RULES, RULES, Equation, Rule, Spec, UnsupportedPrimitive, Writer
from meshflow.kernels.composite_primitives import composites
from meshflow.passes.jaxprs import AnyJaxpr, find_inner_jaxprs

__all__ = ["Plan", "Program", "build_plan"]

# Calls that are replaced by the equations of the called program.
INLINED = frozenset(
    ["jit", "pjit", "closed_call", "core_call", "call", "checkpoint", "remat2", "remat"]
    + ["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"]
)
# Equations with results that are their operands.
PASSED = frozenset(["optimization_barrier", "stop_gradient", "sharding_constraint", "device_put"])
# Elements of a constant result up to which an equation is computed while planning.
MAX_CONSTANT_SIZE = 1 << 16
# Bytes of a value from which its memory is released after its last use.
MIN_RELEASED_BYTES = 1 << 14
# Number of sizes of symbolic dimensions for which a plan keeps its closures.
MAX_BINDINGS = 64

# Closure of an equation: reads and writes a list of values.
_Step = Callable[[list[Any]], None]
# A size, or the index of a symbolic size.
_Sizes = Mapping[int, int]


class _Symbol(int):
    """The index of a symbolic size among those of a program."""


class _Value(NamedTuple):
    """The type of a value: sizes may be `_Symbol`s."""

    shape: tuple[int, ...]
    dtype: np.dtype


class _Node(NamedTuple):
    """An equation with the slots of its operands and results."""

    name: str
    rule: Rule
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_static: bool
    is_multiple: bool


class Symbols:
    """The symbolic sizes of a program and of its inner programs.

    Attributes:
      expressions: The distinct symbolic sizes.
    """

    def __init__(self) -> None:
        self.expressions: list[Any] = []
        self._indices: dict[Any, _Symbol] = {}
        self._programs: dict[int, tuple[AnyJaxpr, Program]] = {}

    def intern(self, size: Any) -> int:
        """Return an integer size, or the symbol of a symbolic one."""
        if not is_symbolic_dim(size):
            return int(size)
        symbol = self._indices.get(size)
        if symbol is None:
            symbol = self._indices[size] = _Symbol(len(self.expressions))
            self.expressions.append(size)
        return symbol

    def make_program(self, jaxpr: AnyJaxpr) -> Program:
        """Return the program of an inner jaxpr."""
        found = self._programs.get(id(jaxpr))
        if found is None:
            found = self._programs[id(jaxpr)] = (jaxpr, Program(jaxpr, self))
        return found[1]

    def evaluate(self, dims: Mapping[str, int]) -> list[int]:
        """Return the values of all symbolic sizes."""
        return [int(e._evaluate(dims)) for e in self.expressions]


def _has_symbolic(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_symbolic, value))
    return is_symbolic_dim(value)


class Program:
    """The equations of a jaxpr with slots for its values.

    Args:
      closed: The jaxpr.
      symbols: Symbolic sizes, shared with the enclosing program.
      donated: Indices of the inputs that may be overwritten.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.
    """

    def __init__(
        self, closed: AnyJaxpr, symbols: Symbols | None = None, donated: Sequence[int] = ()
    ) -> None:
        self.symbols = symbols or Symbols()
        self.values: list[_Value] = []
        self.constants: dict[int, np.ndarray] = {}
        self._nodes: list[_Node] = []
        self._unsupported: dict[str, None] = {}
        jaxpr, consts = _open(closed)
        self.inputs = [self._add_value(v.aval) for v in jaxpr.invars]
        self.outputs = self._inline(jaxpr, consts, self.inputs)
        if self._unsupported:
            raise UnsupportedPrimitive(list(self._unsupported))
        self._remove_dead_nodes()
        self._plan_memory(donated)
        self._bound: OrderedDict[tuple[int, ...], BoundProgram] = OrderedDict()
        self._static_steps: dict[int, _Step] = {}

    def _add_value(self, aval: Any) -> int:
        shape = tuple(map(self.symbols.intern, aval.shape))
        self.values.append(_Value(shape, np.dtype(aval.dtype)))
        return len(self.values) - 1

    def _add_constant(self, array: np.ndarray) -> int:
        self.values.append(_Value(array.shape, array.dtype))
        self.constants[len(self.values) - 1] = array
        return len(self.values) - 1

    def _inline(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """Add the equations of a jaxpr; return the slots of its results."""
        slots: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for v, c in zip(jaxpr.constvars, consts, strict=True):
            slots[v] = self._add_constant(np.asarray(c))

        def read(atom: Atom) -> int:
            if isinstance(atom, jex_core.Literal):
                return self._add_constant(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
            return slots[atom]

        for eqn in jaxpr.eqns:
            operands = [read(a) for a in eqn.invars]
            results = self._add_equation(eqn, operands)
            slots.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _add_equation(self, eqn: Any, operands: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name in INLINED:
            inner = next(
                eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params
            )
            found = CALL_RULES.get(eqn.params.get("name", ""))
            if found is None:
                return self._inline(*_open(inner), operands)
        elif name in PASSED or (
            name == "convert_element_type"
            and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
        ):
            return operands
        else:
            found = RULES.get(name)
            if found is None and eqn.primitive in composites:
                return self._inline_composite(eqn, operands)
        outputs = [self._add_value(v.aval) for v in eqn.outvars]
        if found is None:
            self._unsupported[name] = None
            return outputs
        values = [self.values[i] for i in (*operands, *outputs)]
        has_symbols = self.symbols.expressions and (
            any(type(n) is _Symbol for v in values for n in v.shape)
            or any(map(_has_symbolic, eqn.params.values()))
            or bool(find_inner_jaxprs(eqn))
        )
        is_static = not (found.uses_shapes and has_symbols)
        slots = tuple(operands), tuple(outputs)
        is_multiple = eqn.primitive.multiple_results
        node = _Node(name, found, eqn.params, *slots, is_static, is_multiple)
        if self._is_constant(node):
            results = self._compute(node)
            return [self._add_constant(np.asarray(a)) for a in results]
        self._nodes.append(node)
        return outputs

    def _inline_composite(self, eqn: Any, operands: list[int]) -> list[int]:
        """Add the equations that one of our own primitives represents."""
        specs = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars]
        function = functools.partial(composites[eqn.primitive], **eqn.params)
        return self._inline(*_open(jax.make_jaxpr(function)(*specs)), operands)

    def _is_constant(self, node: _Node) -> bool:
        size = sum(math.prod(self.values[i].shape) for i in node.outputs if node.is_static)
        return (
            node.is_static
            and node.rule.is_pure
            and (node.rule.is_view or size <= MAX_CONSTANT_SIZE)
            and all(i in self.constants for i in node.inputs)
            and not any(type(n) is _Symbol for i in node.outputs for n in self.values[i].shape)
        )

    def _compute(self, node: _Node) -> list[Any]:
        compute = node.rule.build(self.specialize(node, ()))
        run = compute.run if isinstance(compute, Writer) else compute
        with np.errstate(all="ignore"):
            results = run(*[self.constants[i] for i in node.inputs])
        return results if node.is_multiple else [results]

    def specialize(self, node: _Node, sizes: Sequence[int]) -> Equation:
        """Return an equation with known sizes."""

        def make_spec(slot: int) -> Spec:
            shape, dtype = self.values[slot]
            if node.is_static:
                return Spec(shape, dtype)
            return Spec(tuple([sizes[n] if type(n) is _Symbol else n for n in shape]), dtype)

        def replace(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                items = [replace(item) for item in value]
                return getattr(value, "_make", type(value))(items)
            return sizes[self.symbols.intern(value)] if is_symbolic_dim(value) else value

        params = node.params
        if not node.is_static and any(map(_has_symbolic, params.values())):
            params = {k: replace(v) if _has_symbolic(v) else v for k, v in params.items()}
        return Equation(
            node.name,
            params,
            tuple(map(make_spec, node.inputs)),
            tuple(map(make_spec, node.outputs)),
            tuple(map(self.constants.get, node.inputs)),
            lambda inner: self.symbols.make_program(inner).bind(sizes).run,
        )

    def _remove_dead_nodes(self) -> None:
        live, nodes = set(self.outputs), []
        for node in reversed(self._nodes):
            if not node.rule.is_pure or not live.isdisjoint(node.outputs):
                live.update(node.inputs)
                nodes.append(node)
        self._nodes = nodes[::-1]
        # Symbolic sizes in parameters must be known before they are evaluated.
        for node in self._nodes:
            for value in node.params.values():
                self._intern_all(value)
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    if isinstance(inner, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
                        self.symbols.make_program(inner)
        self._used_constants = {i: c for i, c in self.constants.items() if i in live}

    def _intern_all(self, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for item in value:
                self._intern_all(item)
        elif is_symbolic_dim(value):
            self.symbols.intern(value)

    def _plan_memory(self, donated: Sequence[int]) -> None:
        """Choose arrays to overwrite and to release.

        Values that may share memory form a group, named by the slot of its first value. A group may
        be overwritten or released after the last use of all its values.
        """
        group = list(range(len(self.values)))
        for node in self._nodes:
            if node.rule.is_view:
                for o in node.outputs:
                    group[o] = group[node.inputs[0]]
        end = len(self._nodes)
        last_use: dict[int, int] = {}
        for i, node in enumerate(self._nodes):
            for s in (*node.inputs, *node.outputs):
                last_use[group[s]] = i
        for s in self.outputs:
            last_use[group[s]] = end
        fixed = {group[s] for s in (*self.inputs, *self.constants)}
        fixed -= {group[self.inputs[i]] for i in donated}
        # Slots of the arrays that were freed and not yet overwritten, by type.
        free: dict[_Value, list[int]] = {}
        targets: list[int | None] = []
        released: list[list[int]] = [[] for _ in self._nodes]
        reused: set[int] = set()
        dying: dict[int, list[int]] = {}
        for g, i in last_use.items():
            if g not in fixed and i < end:
                dying.setdefault(i, []).append(g)
        owner = {}
        for i, node in enumerate(self._nodes):
            target = None
            if node.rule.is_writer and self.values[node.outputs[0]].shape:
                value = self.values[node.outputs[0]]
                for g in dying.get(i, ()) if node.rule.is_elementwise else ():
                    if g in node.inputs and self.values[g] == value and g not in reused:
                        target = g
                        break
                if target is None and free.get(value):
                    target = free[value].pop()
                if target is not None:
                    reused.add(target)
            targets.append(target)
            if target is not None:
                owner[node.outputs[0]] = target
            for g in dying.get(i, ()):
                if g not in reused:
                    free.setdefault(self.values[g], []).append(g)
        members: dict[int, list[int]] = {}
        for s, g in enumerate(group):
            members.setdefault(g, []).append(s)
        for i, groups in dying.items():
            for g in groups:
                if g not in reused:
                    released[i] += members[g]
                    while g in owner:  # The arrays that the value overwrote.
                        g = owner[g]
                        released[i].append(g)
        self._targets, self._released, self._group = targets, released, group
        # Results must not share memory with operands, constants and other results.
        seen: set[int] = set()
        self.copied = []
        donated_groups = {group[self.inputs[i]] for i in donated}
        for s in self.outputs:
            g = group[s]
            is_owned = g not in fixed and g not in seen and (g == s or g in donated_groups)
            self.copied.append(not is_owned)
            seen.add(g)

    def bind(self, sizes: Sequence[int]) -> BoundProgram:
        """Return the closures for values of the symbolic sizes."""
        key = tuple(sizes)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._make_steps(sizes)
            if len(self._bound) > MAX_BINDINGS:
                self._bound.popitem(last=False)
        return bound

    def _make_steps(self, sizes: Sequence[int]) -> BoundProgram:
        steps: list[_Step] = []
        for i, (node, target) in enumerate(zip(self._nodes, self._targets, strict=True)):
            step = self._static_steps.get(i)
            if step is None:
                compute = node.rule.build(self.specialize(node, sizes))
                step = _make_step(compute, node, target)
                if node.is_static:
                    self._static_steps[i] = step
            steps.append(step)
            dead = [s for s in self._released[i] if self._count_bytes(s, sizes) >= MIN_RELEASED_BYTES]
            if dead:
                steps.append(_make_release(dead))
        return BoundProgram(self, steps)

    def _count_bytes(self, slot: int, sizes: Sequence[int]) -> int:
        shape, dtype = self.values[slot]
        return math.prod(sizes[n] if type(n) is _Symbol else n for n in shape) * dtype.itemsize


class Plan:
    """A program that runs on host arrays.

    Args:
      closed: The jaxpr; its dimensions may be symbolic.
      donated: Indices of the inputs that a run may overwrite.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.
    """

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[int] = ()) -> None:
        self._program = Program(closed, donated=donated)
        self._donated = tuple(donated)
        # Axes of symbolic size, with the sizes.
        self._axes = [
            (i, axis, size)
            for i, aval in enumerate(closed.in_avals)
            for axis, size in enumerate(aval.shape)  # type: ignore[attr-defined]
            if is_symbolic_dim(size)
        ]
        self._bindings: dict[tuple[int, ...], BoundProgram] = {}

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program.

        Args:
          arrays: The inputs. Symbolic dimensions have the sizes of their axes.

        Returns:
          New arrays, which share no memory with each other, or with inputs that are not donated.
        """
        if self._donated:
            arrays = list(arrays)
            for i in self._donated:
                if not arrays[i].flags.writeable:
                    arrays[i] = arrays[i].copy()
        bound = self._bind(arrays)
        with np.errstate(all="ignore"):
            results = bound.run(arrays)
        return [
            np.array(r, order="C") if iscopied else np.ascontiguousarray(r) if r.ndim else np.asarray(r)
            for r, iscopied in zip(results, self._program.copied, strict=True)
        ]

    def _bind(self, arrays: Sequence[np.ndarray]) -> BoundProgram:
        key = tuple([arrays[i].shape[axis] for i, axis, _ in self._axes])
        bound = self._bindings.get(key)
        if bound is None:
            dims = solve_sizes([size for _, _, size in self._axes], key)
            bound = self._program.bind(self._program.symbols.evaluate(dims))
            if len(self._bindings) >= MAX_BINDINGS:
                self._bindings.clear()
            self._bindings[key] = bound
        return bound


def build_plan(closed: ClosedJaxpr, donated: Sequence[int] = ()) -> Plan:
    """Plan the execution of a jaxpr op by op; the arguments are those of `Plan`.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> plan = build_plan(jax.make_jaxpr(lambda x: jnp.tanh(x) * 2)(np.zeros(2, "float32")))
      >>> plan.run([np.array([0.0, 1.0], "float32")])
      [array([0.       , 1.5231884], dtype=float32)]
    """
    return Plan(closed, donated)


def solve_sizes(expressions: Sequence[Any], values: Sequence[int]) -> dict[str, int]:
    """Return the values of the variables of symbolic sizes, given the sizes of axes.

    Raises:
      ValueError: If no size determines a variable, or the sizes contradict each other.
    """
    dims: dict[str, int] = {}
    pending = list(zip(expressions, values, strict=True))
    while pending:
        remaining = []
        for expression, value in pending:
            unknown = [n for n in expression._get_vars() if n not in dims]
            if not unknown:
                if int(expression._evaluate(dims)) != value:
                    raise ValueError(f"the sizes {expression} and {value} differ for {dims}")
                continue
            found = None
            if len(unknown) == 1:
                (name,) = unknown
                first, second = (int(expression._evaluate({**dims, name: n})) for n in (1, 2))
                found = 1 + (value - first) // (second - first) if second != first else None
            if found is None:
                remaining.append((expression, value))
            else:
                dims[name] = found
                remaining.append((expression, value))
        if len(remaining) == len(pending) and not any(
            all(n in dims for n in e._get_vars()) for e, _ in remaining
        ):
            raise ValueError(f"the sizes {[str(e) for e, _ in remaining]} do not determine their variables")
        pending = remaining
    return dims


class BoundProgram:
    """The closures of a program for known sizes."""

    def __init__(self, program: Program, steps: list[_Step]) -> None:
        self._steps = steps
        self._initial: list[Any] = [None] * len(program.values)
        for slot, constant in program._used_constants.items():
            self._initial[slot] = constant
        self._inputs, self._outputs = program.inputs, program.outputs
        
    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run the program; results may be scalars, and may share memory with operands."""
        values = self._initial.copy()
        for slot, array in zip(self._inputs, arrays):
            values[slot] = array
        for step in self._steps:
            step(values)
        return [values[slot] for slot in self._outputs]


def _open(jaxpr: AnyJaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    if isinstance(jaxpr, jex_core.ClosedJaxpr):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def _make_release(slots: list[int]) -> _Step:
    def release(values: list[Any]) -> None:
        for slot in slots:
            values[slot] = None

    return release


def _make_step(
    compute: Any, node: _Node, target: int | None
) -> _Step:
    """Return the closure of an equation."""
    inputs, outputs = node.inputs, node.outputs
    if isinstance(compute, Writer):
        if target is not None:
            compute, inputs = compute.write, (*inputs, target)
        else:
            compute = compute.run
    if node.is_multiple:

        def step(values: list[Any]) -> None:
            for o, y in zip(outputs, compute(*[values[i] for i in inputs])):
                values[o] = y

        return step
    (o,) = outputs
    if len(inputs) == 1:
        (a,) = inputs

        def step(values: list[Any]) -> None:
            values[o] = compute(values[a])

    elif len(inputs) == 2:
        a, b = inputs

        def step(values: list[Any]) -> None:
            values[o] = compute(values[a], values[b])

    elif len(inputs) == 3:
        a, b, c = inputs

        def step(values: list[Any]) -> None:
            values[o] = compute(values[a], values[b], values[c])

    else:

        def step(values: list[Any]) -> None:
            values[o] = compute(*[values[i] for i in inputs])

    return step
