"""One loop that runs any schedule of a pipeline, on every device the same program.

A tick computes what the table says, then exchanges: what goes on to the next stage, and gradients to the one
before. The exchanges stand outside of all branches, so that all devices meet in them. Of a micro-batch on its
way a stage keeps its input only; the backward pass computes the stage again.
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

from meshflow.distribute.parallel.cutting import StageProgram
from meshflow.distribute.parallel.packs import Buffers, Pack, alike, chosen, is_float
from meshflow.distribute.parallel.schedule import Schedule
from meshflow.distribute.parallel.slots import Work, columns_of
from meshflow.distribute.parallel.stage_weights import Cut, WeightPack
from meshflow.environment.jax_internals import jex_core

__all__ = ["Carry", "Kinds", "Loop"]


@dataclasses.dataclass(frozen=True)
class Kinds:
    """What the captures of the stages are, by number.

    Attributes:
      trained: those that are trained, with how they are divided.
      streams: states of streams of keys, with the number of the write.
      sums: sums over the batch, with that number.
      carried: other variables that are written, with that number.
    """

    trained: dict[int, Cut]
    streams: dict[int, int]
    sums: dict[int, int]
    carried: dict[int, int]


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
    ) -> None:
        self.programs, self.kinds, self.schedule, self.over = programs, kinds, schedule, over
        self.shares = shares
        self.results = list(results)
        self.columns = columns_of(schedule)
        self.trains = schedule.trains

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
        key = jax.random.wrap_key_data(state[:2], impl="threefry2x32")
        words = jax.random.key_data(jax.random.fold_in(key, micro_batch))
        return jnp.concatenate([words, state[2:]])

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
        rows, micro_batch = at
        trained, arrived = self._trained(stage, own), self._arrived(stage, buffers)
        fed = own[1], carry.written, micro_batch
        floats = [n for n, v in arrived.items() if jnp.issubdtype(v.dtype, jnp.inexact)]
        last = stage == len(self.programs) - 1

        def run(weights: dict[int, Any], inputs: dict[int, Any]) -> Any:
            full = [*(arrived | inputs).values()]
            sends, results, new = self._outputs(stage, trained | weights, full, fed, rows)
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
        if "I" in wanted:
            if stage:
                back = self.edge.put(of_inputs, stage - 1, floats=True)
            carry = self._collected(stage, carry, results, new, micro_batch)
        if "W" in wanted:
            made = [pack.put(of_weights, stage, floats=True) for pack in self.weights]
            sums = [_sum(b, more) for b, more in zip(carry.weights, made, strict=True)]
            carry = dataclasses.replace(carry, weights=sums)
        return back, carry

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
        kept = {
            n: jnp.zeros((columns.inputs + 1, z.size), z.dtype)
            for n, z in self.edge.zeros().items()
        }
        inbox = {
            n: jnp.zeros((columns.gradients + 1, z.size), z.dtype)
            for n, z in self.edge.zeros(floats=True).items()
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
            kept, inbox, carry = state
            mine, keep = jax.tree.map(lambda column: column[..., me], row)
            worked = functools.partial(self._worked, me, stacked, kept, inbox, rows)
            sends, carry = worked("F", carry, mine["F"])
            if self.trains:
                back, carry = worked("B", carry, mine["B"])
            if "W" in mine:
                carry, _ = lax.scan(lambda c, w: (worked("W", c, w)[1], None), carry, mine["W"])
            to_input, to_gradient = keep
            kept = _stored(kept, _moved(sends, self.over, forwards), to_input)
            if self.trains:
                inbox = _stored(inbox, _moved(back, self.over, backwards), to_gradient)
            return (kept, inbox, carry), None

        (_, _, carry), _ = lax.scan(tick, (kept, inbox, self.start(first)), table)
        return carry

    def _worked(
        self,
        me: Any,
        own: Any,
        kept: Buffers,
        inbox: Buffers,
        rows: Any,
        name: str,
        carry: Carry,
        work: Work,
    ) -> tuple[Buffers, Carry]:
        """One kind of work of a tick, if there is any: what is to be sent, and what was added up."""
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
                wanted = "W" if name == "W" else "I" if self.schedule.splits_backward else "IW"
                return self._backward(example, wanted, ours, buffers, gradients, mine, at)

            made, mine = chosen(branch, [lambda s=s: of(s) for s in self._examples])
            return self._whole(made), dataclasses.replace(
                mine,
                weights=_placed(carry.weights, mine.weights, chunk),
                written=_placed(carry.written, mine.written, chunk),
            )

        def idle(carry: Carry) -> Any:
            return self.edge.zeros(floats=name != "F"), carry

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
