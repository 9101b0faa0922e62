"""Programs: the equations of a jaxpr with calls inlined, and their closures for given sizes."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from meshflow.environment.inner_jaxprs import AnyJaxpr, find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import (
    count_scan_operands,
    expand_high_level,
    jex_core,
    list_dimensions,
)
from meshflow.environment.types import Atom, Jaxpr, JaxprEqn
from meshflow.interpreter.memory import SlotEquation, ValueType, plan_memory
from meshflow.interpreter.products import fold_transposes
from meshflow.interpreter.random_keys import KEY_PRIMITIVES, is_key
from meshflow.interpreter.symbolic_sizes import (
    UNBOUND,
    Symbol,
    Symbols,
    has_symbolic_size,
    has_symbols,
)
from meshflow.interpreter.table import (
    CALL_RULES,
    EXPANSIONS,
    INLINED,
    RULES,
    Equation,
    Rule,
    Spec,
    UnsupportedPrimitive,
    Writer,
)
from meshflow.kernels.composite_primitives import composites

# Equations with results that are their operands.
PASSED = frozenset(
    ["optimization_barrier", "stop_gradient", "device_put", "name", "fusion_boundary"]
    + ["shard_like", "pvary"]
)
# Equations with results that determine symbolic sizes.
_BINDERS = frozenset(["host_computation", "set_sizes", "write_row", "cond", "while", "scan"])
# Elements of a constant result up to which an equation is computed while planning.
MAX_CONSTANT_SIZE = 1 << 16
# Bytes of a value from which its memory is released after its last use.
MIN_RELEASED_BYTES = 1 << 14
# Number of bindings of symbolic sizes for which a program keeps its closures.
MAX_BINDINGS = 256

_Specs: TypeAlias = Mapping[int, Spec]
# Closure of an equation: reads and writes a list of values.
Step: TypeAlias = Callable[[list[Any]], None]
# Makes an array of a shape and a dtype.
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class SlotProgram:
    """The equations of a jaxpr with slots for its values.

    Args:
      jaxpr: The jaxpr.
      donated: Indices of the inputs that may be overwritten.
      outer: The program that contains this one.
      allocate: Makes arrays for results, given a shape and a dtype; by default NumPy.

    Attributes:
      inputs: Slots of the inputs.
      outputs: Slots of the results.
      is_copied: For each result, whether it may share memory with other values.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.
    """

    def __init__(
        self,
        jaxpr: AnyJaxpr,
        donated: Collection[int] = (),
        outer: SlotProgram | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self._allocate, self._results = allocate, frozenset[int]()
        self.symbols: Symbols = outer.symbols if outer else Symbols()
        # Programs of inner jaxprs by id and donated inputs, with the jaxprs, because ids are reused.
        self._programs: dict[tuple[int, tuple[int, ...]], tuple[AnyJaxpr, SlotProgram]]
        self._programs = outer._programs if outer else {}
        self._values: list[ValueType] = []
        self.constants: dict[int, np.ndarray] = {}
        self._nodes: list[SlotEquation] = []
        # For each value that repeats another one along axes, the slot of that one and the axes that it has.
        self._repeated: dict[int, tuple[int, tuple[int, ...]]] = {}
        # Slots of constants without axes by value, and of the results of equations without axes.
        self._scalars: dict[tuple[Any, ...], int] = {}
        self._equal: dict[tuple[Any, ...] | None, list[int]] = {}
        # Names of the primitives without a rule, in order.
        self._unsupported: dict[str, None] = {}
        opened = to_open_jaxpr(jaxpr)
        self.inputs = [self._add_value(v.aval) for v in opened.invars]
        self.outputs = self._inline(opened, getattr(jaxpr, "consts", ()), self.inputs)
        self._results = frozenset(self.outputs)
        if self._unsupported:
            raise UnsupportedPrimitive(list(self._unsupported))
        self._remove_dead_nodes()
        self._memory = plan_memory(
            self._nodes,
            self._values,
            self.inputs,
            self.constants,
            self.outputs,
            donated,
            allocate is not None,
        )
        self.is_copied = self._memory.is_copied
        self._bound: OrderedDict[tuple[Any, ...], list[Step]] = OrderedDict()
        self.initial_values: list[Any] = [None] * len(self._values)
        for slot, constant in self.constants.items():
            self.initial_values[slot] = constant

        def may_be_large(slot: int) -> bool:
            value = self._values[slot]
            return has_symbols(value.shape) or _count_bytes(value) >= MIN_RELEASED_BYTES

        released = [list(filter(may_be_large, slots)) for slots in self._memory.released]
        self._releases = [_make_release(slots) if slots else None for slots in released]
        # For each node, its closures by the values of its symbolic sizes, which are the only ones it depends on; and the
        # indices of these, or None if an inner program may have further ones.
        self._steps: list[dict[tuple[int, ...], Step]] = [{} for _ in self._nodes]
        self._node_symbols = list(map(self._list_symbols, self._nodes))
        for i, node in enumerate(self._nodes):
            if node.is_static:
                self._steps[i][()] = self._make_step(i, {}, ())
            elif node.rule.accepts_symbols:
                compute = node.rule.build(self._specialize(node, {}, None))
                if compute is not None:
                    self._node_symbols[i] = ()
                    self._steps[i][()] = make_step(compute, node, self._memory.targets[i])

    @property
    def names(self) -> set[str]:
        """Return the names of the primitives of this program and of those inside."""
        programs = [self, *(program for _, program in self._programs.values())]
        return {node.name for program in programs for node in program._nodes}

    def _list_symbols(self, node: SlotEquation) -> tuple[int, ...] | None:
        if node.is_static:
            return ()
        if find_inner_jaxprs(node):
            return None
        shapes = [self._values[i].shape for i in (*node.inputs, *node.outputs)]
        found: set[int] = set()
        _collect_symbols([*shapes, *node.symbolic_params.values()], found)
        return tuple(sorted(found))

    def _add_value(self, aval: Any) -> int:
        shape, dtype = self.symbols.intern_shape(aval.shape), aval.dtype
        if is_key(dtype):
            shape, dtype = (*shape, 2), np.dtype(np.uint32)
        self._values.append(ValueType(shape, dtype))
        return len(self._values) - 1

    def _add_constant(self, array: np.ndarray) -> int:
        self._values.append(ValueType(array.shape, array.dtype))
        self.constants[len(self._values) - 1] = array
        return len(self._values) - 1

    def _inline(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """Add the equations of a jaxpr; return the slots of its results."""
        slots: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for v, c in zip(jaxpr.constvars, consts, strict=True):
            slots[v] = self._add_constant(np.asarray(c))

        def read(atom: Atom) -> int:
            if not isinstance(atom, jex_core.Literal):
                return slots[atom]
            value: np.ndarray = np.asarray(atom.val, atom.aval.dtype)  # type: ignore[attr-defined]
            key = value.shape, value.dtype, value.tobytes()
            if key not in self._scalars:
                self._scalars[key] = self._add_constant(value)
            return self._scalars[key]

        for eqn in jaxpr.eqns:
            results = self._add_equation(eqn, [read(a) for a in eqn.invars])
            slots.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _add_equation(self, eqn: JaxprEqn, operands: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name in INLINED:
            found = CALL_RULES.get(eqn.params.get("name", ""))
            if found is None:
                inner = find_inner_jaxprs(eqn)[0]
                return self._inline(to_open_jaxpr(inner), getattr(inner, "consts", ()), operands)
        elif (name in PASSED and not _moves_arrays(eqn)) or (
            name == "convert_element_type"
            and self._values[operands[0]].dtype == eqn.outvars[0].aval.dtype  # type: ignore[attr-defined]
        ):
            return operands
        elif name in EXPANSIONS:
            closed = EXPANSIONS[name](eqn)
            return self._inline(closed.jaxpr, closed.consts, operands)
        else:
            found = RULES.get(name)
            composite = composites.get(eqn.primitive)
            function = expand_high_level(eqn)
            if found is None and composite is not None:
                function = functools.partial(composite, **eqn.params)
            if function is not None:
                return self._inline_function(function, eqn, operands)
        if name not in KEY_PRIMITIVES and not all(
            isinstance(a.aval.dtype, np.dtype)  # type: ignore[attr-defined]
            for a in (*eqn.invars, *eqn.outvars)
        ):
            found = None
        if found is not None and found.broadcasts and self._repeated:
            operands = self._skip_broadcasts(name, operands, eqn.outvars[0].aval.shape)  # type: ignore[attr-defined]
        # Optimizers compute the same numbers for each variable.
        key = (name, *operands, *eqn.params.items()) if _computes_number(eqn, found) else None
        if key in self._equal:
            return self._equal[key]
        outputs = [self._add_value(v.aval) for v in eqn.outvars]
        if found is None:
            self._unsupported[name] = None
            return outputs
        values = [self._values[i] for i in (*operands, *outputs)]
        symbolic_params: dict[str, Any] = {}
        has_sizes = False
        if self.symbols.expressions:
            symbolic_params = {k: v for k, v in eqn.params.items() if has_symbolic_size(v)}
            has_sizes = has_symbols(*[v.shape for v in values]) or bool(find_inner_jaxprs(eqn))
        is_static = not (symbolic_params or (found.uses_shapes and has_sizes))
        slots = tuple(operands), tuple(outputs)
        is_multiple = eqn.primitive.multiple_results
        node = SlotEquation(
            name, found, eqn.params, *slots, is_static, is_multiple, symbolic_params
        )
        if self._is_constant(node):
            outputs = [self._add_constant(np.asarray(a)) for a in self._compute(node)]
        else:
            self._nodes.append(node)
        if key is not None:
            self._equal[key] = outputs
        if name == "broadcast_in_dim" and len(operands) == 1 and outputs[0] not in self.constants:
            self._repeated[outputs[0]] = operands[0], tuple(eqn.params["broadcast_dimensions"])
        return outputs

    def _skip_broadcasts(
        self, name: str, operands: list[int], result_shape: tuple[Any, ...]
    ) -> list[int]:
        """Replace operands of an elementwise equation that repeat other values by these, which NumPy repeats.

        One operand keeps the shape of the result. Most views of unknown sizes become unnecessary: they would be planned
        for all sizes.
        """
        shape = self.symbols.intern_shape(result_shape)
        is_full = [self._values[o].shape == shape for o in operands]
        # The predicate of a selection has the shape of the result, or chooses between complete cases.
        first = name == "select_n"
        if first and not is_full[0]:
            return operands
        skipped = [k for k in range(first, len(operands)) if operands[k] in self._repeated]
        if all(k in skipped for k, full in enumerate(is_full) if full):
            skipped = skipped[1:]
        return [self._align(o) if k in skipped else o for k, o in enumerate(operands)]

    def _align(self, slot: int) -> int:
        """Return the slot of the value that another one repeats, with axes of size 1 where NumPy does not add them."""
        source, axes = self._repeated[slot]
        rank, value = len(self._values[slot].shape), self._values[source]
        if axes == tuple(range(rank - len(axes), rank)):
            return source
        shape = tuple([value.shape[axes.index(i)] if i in axes else 1 for i in range(rank)])
        params = {"shape": shape, "broadcast_dimensions": axes, "sharding": None}
        symbolic = {"shape": shape} if has_symbols(shape) else {}
        self._values.append(ValueType(shape, value.dtype))
        aligned = len(self._values) - 1
        found = RULES["broadcast_in_dim"]
        self._nodes.append(
            SlotEquation(
                "broadcast_in_dim",
                found,
                params,
                (source,),
                (aligned,),
                not symbolic,
                False,
                symbolic,
            )
        )
        self._repeated[slot] = aligned, tuple(range(rank))
        return aligned

    def _inline_function(
        self, function: Callable[..., Any], eqn: JaxprEqn, operands: list[int]
    ) -> list[int]:
        """Add the equations of the function of arrays that an equation represents."""
        specs = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars]  # type: ignore[attr-defined]
        closed = jax.make_jaxpr(function)(*specs)
        return self._inline(closed.jaxpr, closed.consts, operands)

    def _is_constant(self, node: SlotEquation) -> bool:
        shapes = [self._values[i].shape for i in node.outputs]
        return (
            node.is_static
            and node.rule.is_pure
            and all(i in self.constants for i in node.inputs)
            and not has_symbols(*shapes)
            and (
                node.rule.is_view or sum(map(math.prod, shapes)) <= MAX_CONSTANT_SIZE  # type: ignore[arg-type]
            )
        )

    def _compute(self, node: SlotEquation) -> list[Any]:
        compute = node.rule.build(self._specialize(node, {}, ()))
        run = compute.run if isinstance(compute, Writer) else compute
        with np.errstate(all="ignore"):
            results = run(*[self.constants[i] for i in node.inputs])
        return results if node.is_multiple else [results]

    def _specialize(
        self,
        node: SlotEquation,
        dims: Mapping[str, int],
        sizes: Sequence[int] | None,
        specs: _Specs | None = None,
    ) -> Equation:
        """Return an equation with known sizes, given the types of values with symbolic sizes; with symbols for None."""
        if specs is None:
            # Rules of static nodes do not read symbols in shapes.
            specs = {i: Spec(*self._values[i]) for i in (*node.inputs, *node.outputs)}  # type: ignore[arg-type]

        def bind(jaxpr: AnyJaxpr, donated: Iterable[int]) -> BoundProgram:
            program = self._make_inner_program(jaxpr, donated)
            if node.name not in _BINDERS or not self.symbols.expressions:
                return program.bind(dims)
            operands = _find_inner_operands(node, jaxpr)
            skipped = tuple(
                [i for i, s in enumerate(operands) if self._find_open([s], sizes or ())]
            )
            if node.name == "cond":
                return program.bind(dims, skipped=skipped)
            varying = program.list_varying_sizes()
            return program.bind(
                {k: n for k, n in dims.items() if k not in varying}, skipped=skipped
            )

        if sizes is not None and UNBOUND in sizes and node.name not in _BINDERS:
            # An equation on constants is computed outside of the loop or branch with the size: NumPy broadcasts it.
            sizes = [1 if n == UNBOUND else n for n in sizes]
            specs = {
                i: Spec(
                    self.symbols.bind_shape(self._values[i].shape, sizes), self._values[i].dtype
                )
                for i in (*node.inputs, *node.outputs)
            }
        params = node.params
        if node.symbolic_params:
            params = {
                **params,
                **{
                    k: v if sizes is None else self.symbols.replace(v, sizes)
                    for k, v in node.symbolic_params.items()
                },
            }
        return Equation(
            node.name,
            params,
            tuple([specs[i] for i in node.inputs]),
            tuple([specs[i] for i in node.outputs]),
            tuple(map(self.constants.get, node.inputs)),
            bind,
            not node.is_static,
        )

    def list_varying_sizes(self) -> set[str]:
        """List the dimensions of the inputs that have another value in each iteration of a loop."""
        symbols = [n for s in self.inputs for n in self._values[s].shape if isinstance(n, Symbol)]
        names = {v for n in symbols for v in list_dimensions(self.symbols.expressions[n.index])}
        return {name for name in names if name[0] in "uv"}

    def _make_inner_program(self, jaxpr: AnyJaxpr, donated: Iterable[int] = ()) -> SlotProgram:
        key = id(jaxpr), tuple(donated)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = (jaxpr, SlotProgram(jaxpr, key[1], self))
        return found[1]

    def _remove_dead_nodes(self) -> None:
        """Remove equations without use, and prepare the operands of the others."""
        live, nodes = set(self.outputs), []
        for node in reversed(self._nodes):
            has_effects = not (node.rule.is_pure or node.rule.is_view)
            if has_effects or not live.isdisjoint(node.outputs):
                live.update(node.inputs)
                nodes.append(node)
        self._nodes = fold_transposes(nodes[::-1], self._values, self.outputs)
        for node in self._nodes:
            if node.is_static:
                continue
            for name, value in node.symbolic_params.items():
                node.symbolic_params[name] = self.symbols.intern_all(value)
            for inner in find_inner_jaxprs(node):
                self._make_inner_program(inner)
        self.constants = {i: c for i, c in self.constants.items() if i in live}

    def bind(
        self, dims: Mapping[str, int], first: int = -1, skipped: tuple[int, ...] = ()
    ) -> BoundProgram:
        """Return the closures for values of the symbolic sizes.

        Args:
          dims: Values of the dimensions by name. Others depend on values that the program computes.
          first: Index of the first equation to run; -1 for a run from the start.
          skipped: Indices of the inputs with shapes that determine no sizes.
        """
        return BoundProgram(self, self._find_steps(dims, first, skipped))

    def _find_steps(
        self, dims: Mapping[str, int], first: int, skipped: tuple[int, ...] = ()
    ) -> list[Step]:
        key = (first, skipped, *sorted(dims.items())) if dims else (first, skipped)
        steps = self._bound.get(key)
        if steps is None:
            steps = self._bound[key] = self._make_steps(dims, first, skipped)
            if len(self._bound) > MAX_BINDINGS:
                self._bound.popitem(last=False)
        return steps

    def _make_steps(
        self, dims: Mapping[str, int], first: int, skipped: tuple[int, ...]
    ) -> list[Step]:
        """Return the closures up to the first value of a size that is unknown before it is computed."""
        symbols = self.symbols
        sizes = symbols.evaluate(dims)
        types = _LazySpecs(symbols, self._values, sizes)
        is_open = UNBOUND in sizes
        if is_open and first < 0:
            inputs = [s for i, s in enumerate(self.inputs) if i not in skipped]
            if self._find_open(inputs, sizes):
                return [self._make_continuation(inputs, dims, 0)]
        steps: list[Step] = []
        for i in range(max(first, 0), len(self._nodes)):
            indices = self._node_symbols[i]
            if indices is None:
                steps.append(self._make_step(i, dims, sizes, types))
            else:
                key = tuple([sizes[k] for k in indices])
                step = self._steps[i].get(key)
                if step is None:
                    if len(self._steps[i]) == MAX_BINDINGS:
                        self._steps[i].clear()
                    step = self._steps[i][key] = self._make_step(i, dims, sizes, types)
                steps.append(step)
            if is_open and self._nodes[i].name in _BINDERS:
                outputs = self._find_open(self._nodes[i].outputs, sizes)
                if outputs:
                    steps.append(self._make_continuation(outputs, dims, i + 1))
                    break
            release = self._releases[i]
            if release is not None:
                steps.append(release)
        return steps

    def _find_open(self, slots: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return the slots of values with an unknown size."""
        return [s for s in slots if self.symbols.is_open(self._values[s].shape, sizes)]

    def _make_continuation(self, slots: Sequence[int], dims: Mapping[str, int], first: int) -> Step:
        """Return a closure that reads sizes from the shapes of values, and runs the other equations."""
        patterns = [self._values[s].shape for s in slots]
        # Loops run the same equations with the same shapes many times.
        steps_by_shapes: dict[tuple[Any, ...], list[Step]] = {}

        def run_rest(values: list[Any]) -> None:
            # Rows of different sizes, which are lists, determine no size.
            shapes = tuple([getattr(values[s], "shape", None) for s in slots])
            steps = steps_by_shapes.get(shapes)
            if steps is None:
                pairs = zip(patterns, shapes, strict=True)
                known = [(pattern, shape) for pattern, shape in pairs if shape is not None]
                if len(steps_by_shapes) == MAX_BINDINGS:
                    steps_by_shapes.clear()
                steps = self._find_steps(self.symbols.solve(known, dims), first)
                steps_by_shapes[shapes] = steps
            for step in steps:
                step(values)

        return run_rest

    def _make_step(
        self,
        i: int,
        dims: Mapping[str, int],
        sizes: Sequence[int],
        specs: _Specs | None = None,
    ) -> Step:
        node = self._nodes[i]
        equation = self._specialize(node, dims, sizes, specs)
        compute, allocate = node.rule.build(equation), self._allocate
        if (
            allocate is not None
            and isinstance(compute, Writer)
            and self._results.issuperset(node.outputs)
            # One function is made for all sizes of a static node.
            and not has_symbols(*[shape for shape, _ in equation.outputs])
        ):
            write, types = compute.write, equation.outputs
            compute = lambda *operands: write(*operands, *[allocate(*t) for t in types])
        return make_step(compute, node, self._memory.targets[i])


