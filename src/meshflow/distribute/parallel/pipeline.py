"""Pipelines in training steps: the region of a `MeshStrategy` whose model is cut into stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.recompute import ZERO
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.cutting import is_stream, is_sum, size_of
from meshflow.distribute.parallel.executor import Carry, Kinds, Loop
from meshflow.distribute.parallel.packs import alike, total
from meshflow.distribute.parallel.program import Gradients, LossProgram
from meshflow.distribute.parallel.region import _Batch, _trace_share, divide, warn_of_remainders
from meshflow.distribute.parallel.report import PipelineReport, StageReport
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.stage_weights import Cut, cut_of
from meshflow.distribute.parallel.stages import Stages, stages_of
from meshflow.distribute.parallel.tables import schedule_of
from meshflow.distribute.replicas.shares import LocalPart, Shares, Total, variable_of
from meshflow.environment.jax_internals import jex_core
from meshflow.placement.collectives import Collective, in_branches
from meshflow.placement.layout import Layout

__all__ = ["PipelinedStep", "check_pipeline", "pipeline_gradients", "pipeline_predictions"]


def pipeline_gradients(
    strategy: Any, program: LossProgram, x: Any, y: Any, sample_weight: Any
) -> Gradients:
    """Loss and gradients of a global batch by a pipeline; see `MeshStrategy.gradients`."""
    step = strategy.pipelined = PipelinedStep(strategy, program, x, y, sample_weight)
    return step.applied()


def pipeline_predictions(
    strategy: Any, program: LossProgram, x: Any, y: Any, sample_weight: Any
) -> Gradients:
    """What a program notes and predicts for a global batch, by a pipeline of forward passes; no gradients."""
    return PipelinedStep(strategy, program, x, y, sample_weight, trains=False).applied()


class PipelinedStep:
    """A step's loss and gradients, or its predictions alone, in stages.

    Args:
      strategy: the strategy.
      program: the model's loss.
      x: the inputs of the global batch.
      y: the targets, or None.
      sample_weight: weights of the examples, or None.
      trains: whether gradients are wanted.

    Attributes:
      schedule: the table that runs.
      stages: the stages.
      loop: what runs them.

    Raises:
      ValueError: for more stages than layers, marks, counts or tables that do not fit, and layers whose state
        a stage cannot compute with.
    """

    def __init__(
        self,
        strategy: Any,
        program: LossProgram,
        x: Any,
        y: Any,
        sample_weight: Any,
        trains: bool = True,
    ) -> None:
        self.strategy = strategy
        options, axes = strategy.options, strategy.batch_dimensions
        self.mesh, self.over = strategy.mesh, options.stages.over
        sizes = [self.mesh.dim_size(a) for a in axes]
        devices = functools.reduce(lambda a, b: a * b, sizes, 1)
        self.batch: _Batch = divide((x, y, sample_weight), devices, options.micro_batches)
        if trains:
            warn_of_remainders(strategy, self.batch, devices)
        divided = self.batch.divided and devices > 1
        self.shares = Shares(strategy, axes, sizes, self.batch.micro_batches, divided)
        spec, devices = options.stages.schedule, self.mesh.dim_size(self.over)
        self.schedule: Schedule = schedule_of(
            spec if trains else "forward", devices, self.batch.micro_batches
        )
        if not getattr(program.model, "built", True):
            # So that calls that only build layers are not taken for the model's.
            _trace_share(self.shares, program, self.batch)
        self.stages: Stages = stages_of(
            lambda: _trace_share(self.shares, program, self.batch),
            self.schedule.stages,
            options.stages.balance if trains else "cost",
            lambda capture: any(variable_of(capture) is v for v in program.variables),
            self._wanted,
            f"the model {getattr(program.model, 'name', '')!r}",
        )
        self.variables = list(program.variables)
        self.traced: Traced = self.stages.program.traced
        self._numbers = self._by_variable()
        self.loop: Loop = self._loop()
        if self.loop.divided:
            self._check_exchanges()

    def applied(self) -> Gradients:
        """Runs it as a part of the step that is traced, and writes the variables that it writes."""
        op = Op(
            "pipeline", lambda o, _: self.run(o[0], o[1]), differentiable=False, is_foldable=False
        )
        outputs = list(apply(op, (self.batch.leaves, self.traced.captured_tensors())))
        count = len(self.variables) if self.schedule.trains else 0
        gradients, outputs = outputs[:count], outputs[count:]
        state, results = outputs[: len(self.traced.writes)], outputs[len(self.traced.writes) :]
        self.traced.assign(state)
        noted, predictions = self.rebuilt(results)
        found = [g if self._numbers[n] else None for n, g in enumerate(gradients)]
        return Gradients(noted, found, predictions)

    # ---- what there is ---------------------------------------------------------------------

    def _wanted(self, traced: Traced) -> list[int]:
        """All results but the values of which the mean is taken ahead."""
        return [0, *range(1 + len(self.shares.totals), traced.count)]

    def _by_variable(self) -> list[list[int]]:
        """For each trained variable the numbers of its captures: itself, and its part on a device."""
        captured: dict[int, list[int]] = {}
        for i, capture in enumerate(self.traced.captures):
            captured.setdefault(id(variable_of(capture)), []).append(i)
        return [captured.get(id(v), []) for v in self.variables]

    @property
    def _captured(self) -> list[Any]:
        avals = self.traced.closed.in_avals
        return avals[len(avals) - len(self.traced.captures) :]

    def _loop(self, keeps: bool = True) -> Loop:
        captures, written = (
            self.traced.captures,
            {id(v): k for k, v in enumerate(self.traced.writes)},
        )
        trained = {i for numbers in self._numbers for i in numbers}
        zero = next((i for i, c in enumerate(captures) if c is ZERO), None)
        kinds = Kinds({}, {}, {}, {}, zero)
        for i, capture in enumerate(captures):
            write = written.get(id(capture))
            if i in trained:
                kinds.trained[i] = cut_of(capture, self.over, self.shares.axes)
            elif write is not None and is_stream(capture):
                kinds.streams[i] = write
            elif write is not None and is_sum(capture):
                kinds.sums[i] = write
            elif write is not None:
                kinds.carried[i] = write
        out = self.traced.closed.out_avals
        results = [(out[i], self._is_rows(out[i])) for i in self._wanted(self.traced)]
        return Loop(
            self.stages.programs,
            self._captured,
            kinds,
            out[self.traced.count :],
            results,
            self.schedule,
            self.over,
            dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True)),
            self.shares.axes,
            self.shares.count,
            bool(self.strategy.rule_dimensions),
            keeps,
            self.strategy.scratch,
        )

    def _is_rows(self, aval: Any) -> bool:
        leaves = self.traced.closed.in_avals[: len(self.batch.leaves)]
        rows = next((a.shape[0] for a in leaves if a.shape), 1)
        return bool(aval.shape) and aval.shape[0] == rows

    def report(self) -> PipelineReport:
        """What `MeshStrategy.explain` says of it."""
        loop, stages, schedule = self.loop, self.stages, self.schedule
        parts = zip(stages.layers, stages.work, stages.weights, stages.programs, strict=True)
        return PipelineReport(
            self.over,
            tuple(
                StageReport(
                    tuple(layers), s % schedule.devices, work, weights, sum(map(size_of, p.sends))
                )
                for s, (layers, work, weights, p) in enumerate(parts)
            ),
            schedule.micro_batches,
            schedule.ticks,
            schedule.bubble(),
            schedule.held(),
            loop.distinct,
            loop.edge.bytes(),
            loop.sent,
            loop.held,
            schedule.chunks * sum(pack.bytes() for pack in loop.weights),
        )

    def _check_exchanges(self) -> None:
        """Refuses what XLA would exchange in a stage between devices of which some are at another one."""
        found = self._refused_exchange()
        if found is not None and self.loop.keeps:
            # What is kept for weight passes may be divided otherwise in each stage: without it then.
            self.loop = self._loop(keeps=False)
            found = self._refused_exchange()
        if found is not None:
            raise InvalidValueError(
                f"Pipeline: the rules {self.strategy.rules} divide a layer so that its devices would exchange "
                f"{found.shape} ({found.kind} for {found.source!r}) in the middle of a stage, where the devices of "
                "other stages do not take part. Leave out the rule of this layer's weights, or rename them by dims=."
            )

    def _refused_exchange(self) -> Collective | None:
        mesh = self.mesh.jax_mesh

        def operand(aval: Any, spec: Any, layout: Any = None) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(mesh, spec) if layout is None else layout.sharding()
            return jax.ShapeDtypeStruct(tuple(aval.shape), aval.dtype, sharding=sharding)

        leaves = [
            operand(
                jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype.dtype), self._rows(leaf.ndim)
            )
            for leaf in self.batch.leaves
        ]
        captures = [
            operand(aval, PartitionSpec(), _on_device(c))
            for aval, c in zip(self._captured, self.traced.captures, strict=True)
        ]
        # Only how it is divided is asked for, not fast code.
        options: Any = {
            "xla_backend_optimization_level": 0,
            "xla_llvm_disable_expensive_passes": True,
        }
        text = jax.jit(self.run).lower(leaves, captures).compile(options).as_text() or ""
        sizes = dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True))
        refused = (
            found
            for found in in_branches(text, sizes)
            if found.kind == "collective-permute" or self.over in found.axes
        )
        return next(refused, None)

    # ---- over the mesh ---------------------------------------------------------------------

    def _rows(self, rank: int) -> PartitionSpec:
        return PartitionSpec(self.shares.axes) if self.batch.divided and rank else PartitionSpec()

    def run(self, leaves: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Gradients by variable, new state, and the results, of whole arrays."""
        rows = self._rows(1)
        rows_of = [self._rows(leaf.ndim) for leaf in leaves]
        specs = [self._spec(i) for i in range(len(captures))]
        count = len(self.variables) if self.schedule.trains else 0
        out = [self._gradient_spec(n) for n in range(count)]
        out += [PartitionSpec()] * len(self.traced.writes)
        out += [rows if has_rows else PartitionSpec() for _, has_rows in self.loop.results]
        mapped = jax.shard_map(
            self._local,
            mesh=self.mesh.jax_mesh,
            in_specs=(rows_of, specs),
            out_specs=out,
            axis_names={*self.mesh.dim_names} - self.strategy.rule_dimensions,
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures)))

    def _spec(self, capture: int) -> PartitionSpec:
        cut = self.loop.kinds.trained.get(capture)
        if cut is None and isinstance(self.traced.captures[capture], LocalPart):
            # A part that is not trained lies as rules say, whole for the pipeline.
            made = cut_of(self.traced.captures[capture], self.over, self.shares.axes)
            cut = Cut(local=made.local)
        return PartitionSpec() if cut is None else cut.spec(self.over)

    def _gradient_spec(self, variable: int) -> PartitionSpec:
        numbers = self._numbers[variable]
        return (
            self.loop.kinds.trained[numbers[0]].spec(self.over, gradient=True)
            if numbers
            else PartitionSpec()
        )

    def rebuilt(self, results: Sequence[Any]) -> tuple[list[Any], Any]:
        """Noted values and predictions from the results, the loss being the first of them."""
        full: list[Any] = [None] * self.traced.count
        for i, value in zip(self._wanted(self.traced), results, strict=True):
            full[i] = value
        _, _, noted, predictions = self.traced.rebuild(full)
        return noted, predictions

    # ---- on one device ---------------------------------------------------------------------

    def _local(self, leaves: list[Any], captures: list[Any]) -> list[Any]:
        loop, chunks, p = self.loop, self.schedule.chunks, self.schedule.devices
        me = lax.axis_index(self.over)
        m = self.batch.micro_batches
        rows = [
            v.reshape(m, v.shape[0] // m, *v.shape[1:]) if v.ndim else jnp.broadcast_to(v, (m,))
            for v in leaves
        ]
        values = dict(enumerate(self._with_totals(rows, captures)))
        stages = [c * p + me for c in range(chunks)]
        by_pack = [pack.own(values, stages) for pack in loop.weights]
        if loop.divided:
            values |= {i: alike(values[i], []) for i in loop.fixed.shapes}
        own, first = [], []
        writes = self._first_values(values)
        for c, stage in enumerate(stages):
            own.append(([buffers[c] for buffers in by_pack], loop.fixed.own(values, stage)))
            first.append(loop.written.own(writes, stage))
        carry = loop.run(own, first, rows)
        gradients = self._gradients(carry, stages) if self.schedule.trains else []
        return [*gradients, *self._state(carry, values, me), *self._results(carry)]

    def _with_totals(self, rows: list[Any], captures: list[Any]) -> list[Any]:
        """The captures with means over all shares in their places."""
        totals = self.shares.totals
        if not totals:
            return captures
        numbers = {id(t): 1 + k for k, t in enumerate(totals)}
        places = [i for i, c in enumerate(self.traced.captures) if isinstance(c, Total)]
        ahead = self.stages.program.ahead([numbers[id(self.traced.captures[i])] for i in places])
        run = jex_core.jaxpr_as_fun(ahead)
        means = [v.mean(0) for v in lax.map(lambda row: run(*row, *captures), rows)]
        captures = list(captures)
        for i, mean in zip(places, means, strict=True):
            captures[i] = lax.pmean(mean, self.shares.axes) if self.shares.axes else mean
        return captures

    def _first_values(self, values: dict[int, Any]) -> dict[int, Any]:
        """What written variables begin with, by number of the write."""
        out = self.traced.closed.out_avals[self.traced.count :]
        found = {k: jnp.zeros(a.shape, a.dtype) for k, a in enumerate(out)}
        return found | {k: values[i] for i, k in self.loop.kinds.carried.items()}

    def _gradients(self, carry: Carry, stages: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        # Rows that all devices compute are counted once for each of them; the loss is divided alike.
        for pack, sums in zip(self.loop.weights, carry.weights, strict=True):
            by_stage = [{n: b[c] for n, b in sums.items()} for c in range(len(stages))]
            found |= pack.gathered(by_stage, stages)
        gradients = []
        for numbers, variable in zip(self._numbers, self.variables, strict=True):
            known = [found[i] for i in numbers if i in found]
            shape, dtype = tuple(variable.shape), variable.dtype.dtype
            gradients.append(sum(known).astype(dtype) if known else jnp.zeros(shape, dtype))
        return gradients

    def _state(self, carry: Carry, values: dict[int, Any], me: Any) -> list[Any]:
        """New values of written variables, which one stage has each, as all rows together make them."""
        loop, axes, p = self.loop, self.shares.axes, self.schedule.devices
        parts = [
            loop.written.spread({n: b[c] for n, b in carry.written.items()}, c * p + me)
            for c in range(self.schedule.chunks)
        ]
        found = loop.written.gathered(
            total({n: sum(part[n] for part in parts) for n in carry.written}, (self.over,))
        )
        kinds = loop.kinds
        streams = {k: i for i, k in kinds.streams.items()}
        sums = {k: i for i, k in kinds.sums.items()}
        new = []
        for k in range(len(self.traced.writes)):
            value = found[k]
            if k in streams:
                # Its micro-batches had keys of their own; the counter goes on.
                value = jnp.concatenate([value[:2], values[streams[k]][2:]])
            elif k in sums:
                value = values[sums[k]] + (lax.psum(value, axes) if axes else value)
            elif axes and jnp.issubdtype(value.dtype, jnp.floating):
                value = lax.pmean(value, axes)
            new.append(value)
        return new

    def _results(self, carry: Carry) -> list[Any]:
        """The last stage's results on all devices."""
        last = lax.axis_index(self.over) == (self.schedule.stages - 1) % self.schedule.devices
        scalars, rows = iter(carry.scalars), iter(carry.rows)
        found = []
        for aval, has_rows in self.loop.results:
            value = next(rows) if has_rows else next(scalars) / self.batch.micro_batches
            if has_rows:
                value = value.reshape(-1, *value.shape[2:])
            kept = jnp.where(last, value, jnp.zeros_like(value))
            # Truth values are not added.
            shared = kept.astype(jnp.int8) if kept.dtype == bool else kept
            shared = lax.psum(shared, self.over).astype(kept.dtype)
            if not has_rows and self.shares.axes:
                shared = lax.pmean(shared, self.shares.axes)
            found.append(shared.astype(aval.dtype))
        return found


def _on_device(capture: Any) -> Layout | None:
    """How a captured variable lies on the devices while a step runs."""
    layout = capture.layout if isinstance(capture, Variable) else None
    return None if layout is None else layout.in_memory("device")


def check_pipeline(strategy: Any) -> None:
    """Checks the pipeline of a strategy before there is a model.

    Raises:
      ValueError: for a schedule that cannot run or is for other sizes, and options that a pipeline has no place for.
    """
    options = strategy.options
    spec, devices = options.stages.schedule, strategy.mesh.dim_size(options.stages.over)
    if not schedule_of(spec, devices, options.micro_batches).trains:
        raise InvalidValueError(
            f"Pipeline: the schedule {spec!r} has no backward passes, and cannot train."
        )
    if options.recompute == "gathers":
        raise InvalidValueError(
            "recompute='gathers' with a pipeline: a step brings the weights of its stages together once, and gathers "
            "none inside of layers. Use recompute='layer', a policy, or leave it out."
        )
