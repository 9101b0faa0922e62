"""`Strategy.run` for several replicas: the function traced for one replica, mapped over all.

Replicas with arguments of one shape are one `vmap` over the mesh axis `AXIS`. Replicas with different
shapes, as in the last batch of a dataset, are traced once for each shape, and their programs are
evaluated side by side, meeting at each collective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tracing.trace import Traced, fill, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.collectives import AXIS
from meshflow.distribute.replicas.context import ReplicaContext, SizeWantedError, entered
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas, stack
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import inner_jaxprs, opened

__all__ = ["run_replicas"]


def run_replicas(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs a replica function for all replicas of a strategy; see `Strategy.run`."""
    count = strategy.num_replicas_in_sync
    leaves: list[Any] = []

    def found(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            if not isinstance(leaf, Stacked):
                leaf = stack([convert_to_tensor(v) for v in leaf.values])
        elif isinstance(leaf, (Tensor, np.ndarray, jax.Array)):
            leaf = convert_to_tensor(leaf)
        leaves.append(leaf)
        return leaf

    structure = map_replicas(found, (args, kwargs))

    def template(replica: int) -> Any:
        def shape_of(leaf: Any) -> Any:
            if isinstance(leaf, Stacked):
                return _struct(leaf.stacked, 1)
            if isinstance(leaf, PerReplica):
                return _struct(leaf.values[replica])
            return _struct(leaf) if isinstance(leaf, Tensor) else leaf

        return map_replicas(shape_of, structure)

    if any(isinstance(v, PerReplica) and not isinstance(v, Stacked) for v in leaves):
        templates = [template(i) for i in range(count)]
        parts = [
            [v.values[i] if isinstance(v, PerReplica) else v for v in leaves if _is_tensor(v)]
            for i in range(count)
        ]
        program = strategy._program(fn, templates, lambda: LockstepProgram(strategy, fn, templates))
        return program(parts)
    tensors = [v for v in leaves if _is_tensor(v)]
    own = [isinstance(v, Stacked) for v in tensors]
    one = template(0)
    program = strategy._program(fn, (one, own), lambda: SpmdProgram(strategy, fn, one, own))
    return program([v.stacked if isinstance(v, Stacked) else v for v in tensors])


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, (PerReplica, Tensor))


def _struct(tensor: Tensor, skipped: int = 0) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape.as_list())[skipped:], tensor.dtype.dtype)


def _trace_replica(
    strategy: Any, fn: Callable[..., Any], template: Any, replica: ReplicaContext | None = None
) -> Traced:
    """The function traced for one replica whose arguments have the template's shapes."""
    replica = replica or ReplicaContext(strategy, None)
    leaves, tree = jax.tree.flatten(template)
    specs = tuple(
        TensorSpec(v.shape, v.dtype) for v in leaves if isinstance(v, jax.ShapeDtypeStruct)
    )

    def call(*symbolic: Any) -> Any:
        supply = iter(symbolic)
        full = [next(supply) if isinstance(v, jax.ShapeDtypeStruct) else v for v in leaves]
        args, kwargs = jax.tree.unflatten(tree, full)
        with entered(replica):
            # Only in here is a variable's value the replica's own.
            scope: Any = context.trace
            result = fn(*args, **kwargs)
            return nest.map_structure(lambda leaf: _read(leaf, scope.created), result)

    name = getattr(fn, "__name__", "replica")
    return trace(
        call, specs, name=name, runs_immediately=True, axes=[(AXIS, strategy.num_replicas_in_sync)]
    )


class _Made:
    """A variable that the replica function made and returns, which `run` returns as it is."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable


def _read(leaf: Any, created: list[Any]) -> Any:
    if not isinstance(leaf, Variable):
        return leaf
    return _Made(leaf) if any(leaf is made for made in created) else leaf.value()


def _filled(structure: Any, values: Sequence[Any]) -> Any:
    def own(leaf: Any) -> Any:
        if isinstance(leaf, IndexedSlices):
            return _rows_of_each(leaf)
        return leaf.variable if isinstance(leaf, _Made) else leaf

    return map_replicas(own, fill(structure, values))


def _rows_of_each(rows: IndexedSlices) -> Any:
    """Slices whose parts are of all replicas as a value for each."""
    parts: list[Any] = rows._state_parts()
    counts = {len(part.values) for part in parts if isinstance(part, PerReplica)}
    each = [part.values if isinstance(part, PerReplica) else [part] * max(counts) for part in parts]
    return PerReplica([IndexedSlices(*of_one) for of_one in zip(*each, strict=True)])


class Shared:
    """What a traced replica function uses and writes, with the replicas' own variables told apart.

    Args:
      traced: the function.
    """

    def __init__(self, traced: Traced) -> None:
        self.own = [hasattr(c, "_parts") for c in traced.captures]
        self.writes_own = [hasattr(v, "_parts") for v in traced.writes]
        self.sources = [c._parts._stacked if hasattr(c, "_parts") else c for c in traced.captures]
        self.targets = [v._parts._stacked if hasattr(v, "_parts") else v for v in traced.writes]

    def captures(self) -> list[Tensor]:
        """The captured values; of a replica's own variable, those of all replicas stacked."""
        return [c if isinstance(c, Tensor) else c._as_tensor() for c in self.sources]

    def assign(self, values: Sequence[Tensor]) -> None:
        """Writes new values to the written variables."""
        for variable, value in zip(self.targets, values, strict=True):
            variable._write(value)


