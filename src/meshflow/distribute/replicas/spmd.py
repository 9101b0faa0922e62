"""`Strategy.run` for several replicas: a function is traced for one replica and mapped over all.

If the arguments of all replicas have the same shapes, the program is one `vmap` over the mesh axis
`REPLICA_AXIS`. If shapes differ, as in the last batch of a dataset or for ragged tensors, the function is
traced once for each shape, and the programs of the replicas are evaluated in lockstep, from one collective
to the next.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    InvalidValueError,
    ValueNeededError,
)
from meshflow.core.tracing.trace import (
    CompositeResultSlot,
    TensorSlot,
    TracedFunction,
    trace,
)
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, read_tensors
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.collectives import REPLICA_AXIS
from meshflow.distribute.replicas.context import (
    ReplicaContext,
    ReplicaStrategy,
    SizeRequiredError,
    context_scope,
)
from meshflow.distribute.replicas.python_replicas import (
    DIFFERENT_COLLECTIVES_MESSAGE,
    join_leaves,
    run_python_replicas,
)
from meshflow.distribute.replicas.values import (
    PerReplica,
    Stacked,
    map_replicas,
    stack_values,
    to_value,
)
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, PyTree, Var


def run_replicas(
    strategy: ReplicaStrategy,
    fn: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
) -> PyTree:
    """Run a function for all replicas of a strategy; see `Strategy.run`."""

    def convert_leaf(leaf: object) -> object:
        if isinstance(leaf, Stacked):
            return leaf
        if isinstance(leaf, PerReplica):
            return stack_values(map(to_value, leaf.values))
        return convert_to_tensor(leaf) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf

    arguments = map_replicas(convert_leaf, (args, kwargs))
    if context.trace is not None:
        return _run_program(strategy, fn, arguments)
    runner = strategy.runners.get(fn)
    if runner is not None:
        return runner(arguments)
    try:
        return _run_program(strategy, fn, arguments)
    except ValueNeededError:
        is_function = isinstance(fn, Function)
    # Sizes that depend on values are symbols in a function. Each step of a loop uses the same one.
    target = weakref.proxy(fn) if is_function else fn

    def run(arguments: PyTree) -> PyTree:
        if context.trace is not None:
            return _run_program(strategy, target, arguments)
        # A function that needs other values runs as Python, also in later calls.
        if not is_function:
            with contextlib.suppress(TypeError):
                strategy.runners[fn] = functools.partial(
                    run_python_replicas, strategy, weakref.proxy(fn)
                )
        return run_python_replicas(strategy, target, arguments)

    runner = Function(run, name=getattr(fn, "__name__", "replica"))
    results = runner(arguments)
    if is_function:
        strategy.runners[fn] = runner
    return results


def _run_program(strategy: ReplicaStrategy, fn: Callable[..., PyTree], arguments: PyTree) -> PyTree:
    leaves: list[object] = []
    map_replicas(leaves.append, arguments)
    if all(isinstance(v, Stacked) for v in leaves if isinstance(v, PerReplica)):
        to_template = lambda v: _to_shape_struct(v.stacked, 1) if isinstance(v, Stacked) else v
        template = map_replicas(to_template, arguments)
        mapped = [
            isinstance(v, jax.ShapeDtypeStruct)
            for v in nest.flatten_parts(template)
            if _is_operand(v)
        ]
        program = strategy.get_program(
            fn, (template, mapped), lambda: SpmdProgram(strategy, fn, template, mapped)
        )
        if not program.has_unknown_sizes:
            select = lambda v: v.stacked if isinstance(v, Stacked) else v
            return program(_list_operands(map_replicas(select, arguments)))
    # The replicas have different shapes, or values that consist of several tensors.
    rows = map_replicas(
        lambda v: PerReplica(v.values) if isinstance(v, PerReplica) else v, arguments
    )

    def select_replica(index: int) -> PyTree:
        return map_replicas(lambda v: v[index] if isinstance(v, PerReplica) else v, rows)

    replicas = list(map(select_replica, range(strategy.num_replicas_in_sync)))
    lockstep_program = strategy.get_program(
        fn, replicas, lambda: LockstepProgram(strategy, fn, replicas)
    )
    return lockstep_program([_list_operands(values) for values in replicas])


def _is_operand(leaf: object) -> bool:
    """Check whether a leaf is an operand of a program; strings are constants of traces."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    return isinstance(leaf, Tensor) and leaf.array.dtype != object