def _computes_number(eqn: JaxprEqn, found: Rule | None) -> bool:
    """Check whether an equation computes one number, so that an equal equation can use its result."""
    is_other = eqn.primitive.name in ("convert_element_type", "dim_as_value")
    if found is None or not (found.is_elementwise or is_other):
        return False
    return not eqn.outvars[0].aval.shape  # type: ignore[attr-defined]


def _collect_symbols(value: object, found: set[int]) -> None:
    """Add the indices of the symbols in nested tuples and lists to a set."""
    if isinstance(value, (tuple, list)):
        for item in value:
            _collect_symbols(item, found)
    elif type(value) is Symbol:
        found.add(value.index)


def _count_bytes(spec: Spec | ValueType) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize  # type: ignore[arg-type]


class _LazySpecs(dict[int, Spec]):
    """The types of values for known sizes, computed when they are needed."""

    def __init__(self, symbols: Symbols, values: Sequence[ValueType], sizes: Sequence[int]) -> None:
        self._symbols, self._values, self._sizes = symbols, values, sizes

    def __missing__(self, slot: int) -> Spec:
        value = self._values[slot]
        spec = Spec(self._symbols.bind_shape(value.shape, self._sizes), value.dtype)
        self[slot] = spec
        return spec


class BoundProgram:
    """The closures of a program for known sizes."""

    def __init__(self, program: SlotProgram, steps: list[Step]) -> None:
        self.steps = steps
        self.inputs, self.outputs = program.inputs, program.outputs
        self.is_copied = program.is_copied
        self._initial = program.initial_values

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run the program; results may be scalars, and may share memory with operands."""
        values = self._initial.copy()
        for slot, array in zip(self.inputs, arrays, strict=True):
            values[slot] = array
        for step in self.steps:
            step(values)
        return [values[slot] for slot in self.outputs]


def _find_inner_operands(node: SlotEquation, jaxpr: AnyJaxpr) -> Sequence[int]:
    """Return the slots of the operands that become inputs of an inner program; not those read by row."""
    p = node.params
    if node.name == "cond":
        return node.inputs[1:]
    if node.name == "scan":
        return node.inputs[: sum(count_scan_operands(p))]
    num_test, num_body = p["cond_nconsts"], p["body_nconsts"]
    carry = node.inputs[num_test + num_body :]
    if jaxpr is p["cond_jaxpr"]:
        return (*node.inputs[:num_test], *carry)
    return (*node.inputs[num_test : num_test + num_body], *carry)


def _make_release(slots: list[int]) -> Step:
    def release(values: list[Any]) -> None:
        for slot in slots:
            values[slot] = None

    return release


def make_step(compute: Any, node: SlotEquation, targets: tuple[int, ...] | None) -> Step:
    """Return the closure of an equation, which writes to the arrays in the slots `targets`."""
    inputs, outputs = node.inputs, node.outputs
    if isinstance(compute, Writer):
        if targets is not None:
            compute, inputs = compute.write, (*inputs, *targets)
        else:
            compute = compute.run
    step: Step
    if node.is_multiple:

        def step(values: list[Any]) -> None:
            for o, y in zip(outputs, compute(*[values[i] for i in inputs]), strict=True):
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


def _moves_arrays(eqn: JaxprEqn) -> bool:
    """Check whether an equation moves its operands to certain devices."""
    targets = eqn.params.get("devices", ())
    return any(target is not None for target in targets)
