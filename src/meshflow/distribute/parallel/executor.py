"""One loop that runs any schedule of a pipeline, on every device the same program.

A tick computes what the table says, then exchanges: what goes on to the next stage, and gradients to the one
before. The exchanges stand outside of all branches, so that all devices meet in them. Of a micro-batch on its
way a stage keeps its input only; the backward pass computes the stage again. Where weight passes are apart, it
keeps what their products need.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime import philox
from meshflow.distribute.parallel.cutting import StageProgram
from meshflow.distribute.parallel.packs import Buffers, Pack, Shelf, alike, chosen, is_float
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.slots import Work, columns_of
from meshflow.distribute.parallel.stage_weights import Cut, WeightPack
from meshflow.distribute.parallel.weight_passes import Halves, halved
from meshflow.environment.jax_internals import jex_core
from meshflow.placement.scratch import Scratch

__all__ = ["Carry", "Kinds", "Loop"]


@dataclasses.dataclass(frozen=True)
class Kinds:
    """What the captures of the stages are, by number.

    Attributes:
      trained: those that are trained, with how they are divided.
      streams: states of streams of keys, with the number of the write.
      sums: sums over the batch, with that number.
      carried: other variables that are written, with that number.
      zero: that which is zero, and which no compiler knows; None if there is none.
    """

    trained: dict[int, Cut]
    streams: dict[int, int]
    sums: dict[int, int]
    carried: dict[int, int]
    zero: int | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Carry:
    """What a device adds up.

    Attributes:
      weights: gradients of weights, [chunks, ...] by dtype for each pack of them.
      written: new values of variables, [chunks, length].
      scalars: sums of the last stage's scalar results.
      rows: its results by rows, [micro-batches, rows, ...].
    """

    weights: list[Buffers]
    written: Buffers
    scalars: list[Any]
    rows: list[Any]


class Loop:
    """The stages of a program in a loop over a schedule's ticks.

    Args:
      programs: the stages.
      captures: shapes and dtypes of the captures.
      kinds: what they are.
      writes: shapes and dtypes of the written variables.
      results: for each of the last stage's results its shape and dtype, and whether it has rows.
      schedule: the schedule.
      over: the mesh dimension of the pipeline.
      sizes: the sizes of the mesh's dimensions.
      axes: those that the batch is divided over.
      shares: into how many shares the batch is divided.
      divided: whether rules divide what stages compute: what is not divided must say so then.
      keeps: whether backward passes keep what weight passes apart need, in place of computing it again.
      scratch: the files in which what layers keep waits, or None.

    Attributes:
      weights: how trained captures are laid out, by how they are divided.
      fixed, written, edge: how other captures, written variables, and what crosses are.
    """

    def __init__(
        self,
        programs: Sequence[StageProgram],
        captures: Sequence[Any],
        kinds: Kinds,
        writes: Sequence[Any],
        results: Sequence[tuple[Any, bool]],
        schedule: Schedule,
        over: str,
        sizes: Mapping[str, int],
        axes: Sequence[str],
        shares: int,
        divided: bool,
        keeps: bool = True,
        scratch: Scratch | None = None,
    ) -> None:
        self.scratch = scratch
        self.programs, self.kinds, self.schedule, self.over = programs, kinds, schedule, over
        self.shares = shares
        self.results = list(results)
        self.keeps = schedule.splits_backward and keeps
        self.columns = columns_of(schedule, self.keeps)
        self.trains = schedule.trains
        self._halves: dict[int, Halves] = {}
        self._kept: Pack | Shelf = Pack([])

        def of(numbers: Any) -> list[dict[int, Any]]:
            return [{i: captures[i] for i in p.captures if i in numbers} for p in programs]

        alike: dict[Any, dict[int, Cut]] = {}
        for i, cut in kinds.trained.items():
            alike.setdefault(cut.kind, {})[i] = cut
        self.divided = divided
        self.weights = [
            WeightPack(of(cuts.keys()), cuts, sizes, over, axes, self.divided)
            for cuts in alike.values()
        ]
        self.fixed = Pack(of(set(range(len(captures))) - kinds.trained.keys()), self.divided)
        self.written = Pack([{k: writes[k] for k in p.writes} for p in programs], self.divided)
        self.edge = Pack([dict(enumerate(p.sends)) for p in programs[:-1]], self.divided)
        self._branch_of, self._examples = self._distinct()

    def _distinct(self) -> tuple[np.ndarray, list[int]]:
        """For each stage the number of its branch, and a stage of each branch: equal stages share one."""
        keys: dict[Any, int] = {}
        numbers, examples = [], []
        for s, program in enumerate(self.programs):
            packs: list[Any] = [*self.weights, self.fixed, self.written]
            places = tuple(tuple(pack.places[s].values()) for pack in packs)
            ends = tuple(
                tuple(self.edge.places[e].values()) if 0 <= e < len(self.programs) - 1 else None
                for e in (s - 1, s)
            )
            kinds = tuple(self._kind(i, program) for i in program.captures)
            sums = tuple(k in self.kinds.sums.values() for k in program.writes)
            key = program.text, places, ends, program.arguments, kinds, sums
            if key not in keys:
                keys[key] = len(keys)
                examples.append(s)
            numbers.append(keys[key])
        return np.array(numbers, np.int32), examples

    def _kind(self, number: int, program: StageProgram) -> Any:
        for name in ("streams", "sums"):
            if number in getattr(self.kinds, name):
                return name
        write = self.kinds.carried.get(number)
        if write in program.writes:
            return program.writes.index(write)
        return self.kinds.trained.get(number)

    @property
    def distinct(self) -> int:
        """How many different programs the stages are."""
        return len(self._examples)

    @property
    def held(self) -> int:
        """Bytes of all that a device keeps of micro-batches on their way."""
        columns, zeros = self.columns, self.edge.zeros(floats=True)
        gradients = columns.gradients * sum(z.nbytes for z in zeros.values())
        kept = columns.kept * self._kept.bytes()
        return columns.inputs * self.edge.bytes() + gradients + kept

    @property
    def sent(self) -> int:
        """Bytes that a device sends to its neighbours in all ticks: forwards, and gradients backwards."""
        floats = sum(
            n * np.dtype(name).itemsize for name, n in self.edge.lengths.items() if is_float(name)
        )
        return self.schedule.ticks * (self.edge.bytes() + (floats if self.trains else 0))

    # ---- one stage -------------------------------------------------------------------------

    def _outputs(
        self, stage: int, trained: dict[int, Any], arrived: list[Any], fed: Any, rows: list[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What a stage sends, results, and the new values of variables."""
        program, kinds = self.programs[stage], self.kinds
        fixed, written, micro_batch = fed
        values = self.fixed.take(fixed, stage)
        states = self.written.take(written, stage)
        for i in program.captures:
            if i in kinds.sums:
                values[i] = jnp.zeros_like(values[i])
            elif i in kinds.streams:
                values[i] = self._key_of(values[i], micro_batch)
            elif kinds.carried.get(i) in states:
                values[i] = states[kinds.carried[i]]
        values |= trained
        operands = [*arrived, *(rows[i] for i in program.arguments)]
        outputs = jex_core.jaxpr_as_fun(program.closed)(
            *operands, *(values[i] for i in program.captures)
        )
        first, second = len(program.sends), len(program.sends) + len(program.results)
        return outputs[:first], outputs[first:second], outputs[second:]

    def _key_of(self, state: Any, micro_batch: Any) -> Any:
        """A stream's state for a micro-batch: keys of its own."""
        if self.schedule.micro_batches == 1:
            return state
        return philox.folded(state, micro_batch)

    def _trained(self, stage: int, own: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for pack, buffers in zip(self.weights, own[0], strict=True):
            found |= pack.take(buffers, stage)
        return found

    def _arrived(self, stage: int, buffers: Buffers) -> dict[int, Any]:
        return self.edge.take(buffers, stage - 1) if stage else {}

    def _sent(self, stage: int, values: Sequence[Any], floats: bool = False) -> Buffers:
        if stage == len(self.programs) - 1:
            return self.edge.zeros(floats)
        return self.edge.put(dict(enumerate(values)), stage, floats)

    def _collected(
        self, stage: int, carry: Carry, results: list[Any], new: list[Any], micro_batch: Any
    ) -> Carry:
        """What is added up, with a micro-batch's results and variables."""
        program = self.programs[stage]
        before = self.written.take(carry.written, stage)
        after = dict(zip(program.writes, new, strict=True))
        sums = set(self.kinds.sums.values())
        values = {k: before[k] + v if k in sums else v for k, v in after.items()}
        scalars, rows = list(carry.scalars), list(carry.rows)
        for n, value in enumerate(results):
            _, has_rows = self.results[n]
            kept = rows if has_rows else scalars
            place = sum(known == has_rows for _, known in self.results[:n])
            if has_rows:
                kept[place] = kept[place].at[micro_batch].set(value)
            else:
                kept[place] = kept[place] + value.astype(kept[place].dtype)
        written = self.written.put(values, stage)
        return dataclasses.replace(carry, written=written, scalars=scalars, rows=rows)

    def _forward(self, stage: int, own: Any, buffers: Buffers, carry: Carry, at: Any) -> Any:
        rows, micro_batch = at
        arrived = [*self._arrived(stage, buffers).values()]
        fed = own[1], carry.written, micro_batch
        sends, results, new = self._outputs(stage, self._trained(stage, own), arrived, fed, rows)
        if not self.trains:
            carry = self._collected(stage, carry, results, new, micro_batch)
        return self._sent(stage, sends), carry

    def _backward(
        self,
        stage: int,
        wanted: str,
        own: Any,
        buffers: Buffers,
        gradients: Buffers,
        carry: Carry,
        at: Any,
    ) -> Any:
        """Gradients of a stage's inputs (in `wanted`: "I"), of its weights ("W"), or both.

        With those of the inputs comes what the stage gives beside.
        """
        of_weights, back, results, new = self._pulled(
            stage, wanted, own, buffers, gradients, carry.written, at
        )
        if "I" in wanted:
            carry = self._collected(stage, carry, results, new, at[1])
        if "W" in wanted:
            carry = self._with_gradients(stage, carry, of_weights)
        return back, carry

    def _with_gradients(self, stage: int, carry: Carry, found: dict[int, Any]) -> Carry:
        """Adds gradients of some of a stage's trained weights."""
        made = [pack.put(found, stage, floats=True) for pack in self.weights]
        sums = [_sum(b, more) for b, more in zip(carry.weights, made, strict=True)]
        return dataclasses.replace(carry, weights=sums)

    def _pulled(
        self,
        stage: int,
        wanted: str,
        own: Any,
        buffers: Buffers,
        gradients: Buffers,
        written: Buffers,
        at: Any,
    ) -> tuple[dict[int, Any], Buffers, list[Any], list[Any]]:
        """Gradients of weights, those of inputs in buffers, results, and new values of variables."""
        rows, micro_batch = at
        trained, arrived = self._trained(stage, own), self._arrived(stage, buffers)
        fed = own[1], written, micro_batch
        known = trained | self._zero(stage, own, rows)
        floats = [n for n, v in arrived.items() if jnp.issubdtype(v.dtype, jnp.inexact)]
        last = stage == len(self.programs) - 1

        def run(weights: dict[int, Any], inputs: dict[int, Any]) -> Any:
            full = [*(arrived | inputs).values()]
            sends, results, new = self._outputs(stage, known | weights, full, fed, rows)
            differentiated = [v for v in sends if jnp.issubdtype(v.dtype, jnp.inexact)]
            if last:
                differentiated = [results[0].astype(jnp.float32) / self.shares]
            return differentiated, (results, new)

        weights = trained if "W" in wanted else {}
        inputs = {n: arrived[n] for n in floats} if "I" in wanted else {}
        primals, pull, (results, new) = jax.vjp(run, weights, inputs, has_aux=True)
        incoming = [jnp.ones((), jnp.float32)]
        if not last:
            incoming = [*self.edge.take(gradients, stage).values()]
        of_weights, of_inputs = pull(
            [g.astype(p.dtype) for g, p in zip(incoming, primals, strict=True)]
        )
        back = self.edge.zeros(floats=True)
        if stage and "I" in wanted:
            back = self.edge.put(of_inputs, stage - 1, floats=True)
        return of_weights, back, results, new

    def _zero(self, stage: int, own: Any, rows: list[Any]) -> dict[int, Any]:
        """By number the zero of a backward pass whose layers keep in files what they need: places there are free again."""
        fixed = {} if self.scratch is None else self.fixed.take(own[1], stage)
        if self.scratch is None or self.kinds.zero not in fixed:
            return {}
        return {self.kinds.zero: self.scratch.fresh(fixed[self.kinds.zero], rows[0])}

    # ---- backward passes in two parts ------------------------------------------------------

    def _halve(self, own: Any, rows: Sequence[Any]) -> None:
        """Cuts the stages' backward passes, and finds room for what is kept of them."""

        def one(values: Any, axis: int = 1) -> Any:
            return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[axis:], v.dtype), values)

        edge, floats = self.edge.zeros(), self.edge.zeros(floats=True)
        number = jax.ShapeDtypeStruct((), np.int32)
        operands = one(own), one(rows), number, edge, floats, self.written.zeros()
        flat, structure = jax.tree.flatten(one(operands, 0))
        # What arrived, gradients and variables that are written are others when weight passes run.
        stays = len(jax.tree.leaves(operands[:3]))
        kept = []
        for stage in self._examples:

            def both(*leaves: Any, stage: int = stage) -> list[Any]:
                own, rows, micro_batch, arrived, given, state = jax.tree.unflatten(
                    structure, leaves
                )
                of_weights, *waited = self._pulled(
                    stage, "IW", own, arrived, given, state, (rows, micro_batch)
                )
                ordered = [of_weights[i] for i in sorted(of_weights)]
                return [*jax.tree.leaves(waited), *ordered]

            count = len(jax.tree.leaves(self._waited(stage)))
            halves = halved(both, flat, [n < stays for n in range(len(flat))], count)
            self._halves[stage] = halves
            kept.append(dict(enumerate(halves.kept)))
        # What rules divide would have to come together to be laid end to end.
        self._kept = Shelf(kept) if self.divided else Pack(kept)

    def _waited(self, stage: int) -> Any:
        """What comes of a backward pass beside gradients of weights, in shapes."""
        program = self.programs[stage]
        ends = np.cumsum([len(program.sends), len(program.results)])
        outputs = program.closed.out_avals
        return self.edge.zeros(floats=True), outputs[ends[0] : ends[1]], outputs[ends[1] :]

    def _first(self, stage: int, operands: Any, carry: Carry) -> Any:
        """A backward pass up to the gradients of the stage's inputs, and what the weight pass needs."""
        flat = jax.tree.leaves((*operands, carry.written))
        waited, early, kept = self._halves[stage].run_first(flat)
        back, results, new = jax.tree.unflatten(jax.tree.structure(self._waited(stage)), waited)
        carry = self._collected(stage, carry, results, new, operands[2])
        made = self._kept.put(dict(enumerate(kept)), self._examples.index(stage))
        if early:
            carry = self._with_gradients(stage, carry, self._numbered(stage, early))
        return (back, made), carry

    def _second(self, stage: int, operands: Any, carry: Carry, buffers: Buffers) -> Any:
        """The weight pass of what `_first` kept."""
        flat = jax.tree.leaves((*operands, carry.written))
        kept = self._kept.take(buffers, self._examples.index(stage))
        late = self._halves[stage].run_second(flat, list(kept.values()))
        return (), self._with_gradients(stage, carry, self._numbered(stage, late))

    def _numbered(self, stage: int, found: dict[int, Any]) -> dict[int, Any]:
        """Gradients by the number of their weight, given by place among the stage's."""
        numbers = sorted(i for pack in self.weights for i in pack.places[stage])
        return {numbers[n]: gradient for n, gradient in found.items()}

    # ---- the loop --------------------------------------------------------------------------

    def start(self, first: Sequence[Any]) -> Carry:
        """What the loop begins with.

        Args:
          first: values of the written variables before the step, zeros for sums, by chunk.
        """
        chunks, m = self.schedule.chunks, self.schedule.micro_batches

        def zeros(pack: WeightPack) -> Buffers:
            return {
                n: pack.laid(
                    jnp.zeros((chunks, *z.shape), jnp.promote_types(z.dtype, jnp.float32)), 1
                )
                for n, z in pack.zeros(floats=True).items()
            }

        scalars = [jnp.zeros((), jnp.float32) for _, rows in self.results if not rows]
        rows = [jnp.zeros((m, *a.shape), a.dtype) for a, rows in self.results if rows]
        return Carry([zeros(pack) for pack in self.weights], _stacked(first), scalars, rows)

    def run(self, own: Sequence[Any], first: Sequence[Buffers], rows: Sequence[Any]) -> Carry:
        """Runs the schedule on this device.

        Args:
          own: for each chunk (weights by pack, other captures) of its stage.
          first: for each chunk what its written variables begin with.
          rows: the batch, [micro-batches, rows, ...] each.
        """
        me = lax.axis_index(self.over)
        columns, p = self.columns, self.schedule.devices
        stacked = _stacked(own)
        if self.keeps:
            self._halve(stacked, rows)
        kept = {
            n: jnp.zeros((columns.inputs + 1, z.size), z.dtype)
            for n, z in self.edge.zeros().items()
        }
        inbox = {
            n: jnp.zeros((columns.gradients + 1, z.size), z.dtype)
            for n, z in self.edge.zeros(floats=True).items()
        }
        held = {
            n: jnp.zeros((columns.kept + 1, *z.shape), z.dtype)
            for n, z in self._kept.zeros().items()
        }
        ring = self.schedule.chunks > 1
        forwards = [(i, (i + 1) % p) for i in range(p if ring else p - 1)]
        backwards = [(b, a) for a, b in forwards]
        work = {"F": columns.forward}
        if self.trains:
            work["B"] = columns.backward
        if self.schedule.splits_backward:
            work["W"] = columns.weights
        table = jax.tree.map(jnp.asarray, (work, (columns.keep_input, columns.keep_gradient)))

        def tick(state: Any, row: Any) -> Any:
            kept, inbox, held, carry = state
            mine, keep = jax.tree.map(lambda column: column[..., me], row)
            worked = functools.partial(self._worked, me, stacked, kept, inbox, rows)
            sends, carry = worked(held, "F", carry, mine["F"])
            if self.trains:
                back, carry = worked(held, "B", carry, mine["B"])
            if self.keeps:
                back, more = back
                held = _stored(held, more, mine["B"].kept)
            if "W" in mine:
                for lane in range(len(columns.weights.micro_batch[0])):
                    turn = jax.tree.map(lambda column, lane=lane: column[lane], mine["W"])
                    _, carry = worked(held, "W", carry, turn)
            to_input, to_gradient = keep
            kept = _stored(kept, _moved(sends, self.over, forwards), to_input)
            if self.trains:
                inbox = _stored(inbox, _moved(back, self.over, backwards), to_gradient)
            return (kept, inbox, held, carry), None

        (*_, carry), _ = lax.scan(tick, (kept, inbox, held, self.start(first)), table)
        return carry

    def _worked(
        self,
        me: Any,
        own: Any,
        kept: Buffers,
        inbox: Buffers,
        rows: Any,
        held: Buffers,
        name: str,
        carry: Carry,
        work: Work,
    ) -> tuple[Any, Carry]:
        """One kind of work of a tick, if there is any: what is to be sent (and kept), and what was added up."""
        several = self.schedule.chunks > 1
        chunk = work.chunk if several else 0
        stage = work.chunk * self.schedule.devices + me
        branch = jnp.asarray(self._branch_of)[stage]

        def part(value: Any) -> Any:
            return jax.tree.map(lambda v: v[chunk], value)

        def busy(carry: Carry) -> Any:
            mine = dataclasses.replace(
                carry, weights=part(carry.weights), written=part(carry.written)
            )
            micro_batch = work.micro_batch
            at = [r[micro_batch] for r in rows], micro_batch
            buffers = {n: b[work.input] for n, b in kept.items()}
            gradients = {n: b[work.gradient] for n, b in inbox.items()}
            ours = part(own)

            def of(example: int) -> Any:
                if name == "F":
                    return self._forward(example, ours, buffers, mine, at)
                operands = ours, *at, buffers, gradients
                if self.keeps and name == "B":
                    return self._first(example, operands, mine)
                if self.keeps:
                    kept = {n: b[work.kept] for n, b in held.items()}
                    return self._second(example, operands, mine, kept)
                wanted = "W" if name == "W" else "I" if self.schedule.splits_backward else "IW"
                return self._backward(example, wanted, ours, buffers, gradients, mine, at)

            made, mine = chosen(branch, [lambda s=s: of(s) for s in self._examples])
            return (made if self.keeps else self._whole(made)), dataclasses.replace(
                mine,
                weights=_placed(carry.weights, mine.weights, chunk),
                written=_placed(carry.written, mine.written, chunk),
            )

        def idle(carry: Carry) -> Any:
            none = self.edge.zeros(floats=name != "F")
            if self.keeps and name != "F":
                return ((none, self._kept.zeros()) if name == "B" else ()), carry
            return none, carry

        return lax.cond(work.micro_batch >= 0, busy, idle, carry)

    def _whole(self, buffers: Buffers) -> Buffers:
        """What goes to a neighbour is whole: else exchanges would stand in branches that not all devices take."""
        return {n: alike(b, [None]) for n, b in buffers.items()} if self.divided else buffers


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _placed(whole: Any, part: Any, place: Any) -> Any:
    return jax.tree.map(lambda b, v: b.at[place].set(v), whole, part)


def _stored(slots: Buffers, values: Buffers, slot: Any) -> Buffers:
    return {n: b.at[slot].set(values[n]) for n, b in slots.items()}


def _sum(buffers: Buffers, more: Buffers) -> Buffers:
    return {n: b + more[n].astype(b.dtype) for n, b in buffers.items()}


def _moved(buffers: Buffers, over: str, pairs: list[tuple[int, int]]) -> Buffers:
    if not pairs:
        return buffers
    return {n: lax.ppermute(b, over, pairs) for n, b in buffers.items()}
