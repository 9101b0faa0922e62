"""A `train_step` that computes gradients itself, computed device by device and in micro-batches.

The program of a share (`step_shares.py`) is run in stages. A stage is one loop over the micro-batches
of a device, under `jax.shard_map`. It computes the totals, such as gradients, that depend on no later
totals, and the results and states for which all totals are known. Values that depend on no rows,
such as updates of weights, are computed once between the stages, on global arrays with layouts. A
step with one tape has one stage; in a step with two optimizers, the gradients of the second one, which
depend on the updates of the first, are a further stage. Every stage contains only the equations that
its results need.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, read_tensors
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.gradient_compression import CompressedExchange
from meshflow.distribute.parallel.program import LossProgram, RegionStrategy
from meshflow.distribute.parallel.region import (
    PartitionedBatch,
    partition_batch,
    split_micro_batches,
    warn_about_states,
    warn_about_statistics,
)
from meshflow.distribute.parallel.stage_buffers import can_join_buffer
from meshflow.distribute.parallel.step_analysis import (
    Combination,
    StepProgram,
    bind_without_mesh,
)
from meshflow.distribute.parallel.step_pipeline import NeededOutputs, StepPipeline
from meshflow.distribute.parallel.step_shares import (
    GradientTotal,
    ShareIndex,
    StepNotSplitError,
    StepShares,
    trace_step,
)
from meshflow.distribute.parallel.zero import (
    RegionSharding,
    gather_values,
    reduce_gradients,
    resolve_region_sharding,
)
from meshflow.distribute.replicas.shares import ShareTotal
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, ArrayLike, Atom, PyTree, Var
from meshflow.passes.jaxprs import get_aval, select_variables


def count_step_loops(
    strategy: RegionStrategy,
    step: Callable[[PyTree], PyTree],
    batch: PyTree,
    list_layer_states: Callable[[], Sequence[Variable]],
) -> int:
    """Count the loops over micro-batches in which a training step runs, by tracing it; see `run_step_in_shares`.

    Raises:
      StepNotSplitError: If the step cannot be computed in shares.
    """
    return len(_trace_region(strategy, step, batch, list_layer_states)[0].list_stages())


def run_step_in_shares(
    strategy: RegionStrategy,
    step: Callable[[PyTree], PyTree],
    batch: PyTree,
    list_layer_states: Callable[[], Sequence[Variable]],
    model: Any,
    find_programs: Callable[[Sequence[Variable]], Sequence[LossProgram]],
) -> tuple[PyTree, str | None]:
    """Run a training step of a global batch in shares, while a function is traced.

    Args:
      strategy: The strategy.
      step: Function of a batch.
      batch: The global batch.
      list_layer_states: Function that returns, after a trace of the step, the states that calls of layers update;
        each micro-batch updates them.
      model: The model of the step.
      find_programs: Function that divides trained variables by their optimizers, each of which is that of
        a program.

    Returns:
      The result of the step, and the reason for which it is not computed by a pipeline, although an option
      requests one, or None.

    Raises:
      StepNotSplitError: If the step cannot be computed in shares; nothing has been changed then.
    """
    region, larger = _trace_region(strategy, step, batch, list_layer_states)
    if region.shares.micro_batches > 1:
        region.warn_about_states()
        warn_about_statistics(region.shares)
    reason: str | None = None
    if strategy.options.pipeline is not None:
        axes = region.shares.axes, region.shares.sizes
        shares = StepShares(strategy, *axes, region.batch, 1, larger, in_pipeline=True)
        try:
            values = _run_pipeline(strategy, region, shares, step, model)
            run = lambda operands, _: region.complete(*operands)
            op = Op("step", run, differentiable=False, is_foldable=False)
            return region.assign(apply(op, (region.read_captures(), values))), None
        except (StepNotSplitError, InvalidValueError) as error:
            reason = str(error)
    if strategy.options.compress and strategy.batch_dimensions:
        totals = region.shares.totals
        trained = {id(t.variable): t.variable for t in totals if isinstance(t, GradientTotal)}
        region.exchanges = [
            CompressedExchange(strategy, p) for p in find_programs([*trained.values()])
        ]
    slots = [[slot.value() for slot in e.slots] for e in region.exchanges]
    operands = [
        region.batch.leaves,
        region.read_captures(),
        slots,
        [e.operands for e in region.exchanges],
    ]
    op = Op("step", lambda o, _: region.run(*o), differentiable=False, is_foldable=False)
    outputs, errors = apply(op, operands)
    for exchange, values in zip(region.exchanges, errors, strict=True):
        for slot, value in zip(exchange.slots, values, strict=True):
            slot.assign(value)
    return region.assign(outputs), reason


def _trace_region(
    strategy: RegionStrategy,
    step: Callable[[PyTree], PyTree],
    batch: PyTree,
    list_layer_states: Callable[[], Sequence[Variable]],
) -> tuple[_StepRegion, StepShares]:
    """Return the stages of a step, and the shares with more rows with which it was compared."""
    axes = strategy.batch_dimensions
    sizes = [strategy.mesh.dim_size(a) for a in axes]
    parts = partition_batch(batch, math.prod(sizes), strategy.options.micro_batches)
    if not any(leaf.ndim for leaf in parts.leaves):
        raise StepNotSplitError("has no batch")
    make_shares = functools.partial(StepShares, strategy, axes, sizes, parts)
    num_parts = make_shares().num_parts
    # None of the traces has all rows of the batch, since sizes of the batch may be captured then.
    larger = make_shares(3 if num_parts in (2, 4) else 2)
    shares = make_shares(1, larger)
    # The program for one row has other equations, such as those of broadcasts, than those for more rows.
    has_one_row = shares.share_rows == 1
    largest = make_shares(2 * larger.repetitions)
    all_shares = [larger, shares, *([largest] if has_one_row else [])]
    traces = [trace_step(one, step, parts) for one in all_shares]
    if len({sum(isinstance(c, Variable) for c in t.captures) for t in traces}) > 1:
        # The first trace has created variables.
        traces = [trace_step(one, step, parts) for one in all_shares]
    shares.draws.check_split()
    other, traced = traces[:2]
    make_region = functools.partial(_StepRegion, strategy, parts, list_layer_states())
    if has_one_row:
        known = make_region(larger, other, StepProgram(other, larger, traces[2], largest))
        region = make_region(shares, traced, StepProgram(traced, shares), known)
    else:
        region = make_region(shares, traced, StepProgram(traced, shares, other, larger))
    return region, larger


def _run_pipeline(
    strategy: RegionStrategy,
    region: _StepRegion,
    shares: StepShares,
    step: Callable[[PyTree], PyTree],
    model: Any,
) -> list[Tensor]:
    """Run the only stage of a step in a pipeline, and return the values of `region.pipelined`."""
    needed = region.find_pipelined_outputs()
    indices = convert_to_tensor(np.arange(shares.num_parts, dtype=np.int32))
    batch = dataclasses.replace(region.batch, leaves=[*region.batch.leaves, indices])
    variables = [t.variable for t in region.shares.totals if isinstance(t, GradientTotal)]
    trace = lambda: trace_step(shares, step, batch)
    slots = region.find_slots()
    pipeline = StepPipeline(strategy, shares, batch, trace, variables, model, slots, needed)
    result, states = pipeline.compute()
    strategy.pipelined = pipeline
    assert result.variables is not None
    gradients = dict(zip(map(id, result.variables), result.gradients, strict=True))
    return [
        *(gradients[id(v)] for v in variables),
        *result.metric_values,
        *result.predictions,
        *states,
    ]


def _is_placeholder(capture: object) -> bool:
    return isinstance(capture, (ShareTotal, ShareIndex))


class _StepRegion:
    """Stages of a step.

    Args:
      strategy: The strategy.
      batch: The partitioned batch.
      layer_states: States of layers.
      shares: The shares of the batch.
      traced: Trace of a share.
      program: Its program.
      other: Stages of the step for other shares, with the same results, or None.

    Attributes:
      num_results: Number of results of the step itself.
      exchanges: Compressed exchanges of gradients, one for each optimizer, if options request them.
    """

    def __init__(
        self,
        strategy: RegionStrategy,
        batch: PartitionedBatch,
        layer_states: Sequence[Variable],
        shares: StepShares,
        traced: TracedFunction,
        program: StepProgram,
        other: _StepRegion | None = None,
    ) -> None:
        self.strategy, self.shares, self.batch = strategy, shares, batch
        self.traced, self.program = traced, program
        self.exchanges: list[CompressedExchange] = []
        num_totals, num_objectives = len(shares.totals), len(shares.objectives)
        outputs = program.jaxpr.outvars
        ends = [traced.num_results - num_totals - num_objectives, traced.num_results - num_totals]
        self.num_results = ends[0]
        self.results, self.objectives = outputs[: ends[0]], outputs[ends[0] : ends[1]]
        self.total_values = outputs[ends[1] : traced.num_results]
        self.written = outputs[traced.num_results :]
        captures = dict(zip(map(id, traced.captures), program.captures, strict=True))
        # The variables of the placeholders; None for totals that the step does not use.
        self.totals = [captures.get(id(t)) for t in shares.totals]
        self.inputs = [
            v
            for c, v in zip(traced.captures, program.captures, strict=True)
            if not _is_placeholder(c)
        ]
        self.sources = dict(zip(program.captures, traced.captures, strict=True))
        ids = {id(v) for v in layer_states}
        self.before = [captures.get(id(v)) for v in traced.writes]
        # States of layers, with their variables before and after a share.
        self.carried = {
            before: new
            for v, before, new in zip(traced.writes, self.before, self.written, strict=True)
            if id(v) in ids and before is not None and _is_in(new, program.dependent)
        }
        if self.carried:
            program.dependent = program.find_dependent([*program.rows, *self.carried])
        if other is None:
            self._classify()
        else:
            self._copy_classes(other)
        self.levels = self._compute_levels()

    def _classify(self) -> None:
        """Find how the objectives, the results and the new states of shares combine."""
        program = self.program
        select = lambda atoms: [v for v in atoms if _is_in(v, program.dependent)]
        carried = {*self.carried.values()}
        before = dict(zip(map(id, self.written), self.before, strict=True))
        is_inside = lambda eqn: not program.dependent.isdisjoint(eqn.outvars)
        states = {
            # A value that replaces the earlier one, or is added to a multiple of it, is not added to it.
            v: before[id(v)] if before[id(v)] in program.select([v], is_inside)[1] else None
            for v in select(self.written)
            if v not in carried
        }
        wanted: list[tuple[Any, Any]] = [(v, None) for v in select(self.objectives)]
        wanted += states.items()
        wanted = list(dict(wanted).items())
        kinds = dict(zip((v for v, _ in wanted), program.find_combinations(wanted), strict=True))
        if not all(self.shares.custom_gradients) and any(
            kinds.get(v) is Combination.MEAN for v in select(self.objectives)
        ):
            raise StepNotSplitError(
                "has a custom gradient that is not proportional to the gradient of its result"
            )
        known = [v for v in states if kinds[v] is not Combination.OTHER]
        # Other values may be computed from the losses of the batch, such as decisions about them, and from the final
        # states, such as results of metrics.
        losses = [
            v for v in dict.fromkeys(select(self.objectives)) if kinds[v] is not Combination.OTHER
        ]
        final = {*known, *losses, *self.carried.values()}
        rest = program.find_dependent([*program.rows, *self.carried], final)
        results = [v for v in self.results if _is_in(v, rest)]
        self.rows = [v for v in results if program.get_row_axis(v) == 0]
        partial = list(dict.fromkeys(v for v in results if program.get_row_axis(v) != 0))
        program.check_rows([*self.objectives, *states, *results], [*self.carried.values()])
        if not self.carried or self.shares.custom_gradients:
            pairs = zip(self.total_values, self.shares.totals, strict=True)
            program.check_gradients([v for v, t in pairs if isinstance(t, GradientTotal)])
        kinds |= zip(partial, program.find_combinations([(v, None) for v in partial]), strict=True)
        self.partial = list(dict.fromkeys([*partial, *losses]))
        self.states = {v: states[v] for v in known}
        self.kinds = kinds
        for values, noun in (
            (self.objectives, "a target of a tape"),
            ([v for v in states if v in rest], "a variable that it updates"),
            (partial, "one of its results"),
        ):
            if any(_is_in(v, kinds) and kinds[v] is Combination.OTHER for v in values):
                raise StepNotSplitError(
                    f"has {noun} that is neither a mean nor a sum over the rows of the batch"
                )

    def _copy_classes(self, other: _StepRegion) -> None:
        """Copy the results of `_classify`, by the positions of outputs."""
        self.program.check_constants(other.program.constant_outputs)
        pairs = zip(other.program.jaxpr.outvars, self.program.jaxpr.outvars, strict=True)
        own = {a: b for a, b in pairs if not isinstance(a, jex_core.Literal)}
        before = dict(zip(filter(None, other.before), filter(None, self.before), strict=True))
        self.rows, self.partial = ([own[v] for v in part] for part in (other.rows, other.partial))
        self.states = {own[v]: b and before[b] for v, b in other.states.items()}
        self.kinds = {own[v]: kind for v, kind in other.kinds.items()}
        self.program.dependent |= {*self.rows, *self.partial, *self.states}

    def _compute_levels(self) -> dict[Any, int]:
        """Return for each variable of the program the number of stages that precede it."""
        stages = dict.fromkeys([v for v in self.totals if v is not None], 1)
        while True:
            levels: dict[Any, int] = dict(stages)
            for eqn in self.program.jaxpr.eqns:
                level = max((levels.get(v, 0) for v in eqn.invars if isinstance(v, Var)), default=0)
                levels |= dict.fromkeys(eqn.outvars, level)
            new = {
                placeholder: 1 + _get_level(levels, value)
                for placeholder, value in zip(self.totals, self.total_values, strict=True)
                if placeholder is not None
            }
            if new == stages:
                return levels
            stages = new

    def read_captures(self) -> list[Tensor]:
        """Return the values of the captured tensors and variables."""
        with suspend_autocast():
            return read_tensors([c for c in self.traced.captures if not _is_placeholder(c)])

    def assign(self, outputs: Sequence[Tensor]) -> PyTree:
        """Assign the variables that the step writes, and return its result."""
        self.traced.assign_variables(outputs[self.num_results :])
        self.shares.finish()
        missing = [None] * (self.traced.num_results - self.num_results)
        return self.traced.rebuild_result([*outputs[: self.num_results], *missing])[0]

    # ---- in a pipeline ---------------------------------------------------------------------

    def find_pipelined_outputs(self) -> NeededOutputs:
        """Return the outputs of the step that a pipeline computes.

        Raises:
          StepNotSplitError: If the step has another form than a loss, its gradients, and other values of the same stage.
        """
        shares = self.shares
        if len(shares.objectives) != 1 or any(self._get_stage(v) > 1 for v in self._list_outputs()):
            raise StepNotSplitError("computes with rows after its first gradients of variables")
        if shares.source_shapes:
            raise StepNotSplitError("computes gradients of tensors")
        if not all(isinstance(t, GradientTotal) for t in shares.totals):
            raise StepNotSplitError(
                "computes means over the rows of the batch before its gradients"
            )
        if self.strategy.options.compress:
            raise StepNotSplitError("exchanges compressed gradients")
        (objective,) = self.objectives
        positions = {v: i for i, v in enumerate(self.program.jaxpr.outvars) if isinstance(v, Var)}
        variables = {
            v: c
            for v, c in zip(self.written, self.traced.writes, strict=True)
            if isinstance(v, Var)
        }
        is_sum = _is_in(objective, self.kinds) and self.kinds[objective] is Combination.SUM
        sums: list[tuple[Any, bool]] = [(positions[v], False) for v in self.partial]
        sums += [(variables[v], before is not None) for v, before in self.states.items()]
        return NeededOutputs(
            self.num_results,
            float(shares.num_parts) if is_sum else 1.0,
            sums,
            [positions[v] for v in dict.fromkeys(self.rows)],
            [variables[v] for v in self.carried.values()],
        )

    def find_slots(self) -> dict[int, list[Variable]]:
        """Return the variables that belong to each trained weight, such as slots and moving averages, by its id.

        A variable belongs to a weight of its shape if the step computes its new value from that of the weight, or from its
        gradient, and from no other weight by operations on arrays of this shape. Norms of all weights do not matter.
        """
        program = self.program
        weights = {
            id(t.variable): t.variable for t in self.shares.totals if isinstance(t, GradientTotal)
        }
        owners: dict[Any, set[int]] = {
            atom: {id(c.variable if isinstance(c, GradientTotal) else c)}
            for atom, c in self.sources.items()
            if isinstance(c, GradientTotal) or id(c) in weights
        }
        for eqn in program.jaxpr.eqns:
            for out in eqn.outvars:
                shape = get_aval(out).shape
                similar = (v for v in select_variables(eqn.invars) if get_aval(v).shape == shape)
                owners[out] = set().union(*(owners.get(v, ()) for v in similar))
        # Stages of the pipeline read these.
        outputs = [
            *self.objectives,
            *self.partial,
            *self.rows,
            *self.states,
            *self.carried.values(),
        ]
        read = {*program.select(outputs, lambda _: True)[1]}
        slots: dict[int, list[Variable]] = {}
        for variable, before, new in zip(
            self.traced.writes, self.before, self.written, strict=True
        ):
            found = () if isinstance(new, jex_core.Literal) else owners.get(new, ())
            if (
                len(found) != 1
                or id(variable) in weights
                or before in read
                or new in program.dependent
            ):
                continue
            (owner,) = found
            is_similar = (variable.shape, variable.dtype) == (
                weights[owner].shape,
                weights[owner].dtype,
            )
            if variable.shape.rank and is_similar and can_join_buffer(variable):
                slots.setdefault(owner, []).append(variable)
        return slots

    def complete(self, captures: Sequence[jax.Array], known: Sequence[jax.Array]) -> list[Any]:
        """Compute the step's results and new values of variables, given those that depend on rows.

        Args:
          captures: Values of the captured tensors and variables.
          known: Gradients, means over the shares, rows, and final states of `find_pipelined_outputs`.
        """
        env = self._start(captures)
        values = iter(known)
        env |= {p: g for p, g in zip(self.totals, values, strict=False) if p is not None}
        for v in [*self.partial, *self.states]:
            total = next(values) * (self._get_weight(v) * self.shares.num_parts)
            total = _convert_total(total, get_aval(v).dtype)
            before = self.states.get(v)
            env[v] = total if before is None else env[before] + total
        env |= zip([*dict.fromkeys(self.rows), *self.carried.values()], values, strict=True)
        return self._compute([*self.results, *self.written], env)

    # ---- over the mesh ---------------------------------------------------------------------

    def _start(self, captures: Sequence[jax.Array]) -> dict[Any, Any]:
        """Return the values of constants and captures."""
        constants = map(_detach, self.program.closed.consts)
        env: dict[Any, Any] = dict(zip(self.program.jaxpr.constvars, constants, strict=True))
        return env | dict(zip(self.inputs, captures, strict=True))

    def run(
        self,
        leaves: Sequence[jax.Array],
        captures: Sequence[jax.Array],
        errors: list[list[jax.Array]],
        values: list[list[jax.Array]],
    ) -> tuple[list[Any], list[list[Any]]]:
        """Run the stages on global arrays.

        Args:
          leaves: Tensors of the batch.
          captures: Values of the captured tensors and variables.
          errors: Values of the slots of each exchange.
          values: Values of the operands of each exchange.

        Returns:
          The results of the step and the new values of the written variables, and new errors.
        """
        env = self._start(captures)
        for stage in self.list_stages():
            errors = self._run_stage(stage, leaves, env, errors, values)
        return self._compute([*self.results, *self.written], env), errors

    def warn_about_states(self) -> None:
        """Warn about a state of a layer that each micro-batch updates before the next one computes with it."""
        captured = [(v, self.sources[v]) for v in self.carried]
        warn_about_states(captured, self.traced.writes, self.program.jaxpr, self.objectives)

    def list_stages(self) -> list[int]:
        """Return the numbers of the stages, each of which is a loop over the micro-batches."""
        return sorted({self._get_stage(v) for v in self._list_outputs()})

    def _list_outputs(self) -> list[Any]:
        totals = [v for v, p in zip(self.total_values, self.totals, strict=True) if p is not None]
        return [*totals, *self.partial, *self.rows, *self.states, *self.carried.values()]

    def _get_stage(self, atom: Atom) -> int:
        return 1 + _get_level(self.levels, atom)

    def _get_weight(self, atom: Atom | None) -> float:
        """Return the factor of the sum of a value over all shares, or of a gradient of a share."""
        is_sum = _is_in(atom, self.kinds) and self.kinds[atom] is Combination.SUM
        return 1.0 if is_sum else 1 / self.shares.num_parts

    def _compute(self, atoms: Sequence[Atom], env: dict[Any, Any]) -> list[Any]:
        """Compute values that do not depend on rows, and add them to `env`."""
        indices, _ = self.program.select(
            [a for a in atoms if not _is_in(a, env)],
            lambda eqn: any(v not in env for v in eqn.outvars),
        )
        read = lambda a: _detach(a.val) if isinstance(a, jex_core.Literal) else env[a]
        for i in indices:
            eqn = self.program.jaxpr.eqns[i]
            values = bind_without_mesh(eqn, [read(a) for a in eqn.invars])
            for variable, value in zip(eqn.outvars, values, strict=True):
                env.setdefault(variable, value)
        return [read(a) for a in atoms]

    def _run_stage(
        self,
        stage: int,
        leaves: Sequence[jax.Array],
        env: dict[Any, Any],
        errors: list[list[jax.Array]],
        operands: list[list[jax.Array]],
    ) -> list[list[jax.Array]]:
        """Run the loop of a stage, add its outputs to `env`, and return new errors."""
        of_stage = lambda atoms: [a for a in atoms if self._get_stage(a) == stage]
        pairs = [
            (p, v, t)
            for p, v, t in zip(self.totals, self.total_values, self.shares.totals, strict=True)
            if p is not None and self._get_stage(v) == stage
        ]
        sums = [v for _, v, _ in pairs] + of_stage([*self.partial, *self.states])
        rows, carried = of_stage(dict.fromkeys(self.rows)), of_stage(self.carried.values())
        states = [b for b, new in self.carried.items() if new in carried]
        dependent = self.program.dependent
        is_inside = lambda eqn: any(v in dependent for v in eqn.outvars)
        while True:
            news = [self.carried[b] for b in states]
            outputs = [*sums, *rows, *news]
            indices, read = self.program.select(outputs, is_inside)
            more = [b for b in self.carried if b in read and b not in states]
            if not more:
                break
            states += more
        own = {*self.program.rows, *states}
        fixed = [v for v in read if v not in own]
        program = self.program.extract([*self.program.rows, *states, *fixed], outputs, indices)
        shardings = [self._resolve(v) for v in fixed]
        variables = [t.variable if isinstance(t, GradientTotal) else None for _, _, t in pairs]
        sources = [
            self.objectives[t.objective] if isinstance(t, GradientTotal) else None
            for _, _, t in pairs
        ]
        weights = [self._get_weight(v) for v in [*sources, *sums[len(pairs) :]]]
        loop = _StageLoop(
            self, program, shardings, variables, (sums, weights), len(rows), len(news)
        )
        values, errors = loop.run(
            leaves, self._compute(states, env), self._compute(fixed, env), errors, operands
        )
        totals = [_convert_total(t, get_aval(v).dtype) for v, t in zip(sums, values, strict=False)]
        env |= zip([p for p, _, _ in pairs], totals, strict=False)
        for v, total in zip(sums[len(pairs) :], totals[len(pairs) :], strict=True):
            before = self.states.get(v)
            env[v] = total if before is None else env[before] + total
        env |= zip(rows, values[len(sums) :], strict=False)
        final = dict(zip(news, values[len(sums) + len(rows) :], strict=True))
        env |= {v: final[v] for v in carried}
        return errors

    def _resolve(self, variable: Atom) -> RegionSharding:
        source = self.sources.get(variable)
        if isinstance(source, Variable):
            return resolve_region_sharding(self.strategy, source)
        return RegionSharding()


def _is_in(atom: Atom | None, variables: Collection[Any]) -> bool:
    """Check whether an atom is among variables; literals, some of which have no hash, are not."""
    return not isinstance(atom, jex_core.Literal) and atom in variables


def _get_level(levels: dict[Any, int], atom: Atom) -> int:
    return 0 if isinstance(atom, jex_core.Literal) else levels.get(atom, 0)


class _StageLoop:
    """Loop of a stage over the micro-batches of each device.

    Args:
      region: The region.
      program: Function of the rows of a share, its index, carried states, and fixed values. Its results are
        values to be summed, rows, and new states.
      shardings: Shardings of the fixed values.
      variables: Variables of the first sums, which are gradients; None for other totals.
      sums: Variables of the sums, and the factors of the sums over all shares.
      num_rows: Number of results with rows.
      num_states: Number of carried states.
    """

    def __init__(
        self,
        region: _StepRegion,
        program: Any,
        shardings: list[RegionSharding],
        variables: Sequence[Variable | None],
        sums: tuple[Sequence[Any], Sequence[float]],
        num_rows: int,
        num_states: int,
    ) -> None:
        self.shares, self.batch, self.strategy = region.shares, region.batch, region.strategy
        self.program, self.shardings, self.exchanges = program, shardings, region.exchanges
        self.call = jex_core.jaxpr_as_fun(program)
        self.num_states, self.num_rows = num_states, num_rows
        self.weights, self.num_sums = sums[1], len(sums[0])
        self.variables = {i: v for i, v in enumerate(variables) if v is not None}
        self.targets = {
            i: resolve_region_sharding(self.strategy, v) for i, v in self.variables.items()
        }
        # Sums are added to the values before the step, from which the programs of shares started.
        before = [region.states.get(v) for v in sums[0]]
        self.starts = [
            list(program.jaxpr.invars).index(b) if b in program.jaxpr.invars else None
            for b in before
        ]

    def run(
        self,
        leaves: Sequence[jax.Array],
        states: Sequence[Array],
        fixed: Sequence[Array],
        errors: list[list[jax.Array]],
        operands: list[list[jax.Array]],
    ) -> tuple[list[jax.Array], list[list[jax.Array]]]:
        """Run the loop on global arrays.

        Args:
          leaves: Tensors of the batch.
          states: Carried states.
          fixed: Fixed values.
          errors: Values of the slots of each exchange.
          operands: Values of the operands of each exchange.

        Returns:
          The sums, the rows and the final states, and new errors.
        """
        axes = self.shares.axes
        arguments = list(leaves), list(states), list(fixed), errors, operands
        if not axes:
            return self._run_on_device(*arguments)
        rows = PartitionSpec(axes) if self.batch.divided else PartitionSpec()
        whole, by_device = PartitionSpec(), PartitionSpec(axes)
        out = [
            self.targets[i].gradient_spec if i in self.targets else whole
            for i in range(self.num_sums)
        ]
        out += [rows] * self.num_rows + [whole] * self.num_states
        mapped = jax.shard_map(
            self._run_on_device,
            mesh=self.strategy.mesh.jax_mesh,
            in_specs=(
                [rows if leaf.ndim else whole for leaf in leaves],
                [whole] * len(states),
                [sharding.spec for sharding in self.shardings],
                [[by_device] * len(e) for e in errors],
                [[whole] * len(v) for v in operands],
            ),
            out_specs=(out, [[by_device] * len(e) for e in errors]),
            axis_names=set(axes),
            check_vma=False,
        )
        return mapped(*arguments)

    def _run_on_device(
        self,
        leaves: list[jax.Array],
        states: list[Any],
        fixed: list[Any],
        errors: list[list[jax.Array]],
        operands: list[list[jax.Array]],
    ) -> tuple[list[jax.Array], list[list[jax.Array]]]:
        count = self.shares.micro_batches
        # As in the region of a loss, `zero=2` and 3 send the gradients of each share.
        scatters = self.strategy.options.zero >= 2 and not self.exchanges and count > 1
        fixed = gather_values(self.shardings, fixed)
        device = lax.axis_index(self.shares.axes) if self.shares.num_row_parts > 1 else 0
        first = jnp.asarray(device * count, jnp.int32)

        def run_share(
            states: list[Any], rows: list[Any], index: Any
        ) -> tuple[list[Any], list[Any], list[Any]]:
            operands = [*rows, index, *states, *fixed]
            outputs = self.call(*operands)
            sums = [
                _widen(v) if start is None else _widen(v) - operands[start]
                for v, start in zip(outputs[: self.num_sums], self.starts, strict=True)
            ]
            end = self.num_sums + self.num_rows
            return sums, outputs[self.num_sums : end], outputs[end:]

        if count == 1:
            sums, rows, states = run_share(states, leaves, first)
            sums, errors = self._reduce(sums, errors, operands)
            return [*sums, *rows, *self._average(states)], errors
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.program.out_avals[: self.num_sums]
        ]
        zeros = [jnp.zeros(a.shape, _widen_dtype(a.dtype)) for a in avals]
        if scatters:
            for i, target in self.targets.items():
                zeros[i] = jnp.zeros(
                    target.get_gradient_shape(avals[i].shape, True), zeros[i].dtype
                )

        def step(carry: PyTree, share: PyTree) -> PyTree:
            (states, sums), (index, rows) = carry, share
            values, results, states = run_share(states, rows, index)
            if scatters:
                values, _ = self._reduce_gradients(values, [], [])
            return (states, [s + v for s, v in zip(sums, values, strict=True)]), results

        indices = first + jnp.arange(count, dtype=jnp.int32)
        (states, sums), rows = lax.scan(
            step, (states, zeros), (indices, split_micro_batches(leaves, count))
        )
        rows = [r.reshape(-1, *r.shape[2:]) for r in rows]
        sums, errors = self._reduce(sums, errors, operands, scatters)
        return [*sums, *rows, *self._average(states)], errors

    def _reduce_gradients(
        self, values: list[Any], errors: list[list[jax.Array]], operands: list[list[jax.Array]]
    ) -> tuple[list[Any], list[list[jax.Array]]]:
        """Reduce the gradients among sums over the devices."""
        values, errors = list(values), list(errors)
        groups: list[list[int]] = [[] for _ in (*self.exchanges, None)]
        for i, variable in self.variables.items():
            owner = next((k for k, e in enumerate(self.exchanges) if id(variable) in e.sent), -1)
            groups[owner].append(i)
        for k, exchange in enumerate(self.exchanges):
            items = [(id(self.variables[i]), values[i], self.targets[i]) for i in groups[k]]
            if items:
                reduced, errors[k] = exchange.reduce_gradients(items, errors[k], operands[k])
                values = _replace_items(values, groups[k], reduced)
        rest = groups[-1]
        reduced = reduce_gradients([self.targets[i] for i in rest], [values[i] for i in rest])
        return _replace_items(values, rest, reduced), errors

    def _reduce(
        self,
        sums: list[Any],
        errors: list[list[jax.Array]],
        operands: list[list[jax.Array]],
        is_reduced: bool = False,
    ) -> tuple[list[Any], list[list[jax.Array]]]:
        """Scale sums, and sum them over the devices, or average them if all devices have the same rows."""
        repeated = self.shares.num_devices // self.shares.num_row_parts
        factors = [w / repeated for w in self.weights]
        sums = [s if f == 1 else s * f for s, f in zip(sums, factors, strict=True)]
        if self.shares.num_devices == 1:
            return sums, errors
        if not is_reduced:
            sums, errors = self._reduce_gradients(sums, errors, operands)
        others = [i for i in range(len(sums)) if i not in self.targets]
        if others:
            totals = lax.psum([sums[i] for i in others], self.shares.axes)
            sums = _replace_items(sums, others, totals)
        return sums, errors

    def _average(self, states: Sequence[Any]) -> list[Any]:
        """Average states that devices have computed from different rows."""
        if self.shares.num_row_parts == 1:
            return list(states)
        is_float = lambda v: jnp.issubdtype(v.dtype, jnp.floating)
        average = lambda v: lax.pmean(_widen(v), self.shares.axes).astype(v.dtype)
        return [average(v) if is_float(v) else v for v in states]


def _detach(value: ArrayLike) -> np.ndarray:
    """Return a constant without the mesh of the trace of a share."""
    return np.asarray(value)


def _replace_items(values: Sequence[Any], indices: Sequence[int], new: Sequence[Any]) -> list[Any]:
    replaced = dict(zip(indices, new, strict=True))
    return [replaced.get(i, value) for i, value in enumerate(values)]


def _convert_total(total: jax.Array, dtype: np.dtype) -> jax.Array:
    is_rounded = dtype.kind in "iu" and jnp.issubdtype(total.dtype, jnp.floating)
    return (jnp.rint(total) if is_rounded else total).astype(dtype)


def _widen_dtype(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype of sums: at least 32 bits."""
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.float32 if is_half else jnp.int32 if jnp.dtype(dtype).kind == "b" else dtype


def _widen(value: jax.Array) -> jax.Array:
    return value.astype(_widen_dtype(value.dtype))