def _list_operands(arguments: PyTree) -> list[Any]:
    return list(filter(_is_operand, nest.flatten_parts(arguments)))


def _to_shape_struct(tensor: Tensor, num_skipped: int = 0) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape.as_list())[num_skipped:], tensor.dtype.dtype)


def make_template_key(template: PyTree) -> Hashable:
    """Return the structure of a template, with the shapes and dtypes of the operands, as a key.

    Args:
      template: Nested structure with values, tensors and `jax.ShapeDtypeStruct`s.
    """
    leaves, tree = jax.tree.flatten(template, lambda leaf: isinstance(leaf, Tensor))
    return tree, tuple([(tuple(v.shape), v.dtype) if _is_operand(v) else v for v in leaves])


def _trace_replica(
    strategy: ReplicaStrategy,
    fn: Callable[..., PyTree],
    template: PyTree,
    replica: ReplicaContext | None = None,
) -> TracedFunction:
    """Trace a function for one replica with arguments of the template's shapes."""
    replica = replica or ReplicaContext(strategy, None)
    split = nest.split_composites(template)
    leaves = nest.flatten(split)
    indices = [i for i, leaf in enumerate(leaves) if _is_operand(leaf)]

    def call(*symbolic: Tensor) -> PyTree:
        for index, tensor in zip(indices, symbolic, strict=True):
            leaves[index] = tensor
        args, kwargs = nest.join_composites(template, nest.pack_sequence_as(split, leaves))
        with context_scope(replica):
            # Variables must be read in this context, where they have the values of the replica.
            scope: Any = context.trace
            result = fn(*args, **kwargs)
            return nest.map_structure(lambda leaf: _read_variable(leaf, scope.created), result)

    name = getattr(fn, "__name__", "replica")
    return trace(
        call,
        tuple([leaves[i] for i in indices]),
        name=name,
        runs_immediately=True,
        axes=[(REPLICA_AXIS, strategy.num_replicas_in_sync)],
    )


