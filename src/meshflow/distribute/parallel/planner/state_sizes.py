"""Bytes of weights and slots on a device, for the formulas of memory and traffic."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.choices import SEQUENCE_PARALLEL_MODES, PlanChoice
from meshflow.distribute.parallel.planner.model_profile import ModelProfile, SplitProfile

# Indices of rows have 32 bits.
_INDEX_BYTES = 4


@dataclasses.dataclass(frozen=True)
class StateSizes:
    """Bytes of weights and slots on a device before ZeRO shards them.

    Attributes:
      weights: Bytes of all weights.
      slots: Bytes of all slots.
      divisible: Bytes of the weights that ZeRO can shard.
      divisible_slots: Bytes of their slots.
      own: Bytes of the device's own experts; of a pipeline's stage, if the experts stay on it.
      terms: Bytes of the terms of gradients that are summed as complete arrays, without the device's own experts.
      rows: Bytes of the rows of the other gradients, which are those of tables.
      row_slots: Bytes of the slots of these tables.
      released: Bytes of the divisible weights that ZeRO 3 releases after each pass.
      regathered: Bytes that it gathers of those weights, in addition to `released`, for the backward pass and for further
        layers that use them.
      rescattered: Bytes of the gradients of further layers that use them.
      resident: Bytes of the resident weights of a pipeline, which a step does not gather.
      divisible_resident: Bytes of those that ZeRO can shard.
      shared: Bytes of gradients that the devices of weights of several stages exchange.
    """

    weights: int
    slots: int
    divisible: int
    divisible_slots: int
    own: int = 0
    terms: int = 0
    rows: int = 0
    row_slots: int = 0
    released: int = 0
    regathered: int = 0
    rescattered: int = 0
    resident: int = 0
    divisible_resident: int = 0
    shared: int = 0


class SizeModel:
    """Sizes of the weights of choices for one model.

    Args:
      profile: Profile of the model.
      in_region: Whether a region computes the gradients, also for options that a choice does not have.
    """

    def __init__(self, profile: ModelProfile, in_region: bool = False) -> None:
        self.profile, self._in_region = profile, in_region
        self._cached_sizes = functools.cache(self._compute_sizes)
        self._cached_stages = functools.cache(self._compute_stages)
        self._cached_weights = functools.cache(self._compute_weight_bytes)
        self._cached_frozen = functools.cache(self._list_frozen)

    def _get_split(self, choice: PlanChoice) -> SplitProfile:
        if choice.sequence in SEQUENCE_PARALLEL_MODES:
            return self.profile.split_sequences(choice.model)
        return self.profile.split_weights(choice.names, choice.model)

    def _compute_sizes(
        self,
        names: tuple[str, ...],
        data: int,
        model: int,
        stage: int,
        experts: int,
        recompute: str | None,
        budget: int | None,
        is_offloaded: bool,
        zero: bool,
    ) -> StateSizes:
        weights = slots = divisible = divisible_slots = own = 0.0
        terms = rows_bytes = row_slots = 0.0
        released = regathered = rescattered = 0.0
        gathers = self.profile.list_regathered(recompute, budget)
        expert_axes = self.profile.find_named_axes(("experts",) if experts else ())
        axes = zip(self.profile.find_named_axes(names), expert_axes, gathers, strict=True)
        users = {} if is_offloaded else self._find_resident_weights(stage)
        shared = 0
        # Bytes of each stage's resident weights, and of their slots: those that ZeRO cannot shard, and those that it can.
        rows = [[[0.0] * stage, [0.0] * stage] for _ in range(2)]
        # The same for the experts of each stage.
        own_rows = [[0.0] * stage for _ in range(2)]
        for n, (w, (split, expert, (is_released, is_regathered))) in enumerate(
            zip(self.profile.weights, axes, strict=True)
        ):
            split_axes = [split if model > 1 else None]
            parts = model if split_axes[0] is not None else 1
            if expert is not None:
                own_bytes, own_slots = (size / experts / parts for size in (w.bytes, w.slots))
                for s in users.get(n, ()):
                    own_rows[0][s] += own_bytes
                    own_rows[1][s] += own_slots
                if n not in users:
                    own += own_bytes
                    weights += own_bytes
                    slots += own_slots
                continue
            if n in users:
                is_divisible = data > 1 and w.find_free_axis(data, split_axes) is not None
                # All devices have a row for a weight that several stages use.
                stages = range(stage) if len(users[n]) > 1 else users[n]
                for kind, size in enumerate((w.bytes, w.slots)):
                    for s in stages:
                        rows[kind][is_divisible][s] += size / parts
                part = data if is_divisible and zero else 1
                shared += (len(users[n]) - 1) * w.bytes // parts // part
                continue
            if stage > 1:
                axis = w.find_free_axis(stage, split_axes)
                parts *= stage if axis is not None else 1
                split_axes.append(axis)
            weights += w.bytes / parts
            gathered_rows = self._count_rows_bytes(n, split_axes[0], model)
            rows_bytes += gathered_rows
            row_slots += w.slots / parts if gathered_rows else 0
            terms += 0 if gathered_rows else self.profile.reads[n].terms * w.bytes / parts
            slots += w.slots / parts
            if data > 1 and w.find_free_axis(data, split_axes) is not None:
                divisible += w.bytes / parts
                divisible_slots += w.slots / parts
                released += is_released * w.bytes / parts
                further = is_released * (self.profile.layer_counts[n] - 1) * w.bytes / parts
                rescattered += further
                regathered += is_regathered * (w.bytes / parts + further) + further
        (fixed, resident), (fixed_slots, resident_slots) = ([max(v) for v in r] for r in rows)
        own_resident, own_resident_slots = map(max, own_rows)
        kept = fixed + resident + own_resident
        sums = (
            weights + kept,
            slots + fixed_slots + resident_slots + own_resident_slots,
            divisible + resident,
            divisible_slots + resident_slots,
            *(own + own_resident, terms, rows_bytes, row_slots, released, regathered, rescattered),
            *(kept, resident, shared),
        )
        return StateSizes(*map(int, sums))

    def _find_resident_weights(self, stages: int) -> dict[int, tuple[int, ...]]:
        """Return the stages that use each resident weight."""
        return {} if stages == 1 else self._find_stages(self.profile.uses, stages)

    def _find_stages(
        self, uses: Sequence[Iterable[int]], stages: int
    ) -> dict[int, tuple[int, ...]]:
        """Return the stages that use each weight."""
        users: dict[int, set[int]] = {}
        ends = self.profile.find_stage_ends(stages)
        for stage, (a, b) in enumerate(itertools.pairwise([0, *ends])):
            for n in itertools.chain(*uses[a:b]):
                users.setdefault(n, set()).add(stage)
        return {n: tuple(sorted(found)) for n, found in users.items()}

    def _count_frozen_elsewhere(self, choice: PlanChoice) -> int:
        """Return the bytes of frozen weights that are on other stages than the one with most of them."""
        if choice.stage == 1 or is_offloaded(choice):
            return 0
        by_stage = [sum(sizes) for sizes in self._cached_frozen(choice.stage)]
        return sum(by_stage) - max(by_stage)

    def _list_frozen(self, stages: int) -> list[list[int]]:
        """Return the bytes of each frozen weight on each stage."""
        sizes = {n: size for used in self.profile.frozen for n, size in used.items()}
        users = self._find_stages(self.profile.frozen, stages)
        return [[sizes[n] for n, s in users.items() if k in s] for k in range(stages)]

    def get_sizes(self, choice: PlanChoice) -> StateSizes:
        """Return the bytes of weights and slots on a device before ZeRO shards them.

        Args:
          choice: The choice.

        Returns:
          The sizes.
        """
        budget = choice.options.get("max_live_parameters")
        split = choice.names, choice.data, choice.model, choice.stage, choice.experts
        return self._cached_sizes(
            *split, choice.recompute, budget, is_offloaded(choice), bool(choice.zero)
        )

    def _compute_state_bytes(self, choice: PlanChoice) -> dict[str, int]:
        sizes, d = self.get_sizes(choice), choice.data
        weights, slots = sizes.weights, sizes.slots
        if choice.zero == 3:
            weights -= sizes.divisible * (d - 1) // d
        if choice.zero:
            slots -= sizes.divisible_slots * (d - 1) // d
        return {
            "weights": weights,
            "slots": slots,
            "batch": self.profile.example * self.profile.batch // d,
            "other": self.profile.other - self._count_frozen_elsewhere(choice),
        }

    def _count_rows(self, choice: PlanChoice) -> int:
        return self.profile.batch // (choice.data * choice.micro_batches)

    def _compute_weight_bytes(
        self, names: tuple[str, ...], model: int, over: int
    ) -> tuple[int, ...]:
        """Return the bytes of each weight on a device, split by rules or over `over` devices."""
        axes = self.profile.find_named_axes(names if model > 1 else ())
        expert_axes = self.profile.find_named_axes(("experts",) if over > 1 else ())
        parts = [
            (1 if expert is None else over) * (1 if axis is None else model)
            for axis, expert in zip(axes, expert_axes, strict=True)
        ]
        return tuple(w.bytes // n for w, n in zip(self.profile.weights, parts, strict=True))

    def _get_split_key(self, choice: PlanChoice) -> tuple[tuple[str, ...], int, int]:
        """Return the parts of a choice that determine how rules split weights."""
        return choice.names, choice.model, choice.experts or 1

    def _list_weight_bytes(self, choice: PlanChoice) -> tuple[int, ...]:
        """Return the bytes of each weight on a device before ZeRO shards it."""
        return self._cached_weights(*self._get_split_key(choice))

    def _sum_weight_bytes(self, weights: Sequence[int], choice: PlanChoice) -> int:
        """Return the bytes of some weights on a device."""
        sizes = self._list_weight_bytes(choice)
        return sum(sizes[n] for n in weights)

    def _compute_stages(
        self, count: int, names: tuple[str, ...], model: int, is_offloaded: bool
    ) -> tuple[list[range], list[int]]:
        """Return the layers of each stage of a pipeline, and the bytes of the weights that it gathers."""
        resident = {} if is_offloaded else self._find_resident_weights(count)
        ends = self.profile.find_stage_ends(count)
        parts = [range(a, b) for a, b in itertools.pairwise([0, *ends])]
        sizes = self._cached_weights(names, model, 1)
        weights = [
            sum(sizes[n] for n in {n for u in part for n in self.profile.uses[u]} - resident.keys())
            for part in parts
        ]
        return parts, weights

    def _get_stages(self, choice: PlanChoice) -> tuple[list[range], list[int], int]:
        """Return layers and gathered weights of each stage, and the bytes of a micro-batch's largest edge."""
        parts, weights = self._cached_stages(
            choice.stage, choice.names, choice.model, is_offloaded(choice)
        )
        crossing = self.profile.count_crossing_bytes()
        edge = max(crossing[part[-1]] for part in parts[:-1])
        return parts, weights, edge * self._count_rows(choice)

    def _uses_region(self, choice: PlanChoice) -> bool:
        uses_region = self._in_region or ParallelOptions(**choice.options).uses_region
        return uses_region and not self._is_whole_step(choice)

    def _is_whole_step(self, choice: PlanChoice) -> bool:
        """Check whether XLA partitions a step that computes gradients itself; micro-batches are loops like those of `fit`."""
        return self.profile.own_step and choice.micro_batches == 1

    def _count_rows_bytes(self, n: int, axis: int | None, model: int) -> float:
        """Return the bytes of the gradient's rows of a table, with their indices, or 0 if all rows are summed.

        Args:
          n: Index of the weight.
          axis: Axis that is split over devices, or None.
          model: Number of these devices.
        """
        weight = self.profile.weights[n]
        rows = self.profile.reads[n].rows * self.profile.batch
        if not rows:
            return 0
        count, parts = weight.shape[0], model if axis == 0 else 1
        if 2 * rows >= count and rows * parts >= 2 * count:
            return 0
        row = weight.bytes / count / (1 if axis in (None, 0) else model)
        return rows * (row + _INDEX_BYTES)

    def count_sequence_gradients(self, choice: PlanChoice) -> tuple[int, int]:
        """Return the bytes of gradients summed over parts of sequences, and of gathered rows.

        The gradient of a table is computed from its looked up rows, which are gathered to full
        sequences.

        Args:
          choice: The choice.

        Returns:
          The bytes of both.
        """
        if choice.sequence != "split":
            summed, looked_up = self._table_sizes
            return summed, looked_up * self._count_rows(choice)
        pairs = zip(self.profile.weights, self.profile.find_named_axes(choice.names), strict=True)
        whole = {n: w for n, (w, axis) in enumerate(pairs) if axis is None}
        # Values without an axis of sequences are not split.
        whole_inputs = {p.weight for p in self.profile.products if len(p.shape) < 3}
        reads = self.profile.reads
        summed = sum(
            w.bytes for n, w in whole.items() if not reads[n].rows and n not in whole_inputs
        )
        rows = sum(reads[n].rows * w.bytes // w.shape[0] for n, w in whole.items() if reads[n].rows)
        return summed, rows * self._count_rows(choice)

    @functools.cached_property
    def _table_sizes(self) -> tuple[int, int]:
        """Return the bytes of weights that are no tables, and of a sequence's rows of tables."""
        weights, axes = self.profile.weights, self.profile.find_named_axes(("vocab",))
        is_table = [axis == 0 for axis in axes]
        summed = sum(w.bytes for w, table in zip(weights, is_table, strict=True) if not table)
        rows = (w.bytes // w.shape[0] for w, t in zip(weights, is_table, strict=True) if t)
        return summed, sum(rows) * self.profile.sequence


def is_offloaded(choice: PlanChoice) -> bool:
    """Check whether weights or slots are not on the devices between steps."""
    return not {"optimizer", "parameters"}.isdisjoint(choice.offload)
