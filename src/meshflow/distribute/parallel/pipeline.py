"""Pipelines in training steps: the region of a `MeshStrategy` whose model is cut into stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.cutting import is_stream, is_sum, size_of
from meshflow.distribute.parallel.executor import Carry, Kinds, Loop
from meshflow.distribute.parallel.packs import total
from meshflow.distribute.parallel.program import Gradients, LossProgram
from meshflow.distribute.parallel.region import _Batch, _trace_share, divide
from meshflow.distribute.parallel.report import PipelineReport, StageReport
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.stages import Stages, stages_of
from meshflow.distribute.parallel.tables import schedule_of
from meshflow.distribute.shares import LocalPart, Shares, Total
from meshflow.environment.jax_internals import jex_core
from meshflow.placement.layout import dimensions_of

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
        options, axes = strategy.options, strategy.batch_dimensions
        self.mesh, self.over = strategy.mesh, options.stages.over
        sizes = [self.mesh.dim_size(a) for a in axes]
        devices = functools.reduce(lambda a, b: a * b, sizes, 1)
        self.batch: _Batch = divide((x, y, sample_weight), devices, options.micro_batches)
        divided = self.batch.divided and devices > 1
        self.shares = Shares(strategy, axes, sizes, self.batch.micro_batches, divided)
        spec, devices = options.stages.schedule, self.mesh.dim_size(self.over)
        self.schedule: Schedule = schedule_of(
            spec if trains else "forward", devices, self.batch.micro_batches
        )
        if not getattr(program.model, "built", True):
            # So that calls that only build layers are not taken for the model's.
            _trace_share(self.shares, program, self.batch)
            self.shares.totals.clear()
        self.stages: Stages = stages_of(
            lambda: _trace_share(self.shares, program, self.batch),
            self.schedule.stages,
            options.stages.balance if trains else "cost",
            lambda capture: any(capture is v for v in program.variables),
            self._wanted,
            f"the model {getattr(program.model, 'name', '')!r}",
        )
        self.variables = list(program.variables)
        self.traced: Traced = self.stages.program.traced
        self._numbers = self._by_variable()
        self.loop = self._loop()

    def applied(self) -> Gradients:
        """Runs it as a part of the step that is traced, and writes the variables that it writes."""
        op = Op("pipeline", lambda o, _: self.run(o[0], o[1]), differentiable=False, constant=False)
        outputs = list(apply(op, (self.batch.leaves, self.traced.captured_tensors())))
        count = len(self.variables) if self.schedule.trains else 0
        gradients, outputs = outputs[:count], outputs[count:]
        state, results = outputs[: len(self.traced.writes)], outputs[len(self.traced.writes) :]
        self.traced.assign(state)
        noted, predictions = self.rebuilt(results)
        used = set(self._numbers)
        found = [g if i in used else None for i, g in enumerate(gradients)]
        return Gradients(noted, found, predictions)

    # ---- what there is ---------------------------------------------------------------------

    def _wanted(self, traced: Traced) -> list[int]:
        """All results but the values of which the mean is taken ahead."""
        return [0, *range(1 + len(self.shares.totals), traced.count)]

    def _by_variable(self) -> dict[int, int]:
        """For the number of a trained variable that of its capture."""
        captured = {id(c): i for i, c in enumerate(self.traced.captures)}
        places = {n: captured.get(id(v)) for n, v in enumerate(self.variables)}
        return {n: i for n, i in places.items() if i is not None}

    @property
    def _captured(self) -> list[Any]:
        avals = self.traced.closed.in_avals
        return avals[len(avals) - len(self.traced.captures) :]

    def _axis(self, capture: Any) -> int | None:
        """The axis along which the pipeline's devices have parts of a weight, and nothing else divides it."""
        layout = capture.layout if isinstance(capture, Variable) else None
        if layout is None or layout.is_single_device():
            return None
        specs = [dimensions_of(spec, layout.mesh) for spec in layout.sharding_specs]
        others = {d for names in specs for d in names} - {self.over, *self.shares.axes}
        if others:
            raise InvalidValueError(
                f"Pipeline: a rule splits the weight {capture.name} over {sorted(others)} ({layout.sharding_specs}). The "
                f"weights of stages lie along {self.over!r} and the dimensions of the batch; leave the rule out."
            )
        return next((i for i, names in enumerate(specs) if names == (self.over,)), None)

    def _loop(self) -> Loop:
        captures, written = (
            self.traced.captures,
            {id(v): k for k, v in enumerate(self.traced.writes)},
        )
        kinds = Kinds({}, frozenset(self._numbers.values()), {}, {}, {})
        for i, capture in enumerate(captures):
            if isinstance(capture, LocalPart):
                raise InvalidValueError(
                    f"Pipeline: the layer with the weight {capture.name} exchanges rows between the devices of a batch; "
                    "such layers cannot be in a pipeline."
                )
            write = written.get(id(capture))
            if i in kinds.trained:
                axis = self._axis(capture)
                if axis is not None:
                    kinds.split[i] = axis
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
            self.shares.count,
        )

    def _is_rows(self, aval: Any) -> bool:
        leaves = self.traced.closed.in_avals[: len(self.batch.leaves)]
        rows = next((a.shape[0] for a in leaves if a.shape), 1)
        return bool(aval.shape) and aval.shape[0] == rows

    def report(self) -> PipelineReport:
        """What `MeshStrategy.explain` says of it."""
        loop, stages, schedule = self.loop, self.stages, self.schedule
        parts = zip(stages.layers, stages.work, stages.weights, stages.programs, strict=True)
        columns = loop.columns
        floats = sum(z.nbytes for z in loop.edge.zeros(floats=True).values())
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
            columns.inputs * loop.edge.bytes() + columns.gradients * floats,
            schedule.chunks * (loop.split.bytes() + loop.whole.bytes()),
        )

    # ---- over the mesh ---------------------------------------------------------------------

    def run(self, leaves: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Gradients by variable, new state, and the results, of whole arrays."""
        rows = PartitionSpec(self.shares.axes) if self.batch.divided else PartitionSpec()
        rows_of = [rows if leaf.ndim else PartitionSpec() for leaf in leaves]
        specs = [self._spec(i) for i in range(len(captures))]
        count = len(self.variables) if self.schedule.trains else 0
        out = [self._spec(self._numbers.get(n)) for n in range(count)]
        out += [PartitionSpec()] * len(self.traced.writes)
        out += [rows if has_rows else PartitionSpec() for _, has_rows in self.loop.results]
        mapped = jax.shard_map(
            self._local,
            mesh=self.mesh.jax_mesh,
            in_specs=(rows_of, specs),
            out_specs=out,
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures)))

    def _spec(self, capture: int | None) -> PartitionSpec:
        axis = None if capture is None else self.loop.kinds.split.get(capture)
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, self.over)

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
        split = loop.split.own(values, self.over)
        own, first = [], []
        writes = self._first_values(values)
        for c in range(chunks):
            stage = c * p + me
            own.append((split[c], loop.whole.own(values, stage), loop.fixed.own(values, stage)))
            first.append(loop.written.own(writes, stage))
        carry = loop.run(own, first, rows)
        gradients = self._gradients(carry, me) if self.schedule.trains else []
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

    def _gradients(self, carry: Carry, me: Any) -> list[Any]:
        loop, axes, p = self.loop, self.shares.axes, self.schedule.devices
        chunks = range(self.schedule.chunks)
        # Rows that all devices compute are counted once for each of them; the loss is divided alike.
        split = total(carry.split, axes)
        found = loop.split.gathered(
            [{n: b[c] for n, b in split.items()} for c in chunks], self.over
        )
        parts = [
            loop.whole.spread({n: b[c] for n, b in carry.whole.items()}, c * p + me) for c in chunks
        ]
        whole = {n: sum(part[n] for part in parts) for n in carry.whole}
        found |= loop.whole.gathered(total(whole, (self.over, *axes)))
        gradients = []
        for n, variable in enumerate(self.variables):
            i = self._numbers.get(n)
            known = None if i is None else found.get(i)
            shape, dtype = tuple(variable.shape), variable.dtype.dtype
            gradients.append(jnp.zeros(shape, dtype) if known is None else known.astype(dtype))
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
                value = jnp.concatenate([values[streams[k]][:2], value[2:]])
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
