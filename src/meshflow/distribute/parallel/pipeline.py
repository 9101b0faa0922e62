"""Pipeline parallelism in training steps: the region of a model that is cut into stages.

A `PipelinedStep` traces a share, cuts the trace into stages, and runs them in a `PipelineLoop`
under `jax.shard_map`.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.rematerialization import OPAQUE_ZERO
from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.tensor import Tensor, read_tensors
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.executor import CaptureRoles, LoopCarry, PipelineLoop
from meshflow.distribute.parallel.named_schedules import resolve_schedule
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.packs import constrain_sharding, sum_buffers
from meshflow.distribute.parallel.program import (
    LossProgram,
    RegionResult,
    RegionStrategy,
    UpdateGroup,
)
from meshflow.distribute.parallel.region import (
    PartitionedBatch,
    trace_share,
    warn_about_remainders,
    warn_about_statistics,
)
from meshflow.distribute.parallel.report import PipelineReport, StageReport
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.stage_buffers import (
    StageBuffer,
    can_join_buffer,
    get_storage,
    place_weights,
)
from meshflow.distribute.parallel.stage_programs import count_bytes, is_key_stream, is_sum
from meshflow.distribute.parallel.stage_weights import (
    ResidentPack,
    WeightCut,
    resolve_resident_cut,
    resolve_weight_cut,
)
from meshflow.distribute.parallel.stages import PipelineStages, trace_stages
from meshflow.distribute.replicas.shares import (
    BatchShares,
    LocalPart,
    ShareTotal,
    get_captured_variable,
)
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree
from meshflow.placement.collectives import Collective, parse_branch_collectives
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

# Update group of resident weights that no optimizer updates.
_FROZEN = UpdateGroup(is_trained=False)


class PipelinedStep:
    """A step's loss and gradients, or only its predictions, computed by a pipeline.

    Args:
      strategy: The strategy.
      program: Forward pass and loss of the model.
      batch: The partitioned batch (x, y, sample_weight).
      trains: Whether to compute gradients.
      share: Shares of the batch, and the function that traces the program for one of them; by default those of the
        program.

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
        batch: PartitionedBatch,
        trains: bool = True,
        share: tuple[BatchShares, Callable[[], TracedFunction]] | None = None,
    ) -> None:
        self.strategy, self.batch, self._program = strategy, batch, program
        options, axes = strategy.options, strategy.batch_dimensions
        self.mesh, self.over = strategy.mesh, options.pipeline_options.over
        sizes = [self.mesh.dim_size(a) for a in axes]
        devices = math.prod(sizes)
        if trains:
            warn_about_remainders(strategy, batch, devices)
        if share is None:
            divided = batch.divided and devices > 1
            self.shares = BatchShares(strategy, axes, sizes, batch.micro_batches, divided)
            trace_program = lambda: trace_share(self.shares, program, batch)
        else:
            self.shares, trace_program = share
        spec = options.pipeline_options.schedule if trains else "forward"
        devices = self.mesh.dim_size(self.over)
        self.schedule: Schedule = resolve_schedule(spec, devices, self.batch.micro_batches)
        placed_layers = self._find_placed_layers(program.variables)
        placed = len(placed_layers)
        if placed != self.schedule.stages and (trains or placed % devices):
            placed_layers = ()
        if not getattr(program.model, "built", True):
            # The first trace builds the layers, so that calls which only build a layer are not
            # recorded as calls of the model.
            trace_program()
        self.stages: PipelineStages = trace_stages(
            trace_program,
            self.schedule.stages,
            options.pipeline_options.balance if trains else "cost",
            lambda capture: any(get_captured_variable(capture) is v for v in program.variables),
            self._list_needed_results,
            f"the model {getattr(program.model, 'name', '')!r}",
            placed_layers,
        )
        if len(self.stages.programs) != self.schedule.stages:
            # Predictions use the interleaved stages of training.
            spec = f"forward:{len(self.stages.programs) // devices}"
            self.schedule = resolve_schedule(spec, devices, self.batch.micro_batches)
        self.variables = list(program.variables)
        self.traced: TracedFunction = self.stages.program.traced
        self._capture_indices = self._group_captures()
        self._groups = self._find_update_groups(program)
        self.loop: PipelineLoop = self._build_loop()
        # Buffers of resident weights, by pack and dtype.
        self._buffers: list[dict[str, StageBuffer]] = []
        if self.loop.divided:
            self._check_collectives()
        self._place_weights()

    def apply(self) -> RegionResult:
        """Run the pipeline as a part of the traced step, and assign the variables that it writes.

        Returns:
          The gradients, the values for metrics, and the predictions.
        """
        warn_about_statistics(self.shares)
        result, state = self.compute()
        self.traced.assign_variables(state)
        self.shares.finish()
        return result

    def compute(self) -> tuple[RegionResult, list[Tensor]]:
        """Run the pipeline as a part of the traced step.

        Returns:
          The gradients, the values for metrics, and the predictions; and new values of the variables that the
          pipeline writes.
        """
        op = Op("pipeline", lambda o, _: self.run(*o), differentiable=False, is_foldable=False)
        arrays = [b.value() for pack in self._buffers for b in pack.values()]
        outputs = list(apply(op, (self.batch.leaves, self._read_captures(), arrays)))
        trained = self._buffers[: len(self._buffers) - len(self.loop.frozen)]
        buffers = [b for pack in trained for b in pack.values()]
        count = len(buffers) + len(self._gathered) if self.schedule.has_backward_passes else 0
        gradients, outputs = iter(outputs[:count]), outputs[count:]
        state, results = outputs[: len(self.traced.writes)], outputs[len(self.traced.writes) :]
        noted, predictions = self._rebuild_results(results)
        pairs: list[tuple[Any, Variable]] = []
        for buffer, gradient in zip(buffers, gradients, strict=False):
            if buffer.group is not None and buffer.group.is_elementwise:
                pairs.append((gradient, buffer))
            else:
                parts = zip(buffer.parts, buffer.members, strict=True)
                pairs += [(part.read(gradient), member) for part, member in parts]
        for n, gradient in zip(self._gathered, gradients, strict=False):
            pairs.append((gradient if self._capture_indices[n] else None, self.variables[n]))
        # Optimizers that update all variables together depend on their order.
        order = {id(get_storage(v)): n for n, v in reversed([*enumerate(self.variables)])}
        order |= {id(v): n for n, v in enumerate(self.variables)}
        pairs.sort(key=lambda pair: order.get(id(pair[1]), 0))
        gradients_of_weights, weights = [g for g, _ in pairs], [v for _, v in pairs]
        return RegionResult(noted, gradients_of_weights, predictions, variables=weights), state

    # ---- weights on their stages -------------------------------------------------------------

    def _find_placed_layers(self, variables: Sequence[Variable]) -> Sequence[Sequence[str]]:
        """Return the layers of each stage in the cut by which weights were placed."""
        buffers = map(get_storage, variables)
        return next(
            (
                b.stage_layers
                for b in buffers
                if isinstance(b, StageBuffer) and b.layout.mesh == self.mesh
            ),
            (),
        )

    def _find_update_groups(self, program: LossProgram) -> dict[int, UpdateGroup]:
        """Return the update groups of the resident weights, by capture.

        A weight is resident, only on the devices of the stages that use it, if its values are in
        the memory of devices. A step gathers the others.
        """
        groups: dict[int, UpdateGroup] = {}
        trains = self.schedule.has_backward_passes
        users = Counter(i for stage in self.stages.programs for i in stage.captures)
        weights = {id(v): v for v in getattr(program.model, "weights", self.variables)}
        trained = {i for indices in self._capture_indices for i in indices}
        # Devices use parts of these weights, too.
        partial = {i for indices in self._capture_indices if len(indices) > 1 for i in indices}
        for i, capture in enumerate(map(get_captured_variable, self.traced.captures)):
            storage = get_storage(capture)
            group: UpdateGroup | None = None
            is_own = users[i] and i not in partial and id(capture) in weights
            if is_own and can_join_buffer(capture):
                if not trains:
                    group = storage.group if isinstance(storage, StageBuffer) else None
                elif i in trained:
                    group = program.get_update_group(capture)
                    if group is not None and users[i] > 1:
                        # A norm of all weights must count the copies once.
                        group = group._replace(is_elementwise=False)
                elif capture.dtype.is_floating and not any(
                    capture is v for v in self.traced.writes
                ):
                    group = _FROZEN
            if group is not None and not self._is_used_elsewhere(storage, group):
                groups[i] = group
            elif isinstance(storage, StageBuffer) and trains and group != _FROZEN:
                storage.release()
        return groups

    def _is_used_elsewhere(self, storage: object, group: UpdateGroup) -> bool:
        """Check whether a weight that is frozen here is on the stage of another model that trains it."""
        return (
            isinstance(storage, StageBuffer)
            and group == _FROZEN != storage.group
            and storage.stage_layers != self.stages.layers
        )

    def _place_weights(self) -> None:
        """Move weights to their stages, or use the buffers that hold them."""
        buffers: list[dict[str, StageBuffer]] = []
        for pack in self.loop.resident_packs:
            members = {i: get_captured_variable(self.traced.captures[i]) for i in pack.cuts}
            placed = place_weights(
                pack,
                members,
                pack.make_layout(self.mesh),
                self.stages.layers,
                self.schedule.has_backward_passes,
            )
            if placed is None:
                # The stages of predictions differ from those of training, so a step gathers all.
                self._groups, buffers = {}, []
                self.loop = self._build_loop()
                break
            buffers.append(placed)
        self._buffers = buffers

    @property
    def _gathered(self) -> list[int]:
        """Return the indices of the variables that are not resident."""
        return [
            n
            for n, indices in enumerate(self._capture_indices)
            if not (indices and indices[0] in self._groups)
        ]

    def _read_captures(self) -> list[Tensor]:
        """Read the captures, with zeros in place of resident weights."""
        gathered = [c for i, c in enumerate(self.traced.captures) if i not in self._groups]
        with suspend_autocast():
            values = iter(read_tensors(gathered))
        zero = Tensor(np.zeros((), np.float32))
        return [
            zero if i in self._groups else next(values) for i in range(len(self.traced.captures))
        ]

    # ---- traced program ------------------------------------------------------------------------

    def _list_needed_results(self, traced: TracedFunction) -> list[int]:
        """Return the indices of all results except those with means that are computed in advance."""
        return [0, *range(1 + len(self.shares.totals), traced.num_results)]

    def _group_captures(self) -> list[list[int]]:
        """Return the indices of each trained variable's captures: itself and its local part."""
        captured: dict[int, list[int]] = {}
        for i, capture in enumerate(self.traced.captures):
            captured.setdefault(id(get_captured_variable(capture)), []).append(i)
        return [captured.get(id(v), []) for v in self.variables]

    @property
    def _capture_avals(self) -> list[jax.ShapeDtypeStruct]:
        avals = self.traced.closed_jaxpr.in_avals
        return avals[len(avals) - len(self.traced.captures) :]

    def _build_loop(self, keeps: bool = True) -> PipelineLoop:
        """Return the loop of the stages, without residuals if it must not keep any."""
        captures, written = (
            self.traced.captures,
            {id(v): k for k, v in enumerate(self.traced.writes)},
        )
        trained = {i for numbers in self._capture_indices for i in numbers}
        zero = next((i for i, c in enumerate(captures) if c is OPAQUE_ZERO), None)
        roles = CaptureRoles({}, {}, {}, {}, {}, zero)
        for i, capture in enumerate(captures):
            write = written.get(id(capture))
            cut = None
            if i in self._groups:
                cut = resolve_resident_cut(self.strategy, capture, self._groups[i])
                if cut is None:
                    del self._groups[i]
            if i in trained:
                roles.trained[i] = cut or resolve_weight_cut(capture, self.over, self.shares.axes)
            elif cut is not None:
                roles.frozen[i] = cut
            elif write is not None and is_key_stream(capture):
                roles.streams[i] = write
            elif write is not None and is_sum(capture):
                roles.sums[i] = write
            elif write is not None:
                roles.carried[i] = write
        out = self.traced.closed_jaxpr.out_avals
        results = [(out[i], self._has_rows(i)) for i in self._list_needed_results(self.traced)]
        return PipelineLoop(
            self.stages.programs,
            self._capture_avals,
            roles,
            out[self.traced.num_results :],
            results,
            self.schedule,
            self.over,
            dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True)),
            self.shares.axes,
            self.shares.count,
            bool(self.strategy.rule_dimensions),
            keeps,
            keeps and self.strategy.options.pipeline_options.keep == "residuals",
            self.strategy.scratch,
        )

    def _has_rows(self, result: int) -> bool:
        """Check whether a result of the trace has a row for each example."""
        aval = self.traced.closed_jaxpr.out_avals[result]
        leaves = self.traced.closed_jaxpr.in_avals[: len(self.batch.leaves)]
        rows = next((a.shape[0] for a in leaves if a.shape), 1)
        return bool(aval.shape) and aval.shape[0] == rows

    def make_report(self) -> PipelineReport:
        """Describe the pipeline for `MeshStrategy.explain`."""
        loop, stages, schedule = self.loop, self.stages, self.schedule
        parts = zip(stages.layers, stages.work, stages.weights, stages.programs, strict=True)
        return PipelineReport(
            self.over,
            tuple(
                StageReport(
                    tuple(layers),
                    s % schedule.devices,
                    work,
                    weights,
                    sum(map(count_bytes, p.sends)),
                )
                for s, (layers, work, weights, p) in enumerate(parts)
            ),
            schedule.micro_batches,
            schedule.ticks,
            schedule.compute_bubble(),
            schedule.count_held_inputs(),
            "residuals" if loop.stores else "inputs",
            loop.num_programs,
            loop.edge.count_bytes(),
            loop.sent_bytes,
            loop.held_bytes,
            schedule.chunks
            * sum(pack.count_bytes() for pack in loop.weights if pack not in loop.resident_packs),
        )

    def _check_collectives(self) -> None:
        """Raise an error if XLA would exchange data with devices that run another stage."""
        refused = self._find_refused_collective()
        if refused is not None and (self.loop.keeps or self.loop.stores):
            # Stages may shard residuals differently, so the loop must not keep any.
            if self.loop.stores:
                warnings.warn(
                    f"Pipeline: keep='residuals' has no effect with the rules {self.strategy.rules}: the stages split "
                    f"residuals differently, so that devices would exchange {refused.shape} ({refused.kind}) in the "
                    "middle of a stage. The stages keep their inputs.",
                    stacklevel=2,
                )
            self.loop = self._build_loop(keeps=False)
            refused = self._find_refused_collective()
        if refused is not None:
            raise InvalidValueError(
                f"Pipeline: the rules {self.strategy.rules} divide a layer so that its devices would exchange "
                f"{refused.shape} ({refused.kind} for {refused.source!r}) in the middle of a stage, where the devices of "
                "other stages do not take part. Leave out the rule of this layer's weights, or rename them by dims=."
            )

    def _find_refused_collective(self) -> Collective | None:
        mesh = self.mesh.jax_mesh

        def operand(
            aval: jax.ShapeDtypeStruct, spec: PartitionSpec, layout: Layout | None = None
        ) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(mesh, spec) if layout is None else layout.to_sharding()
            return jax.ShapeDtypeStruct(tuple(aval.shape), aval.dtype, sharding=sharding)

        leaves = [
            operand(
                jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype.dtype),
                self._get_row_spec(leaf.ndim),
            )
            for leaf in self.batch.leaves
        ]
        captures = [
            operand(aval, PartitionSpec(), _get_device_layout(c))
            if i not in self._groups
            else jax.ShapeDtypeStruct((), np.float32)
            for i, (aval, c) in enumerate(
                zip(self._capture_avals, self.traced.captures, strict=True)
            )
        ]
        p = self.schedule.devices
        buffers = [
            jax.ShapeDtypeStruct(
                pack.get_array_shape(n, p), n, sharding=pack.make_layout(self.mesh).to_sharding()
            )
            for pack in self.loop.resident_packs
            for n in pack.lengths
        ]
        # The compiled program is only searched for collectives, so XLA does not need to optimize
        # it.
        options: Any = {
            "xla_backend_optimization_level": 0,
            "xla_llvm_disable_expensive_passes": True,
        }
        text = jax.jit(self.run).lower(leaves, captures, buffers).compile(options).as_text() or ""
        sizes = dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True))
        refused = (
            collective
            for collective in parse_branch_collectives(text, sizes)
            if collective.kind == "collective-permute" or self.over in collective.axes
        )
        return next(refused, None)

    # ---- over the mesh ---------------------------------------------------------------------

    def _get_row_spec(self, rank: int) -> PartitionSpec:
        return PartitionSpec(self.shares.axes) if self.batch.divided and rank else PartitionSpec()

    def run(
        self,
        leaves: Sequence[jax.Array],
        captures: Sequence[jax.Array],
        buffers: Sequence[jax.Array],
    ) -> list[jax.Array]:
        """Run the pipeline on global arrays.

        Args:
          leaves: Tensors of the batch.
          captures: Values of the captures.
          buffers: Arrays of the resident weights, by pack and dtype.

        Returns:
          Gradients by variable, new state, and the needed results.
        """
        rows = self._get_row_spec(1)
        row_specs = [self._get_row_spec(leaf.ndim) for leaf in leaves]
        specs = [self._get_capture_spec(i) for i in range(len(captures))]
        packs = self.loop.resident_packs
        buffer_specs = [pack.get_specs() for pack in packs for _ in pack.lengths]
        out: list[PartitionSpec] = []
        if self.schedule.has_backward_passes:
            trained = packs[: len(packs) - len(self.loop.frozen)]
            out += [pack.get_specs(gradient=True) for pack in trained for _ in pack.lengths]
            out += [self._get_gradient_spec(n) for n in self._gathered]
        out += [PartitionSpec()] * len(self.traced.writes)
        out += [rows if has_rows else PartitionSpec() for _, has_rows in self.loop.results]
        mapped = jax.shard_map(
            self._run_on_device,
            mesh=self.mesh.jax_mesh,
            in_specs=(row_specs, specs, buffer_specs),
            out_specs=out,
            axis_names={*self.mesh.dim_names} - self.strategy.rule_dimensions,
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures), list(buffers)))

    def _get_capture_spec(self, capture: int) -> PartitionSpec:
        if capture in self._groups:
            return PartitionSpec()
        cut = self.loop.roles.trained.get(capture)
        if cut is None and isinstance(self.traced.captures[capture], LocalPart):
            # A local part that is not trained has the layout of the rules, and is not split over
            # the pipeline.
            local_cut = resolve_weight_cut(
                self.traced.captures[capture], self.over, self.shares.axes
            )
            cut = WeightCut(local=local_cut.local)
        return PartitionSpec() if cut is None else cut.spec(self.over)

    def _get_gradient_spec(self, variable: int) -> PartitionSpec:
        indices = self._capture_indices[variable]
        return (
            self.loop.roles.trained[indices[0]].spec(self.over, gradient=True)
            if indices
            else PartitionSpec()
        )

    def _rebuild_results(self, results: Sequence[jax.Array]) -> tuple[list[Any], PyTree]:
        """Return the values for metrics and the predictions; the first of the results is the loss."""
        values: list[Any] = [None] * self.traced.num_results
        for i, value in zip(self._list_needed_results(self.traced), results, strict=True):
            values[i] = value
        _, _, noted, predictions = self.traced.rebuild_result(values)
        return noted, predictions

    # ---- on one device ---------------------------------------------------------------------

    def _run_on_device(
        self, leaves: list[jax.Array], captures: list[jax.Array], buffers: list[jax.Array]
    ) -> list[jax.Array]:
        loop, chunks, p = self.loop, self.schedule.chunks, self.schedule.devices
        device = lax.axis_index(self.over)
        m = self.batch.micro_batches
        rows = [
            v.reshape(m, v.shape[0] // m, *v.shape[1:]) if v.ndim else jnp.broadcast_to(v, (m,))
            for v in leaves
        ]
        values = dict(enumerate(self._compute_totals(rows, captures)))
        stages = [c * p + device for c in range(chunks)]
        rows_of_buffers = iter(buffers)
        by_pack = [
            pack.take_own_stages({n: next(rows_of_buffers) for n in pack.lengths})
            if isinstance(pack, ResidentPack)
            else pack.pack_own_stages(values, stages)
            for pack in loop.weights
        ]
        if loop.divided:
            values |= {i: constrain_sharding(values[i], []) for i in loop.fixed.shapes}
        frozen = [
            pack.take_own_stages({n: next(rows_of_buffers) for n in pack.lengths})
            for pack in loop.frozen
            if isinstance(pack, ResidentPack)
        ]
        own, first = [], []
        writes = self._get_initial_values(values)
        for c, stage in enumerate(stages):
            own.append(
                (
                    [chunk_buffers[c] for chunk_buffers in by_pack],
                    loop.pack_fixed(values, [pack[c] for pack in frozen], stage),
                )
            )
            first.append(loop.written.pack_own_stage(writes, stage))
        carry = loop.run(own, first, rows)
        gradients = (
            self._reduce_gradients(carry, stages) if self.schedule.has_backward_passes else []
        )
        return [
            *gradients,
            *self._merge_state(carry, values, device),
            *self._broadcast_results(carry),
        ]

    def _compute_totals(self, rows: list[jax.Array], captures: list[jax.Array]) -> list[jax.Array]:
        """Return the captures with the means over all shares, which run before the pipeline."""
        totals = self.shares.totals
        if not totals:
            return captures
        indices = {id(t): 1 + k for k, t in enumerate(totals)}
        places = [i for i, c in enumerate(self.traced.captures) if isinstance(c, ShareTotal)]
        ahead = self.stages.program.extract_batch_program(
            [indices[id(self.traced.captures[i])] for i in places]
        )
        run = jex_core.jaxpr_as_fun(ahead)
        means = [v.mean(0) for v in lax.map(lambda row: run(*row, *captures), rows)]
        captures = list(captures)
        for i, mean in zip(places, means, strict=True):
            captures[i] = lax.pmean(mean, self.shares.axes) if self.shares.axes else mean
        return captures

    def _get_initial_values(self, values: dict[int, jax.Array]) -> dict[int, jax.Array]:
        """Return the initial values of written variables, by index of the write."""
        out = self.traced.closed_jaxpr.out_avals[self.traced.num_results :]
        initial = {k: jnp.zeros(a.shape, a.dtype) for k, a in enumerate(out)}
        return initial | {k: values[i] for i, k in self.loop.roles.carried.items()}

    def _reduce_gradients(self, carry: LoopCarry, stages: Sequence[jax.Array]) -> list[jax.Array]:
        by_capture: dict[int, jax.Array] = {}
        # If all devices compute the same examples, each counts them; the loss is divided accordingly.
        gradients: list[jax.Array] = []
        for pack, sums in zip(self.loop.weights, carry.weights, strict=True):
            by_stage = [{n: b[c] for n, b in sums.items()} for c in range(len(stages))]
            if isinstance(pack, ResidentPack):
                rows = pack.reduce_rows(by_stage)
                gradients += [rows[n] for n in pack.lengths]
            else:
                by_capture |= pack.reduce_gradients(by_stage, stages)
        for n in self._gathered:
            indices, variable = self._capture_indices[n], self.variables[n]
            parts = [by_capture[i] for i in indices if i in by_capture]
            shape, dtype = tuple(variable.shape), variable.dtype.dtype
            total: Any = sum(parts)
            gradients.append(total.astype(dtype) if parts else jnp.zeros(shape, dtype))
        return gradients

    def _merge_state(
        self, carry: LoopCarry, values: dict[int, jax.Array], device: jax.Array
    ) -> list[jax.Array]:
        """Return new values of written variables; each of them is written by one stage."""
        loop, axes, p = self.loop, self.shares.axes, self.schedule.devices
        parts = [
            loop.written.pack_for_sum({n: b[c] for n, b in carry.written.items()}, c * p + device)
            for c in range(self.schedule.chunks)
        ]
        merged = loop.written.unpack_sum(
            sum_buffers({n: sum(part[n] for part in parts) for n in carry.written}, (self.over,))
        )
        roles = loop.roles
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

    def _broadcast_results(self, carry: LoopCarry) -> list[jax.Array]:
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


def _get_device_layout(capture: object) -> Layout | None:
    """Return the layout of a captured variable on the devices while a step runs."""
    layout = capture.layout if isinstance(capture, Variable) else None
    return None if layout is None else layout.with_memory("device")


def check_pipeline(options: ParallelOptions, mesh: Mesh) -> None:
    """Check the pipeline options before there is a model.

    Args:
      options: The options, which have a pipeline.
      mesh: The mesh.

    Raises:
      ValueError: If the schedule cannot run or is for other sizes, or if an option is not supported
        in a pipeline.
    """
    spec, devices = options.pipeline_options.schedule, mesh.dim_size(options.pipeline_options.over)
    if not resolve_schedule(spec, devices, options.micro_batches).has_backward_passes:
        raise InvalidValueError(
            f"Pipeline: the schedule {spec!r} has no backward passes, and cannot train."
        )
    if options.pipeline_options.keep == "residuals":
        if "activations" in options.offload_patterns:
            raise InvalidValueError(
                "Pipeline: keep='residuals' stores the activations of the micro-batches in flight on the devices, so "
                "offload='activations' cannot move them. Use keep='inputs', or leave that out."
            )
        if resolve_schedule(spec, devices, options.micro_batches).has_weight_passes:
            raise InvalidValueError(
                f"Pipeline: keep='residuals' has no effect on the schedule {spec!r}, which has weight passes. Use another "
                "schedule, such as '1f1b', or keep='inputs'."
            )
    if options.recompute == "gathers":
        raise InvalidValueError(
            "recompute='gathers' with a pipeline: a step gathers the weights of its stages once, outside of the "
            "layers. Use recompute='layer' or a policy, or leave it out."
        )