class _CreatedVariable:
    """Result of a replica function that is a variable created by it; `run` returns the variable."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable


def _read_variable(leaf: object, created: Sequence[Variable]) -> object:
    if not isinstance(leaf, Variable):
        return leaf
    return _CreatedVariable(leaf) if any(leaf is v for v in created) else leaf.value()


def _fill_stacked(structure: PyTree, values: Sequence[Stacked], count: int) -> PyTree:
    """Return the results of a program from the stacked values of the replicas."""

    def fill_slot(leaf: object) -> object:
        if type(leaf) is CompositeResultSlot:
            columns = [
                values[part.index].values if type(part) is TensorSlot else [part] * count
                for part in leaf.parts
            ]
            return PerReplica([leaf.make(list(row)) for row in zip(*columns, strict=True)])
        if type(leaf) is TensorSlot:
            return values[leaf.index]
        return leaf.variable if isinstance(leaf, _CreatedVariable) else leaf

    return nest.map_structure(fill_slot, structure)


def _join_leaves(*leaves: object) -> object:
    """Return a leaf of the results of a program from those of the replicas."""
    first = leaves[0]
    return first.variable if isinstance(first, _CreatedVariable) else join_leaves(*leaves)


class ReplicaVariables:
    """Variables of a traced replica function, including those with one value per replica.

    Attributes:
      mapped_captures: For each captured value, whether every replica has its own value.
      mapped_writes: For each written variable, whether every replica has its own value.
      sources: Captured values; stacked variables in the place of those with one value per replica.
      targets: Written variables; stacked variables in the place of those with one value per
        replica.
    """

    def __init__(self, traced: TracedFunction) -> None:
        self.mapped_captures = [hasattr(c, "sync_on_read_variable") for c in traced.captures]
        self.mapped_writes = [hasattr(v, "sync_on_read_variable") for v in traced.writes]
        self.sources = [_get_stacked(c) for c in traced.captures]
        self.targets = [_get_stacked(v) for v in traced.writes]

    def get_captured_values(self) -> list[Tensor]:
        """Return the captured values, stacked over the replicas if every replica has its own value."""
        return read_tensors(self.sources)

    def assign(self, values: Sequence[Tensor]) -> None:
        """Write new values to the written variables."""
        for variable, value in zip(self.targets, values, strict=True):
            variable._write(value)


def _get_stacked(capture: Any) -> Any:
    """Return the stacked variable of a variable with one value per replica, or another object itself."""
    variable = getattr(capture, "sync_on_read_variable", None)
    return capture if variable is None else variable.stacked_variable


class SpmdProgram:
    """Program of a replica function that is traced for one replica and mapped over all.

    Args:
      strategy: Strategy of the replicas.
      fn: Function to trace.
      template: Structure (args, kwargs) with a `jax.ShapeDtypeStruct` for each stacked value.
      mapped: For each operand, whether every replica has its own value, stacked along the first axis.

    Attributes:
      has_unknown_sizes: Whether sizes depend on values, so that the program cannot be mapped.
    """

    def __init__(
        self,
        strategy: ReplicaStrategy,
        fn: Callable[..., PyTree],
        template: PyTree,
        mapped: Sequence[bool],
    ) -> None:
        traced = self._traced = _trace_replica(strategy, fn, template)
        self.has_unknown_sizes = traced.has_unknown_sizes
        self._num_replicas = strategy.num_replicas_in_sync
        self.sets_initial_values = traced.sets_initial_values
        shared = self._variables = ReplicaVariables(traced)
        mapped_writes = shared.mapped_writes
        in_axes = tuple(0 if m else None for m in [*mapped, *shared.mapped_captures])
        out_axes = tuple([0] * traced.num_results + [0 if m else None for m in mapped_writes])

        def run(operands: Sequence[Sequence[jax.Array]], _: object) -> list[jax.Array]:
            arguments, captures = operands
            run_mapped = jax.vmap(
                lambda *arrays: tuple(traced.run_row(arrays, (), True)),
                in_axes=in_axes,
                out_axes=out_axes,
                axis_name=REPLICA_AXIS,
                axis_size=strategy.num_replicas_in_sync,
                spmd_axis_name=REPLICA_AXIS,
            )
            try:
                return list(run_mapped(*arguments, *captures))
            except ValueError as error:
                if "out_axes" not in str(error):
                    raise
                names = [v.name for v, m in zip(traced.writes, mapped_writes, strict=True) if not m]
                raise InvalidValueError(
                    f"Replicas write different values to one of the variables {names}, which have no "
                    "aggregation. Create it with aggregation=tf.VariableAggregation.SUM, MEAN or "
                    "ONLY_FIRST_REPLICA, or reduce the value with ReplicaContext.all_reduce first."
                ) from error

        self._op = Op(traced.name, run, heavy=True)

    def __call__(self, arguments: list[Tensor]) -> PyTree:
        """Run the program on tensors, either stacked over the replicas or shared by them."""
        outputs = apply(self._op, (arguments, self._variables.get_captured_values()))
        count = self._traced.num_results
        self._variables.assign(outputs[count:])
        results = [Stacked((tensor,)) for tensor in outputs[:count]]
        return _fill_stacked(self._traced.structure, results, self._num_replicas)


class LockstepProgram:
    """Programs of a replica function for each shape of arguments, evaluated in lockstep.

    Args:
      strategy: Strategy of the replicas.
      fn: Function to trace.
      templates: For each replica, the structure (args, kwargs) as in `SpmdProgram`.

    Raises:
      InvalidArgumentError: If the replicas return or write different tensors, or use a collective
        inside a loop or on tensors of different shapes.
    """

    def __init__(
        self, strategy: ReplicaStrategy, fn: Callable[..., PyTree], templates: Sequence[PyTree]
    ) -> None:
        self._traced = _trace_for_shapes(strategy, fn, templates)
        self.sets_initial_values = any(traced.sets_initial_values for traced in self._traced)
        self._variables = [ReplicaVariables(traced) for traced in self._traced]
        first, *others = self._traced
        for traced in others:
            if not _have_same_results(first, traced):
                raise InvalidArgumentError(
                    f"Strategy.run({first.name}): replicas whose arguments have different shapes return "
                    "or write different numbers of tensors and variables."
                )
        self._op = Op(first.name, self._run_programs, heavy=True)

    def _run_programs(self, operands: Sequence[Sequence[jax.Array]], _: object) -> list[jax.Array]:
        arguments, captures = (iter(arrays) for arrays in operands)
        programs = []
        for replica, traced in enumerate(self._traced):
            mapped_captures = self._variables[replica].mapped_captures
            count = len(traced.closed_jaxpr.in_avals) - len(mapped_captures)
            inputs = [next(arguments) for _ in range(count)]
            for mapped in mapped_captures:
                value = next(captures)
                inputs.append(value[replica] if mapped else value)
            programs.append(
                _evaluate_in_steps(
                    traced.closed_jaxpr.jaxpr, traced.closed_jaxpr.consts, inputs, replica
                )
            )
        outputs = _run_in_lockstep(programs)
        counts = [traced.num_results for traced in self._traced]
        pairs = list(zip(outputs, counts, strict=True))
        results: list[Any] = [value for values, count in pairs for value in values[:count]]
        for index, mapped in enumerate(self._variables[0].mapped_writes):
            written = [values[count + index] for values, count in pairs]
            results.append(jnp.stack(written) if mapped else written[0])
        return results

    def __call__(self, parts: Sequence[Sequence[Tensor]]) -> PyTree:
        """Run the programs on the operands of each replica."""
        arguments = [tensor for part in parts for tensor in part]
        captures = [tensor for shared in self._variables for tensor in shared.get_captured_values()]
        outputs = iter(apply(self._op, (arguments, captures)))
        results = [
            traced.rebuild_result(list(itertools.islice(outputs, traced.num_results)))
            for traced in self._traced
        ]
        self._variables[0].assign(list(outputs))
        return nest.map_structure(_join_leaves, *results)


def _have_same_results(first: TracedFunction, other: TracedFunction) -> bool:
    """Check whether two programs return the same structure and write the same variables."""
    try:
        nest.assert_same_structure(first.structure, other.structure)
    except (TypeError, ValueError):
        return False
    return list(map(id, first.writes)) == list(map(id, other.writes))


def _trace_for_shapes(
    strategy: ReplicaStrategy, fn: Callable[..., PyTree], templates: Sequence[PyTree]
) -> list[TracedFunction]:
    """Trace a function for each replica, once for all replicas with arguments of the same shapes.

    The result of `all_gather` has a shape that depends on the other replicas. Therefore, tracing
    stops at an `all_gather` with unknown sizes, and is repeated when all replicas have reached it.
    Replicas with sizes that depend on values have traces of their own, with different symbols.
    """
    keys = list(map(_make_shared_key, templates))
    sizes: tuple[tuple[int, ...], ...] = ()
    while True:
        traced: dict[object, TracedFunction] = {}
        required: dict[object, int] = {}
        results: list[TracedFunction] = []
        for key, template in zip(keys, templates, strict=True):
            if key not in required and (key not in traced or traced[key].has_unknown_sizes):
                replica = ReplicaContext(strategy, None, sizes)
                try:
                    traced[key] = _trace_replica(strategy, fn, template, replica)
                except SizeRequiredError as error:
                    required[key] = error.args[0]
            if key in traced:
                results.append(traced[key])
        if not required:
            return results
        if traced:
            raise InvalidArgumentError(DIFFERENT_COLLECTIVES_MESSAGE)
        sizes = (*sizes, tuple(required[key] for key in keys))


def _make_shared_key(template: PyTree) -> Hashable:
    """Return a key that is equal for replicas that can share a trace."""
    key = make_template_key(template)
    try:
        hash(key)
    except TypeError:
        return id(template)
    return key


_CollectiveCall = tuple[JaxprEqn, list[ArrayLike]]
_Program = Generator[_CollectiveCall, list[ArrayLike], list[ArrayLike]]


def _evaluate_in_steps(
    jaxpr: Jaxpr, consts: Sequence[ArrayLike], arguments: Sequence[ArrayLike], replica: int
) -> _Program:
    """Evaluate a jaxpr; at each collective, yield it with its operands and receive its results."""
    values: dict[Var, ArrayLike] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def get_value(atom: Atom) -> ArrayLike:
        return atom.val if isinstance(atom, jex_core.Literal) else values[atom]

    results: list[ArrayLike]
    for equation in jaxpr.eqns:
        operands = [get_value(v) for v in equation.invars]
        name = equation.primitive.name
        if name == "axis_index" and equation.params["axis_name"] == REPLICA_AXIS:
            results = [np.int32(replica)]
        elif _is_over_replicas(equation):
            results = yield equation, operands
        elif any(_contains_collective(inner) for inner in find_inner_jaxprs(equation)):
            inner = find_inner_jaxprs(equation)
            if name in ("scan", "while", "cond") or len(to_open_jaxpr(inner[0]).invars) != len(
                operands
            ):
                raise InvalidArgumentError(
                    f"Strategy.run: a collective inside {name!r} needs arguments of equal shapes on all "
                    "replicas. Batch with drop_remainder=True."
                )
            body_consts = getattr(inner[0], "consts", ())
            results = yield from _evaluate_in_steps(
                to_open_jaxpr(inner[0]), body_consts, operands, replica
            )
        else:
            params = equation.primitive.get_bind_params(equation.params)
            outputs = equation.primitive.bind(*operands, **params)
            results = list(outputs) if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, results, strict=True))
    return [get_value(v) for v in jaxpr.outvars]


def _is_over_replicas(equation: JaxprEqn) -> bool:
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return REPLICA_AXIS in (axes if isinstance(axes, (tuple, list)) else (axes,))


def _contains_collective(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    return any(
        _is_over_replicas(e) or any(_contains_collective(inner) for inner in find_inner_jaxprs(e))
        for e in to_open_jaxpr(jaxpr).eqns
    )


def _run_in_lockstep(programs: Sequence[_Program]) -> list[list[ArrayLike]]:
    """Advance the programs of all replicas from collective to collective until they return."""
    returned: list[Any] = [None] * len(programs)
    results: list[Any] = [None] * len(programs)
    while True:
        calls: list[_CollectiveCall] = []
        for index, program in enumerate(programs):
            try:
                calls.append(program.send(results[index]))
            except StopIteration as end:
                returned[index] = end.value
        if not calls:
            return returned
        if len(calls) < len(programs) or len({e.primitive for e, _ in calls}) > 1:
            raise InvalidArgumentError(DIFFERENT_COLLECTIVES_MESSAGE)
        results = _compute_collective(
            [equation for equation, _ in calls], [values for _, values in calls]
        )


def _compute_collective(
    equations: Sequence[JaxprEqn], operands: Sequence[list[Any]]
) -> list[list[ArrayLike]]:
    """Compute the results of a collective for all replicas."""
    name, params = equations[0].primitive.name, equations[0].params
    columns = list(zip(*operands, strict=True))
    for column in columns:
        if len({tuple(np.shape(value)) for value in column}) > 1:
            raise InvalidArgumentError(
                f"Strategy.run: {name} of tensors of different shapes "
                f"{[tuple(np.shape(v)) for v in column]}. Reduce them to one shape first, or batch with "
                "drop_remainder=True."
            )
    if name == "psum":
        results = [sum(column[1:], start=column[0]) for column in columns]
    elif name == "pmax":
        results = [functools.reduce(jnp.maximum, column) for column in columns]
    elif name == "all_gather":
        axis = params["all_gather_dimension"]
        join = jnp.concatenate if params["tiled"] else jnp.stack
        results = [join(column, axis=axis) for column in columns]
    else:
        raise InvalidArgumentError(
            f"Strategy.run: {name} needs arguments of equal shapes on all replicas. Batch with "
            "drop_remainder=True."
        )
    return [list(results) for _ in operands]
