"""Pipeline parallelism in training steps: the region of a model that is cut into stages.

A `PipelinedStep` traces a share, cuts the trace into stages, and runs them in a `PipelineLoop`
under `jax.shard_map`.
"""

from __future__ import annotations

import math
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
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.packs import alike, total
from meshflow.distribute.parallel.program import Gradients, LossProgram, RegionStrategy
from meshflow.distribute.parallel.region import _Batch, divide, trace_share, warn_of_remainders
from meshflow.distribute.parallel.report import PipelineReport, StageReport
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.stage_weights import Cut, cut_of
from meshflow.distribute.parallel.stages import Stages, stages_of
from meshflow.distribute.parallel.tables import schedule_of
from meshflow.distribute.replicas.shares import LocalPart, Shares, Total, variable_of
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree
from meshflow.placement.collectives import Collective, in_branches
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

__all__ = ["PipelinedStep", "check_pipeline"]


class PipelinedStep:
    """A step's loss and gradients, or only its predictions, computed by a pipeline.

    Args:
      strategy: The strategy.
      program: Forward pass and loss of the model.
      x: Inputs of the global batch.
      y: Targets, or None.
      sample_weight: Weights of the examples, or None.
      trains: Whether to compute gradients.

    Attributes:
      schedule: The schedule.
      stages: The stages.
      loop: The loop that runs the stages.

    Raises:
      ValueError: If there are more stages than layers, if marks, counts or tables do not fit, or if
        the state of a layer cannot be used in a stage.
    """

    def __init__(
        self,
        strategy: RegionStrategy,
        program: LossProgram,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        trains: bool = True,
    ) -> None:
        self.strategy = strategy
        options, axes = strategy.options, strategy.batch_dimensions
        self.mesh, self.over = strategy.mesh, options.stages.over
        sizes = [self.mesh.dim_size(a) for a in axes]
        devices = math.prod(sizes)
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
            # The first trace builds the layers, so that calls which only build a layer are not
            # recorded as calls of the model.
            trace_share(self.shares, program, self.batch)
        self.stages: Stages = stages_of(
            lambda: trace_share(self.shares, program, self.batch),
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
        """Run the pipeline as a part of the traced step, and assign the variables that it writes.

        Returns:
          The gradients, the values for metrics, and the predictions.
        """
        op = Op(
            "pipeline", lambda o, _: self.run(o[0], o[1]), differentiable=False, is_foldable=False
        )
        outputs = list(apply(op, (self.batch.leaves, self.traced.captured_tensors())))
        count = len(self.variables) if self.schedule.trains else 0
        gradients, outputs = outputs[:count], outputs[count:]
        state, results = outputs[: len(self.traced.writes)], outputs[len(self.traced.writes) :]
        self.traced.assign(state)
        noted, predictions = self.rebuilt(results)
        used_gradients = [g if self._numbers[n] else None for n, g in enumerate(gradients)]
        return Gradients(noted, used_gradients, predictions)

    # ---- traced program ------------------------------------------------------------------------

    def _wanted(self, traced: Traced) -> list[int]:
        """Return the indices of all results except those with means that are computed in advance."""
        return [0, *range(1 + len(self.shares.totals), traced.count)]

    def _by_variable(self) -> list[list[int]]:
        """Return the indices of each trained variable's captures: itself and its local part."""
        captured: dict[int, list[int]] = {}
        for i, capture in enumerate(self.traced.captures):
            captured.setdefault(id(variable_of(capture)), []).append(i)
        return [captured.get(id(v), []) for v in self.variables]

    @property
    def _captured(self) -> list[jax.ShapeDtypeStruct]:
        avals = self.traced.closed.in_avals
        return avals[len(avals) - len(self.traced.captures) :]

    def _loop(self, keeps: bool = True) -> Loop:
        captures, written = (
            self.traced.captures,
            {id(v): k for k, v in enumerate(self.traced.writes)},
        )
        trained = {i for numbers in self._numbers for i in numbers}
        zero = next((i for i, c in enumerate(captures) if c is ZERO), None)
        roles = Kinds({}, {}, {}, {}, zero)
        for i, capture in enumerate(captures):
            write = written.get(id(capture))
            if i in trained:
                roles.trained[i] = cut_of(capture, self.over, self.shares.axes)
            elif write is not None and is_stream(capture):
                roles.streams[i] = write
            elif write is not None and is_sum(capture):
                roles.sums[i] = write
            elif write is not None:
                roles.carried[i] = write
        out = self.traced.closed.out_avals
        results = [(out[i], self._is_rows(out[i])) for i in self._wanted(self.traced)]
        return Loop(
            self.stages.programs,
            self._captured,
            roles,
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

    def _is_rows(self, aval: jax.ShapeDtypeStruct) -> bool:
        leaves = self.traced.closed.in_avals[: len(self.batch.leaves)]
        rows = next((a.shape[0] for a in leaves if a.shape), 1)
        return bool(aval.shape) and aval.shape[0] == rows

    def report(self) -> PipelineReport:
        """Describe the pipeline for `MeshStrategy.explain`."""
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
        """Raise an error if XLA would exchange data with devices that run another stage."""
        refused = self._refused_exchange()
        if refused is not None and self.loop.keeps:
            # Stages may shard the residuals of weight passes differently, so the loop must not keep residuals.
            self.loop = self._loop(keeps=False)
            refused = self._refused_exchange()
        if refused is not None:
            raise InvalidValueError(
                f"Pipeline: the rules {self.strategy.rules} divide a layer so that its devices would exchange "
                f"{refused.shape} ({refused.kind} for {refused.source!r}) in the middle of a stage, where the devices of "
                "other stages do not take part. Leave out the rule of this layer's weights, or rename them by dims=."
            )

    def _refused_exchange(self) -> Collective | None:
        mesh = self.mesh.jax_mesh

        def operand(
            aval: jax.ShapeDtypeStruct, spec: PartitionSpec, layout: Layout | None = None
        ) -> jax.ShapeDtypeStruct:
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
        # The compiled program is only searched for collectives, so XLA does not need to optimize
        # it.
        options: Any = {
            "xla_backend_optimization_level": 0,
            "xla_llvm_disable_expensive_passes": True,
        }
        text = jax.jit(self.run).lower(leaves, captures).compile(options).as_text() or ""
        sizes = dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True))
        refused = (
            collective
            for collective in in_branches(text, sizes)
            if collective.kind == "collective-permute" or self.over in collective.axes
        )
        return next(refused, None)

    # ---- over the mesh ---------------------------------------------------------------------

    def _rows(self, rank: int) -> PartitionSpec:
        return PartitionSpec(self.shares.axes) if self.batch.divided and rank else PartitionSpec()

    def run(self, leaves: Sequence[jax.Array], captures: Sequence[jax.Array]) -> list[jax.Array]:
        """Run the pipeline on global arrays.

        Args:
          leaves: Tensors of the batch.
          captures: Values of the captures.

        Returns:
          Gradients by variable, new state, and the needed results.
        """
        rows = self._rows(1)
        row_specs = [self._rows(leaf.ndim) for leaf in leaves]
        specs = [self._spec(i) for i in range(len(captures))]
        count = len(self.variables) if self.schedule.trains else 0
        out = [self._gradient_spec(n) for n in range(count)]
        out += [PartitionSpec()] * len(self.traced.writes)
        out += [rows if has_rows else PartitionSpec() for _, has_rows in self.loop.results]
        mapped = jax.shard_map(
            self._local,
            mesh=self.mesh.jax_mesh,
            in_specs=(row_specs, specs),
            out_specs=out,
            axis_names={*self.mesh.dim_names} - self.strategy.rule_dimensions,
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures)))

    def _spec(self, capture: int) -> PartitionSpec:
        cut = self.loop.kinds.trained.get(capture)
        if cut is None and isinstance(self.traced.captures[capture], LocalPart):
            # A local part that is not trained has the layout of the rules, and is not split over
            # the pipeline.
            local_cut = cut_of(self.traced.captures[capture], self.over, self.shares.axes)
            cut = Cut(local=local_cut.local)
        return PartitionSpec() if cut is None else cut.spec(self.over)

    def _gradient_spec(self, variable: int) -> PartitionSpec:
        indices = self._numbers[variable]
        return (
            self.loop.kinds.trained[indices[0]].spec(self.over, gradient=True)
            if indices
            else PartitionSpec()
        )

    def rebuilt(self, results: Sequence[jax.Array]) -> tuple[list[Any], PyTree]:
        """Return the values for metrics and the predictions; the first of the results is the loss."""
        values: list[Any] = [None] * self.traced.count
        for i, value in zip(self._wanted(self.traced), results, strict=True):
            values[i] = value
        _, _, noted, predictions = self.traced.rebuild(values)
        return noted, predictions

    # ---- on one device ---------------------------------------------------------------------

    def _local(self, leaves: list[jax.Array], captures: list[jax.Array]) -> list[jax.Array]:
        loop, chunks, p = self.loop, self.schedule.chunks, self.schedule.devices
        device = lax.axis_index(self.over)
        m = self.batch.micro_batches
        rows = [
            v.reshape(m, v.shape[0] // m, *v.shape[1:]) if v.ndim else jnp.broadcast_to(v, (m,))
            for v in leaves
        ]
        values = dict(enumerate(self._with_totals(rows, captures)))
        stages = [c * p + device for c in range(chunks)]
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
        return [*gradients, *self._state(carry, values, device), *self._results(carry)]

    def _with_totals(self, rows: list[jax.Array], captures: list[jax.Array]) -> list[jax.Array]:
        """Return the captures with the means over all shares, which run before the pipeline."""
        totals = self.shares.totals
        if not totals:
            return captures
        indices = {id(t): 1 + k for k, t in enumerate(totals)}
        places = [i for i, c in enumerate(self.traced.captures) if isinstance(c, Total)]
        ahead = self.stages.program.ahead([indices[id(self.traced.captures[i])] for i in places])
        run = jex_core.jaxpr_as_fun(ahead)
        means = [v.mean(0) for v in lax.map(lambda row: run(*row, *captures), rows)]
        captures = list(captures)
        for i, mean in zip(places, means, strict=True):
            captures[i] = lax.pmean(mean, self.shares.axes) if self.shares.axes else mean
        return captures

    def _first_values(self, values: dict[int, jax.Array]) -> dict[int, jax.Array]:
        """Return the initial values of written variables, by index of the write."""
        out = self.traced.closed.out_avals[self.traced.count :]
        initial = {k: jnp.zeros(a.shape, a.dtype) for k, a in enumerate(out)}
        return initial | {k: values[i] for i, k in self.loop.kinds.carried.items()}

    def _gradients(self, carry: Carry, stages: Sequence[jax.Array]) -> list[jax.Array]:
        by_capture: dict[int, jax.Array] = {}
        # If all devices compute the same examples, each counts them; the loss is divided accordingly.
        for pack, sums in zip(self.loop.weights, carry.weights, strict=True):
            by_stage = [{n: b[c] for n, b in sums.items()} for c in range(len(stages))]
            by_capture |= pack.gathered(by_stage, stages)
        gradients = []
        for indices, variable in zip(self._numbers, self.variables, strict=True):
            parts = [by_capture[i] for i in indices if i in by_capture]
            shape, dtype = tuple(variable.shape), variable.dtype.dtype
            total: Any = sum(parts)
            gradients.append(total.astype(dtype) if parts else jnp.zeros(shape, dtype))
        return gradients

    def _state(
        self, carry: Carry, values: dict[int, jax.Array], device: jax.Array
    ) -> list[jax.Array]:
        """Return new values of written variables; each of them is written by one stage."""
        loop, axes, p = self.loop, self.shares.axes, self.schedule.devices
        parts = [
            loop.written.spread({n: b[c] for n, b in carry.written.items()}, c * p + device)
            for c in range(self.schedule.chunks)
        ]
        merged = loop.written.gathered(
            total({n: sum(part[n] for part in parts) for n in carry.written}, (self.over,))
        )
        roles = loop.kinds
        streams = {k: i for i, k in roles.streams.items()}
        sums = {k: i for i, k in roles.sums.items()}
        new = []
        for k in range(len(self.traced.writes)):
            value = merged[k]
            if k in streams:
                # Micro-batches use keys of their own, and only the counter of the stream advances.
                value = jnp.concatenate([value[:2], values[streams[k]][2:]])
            elif k in sums:
                value = values[sums[k]] + (lax.psum(value, axes) if axes else value)
            elif axes and jnp.issubdtype(value.dtype, jnp.floating):
                value = lax.pmean(value, axes)
            new.append(value)
        return new

    def _results(self, carry: Carry) -> list[jax.Array]:
        """Return the last stage's results on all devices."""
        is_last = lax.axis_index(self.over) == (self.schedule.stages - 1) % self.schedule.devices
        scalars, rows = iter(carry.scalars), iter(carry.rows)
        results = []
        for aval, has_rows in self.loop.results:
            value = next(rows) if has_rows else next(scalars) / self.batch.micro_batches
            if has_rows:
                value = value.reshape(-1, *value.shape[2:])
            value = jnp.where(is_last, value, jnp.zeros_like(value))
            # Booleans cannot be summed.
            shared = value.astype(jnp.int8) if value.dtype == bool else value
            shared = lax.psum(shared, self.over).astype(value.dtype)
            if not has_rows and self.shares.axes:
                shared = lax.pmean(shared, self.shares.axes)
            results.append(shared.astype(aval.dtype))
        return results


def _on_device(capture: object) -> Layout | None:
    """Return the layout of a captured variable on the devices while a step runs."""
    layout = capture.layout if isinstance(capture, Variable) else None
    return None if layout is None else layout.in_memory("device")


def check_pipeline(options: ParallelOptions, mesh: Mesh) -> None:
    """Check the pipeline options before there is a model.

    Args:
      options: The options, which have a pipeline.
      mesh: The mesh.

    Raises:
      ValueError: If the schedule cannot run or is for other sizes, or if an option is not supported
        in a pipeline.
    """
    spec, devices = options.stages.schedule, mesh.dim_size(options.stages.over)
    if not schedule_of(spec, devices, options.micro_batches).trains:
        raise InvalidValueError(
            f"Pipeline: the schedule {spec!r} has no backward passes, and cannot train."
        )
    if options.recompute == "gathers":
        raise InvalidValueError(
            "recompute='gathers' with a pipeline: a step gathers the weights of its stages once, outside of the "
            "layers. Use recompute='layer' or a policy, or leave it out."
        )