class SpmdProgram:
    """A replica function traced for one replica and mapped over all.

    Args:
      strategy: the strategy.
      fn: the function.
      template: its (args, kwargs) with the shape of each tensor.
      own: for each tensor, whether every replica has its own, stacked along the first axis.
    """

    def __init__(self, strategy: Any, fn: Any, template: Any, own: Sequence[bool]) -> None:
        traced = self._traced = _trace_replica(strategy, fn, template)
        self.initializes = traced.initializes
        shared = self._shared = Shared(traced)
        own_writes = shared.writes_own
        in_axes = tuple(0 if mapped else None for mapped in [*own, *shared.own])
        out_axes = tuple([0] * traced.count + [0 if mapped else None for mapped in own_writes])

        def run(operands: Any, _: Any) -> list[Any]:
            arguments, captures = operands
            mapped = jax.vmap(
                lambda *arrays: tuple(traced.arrays(arrays, ())),
                in_axes=in_axes,
                out_axes=out_axes,
                axis_name=AXIS,
                axis_size=strategy.num_replicas_in_sync,
                spmd_axis_name=AXIS,
            )
            try:
                return list(mapped(*arguments, *captures))
            except ValueError as error:
                if "out_axes" not in str(error):
                    raise
                names = [v.name for v, p in zip(traced.writes, own_writes, strict=True) if not p]
                raise InvalidValueError(
                    f"Replicas write different values to one of the variables {names}, which have no "
                    "aggregation. Create it with aggregation=tf.VariableAggregation.SUM, MEAN or "
                    "ONLY_FIRST_REPLICA, or reduce the value with ReplicaContext.all_reduce first."
                ) from error

        self._op = Op(traced.name, run, heavy=True)

    def __call__(self, arguments: list[Tensor]) -> Any:
        """Runs on tensors: those of replicas stacked, and those that all share."""
        outputs = apply(self._op, (arguments, self._shared.captures()))
        count = self._traced.count
        self._shared.assign(outputs[count:])
        return _filled(self._traced.structure, [Stacked((t,)) for t in outputs[:count]])


class LockstepProgram:
    """A replica function traced for each shape of arguments, evaluated for all replicas together.

    Args:
      strategy: the strategy.
      fn: the function.
      templates: for each replica, the function's (args, kwargs) with the shape of each tensor.

    Raises:
      InvalidArgumentError: when the replicas return or write different things, or use a collective
        inside a loop or on tensors of different shapes.
    """

    def __init__(self, strategy: Any, fn: Any, templates: Sequence[Any]) -> None:
        self._traced = _trace_each(strategy, fn, templates)
        self.initializes = any(traced.initializes for traced in self._traced)
        self._shared = [Shared(traced) for traced in self._traced]
        first, *others = self._traced
        for other in others:
            if other.count != first.count or list(map(id, other.writes)) != list(
                map(id, first.writes)
            ):
                raise InvalidArgumentError(
                    f"Strategy.run({first.name}): replicas whose arguments have different shapes return "
                    "or write different numbers of tensors and variables."
                )
        self._op = Op(first.name, self._run, heavy=True)

    def _run(self, operands: Any, _: Any) -> list[Any]:
        arguments, captures = (iter(arrays) for arrays in operands)
        programs = []
        for replica, traced in enumerate(self._traced):
            own = self._shared[replica].own
            inputs = [next(arguments) for _ in range(len(traced.closed.in_avals) - len(own))]
            for mapped in own:
                value = next(captures)
                inputs.append(value[replica] if mapped else value)
            programs.append(_steps(traced.closed.jaxpr, traced.closed.consts, inputs, replica))
        outputs = _meet(programs)
        count = self._traced[0].count
        results = [value for replica in outputs for value in replica[:count]]
        for index, mapped in enumerate(self._shared[0].writes_own, count):
            values = [replica[index] for replica in outputs]
            results.append(jnp.stack(values) if mapped else values[0])
        return results

    def __call__(self, parts: Sequence[Sequence[Tensor]]) -> Any:
        """Runs on the tensors of each replica."""
        arguments = [tensor for part in parts for tensor in part]
        captures = [tensor for shared in self._shared for tensor in shared.captures()]
        outputs = apply(self._op, (arguments, captures))
        traced, count = self._traced[0], self._traced[0].count
        results = len(parts) * count
        self._shared[0].assign(outputs[results:])
        values = [stack(outputs[i:results:count]) for i in range(count)]
        return _filled(traced.structure, values)


