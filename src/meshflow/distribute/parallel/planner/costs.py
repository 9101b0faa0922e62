"""What a choice costs by theory: bytes that each device holds and sends in a step, and the time that it takes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from meshflow.distribute.parallel.planner.choices import PARTS, Choice
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.profile import ModelProfile, Split
from meshflow.placement.expected_traffic import ring

__all__ = ["Costs", "Estimate"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The costs of a step on each device.

    Attributes:
      held: bytes at the moment when most are held, by what they are: "weights", "slots", "batch" and "other" lie
        there between steps, "gathered", "gradients" and "activations" while one runs.
      sent: bytes that are sent, by what they are for.
      seconds: time by what it is for: "compute" with waiting in pipelines, "exchange", "host".
      bubble: the share of computing time that a pipeline's devices wait.
    """

    held: Mapping[str, int]
    sent: Mapping[str, int]
    seconds: Mapping[str, float]
    bubble: float = 0.0

    @property
    def memory(self) -> int:
        """All bytes that are held."""
        return sum(self.held.values())

    @property
    def bytes(self) -> int:
        """All bytes that are sent."""
        return sum(self.sent.values())

    @property
    def time(self) -> float:
        """The time of a step: exchanges are not taken to be hidden behind computing."""
        return sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Bytes of the weights on a device before `zero`, of those that `zero` can divide, and of experts of its own."""

    weights: int
    slots: int
    divisible: int
    divisible_slots: int
    own: int = 0


class Costs:
    """Estimates of choices for one model on one machine.

    Args:
      profile: the model.
      hardware: the machine.
    """

    def __init__(self, profile: ModelProfile, hardware: Hardware) -> None:
        self.profile, self.hardware = profile, hardware
        self._sizes = functools.cache(self._make_sizes)
        self._of_stage = functools.cache(self._make_stages)
        self._of_weights = functools.cache(self._make_weights)
        self._behind = functools.cache(self._make_behind)

    def of(self, choice: Choice) -> Estimate:
        """The estimate of a choice.

        Args:
          choice: the choice.
        """
        split = self._split(choice)
        held = self._held(choice)
        sent = self.sent(choice)
        if choice.stage > 1:
            held |= self._pipelined(choice, split)
        else:
            held |= self._step(choice, split)
        seconds, bubble = self._seconds(choice, split, sent)
        return Estimate(held, sent, seconds, bubble)

    def _split(self, choice: Choice) -> Split:
        if choice.sequence in PARTS:
            return self.profile.in_parts_of_sequences(choice.model)
        return self.profile.split(choice.names, choice.model)

    # ---- between steps ---------------------------------------------------------------------

    def _make_sizes(
        self, names: tuple[str, ...], data: int, model: int, stage: int, experts: bool
    ) -> _Sizes:
        weights = slots = divisible = divisible_slots = own = 0.0
        of_experts = self.profile.axes(("experts",) if experts else ())
        axes = zip(self.profile.axes(names), of_experts, strict=True)
        for w, (split, expert) in zip(self.profile.weights, axes, strict=True):
            if expert is not None:
                own += w.bytes / data
                weights += w.bytes / data
                slots += w.slots / data
                continue
            taken = [split if model > 1 else None]
            parts = model if taken[0] is not None else 1
            if stage > 1:
                axis = w.free_axis(stage, taken)
                parts *= stage if axis is not None else 1
                taken.append(axis)
            weights += w.bytes / parts
            slots += w.slots / parts
            if data > 1 and w.free_axis(data, taken) is not None:
                divisible += w.bytes / parts
                divisible_slots += w.slots / parts
        return _Sizes(int(weights), int(slots), int(divisible), int(divisible_slots), int(own))

    def sizes(self, choice: Choice) -> _Sizes:
        """Bytes of weights and slots on a device before `zero`.

        Args:
          choice: the choice.
        """
        return self._sizes(choice.names, choice.data, choice.model, choice.stage, choice.experts)

    def _held(self, choice: Choice) -> dict[str, int]:
        sizes, d = self.sizes(choice), choice.data
        weights, slots = sizes.weights, sizes.slots
        if choice.zero == 3:
            weights -= sizes.divisible * (d - 1) // d
        if choice.zero:
            slots -= sizes.divisible_slots * (d - 1) // d
        return {
            "weights": weights,
            "slots": slots,
            "batch": self.profile.example * self.profile.batch // d,
            "other": self.profile.other,
        }

    # ---- a step ----------------------------------------------------------------------------

    def _rows(self, choice: Choice) -> int:
        return self.profile.batch // (choice.data * choice.micro_batches)

    def _make_weights(self, names: tuple[str, ...], model: int, over: int) -> tuple[int, ...]:
        """Bytes of each weight when rules have split it, or over how many devices experts lie."""
        axes = self.profile.axes(names if model > 1 else ())
        of_experts = self.profile.axes(("experts",) if over > 1 else ())
        parts = [
            over if expert is not None else model if axis is not None else 1
            for axis, expert in zip(axes, of_experts, strict=True)
        ]
        return tuple(w.bytes // n for w, n in zip(self.profile.weights, parts, strict=True))

    def _make_behind(self, names: tuple[str, ...], model: int, over: int) -> list[int]:
        """For each layer the bytes of the weights that those behind it use."""
        sizes = self._of_weights(names, model, over)
        found, used = [], set[int]()
        for of_layer in reversed(self.profile.uses):
            found.append(sum(sizes[n] for n in used))
            used.update(of_layer)
        return found[::-1]

    def _divided_by(self, choice: Choice) -> tuple[tuple[str, ...], int, int]:
        """What says how rules split weights."""
        return choice.names, choice.model, choice.data if choice.experts else 1

    def _own(self, weights: Sequence[int], choice: Choice) -> int:
        """Bytes of weights, by number, when rules have split them."""
        sizes = self._of_weights(*self._divided_by(choice))
        return sum(sizes[n] for n in weights)

    def _activations(self, choice: Choice, split: Split, layers: range, rows: int) -> int:
        """Bytes that some layers keep for the backward pass, and that it has at hand besides."""
        divided = choice.sequence == "split"
        kept = [(split.shared if divided else split.kept)[u] for u in layers]
        edges = self._edges(choice, split, layers)
        largest = max(kept, default=0)
        between = self._between(choice, split, layers)
        if "activations" in choice.offload:
            # One layer's are computed with while another's come or go.
            at_hand = max(edges, default=0) if choice.recompute == "layer" else largest
            return rows * (between + largest + at_hand)
        if choice.recompute == "layer":
            # As a stage's own forward pass is computed again, too, a part of another layer's lies beside it.
            return rows * (between + sum(edges) + largest + largest // 4)
        # Of gradients inside of a layer there are a quarter as much as it keeps: what is used up makes room.
        return rows * ((0 if divided else between) + sum(kept) + largest // 4)

    def _edges(self, choice: Choice, split: Split, layers: range) -> list[int]:
        """Bytes of an example that layers give to others, as they lie between them."""
        parts = choice.model if choice.sequence == "split" else 1
        return [split.edges[u] // parts for u in layers]

    def _between(self, choice: Choice, split: Split, layers: range) -> int:
        """Bytes of an example where layers meet: results, terms that are summed to them, and the gradients of both."""
        return 4 * max((split.edges[u] for u in layers), default=0)

    def _recomputed(self, choice: Choice, split: Split, rows: int) -> int:
        """Bytes at the moment when most are at hand, where layers are computed again outside of a pipeline.

        While one's backward pass runs, what goes into those before it is kept, and gradients of those behind it are there.
        """
        layers = range(len(self.profile.layers))
        divided = choice.sequence == "split"
        edges = self._edges(choice, split, layers)
        # Where sequences are in parts between layers, what goes into one comes together whole.
        whole = max(split.edges, default=0)
        beside = whole if divided else self._between(choice, split, layers)
        # Gradients wait for each other to be sent, unless there are sums of them, or a layer's own exchange.
        waits = choice.micro_batches == 1 and choice.zero != 3
        behind = self._behind(*self._divided_by(choice))
        found = 0
        for u, before in enumerate(itertools.accumulate(edges)):
            kept = (split.shared if divided else split.kept)[u]
            kept += kept // (4 if divided else 12)
            gradients = behind[u] if waits else 0
            found = max(found, rows * (before + kept + beside) + gradients)
        return found

    def _step(self, choice: Choice, split: Split) -> dict[str, int]:
        sizes, d, rows = self.sizes(choice), choice.data, self._rows(choice)
        layers = range(len(self.profile.layers))
        again = choice.recompute == "layer" and "activations" not in choice.offload
        activations = (
            self._recomputed(choice, split, rows)
            if again
            else self._activations(choice, split, layers, rows)
        )
        whole, parts = sizes.weights, sizes.weights - sizes.divisible * (d - 1) // d
        largest = max((self._own(u, choice) for u in self.profile.uses), default=0)
        in_turn = choice.micro_batches > 1
        gathered = 0
        if choice.zero == 3:
            at_once = largest
            if in_turn and again:
                # In a loop a layer has half of its kernels beside what it keeps, in the place of which all of them and
                # their gradients are there in the end.
                kept = rows * max(split.shared if choice.sequence == "split" else split.kept)
                at_once = max(largest // 2, 2 * largest - kept)
            gathered = min(sizes.divisible, at_once) if choice.recompute else sizes.divisible
        # Gradients come as activations go. Where devices sum them whole, terms and sums are there together.
        # About half of a layer's gradients are whole before they are scattered, or added.
        beside = largest // 2 if in_turn and again and choice.zero != 3 else 0
        if in_turn:
            sums = parts if choice.zero >= 2 else whole
            gradients = sums + max(beside, max(sums, largest) - activations)
        else:
            at_last = parts if choice.zero else whole * (2 if d > 1 else 1)
            gradients = max(0, at_last - activations)
        if choice.sequence in PARTS:
            # One exchange sums those of all weights, terms and sums are there together; unless they are a micro-batch's
            # whose layers are computed again each by itself. What ZeRO 2 scatters is whole before, all the same. The
            # rows of tables come together, too.
            summed, looked_up = self._of_parts(choice)
            by_layer = choice.recompute == "layer" and (
                choice.zero == 3 or (in_turn and choice.zero != 2)
            )
            gradients += looked_up + (0 if by_layer else summed - min(summed, beside))
            if in_turn and again and choice.zero == 3:
                gradients += 2 * largest
        return {"gathered": gathered, "gradients": gradients, "activations": activations}

    def _make_stages(
        self, count: int, names: tuple[str, ...], model: int
    ) -> tuple[list[range], list[int]]:
        """The layers and the bytes of weights of each stage of a pipeline."""
        ends = self.profile.stages(count)
        parts = [range(a, b) for a, b in itertools.pairwise([0, *ends])]
        choice = Choice(1, model, 1, names=names)
        weights = [
            self._own(sorted({n for u in part for n in self.profile.uses[u]}), choice)
            for part in parts
        ]
        return parts, weights

    def _stages(self, choice: Choice) -> tuple[list[range], list[int], int]:
        """Layers and weights of each stage, and the bytes of the widest cut for one micro-batch."""
        parts, weights = self._of_stage(choice.stage, choice.names, choice.model)
        crossing = self.profile.crossing()
        edge = max(crossing[part[-1]] for part in parts[:-1])
        return parts, weights, edge * self._rows(choice)

    def _pipelined(self, choice: Choice, split: Split) -> dict[str, int]:
        parts, weights, edge = self._stages(choice)
        rows = self._rows(choice)
        inside = max(self._activations(choice, split, part, rows) for part in parts)
        inputs = min(2 * choice.stage - 1, choice.micro_batches)
        return {
            "gathered": max(weights),
            "gradients": max(weights) + sum(weights) // choice.stage,
            "activations": inside + (inputs + 2) * edge,
        }

    # ---- exchange --------------------------------------------------------------------------

    def sent(self, choice: Choice) -> dict[str, int]:
        """Bytes that each device sends in a step, by what they are for.

        Args:
          choice: the choice.
        """
        sizes, d, m = self.sizes(choice), choice.data, choice.micro_batches
        sent = dict[str, int]()
        if choice.stage > 1:
            return self._divided(choice, self._sent_in_stages(choice, sizes))
        if choice.experts:
            exchanges = 6 if choice.recompute == "layer" else 4
            sent["tokens"] = sum(
                e.sent(self.profile.batch, d, m, exchanges) for e in self.profile.experts
            )
        if choice.sequence in PARTS:
            sent |= self._sent_between_parts(choice)
        rest = sizes.weights - sizes.divisible - sizes.own
        if not choice.zero:
            sent["gradients"] = 2 * ring(sizes.weights - sizes.own, d)
            return self._divided(choice, sent)
        turns = m if choice.zero >= 2 else 1
        sent["gradients"] = turns * (ring(sizes.divisible, d) + 2 * ring(rest, d))
        again = 2 * m if choice.zero == 3 and choice.recompute else 1
        sent["weights"] = again * ring(sizes.divisible, d)
        return self._divided(choice, sent)

    def _sent_between_parts(self, choice: Choice) -> dict[str, int]:
        """What devices send that have parts of sequences: for attention, and sums of gradients of all weights."""
        t, attention = choice.model, self.profile.attention
        assert attention is not None and choice.sequence is not None
        forward, backward = attention.sent(choice.sequence, t)
        if choice.recompute == "layer":
            forward *= 2
        summed, looked_up = self._of_parts(choice)
        turns = choice.micro_batches
        return {
            "attention": (forward + backward) * turns * self._rows(choice),
            "parts": turns * (2 * ring(summed, t) + ring(looked_up, t)),
        }

    def _of_parts(self, choice: Choice) -> tuple[int, int]:
        """Bytes of the gradients that devices with parts of sequences sum, and of the rows of tables that they gather.

        A table's gradient is that of its rows, which are looked up from whole sequences.
        """
        summed, looked_up = self._tables
        return summed, looked_up * self._rows(choice)

    @functools.cached_property
    def _tables(self) -> tuple[int, int]:
        """Bytes of all weights that are no tables, and of the rows of tables that a sequence looks up."""
        weights, axes = self.profile.weights, self.profile.axes(("vocab",))
        is_table = [axis == 0 for axis in axes]
        summed = sum(w.bytes for w, table in zip(weights, is_table, strict=True) if not table)
        rows = (w.bytes // w.shape[0] for w, t in zip(weights, is_table, strict=True) if t)
        return summed, sum(rows) * self.profile.sequence

    def _sent_in_stages(self, choice: Choice, sizes: _Sizes) -> dict[str, int]:
        """What a pipeline sends: to neighbours, and once in a step to bring a stage's weights together."""
        _, weights, edge = self._stages(choice)
        p, d = choice.stage, choice.data
        packed = max(weights)
        # Those that are divided over the pipeline's devices and the batch's at once.
        both = packed * sizes.divisible // max(sizes.weights, 1) if choice.zero else 0
        scattered = 2 * ring(packed - both, d) + ring(packed - both, p)
        scattered += ring(both, d) + ring(both, p) // d
        gathered = ring(packed - both, p)
        if choice.zero == 3:
            gathered += ring(both, d) + ring(both, p) // d
        else:
            # The optimizer writes parts, of which a device's are put together before they go to their stages.
            gathered += ring(both, p) + (ring(sizes.divisible, d) if choice.zero else 0)
        ticks = choice.micro_batches + 2 * p - 2
        return {"neighbours": ticks * 2 * edge, "weights": gathered, "gradients": scattered}

    def _divided(self, choice: Choice, sent: dict[str, int]) -> dict[str, int]:
        """What is sent, with the sums of divided products."""
        t = choice.model
        if t > 1 and choice.names:
            split = self._split(choice)
            total = split.total
            backward = total.each if choice.zero == 3 else total.backward
            if choice.zero == 3 and choice.sequence == "split":
                # The halves of such a sum are exchanges of their own, of which gathers may be done again.
                again = choice.recompute == "gathers"
                backward = (total.backward + (total.each if again else total.backward)) // 2
            sums = total.forward + backward
            if choice.stage > 1:
                ticks = choice.micro_batches + 2 * choice.stage - 2
                sums = self._sums_in_a_tick(choice, split) * ticks // choice.micro_batches
            elif choice.recompute == "layer":
                sums += total.again
                if choice.sequence == "split":
                    # What a layer gives is a sum in two halves, of which the next one's gather is needed again.
                    sums += total.last // 2
            sums *= self.profile.batch // choice.data
            sent["products"] = 2 * sums * (t - 1) // t
        return sent

    def _sums_in_a_tick(self, choice: Choice, split: Split) -> int:
        """What the busiest stages sum in a tick, of an example: one in its forward pass, one in its backward pass."""
        parts, _, _ = self._stages(choice)
        forward, backward = [0], []
        for number, part in enumerate(parts):
            sums = [split.sums[u] for u in part]
            once = sum(s.forward for s in sums)
            owed = sum(s.each for s in sums)
            if choice.sequence == "split":
                owed = (owed + sum(s.backward for s in sums)) // 2
            if choice.recompute == "layer":
                owed += sum(s.again for s in sums)
            if number < choice.stage - 1:
                forward.append(once)
                # What a stage gives is not summed again.
                once -= sums[-1].last
            backward.append(once + owed)
        return max(forward) + max(backward)

    # ---- time ------------------------------------------------------------------------------

    def _seconds(
        self, choice: Choice, split: Split, sent: Mapping[str, int]
    ) -> tuple[dict[str, float], float]:
        examples = self.profile.batch / choice.data
        work, bubble = sum(split.work), 0.0
        passes = 3
        if choice.stage > 1:
            parts, _, _ = self._stages(choice)
            work = max(sum(split.work[u] for u in part) for part in parts)
            p, m = choice.stage, choice.micro_batches
            bubble, passes = (p - 1) / (m + p - 1), 4
        # Forward, twice as much backward, and what is computed again.
        passes += choice.recompute == "layer"
        compute = passes * work * examples / self.hardware.products / (1 - bubble)
        exchanges = self._exchanges(choice)
        moved = self._moved(choice)
        return {
            "compute": compute,
            "exchange": sum(sent.values()) / self.hardware.link + exchanges * self.hardware.wait,
            "host": moved / self.hardware.host,
        }, bubble

    def _exchanges(self, choice: Choice) -> int:
        """How many exchanges wait for each other, roughly: by layer, micro-batch and tick."""
        layers, m = len(self.profile.layers), choice.micro_batches
        found = 1 if choice.data > 1 else 0
        if choice.zero:
            found = layers * (1 + (m if choice.zero >= 2 else 1))
            if choice.zero == 3 and choice.recompute:
                found = layers * 3 * m
        if choice.model > 1:
            found += 4 * layers * m // choice.stage
        if choice.stage > 1:
            found += 2 * (m + 2 * choice.stage - 2)
        return found

    def _moved(self, choice: Choice) -> int:
        """Bytes between a device and its host, there and back."""
        held, found = self._held(choice), 0
        if "optimizer" in choice.offload:
            found += 2 * held["slots"]
        if "parameters" in choice.offload:
            found += 2 * held["weights"]
        if "activations" in choice.offload:
            split = self._split(choice)
            kept = split.edges if choice.recompute == "layer" else split.kept
            found += 2 * sum(kept) * self.profile.batch // choice.data // choice.stage
        return found
