"""The loop that runs a pipeline schedule, as one program for all devices.

In each tick a device runs the passes of the schedule, and then exchanges activations with the next
stage and gradients with the previous stage. The only conditional around an exchange leaves it out in
ticks in which no device sends anything, so all devices take part in it or none.

A stage keeps either the input of a micro-batch in flight, and computes the stage again in the
backward pass, or the residuals of its forward pass. If weight passes are separate, the stage also
keeps the residuals that they need.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime import philox
from meshflow.distribute.parallel.packs import (
    AbstractArray,
    Buffers,
    StagePack,
    UnpackedBuffers,
    constrain_sharding,
    is_float,
    separate_equal_arrays,
    switch_on_index,
)
from meshflow.distribute.parallel.region import widen
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.schedule_columns import WorkColumns, build_columns
from meshflow.distribute.parallel.stage_programs import StageProgram
from meshflow.distribute.parallel.stage_weights import ResidentPack, WeightCut, WeightPack
from meshflow.distribute.parallel.weight_passes import (
    SplitBackward,
    split_at_gradients,
    split_backward,
)
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, PyTree
from meshflow.placement.activation_files import ActivationFiles
from meshflow.placement.collectives import mark_executions

# The buffers of a stage's weights, by pack, and of its other captures.
_StageValues: TypeAlias = tuple[Sequence[Buffers], Buffers]
# The rows of a micro-batch, and its index.
_MicroBatch: TypeAlias = tuple[list[jax.Array], Array]


@dataclasses.dataclass(frozen=True)
class CaptureRoles:
    """Roles of the captures of the stages, by index.

    Attributes:
      trained: Trained captures, with their sharding.
      frozen: Other weights that are resident, with their sharding.
      streams: States of streams of random keys, with the index of the write.
      sums: Sums over the batch, with the index of the write.
      carried: Other written variables, with the index of the write.
      zero: The capture that is zero but unknown to the compiler, or None.
    """

    trained: dict[int, WeightCut]
    frozen: dict[int, WeightCut]
    streams: dict[int, int]
    sums: dict[int, int]
    carried: dict[int, int]
    zero: int | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class LoopCarry:
    """Values that a device accumulates in the loop.

    Attributes:
      weights: Gradients of weights, [chunks, ...] by dtype for each weight pack.
      written: New values of variables, [chunks, length].
      scalars: Sums of the last stage's scalar results.
      rows: The last stage's results by example, [micro-batches, rows, ...].
    """

    weights: list[Buffers]
    written: Buffers
    scalars: list[Any]
    rows: list[Any]


class PipelineLoop:
    """Stages of a program in a loop over the ticks of a schedule.

    Args:
      programs: The stages.
      captures: Shapes and dtypes of the captures.
      kinds: Roles of the captures.
      writes: Shapes and dtypes of the written variables.
      results: For each of the last stage's results its shape and dtype, and whether it has a row
        for each example.
      schedule: The schedule.
      over: Mesh dimension of the pipeline.
      sizes: Sizes of the mesh dimensions.
      axes: Mesh dimensions that the batch is split over.
      shares: Number of shares of the batch.
      divided: Whether rules split computations inside stages, so that unsharded values need
        constraints.
      keeps: Whether backward passes keep residuals for separate weight passes, instead of
        recomputing them.
      stores: Whether forward passes store residuals for backward passes, which otherwise compute
        the stage again.
      scratch: Files in which activations of layers wait, or None.

    Attributes:
      weights: Layouts of trained captures in buffers, one for each kind of sharding.
      frozen: Layouts of frozen captures.
      fixed: Layout of other captures.
      written: Layout of written variables.
      edge: Layout of the values that cross to the next stage.
    """

    def __init__(
        self,
        programs: Sequence[StageProgram],
        captures: Sequence[AbstractArray],
        kinds: CaptureRoles,
        writes: Sequence[AbstractArray],
        results: Sequence[tuple[jax.ShapeDtypeStruct, bool]],
        schedule: Schedule,
        over: str,
        sizes: Mapping[str, int],
        axes: Sequence[str],
        shares: int,
        divided: bool,
        keeps: bool = True,
        stores: bool = False,
        scratch: ActivationFiles | None = None,
    ) -> None:
        self.scratch = scratch
        self.programs, self.roles, self.schedule, self.over = programs, kinds, schedule, over
        self.shares = shares
        self.results = list(results)
        self.keeps = schedule.has_weight_passes and keeps
        self.trains = schedule.has_backward_passes
        self.stores = stores and self.trains and not schedule.has_weight_passes
        self.columns = build_columns(schedule, self.keeps, self.stores)
        self._split_backwards: dict[int, SplitBackward] = {}
        self._residuals: StagePack | UnpackedBuffers = StagePack([])

        def select(indices: Container[int]) -> list[dict[int, AbstractArray]]:
            return [{i: captures[i] for i in p.captures if i in indices} for p in programs]

        self.divided = divided

        def pack_by_kind(cuts: Mapping[int, WeightCut]) -> list[WeightPack]:
            by_kind: dict[Any, dict[int, WeightCut]] = {}
            for i, cut in cuts.items():
                by_kind.setdefault(cut.kind, {})[i] = cut
            packs: list[WeightPack] = []
            for of_kind in by_kind.values():
                stages, cut = select(of_kind.keys()), next(iter(of_kind.values()))
                pack_type = WeightPack if cut.group is None else ResidentPack
                for part in [stages] if cut.group is None else separate_equal_arrays(stages):
                    own = {i: of_kind[i] for arrays in part for i in arrays}
                    packs.append(pack_type(part, own, sizes, over, axes, divided))
            return packs

        self.weights, self.frozen = pack_by_kind(kinds.trained), pack_by_kind(kinds.frozen)
        fixed = set(range(len(captures))) - kinds.trained.keys() - kinds.frozen.keys()
        self.fixed = StagePack(select(fixed), self.divided)
        self.written = StagePack([{k: writes[k] for k in p.writes} for p in programs], self.divided)
        self.edge = StagePack([dict(enumerate(p.sends)) for p in programs[:-1]], self.divided)
        self._branch_of, self._examples = self._group_equal_stages()

    def _group_equal_stages(self) -> tuple[np.ndarray, list[int]]:
        """Return the branch index of each stage, and one stage of each branch, for equal stages."""
        keys: dict[Any, int] = {}
        branches, examples = [], []
        for s, program in enumerate(self.programs):
            packs: list[Any] = [*self.weights, *self.frozen, self.fixed, self.written]
            spans = tuple(tuple(pack.spans[s].values()) for pack in packs)
            ends = tuple(
                tuple(self.edge.spans[e].values()) if 0 <= e < len(self.programs) - 1 else None
                for e in (s - 1, s)
            )
            kinds = tuple(self._find_role(i, program) for i in program.captures)
            sums = tuple(k in self.roles.sums.values() for k in program.writes)
            key = program.text, spans, ends, program.arguments, kinds, sums
            if key not in keys:
                keys[key] = len(keys)
                examples.append(s)
            branches.append(keys[key])
        return np.array(branches, np.int32), examples

    def _find_role(self, index: int, program: StageProgram) -> object:
        for name in ("streams", "sums"):
            if index in getattr(self.roles, name):
                return name
        write = self.roles.carried.get(index)
        if write in program.writes:
            return program.writes.index(write)
        return self.roles.trained.get(index) or self.roles.frozen.get(index)

    @property
    def resident_packs(self) -> list[ResidentPack]:
        """Return the packs of the resident weights, those of frozen weights last."""
        return [p for p in (*self.weights, *self.frozen) if isinstance(p, ResidentPack)]

    @property
    def num_programs(self) -> int:
        """Return the number of different programs among the stages."""
        return len(self._examples)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that a device keeps for micro-batches in flight."""
        columns, zeros = self.columns, self.edge.make_zeros(floats=True)
        gradients = columns.gradients * sum(z.nbytes for z in zeros.values())
        residuals = columns.residuals * self._residuals.count_bytes()
        return columns.inputs * self.edge.count_bytes() + gradients + residuals

    @property
    def sent_bytes(self) -> int:
        """Return the bytes of activations and gradients that a device sends in all ticks."""
        floats = sum(
            n * np.dtype(name).itemsize for name, n in self.edge.lengths.items() if is_float(name)
        )
        forwards, backwards = self.columns.has_sends.sum(axis=1).tolist()
        return forwards * self.edge.count_bytes() + backwards * floats

    # ---- one stage -------------------------------------------------------------------------

    def _run_stage(
        self,
        stage: int,
        trained: dict[int, jax.Array],
        arrived: list[jax.Array],
        fed: tuple[Buffers, Buffers, Array],
        rows: list[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        """Run a stage, and return its sent values, its results, and new values of variables."""
        program, kinds = self.programs[stage], self.roles
        fixed, written, micro_batch = fed
        values = self.fixed.unpack(fixed, stage)
        for pack, buffers in self._list_frozen_buffers(fixed):
            values |= pack.unpack(buffers, stage)
        states = self.written.unpack(written, stage)
        for i in program.captures:
            if i in kinds.sums:
                values[i] = jnp.zeros_like(values[i])
            elif i in kinds.streams:
                values[i] = self._fold_key(values[i], micro_batch)
            elif kinds.carried.get(i) in states:
                values[i] = states[kinds.carried[i]]
        values |= trained
        operands = [*arrived, *(rows[i] for i in program.arguments)]
        outputs = jex_core.jaxpr_as_fun(program.closed)(
            *operands, *(values[i] for i in program.captures)
        )
        first, second = len(program.sends), len(program.sends) + len(program.results)
        return outputs[:first], outputs[first:second], outputs[second:]

    def pack_fixed(
        self,
        values: Mapping[int, jax.Array],
        frozen: Sequence[Buffers],
        stage: jax.Array,
    ) -> Buffers:
        """Return the buffers of a stage's fixed captures together with those of its frozen weights."""
        buffers = {f"frozen {k} {n}": b for k, pack in enumerate(frozen) for n, b in pack.items()}
        return self.fixed.pack_own_stage(values, stage) | buffers

    def _list_frozen_buffers(self, fixed: Buffers) -> list[tuple[WeightPack, Buffers]]:
        """Return the buffers of frozen weights in a result of `pack_fixed`, by pack."""
        return [
            (pack, {n: fixed[f"frozen {k} {n}"] for n in pack.lengths})
            for k, pack in enumerate(self.frozen)
        ]

    def _fold_key(self, state: jax.Array, micro_batch: Array) -> jax.Array:
        """Return the state of a key stream for a micro-batch."""
        if self.schedule.micro_batches == 1:
            return state
        return philox.fold_in(state, micro_batch)

    def _unpack_weights(self, stage: int, stage_values: _StageValues) -> dict[int, jax.Array]:
        weights: dict[int, jax.Array] = {}
        for pack, buffers in zip(self.weights, stage_values[0], strict=True):
            weights |= pack.unpack(buffers, stage)
        return weights

    def _unpack_inputs(self, stage: int, buffers: Buffers) -> dict[int, jax.Array]:
        return self.edge.unpack(buffers, stage - 1) if stage else {}

    def _pack_outputs(self, stage: int, values: Sequence[jax.Array]) -> Buffers:
        if stage == len(self.programs) - 1:
            return self.edge.make_zeros()
        return self.edge.pack(dict(enumerate(values)), stage)

    def _accumulate(
        self,
        stage: int,
        carry: LoopCarry,
        results: list[jax.Array],
        new: list[jax.Array],
        micro_batch: Array,
    ) -> LoopCarry:
        """Add a micro-batch's results and variables to the carry."""
        program = self.programs[stage]
        before = self.written.unpack(carry.written, stage)
        after = dict(zip(program.writes, new, strict=True))
        sums = set(self.roles.sums.values())
        values = {k: before[k] + v if k in sums else v for k, v in after.items()}
        scalars, rows = list(carry.scalars), list(carry.rows)
        for n, value in enumerate(results):
            _, has_rows = self.results[n]
            target = rows if has_rows else scalars
            position = sum(known == has_rows for _, known in self.results[:n])
            if has_rows:
                target[position] = target[position].at[micro_batch].set(value)
            else:
                target[position] = target[position] + value.astype(target[position].dtype)
        written = self.written.pack(values, stage)
        return dataclasses.replace(carry, written=written, scalars=scalars, rows=rows)

    def _run_forward(
        self,
        stage: int,
        stage_values: _StageValues,
        buffers: Buffers,
        carry: LoopCarry,
        batch: _MicroBatch,
    ) -> tuple[Buffers, LoopCarry]:
        rows, micro_batch = batch
        arrived = [*self._unpack_inputs(stage, buffers).values()]
        fed = stage_values[1], carry.written, micro_batch
        sends, results, new = self._run_stage(
            stage, self._unpack_weights(stage, stage_values), arrived, fed, rows
        )
        if not self.trains:
            carry = self._accumulate(stage, carry, results, new, micro_batch)
        return self._pack_outputs(stage, sends), carry

    def _run_backward(
        self,
        stage: int,
        parts: str,
        stage_values: _StageValues,
        buffers: Buffers,
        gradients: Buffers,
        carry: LoopCarry,
        batch: _MicroBatch,
    ) -> tuple[Buffers, LoopCarry]:
        """Compute gradients of a stage's inputs ("I" in `parts`), its weights ("W"), or both.

        The pass for the inputs also accumulates the stage's results and variables.
        """
        weight_gradients, input_gradients, _, results, new = self._differentiate(
            stage, parts, stage_values, buffers, gradients, carry.written, batch
        )
        if "I" in parts:
            carry = self._accumulate(stage, carry, results, new, batch[1])
        if "W" in parts:
            carry = self._add_gradients(stage, carry, weight_gradients)
        return input_gradients, carry

    def _add_gradients(
        self, stage: int, carry: LoopCarry, gradients: dict[int, jax.Array]
    ) -> LoopCarry:
        """Add gradients of some of a stage's weights to the carry."""
        packed = [pack.pack(gradients, stage, floats=True) for pack in self.weights]
        sums = [_add_buffers(b, more) for b, more in zip(carry.weights, packed, strict=True)]
        return dataclasses.replace(carry, weights=sums)

    def _differentiate(
        self,
        stage: int,
        parts: str,
        stage_values: _StageValues,
        buffers: Buffers,
        gradients: Buffers,
        written: Buffers,
        batch: _MicroBatch,
    ) -> tuple[dict[int, jax.Array], Buffers, list[jax.Array], list[jax.Array], list[jax.Array]]:
        """Differentiate a stage.

        Args:
          stage: Index of the stage.
          parts: "I" for gradients of inputs, "W" for gradients of weights, or both.
          stage_values: Buffers of the stage's weights and other captures.
          buffers: The stage's input.
          gradients: Gradients of the stage's output.
          written: Values of written variables.
          batch: Rows of the micro-batch, and its index.

        Returns:
          Gradients of weights by capture, gradients of inputs in buffers, sent values, results, and new values of
          variables.
        """
        rows, micro_batch = batch
        trained, arrived = (
            self._unpack_weights(stage, stage_values),
            self._unpack_inputs(stage, buffers),
        )
        fed = stage_values[1], written, micro_batch
        known = trained | self._renew_zero(stage, stage_values, rows)
        floats = [n for n, v in arrived.items() if jnp.issubdtype(v.dtype, jnp.inexact)]
        is_last = stage == len(self.programs) - 1

        def run(weights: dict[int, Any], inputs: dict[int, Any]) -> PyTree:
            values = [*(arrived | inputs).values()]
            sends, results, new = self._run_stage(stage, known | weights, values, fed, rows)
            differentiated = [v for v in sends if jnp.issubdtype(v.dtype, jnp.inexact)]
            if is_last:
                differentiated = [widen(results[0]) / self.shares]
            return differentiated, (sends, results, new)

        weights = trained if "W" in parts else {}
        inputs = {n: arrived[n] for n in floats} if "I" in parts else {}
        primals, pull, (sends, results, new) = jax.vjp(run, weights, inputs, has_aux=True)
        incoming = [jnp.ones((), jnp.float32)]
        if not is_last:
            incoming = [*self.edge.unpack(gradients, stage).values()]
        weight_gradients, input_gradients = pull(
            [g.astype(p.dtype) for g, p in zip(incoming, primals, strict=True)]
        )
        packed = self.edge.make_zeros(floats=True)
        if stage and "I" in parts:
            packed = self.edge.pack(input_gradients, stage - 1, floats=True)
        return weight_gradients, packed, sends, results, new

    def _renew_zero(
        self, stage: int, stage_values: _StageValues, rows: list[jax.Array]
    ) -> dict[int, jax.Array]:
        """Return a new zero for a backward pass, so that the space of scratch files is reused."""
        fixed = {} if self.scratch is None else self.fixed.unpack(stage_values[1], stage)
        if self.scratch is None or self.roles.zero not in fixed:
            return {}
        return {self.roles.zero: self.scratch.free_all(fixed[self.roles.zero], rows[0])}

    # ---- passes in two parts ---------------------------------------------------------------

    def _split_passes(self, stage_values: _StageValues, rows: Sequence[jax.Array]) -> None:
        """Split the stages' passes, and create layouts for their residuals."""

        def drop_axes(values: PyTree, count: int = 1) -> PyTree:
            return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[count:], v.dtype), values)

        edge, floats = self.edge.make_zeros(), self.edge.make_zeros(floats=True)
        index = jax.ShapeDtypeStruct((), np.int32)
        operands = (
            drop_axes(stage_values),
            drop_axes(rows),
            index,
            edge,
            floats,
            self.written.make_zeros(),
        )
        flat, structure = jax.tree.flatten(drop_axes(operands, 0))
        # Arrived values and written variables have changed when the second part runs. Gradients
        # have, too, before a weight pass, and are available in a backward pass.
        ends = np.cumsum([len(jax.tree.leaves(operand)) for operand in operands])
        late = range(ends[3], ends[4])
        residuals: list[dict[int, AbstractArray]] = []
        for stage in self._examples:
            if self.stores and stage == len(self.programs) - 1:
                residuals.append({})
                continue

            def run_backward(*leaves: jax.Array, stage: int = stage) -> list[jax.Array]:
                stage_values, rows, micro_batch, arrived, gradients, state = jax.tree.unflatten(
                    structure, leaves
                )
                weight_gradients, back, sends, results, new = self._differentiate(
                    stage, "IW", stage_values, arrived, gradients, state, (rows, micro_batch)
                )
                required: PyTree = back, results, new
                if self.stores:
                    required = self._pack_outputs(stage, sends), new, back
                ordered = [weight_gradients[i] for i in sorted(weight_gradients)]
                return [*jax.tree.leaves(required), *ordered]

            available = [n < ends[2] or (self.stores and n in late) for n in range(len(flat))]
            count = len(jax.tree.leaves(self._get_required_avals(stage)))
            if self.stores:
                halves = split_at_gradients(run_backward, flat, available, late, count)
            else:
                halves = split_backward(run_backward, flat, available, count)
            self._split_backwards[stage] = halves
            residuals.append(dict(enumerate(halves.residuals)))
        # Concatenation would gather values that rules split.
        self._residuals = UnpackedBuffers(residuals) if self.divided else StagePack(residuals)

    def _get_required_avals(self, stage: int) -> PyTree:
        """Return the shapes of the results of the first part of a pass."""
        program = self.programs[stage]
        ends = np.cumsum([len(program.sends), len(program.results)])
        outputs = program.closed.out_avals
        if self.stores:
            return self.edge.make_zeros(), outputs[ends[1] :]
        return self.edge.make_zeros(floats=True), outputs[ends[0] : ends[1]], outputs[ends[1] :]

    def _run_stored_forward(
        self, stage: int, operands: tuple[PyTree, ...], carry: LoopCarry
    ) -> tuple[tuple[Buffers, Buffers], LoopCarry]:
        """Run a forward pass, and return the sent buffers and the residuals of the backward pass."""
        if stage == len(self.programs) - 1:
            # Its backward pass also runs its forward pass.
            return (self.edge.make_zeros(), self._residuals.make_zeros()), carry
        flat = jax.tree.leaves((*operands, carry.written))
        required, _, residuals = self._split_backwards[stage].run_first(flat)
        sends, new = jax.tree.unflatten(
            jax.tree.structure(self._get_required_avals(stage)), required
        )
        carry = self._accumulate(stage, carry, [], new, operands[2])
        packed = self._residuals.pack(dict(enumerate(residuals)), self._examples.index(stage))
        return (sends, packed), carry

    def _run_stored_backward(
        self, stage: int, operands: tuple[PyTree, ...], carry: LoopCarry, buffers: Buffers
    ) -> tuple[Buffers, LoopCarry]:
        """Run a backward pass with the residuals of `_run_stored_forward`."""
        flat = jax.tree.leaves((*operands, carry.written))
        residuals = self._residuals.unpack(buffers, self._examples.index(stage))
        late = self._split_backwards[stage].run_second(flat, list(residuals.values()))
        back = self.edge.make_zeros(floats=True)
        count = len(jax.tree.leaves(back))
        back = jax.tree.unflatten(jax.tree.structure(back), [late.pop(n) for n in range(count)])
        gradients = {n - count: gradient for n, gradient in late.items()}
        return back, self._add_gradients(stage, carry, self._index_by_capture(stage, gradients))

    def _run_input_pass(
        self, stage: int, operands: tuple[PyTree, ...], carry: LoopCarry
    ) -> tuple[tuple[Buffers, Buffers], LoopCarry]:
        """Run the first part of a backward pass: gradients of the stage's inputs, and residuals."""
        flat = jax.tree.leaves((*operands, carry.written))
        required, early, residuals = self._split_backwards[stage].run_first(flat)
        back, results, new = jax.tree.unflatten(
            jax.tree.structure(self._get_required_avals(stage)), required
        )
        carry = self._accumulate(stage, carry, results, new, operands[2])
        packed = self._residuals.pack(dict(enumerate(residuals)), self._examples.index(stage))
        if early:
            carry = self._add_gradients(stage, carry, self._index_by_capture(stage, early))
        return (back, packed), carry

    def _run_weight_pass(
        self, stage: int, operands: tuple[PyTree, ...], carry: LoopCarry, buffers: Buffers
    ) -> tuple[tuple[()], LoopCarry]:
        """Run the weight pass with the residuals of `_run_input_pass`."""
        flat = jax.tree.leaves((*operands, carry.written))
        residuals = self._residuals.unpack(buffers, self._examples.index(stage))
        late = self._split_backwards[stage].run_second(flat, list(residuals.values()))
        return (), self._add_gradients(stage, carry, self._index_by_capture(stage, late))

    def _index_by_capture(
        self, stage: int, gradients: dict[int, jax.Array]
    ) -> dict[int, jax.Array]:
        """Convert positions among the stage's weights into indices of captures."""
        captures = sorted(i for pack in self.weights for i in pack.spans[stage])
        return {captures[n]: gradient for n, gradient in gradients.items()}

    # ---- the loop --------------------------------------------------------------------------

    def initialize_carry(self, first: Sequence[Buffers]) -> LoopCarry:
        """Return the initial carry of the loop.

        Args:
          first: For each chunk the initial values of the written variables; zeros for sums.

        Returns:
          The carry.
        """
        chunks, m = self.schedule.chunks, self.schedule.micro_batches

        def zeros(pack: WeightPack) -> Buffers:
            return {
                n: pack.constrain_layout(
                    jnp.zeros((chunks, *z.shape), jnp.promote_types(z.dtype, jnp.float32)), 1
                )
                for n, z in pack.make_zeros(floats=True).items()
            }

        wide = lambda dtype: jnp.promote_types(dtype, jnp.float32)
        scalars = [jnp.zeros(a.shape, wide(a.dtype)) for a, rows in self.results if not rows]
        rows = [jnp.zeros((m, *a.shape), a.dtype) for a, rows in self.results if rows]
        weights = [zeros(pack) for pack in self.weights if self.trains]
        return LoopCarry(weights, _stack_trees(first), scalars, rows)

    def run(
        self,
        chunk_values: Sequence[_StageValues],
        first: Sequence[Buffers],
        rows: Sequence[jax.Array],
    ) -> LoopCarry:
        """Run the schedule on this device.

        Args:
          chunk_values: For each chunk the buffers of its stage's weights, by pack, and of other captures.
          first: For each chunk the initial values of its written variables.
          rows: Tensors of the batch, [micro-batches, rows, ...] each.

        Returns:
          The carry after the last tick.
        """
        device = lax.axis_index(self.over)
        columns, p = self.columns, self.schedule.devices
        stacked = _stack_trees(chunk_values)
        if self.keeps or self.stores:
            self._split_passes(stacked, rows)
        inputs = {
            n: jnp.zeros((columns.inputs + 1, z.size), z.dtype)
            for n, z in self.edge.make_zeros().items()
        }
        gradients = {
            n: jnp.zeros((columns.gradients + 1, z.size), z.dtype)
            for n, z in self.edge.make_zeros(floats=True).items()
        }
        residuals = {
            n: jnp.zeros((columns.residuals + 1, *z.shape), z.dtype)
            for n, z in self._residuals.make_zeros().items()
        }
        is_ring = self.schedule.chunks > 1
        forwards = [(i, (i + 1) % p) for i in range(p if is_ring else p - 1)]
        backwards = [(b, a) for a, b in forwards]
        work = {"F": columns.forward}
        if self.trains:
            work["B"] = columns.backward
        if self.schedule.has_weight_passes:
            work["W"] = columns.weights
        slots = columns.keep_input, columns.keep_gradient
        table = jax.tree.map(jnp.asarray, ((work, slots), tuple(columns.has_sends)))

        def tick(state: Any, row: Any) -> Any:
            inputs, gradients, residuals, carry = state
            row, (sends_values, sends_gradients) = row
            work, slots = jax.tree.map(lambda column: column[..., device], row)
            run_pass = functools.partial(self._run_pass, device, stacked, inputs, gradients, rows)
            sends, carry = run_pass(residuals, "F", carry, work["F"])
            if self.stores:
                sends, new_residuals = sends
                residuals = _store_slot(residuals, new_residuals, work["F"].residual)
            if self.trains:
                back, carry = run_pass(residuals, "B", carry, work["B"])
            if self.keeps:
                back, new_residuals = back
                residuals = _store_slot(residuals, new_residuals, work["B"].residual)
            if "W" in work:
                for lane in range(len(columns.weights.micro_batch[0])):
                    lane_work = jax.tree.map(lambda column, lane=lane: column[lane], work["W"])
                    _, carry = run_pass(residuals, "W", carry, lane_work)
            input_slot, gradient_slot = slots
            arrived = self._exchange(sends, forwards, 0, sends_values)
            inputs = _store_slot(inputs, arrived, input_slot)
            if self.trains:
                arrived = self._exchange(back, backwards, 1, sends_gradients)
                gradients = _store_slot(gradients, arrived, gradient_slot)
            return (inputs, gradients, residuals, carry), None

        state = inputs, gradients, residuals, self.initialize_carry(first)
        (*_, carry), _ = lax.scan(tick, state, table)
        return carry

    def _run_pass(
        self,
        device: jax.Array,
        chunk_values: PyTree,
        inputs: Buffers,
        gradients: Buffers,
        rows: Sequence[jax.Array],
        residuals: Buffers,
        name: str,
        carry: LoopCarry,
        work: WorkColumns,
    ) -> tuple[PyTree, LoopCarry]:
        """Run one pass of a tick if there is one.

        Args:
          device: Index of this device in the pipeline.
          chunk_values: Stacked buffers of the device's stages.
          inputs: Slots of inputs.
          gradients: Slots of gradients.
          rows: Tensors of the batch.
          residuals: Slots of residuals.
          name: Kind of the pass, a letter of `PASS_KINDS`.
          carry: The carry.
          work: The work of the tick on this device.

        Returns:
          The buffers to send (and the residuals to keep), and the new carry.
        """
        chunk = work.chunk if self.schedule.chunks > 1 else 0
        stage = work.chunk * self.schedule.devices + device
        branch = jnp.asarray(self._branch_of)[stage]

        def select_chunk(value: PyTree) -> PyTree:
            return jax.tree.map(lambda v: v[chunk], value)

        def run(carry: LoopCarry) -> tuple[PyTree, LoopCarry]:
            chunk_carry = dataclasses.replace(
                carry, weights=select_chunk(carry.weights), written=select_chunk(carry.written)
            )
            micro_batch = work.micro_batch
            batch = [r[micro_batch] for r in rows], micro_batch
            stage_input = {n: b[work.input] for n, b in inputs.items()}
            output_gradients = {n: b[work.gradient] for n, b in gradients.items()}
            stage_values = select_chunk(chunk_values)

            def run_example(example: int) -> tuple[PyTree, LoopCarry]:
                operands = stage_values, *batch, stage_input, output_gradients
                kept = {n: b[work.residual] for n, b in residuals.items()}
                if name == "F" and self.stores:
                    return self._run_stored_forward(example, operands, chunk_carry)
                if name == "F":
                    return self._run_forward(example, stage_values, stage_input, chunk_carry, batch)
                if self.stores and example < len(self.programs) - 1:
                    return self._run_stored_backward(example, operands, chunk_carry, kept)
                if self.keeps and name == "B":
                    return self._run_input_pass(example, operands, chunk_carry)
                if self.keeps:
                    return self._run_weight_pass(example, operands, chunk_carry, kept)
                parts = "W" if name == "W" else "I" if self.schedule.has_weight_passes else "IW"
                return self._run_backward(
                    example, parts, stage_values, stage_input, output_gradients, chunk_carry, batch
                )

            outputs, chunk_carry = switch_on_index(
                branch, [lambda s=s: run_example(s) for s in self._examples]
            )
            if self.stores and name == "F":
                outputs = self._replicate(outputs[0]), outputs[1]
            elif not self.keeps:
                outputs = self._replicate(outputs)
            return outputs, dataclasses.replace(
                chunk_carry,
                weights=_update_chunk(carry.weights, chunk_carry.weights, chunk),
                written=_update_chunk(carry.written, chunk_carry.written, chunk),
            )

        def skip(carry: LoopCarry) -> tuple[PyTree, LoopCarry]:
            zeros = self.edge.make_zeros(floats=name != "F")
            if self.stores and name == "F":
                return (zeros, self._residuals.make_zeros()), carry
            if self.keeps and name != "F":
                return ((zeros, self._residuals.make_zeros()) if name == "B" else ()), carry
            return zeros, carry

        # Forward passes do not change gradients of weights, which a conditional would copy.
        kept = carry.weights if name == "F" else None
        if kept is not None:
            carry = dataclasses.replace(carry, weights=[])
        outputs, carry = lax.cond(work.micro_batch >= 0, run, skip, carry)
        return outputs, carry if kept is None else dataclasses.replace(carry, weights=kept)

    def _exchange(
        self, buffers: Buffers, pairs: list[tuple[int, int]], direction: int, sends: jax.Array
    ) -> Buffers:
        """Send buffers to neighbors if any device has something to send in the tick."""
        if not pairs:
            return buffers

        def permute() -> Buffers:
            return {n: lax.ppermute(b, self.over, pairs) for n, b in buffers.items()}

        has_sends = self.columns.has_sends[direction]
        if has_sends.all():
            return permute()
        with mark_executions(int(has_sends.sum()), len(has_sends)):
            return lax.cond(sends, permute, lambda: buffers)

    def _replicate(self, buffers: Buffers) -> Buffers:
        """Replicate sent buffers, because a later gather would be a collective inside a conditional."""
        return (
            {n: constrain_sharding(b, [None]) for n, b in buffers.items()}
            if self.divided
            else buffers
        )


def _stack_trees(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _update_chunk(tree: PyTree, part: PyTree, chunk: Array | int) -> PyTree:
    if isinstance(chunk, int):
        return jax.tree.map(lambda v: v[None], part)
    return jax.tree.map(lambda b, v: b.at[chunk].set(v), tree, part)


def _store_slot(slots: Buffers, values: Buffers, slot: jax.Array) -> Buffers:
    return {n: b.at[slot].set(values[n]) for n, b in slots.items()}


def _add_buffers(buffers: Buffers, more: Buffers) -> Buffers:
    return {n: b + more[n].astype(b.dtype) for n, b in buffers.items()}