def _trace_each(strategy: Any, fn: Any, templates: Sequence[Any]) -> list[Traced]:
    """The function traced for each replica, once for those with arguments of the same shapes.

    What a replica gets from `all_gather` has a shape that depends on the others. So tracing stops where
    it needs their sizes, and starts again when all replicas have come there.
    """
    leaves = [jax.tree.leaves(template) for template in templates]
    keys = [
        tuple((v.shape, v.dtype) for v in flat if isinstance(v, jax.ShapeDtypeStruct))
        for flat in leaves
    ]
    known: tuple[tuple[int, ...], ...] = ()
    while True:
        traced: dict[Any, Traced] = {}
        wanted: dict[Any, int] = {}
        for key, template in zip(keys, templates, strict=True):
            if key not in traced and key not in wanted:
                replica = ReplicaContext(strategy, None, known)
                try:
                    traced[key] = _trace_replica(strategy, fn, template, replica)
                except SizeWantedError as error:
                    wanted[key] = error.args[0]
        if not wanted:
            return [traced[key] for key in keys]
        if traced:
            raise InvalidArgumentError(_DIFFERENT_COLLECTIVES)
        known = (*known, tuple(wanted[key] for key in keys))


_DIFFERENT_COLLECTIVES = (
    "Strategy.run: replicas whose arguments have different shapes call different collectives."
)
_Collective = tuple[Any, list[Any]]


def _steps(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], replica: int
) -> Generator[_Collective, list[Any], list[Any]]:
    """Evaluates a jaxpr up to each collective, which it yields with its operands."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex_core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = [value(v) for v in equation.invars]
        name = equation.primitive.name
        if name == "axis_index" and equation.params["axis_name"] == AXIS:
            results = [np.int32(replica)]
        elif _over_replicas(equation):
            results = yield equation, operands
        elif any(_collective_inside(inner) for inner in inner_jaxprs(equation)):
            inner = inner_jaxprs(equation)
            if name in ("scan", "while", "cond") or len(opened(inner[0]).invars) != len(operands):
                raise InvalidArgumentError(
                    f"Strategy.run: a collective inside {name!r} needs arguments of equal shapes on all "
                    "replicas. Batch with drop_remainder=True."
                )
            body_consts = getattr(inner[0], "consts", ())
            results = yield from _steps(opened(inner[0]), body_consts, operands, replica)
        else:
            params = equation.primitive.get_bind_params(equation.params)
            found = equation.primitive.bind(*operands, **params)
            results = list(found) if equation.primitive.multiple_results else [found]
        known.update(zip(equation.outvars, results, strict=True))
    return [value(v) for v in jaxpr.outvars]


def _over_replicas(equation: Any) -> bool:
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return AXIS in (axes if isinstance(axes, (tuple, list)) else (axes,))


def _collective_inside(jaxpr: Any) -> bool:
    return any(
        _over_replicas(e) or any(_collective_inside(inner) for inner in inner_jaxprs(e))
        for e in opened(jaxpr).eqns
    )


def _meet(programs: Sequence[Generator[_Collective, list[Any], list[Any]]]) -> list[list[Any]]:
    """Advances all replicas from collective to collective until they return."""
    returned: list[Any] = [None] * len(programs)
    answers: list[Any] = [None] * len(programs)
    while True:
        asked: list[_Collective] = []
        for index, program in enumerate(programs):
            try:
                asked.append(program.send(answers[index]))
            except StopIteration as end:
                returned[index] = end.value
        if not asked:
            return returned
        if len(asked) < len(programs) or len({e.primitive for e, _ in asked}) > 1:
            raise InvalidArgumentError(_DIFFERENT_COLLECTIVES)
        answers = _combined([equation for equation, _ in asked], [values for _, values in asked])


def _combined(equations: Sequence[Any], operands: Sequence[list[Any]]) -> list[list[Any]]:
    """What a collective gives each replica."""
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
