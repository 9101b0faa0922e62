"""Cost model of the planner: memory, traffic and time of a choice.

Weights, slots, batches and traffic follow from formulas. Three types of numbers occur:

* Formulas of collectives: a reduce-scatter or an all-gather over N devices sends (N-1)/N of the
  bytes, an all-reduce twice as many.
* Counts of passes and copies that follow from the algorithm. They are constants with the derivation
  as a comment.
* Shares of memory that depend on the order in which XLA frees buffers. They have no formula and
  were fitted to compiled programs; see `FITTED` below.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.choices import SEQUENCE_PARALLEL_MODES, PlanChoice
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.model_profile import (
    TRACED_ROWS,
    ModelProfile,
    SplitProfile,
)
from meshflow.distribute.parallel.zero import PACKED_BYTES
from meshflow.placement.expected_traffic import count_ring_bytes

# ---- counts that follow from the algorithm -----------------------------------------------------

# Between two layers a result, the summand of a residual connection, and the gradients of both are live. With the
# measurement below: 4.0 % with 3, 3.8 % with 4 (45 plans).
_BOUNDARY_COPIES = 4
# While an all-reduce runs, its operand and its result are live.
_ALL_REDUCE_COPIES = 2
# At the end of a loop over micro-batches the largest layer has its kernels and their gradients. With the measurement
# below: 1.3 % with 1, 5.3 % with 2 (2 plans).
_KERNELS_AND_GRADIENTS = 2
# Before the gradient of a kernel is scattered, that of the next one is computed.
_PENDING_KERNELS = 2
# A tick sends an activation to the next stage and a gradient to the previous one.
_SENDS_PER_TICK = 2
# An all-reduce is a reduce-scatter and an all-gather.
_ALL_REDUCE_HALVES = 2
# Indices of rows have 32 bits.
_INDEX_BYTES = 4
# A backward pass computes gradients of inputs and of weights, each with the arithmetic of the forward pass.
_TRAINING_PASSES = 3
# A pipeline stage that keeps only its input repeats the forward pass in its backward pass.
_PIPELINE_PASSES = 4
# ZeRO 3 that releases weights: two all-gathers and one reduce-scatter for each layer and micro-batch.
_ZERO3_EXCHANGES = 3
# Tensor parallelism: one sum for each of two products, in the forward and in the backward pass.
_TENSOR_EXCHANGES = 4
# Tokens are sent to experts and back in each pass. The second product of experts with split hidden units sums its
# results, and the first one the gradients of its inputs.
_EXPERT_PASSES = 2
# A pipeline holds the sums of gradients before and after a pass, and the gradients of one micro-batch.
_PIPELINE_GRADIENTS = 3
# An offloaded value moves to the device and back in each step.
_HOST_TRANSFERS = 2

# Purposes of exchanges over the devices of tensor or sequence parallelism, which are neighbors.
_MODEL_PURPOSES = ("products", "attention", "parts")

# ---- FITTED: shares that depend on XLA's buffer assignment -------------------------------------

# These shares have no formula. They were fitted by hand to the memory of compiled steps when the formulas around them were
# written; those measurements were not recorded. The numbers below are from a later measurement: 60 plans of a language
# model with 2 blocks on 8 virtual CPU devices, compiled by `compiled_plans.py 60` in tests/distribute/parallel/planner.
# For each constant they give the mean absolute error of the estimated memory over the plans that the constant affects,
# with all other constants fixed. They are older than the formulas of masks, residual connections, waiting gradients and
# weights of stages; with these, the error over 48 of the 60 plans has the mean 5.2 % and the range -12.6 % to +12.7 %.

# Gradients inside a layer are this part of the layer's residuals, because residuals are freed as they are used.
# Error over 30 plans: 6.9 % with 2, 4.4 % with 3, 3.9 % with 4, 4.8 % with 6, 8.9 % without these gradients.
_INNER_GRADIENT_DIVISOR = 4
# The same for a recomputed layer outside of a pipeline.
# Error over 17 plans: 7.0 % with 4, 4.8 % with 8, 4.2 % with 12, 4.1 % with 16, 3.8 % without. With 12 the largest
# underestimate is 6.2 %, without these gradients it is 10.2 %.
_RECOMPUTED_INNER_DIVISOR = 12
# The same for a recomputed layer with residuals that are split along the sequence.
# Error over 5 plans: 4.7 % with 3, 0.8 % with 4, 3.8 % with 6.
_RECOMPUTED_SPLIT_DIVISOR = 4
# In a recomputed pipeline stage this part of another layer's residuals is live together with the largest layer's.
# Error over 8 plans: 7.7 % with 2, 5.0 % with 3, 5.8 % with 4, 6.9 % with 6.
_STAGE_OVERLAP_DIVISOR = 4
# In a loop over micro-batches this part of a layer's kernels is gathered while its residuals are live.
# Error over 3 plans: 9.7 % with 1, 4.1 % with 2, 4.5 % with 3.
_LOOP_KERNEL_DIVISOR = 2
# In a loop over micro-batches this part of a layer's gradients waits to be scattered or added.
# Error over 5 plans: 1.0 % with 1, 1.8 % with 2, 2.1 % with 3.
_PENDING_GRADIENT_DIVISOR = 2
# In addition to the inputs of its micro-batches, a pipeline stage holds buffers of the size of an input, such as those for
# arriving gradients. The origin of their number is not recorded.
# Error over 19 plans: 7.1 % with 1, 6.1 % with 2, 5.3 % with 3, 4.6 % with 4.
_ARRIVING_BUFFERS = 2
# A stage that keeps residuals recomputes those that follow cheaply from others, and stores this share of a layer's residuals.
# Errors of four plans of a model with four blocks (stage 4 x data 2, stage 2 x data 4 with ZeRO 3, stage 4 x data 2 with
# recomputation, stage 2 x data 2 x model 2 with 2 / 3): -3.5 %, -4.5 %, +5.0 %, -3.6 %; 33.9 % to 41.9 % with the full residuals of
# the first two.
_STORED_SHARE = 1 / 2


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Costs of a step on each device.

    Attributes:
      held: Bytes at the moment of the largest memory use, by kind: "weights", "slots", "batch" and
        "other" are held between steps, "gathered", "gradients" and "activations" during a step.
      sent: Bytes that are sent, by purpose.
      seconds: Time by kind: "compute" includes the idle time of pipelines, "exchange" is
        communication, "host" transfers.
      bubble: Fraction of the computing time in which devices of a pipeline are idle.
    """

    held: Mapping[str, int]
    sent: Mapping[str, int]
    seconds: Mapping[str, float]
    bubble: float = 0.0

    @property
    def memory(self) -> int:
        """Return the total bytes held."""
        return sum(self.held.values())

    @property
    def bytes(self) -> int:
        """Return the total bytes sent."""
        return sum(self.sent.values())

    @property
    def time(self) -> float:
        """Return the seconds of a step; communication is assumed not to overlap with computation."""
        return sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class _StateSizes:
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


class CostModel:
    """Estimates of choices for one model on one machine.

    Args:
      profile: Profile of the model.
      hardware: The machine.
      in_region: Whether a region computes the gradients, also for options that a choice does not have.
    """

    def __init__(self, profile: ModelProfile, hardware: Hardware, in_region: bool = False) -> None:
        self.profile, self.hardware, self._in_region = profile, hardware, in_region
        speeds = hardware.products, hardware.bfloat16_products or hardware.products
        self._product_speed = speeds[profile.computes_bfloat16]
        self._cached_sizes = functools.cache(self._compute_sizes)
        self._cached_stages = functools.cache(self._compute_stages)
        self._cached_weights = functools.cache(self._compute_weight_bytes)
        self._cached_units = functools.cache(self._compute_largest_unit)
        self._cached_later_weights = functools.cache(self._compute_later_weights)
        self._cached_frozen = functools.cache(self._list_frozen)
        self._cached_copies = functools.cache(self._compute_copies)

    def estimate(self, choice: PlanChoice) -> StepCosts:
        """Estimate the costs of a choice.

        Args:
          choice: The choice.

        Returns:
          The estimate.
        """
        split = self._get_split(choice)
        held = self._compute_state_bytes(choice)
        sent = self.count_sent_bytes(choice)
        if choice.stage > 1:
            held |= self._compute_pipeline_bytes(choice, split)
        else:
            held |= self._compute_step_bytes(choice, split)
        seconds, bubble = self._estimate_seconds(choice, split, sent)
        return StepCosts(held, sent, seconds, bubble)

    def _get_split(self, choice: PlanChoice) -> SplitProfile:
        if choice.sequence in SEQUENCE_PARALLEL_MODES:
            return self.profile.split_sequences(choice.model)
        return self.profile.split_weights(choice.names, choice.model)

    # ---- between steps ---------------------------------------------------------------------

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
    ) -> _StateSizes:
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
        return _StateSizes(*map(int, sums))

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
        if choice.stage == 1 or _is_offloaded(choice):
            return 0
        by_stage = [sum(sizes) for sizes in self._cached_frozen(choice.stage)]
        return sum(by_stage) - max(by_stage)

    def _list_frozen(self, stages: int) -> list[list[int]]:
        """Return the bytes of each frozen weight on each stage."""
        sizes = {n: size for used in self.profile.frozen for n, size in used.items()}
        users = self._find_stages(self.profile.frozen, stages)
        return [[sizes[n] for n, s in users.items() if k in s] for k in range(stages)]

    def _compute_copies(self, stages: int, names: tuple[str, ...], model: int, over: int) -> int:
        """Return the bytes of the weights that a pass of a stage copies from an array of several weights.

        Weights with a counterpart of equal size in each stage have arrays of their own (`separate_equal_arrays`). The other
        weights of a stage share an array.
        """
        weights = self._cached_weights(names, model, over)
        users = self._find_resident_weights(stages)
        trained = [[weights[n] for n, s in users.items() if s == (k,)] for k in range(stages)]
        copies = 0
        for by_stage in (trained, self._cached_frozen(stages)):
            counts = [Counter(sizes) for sizes in by_stage]
            common = functools.reduce(operator.and_, counts)
            rests = [count - common for count in counts]
            copies += max(sum(rest.elements()) * (rest.total() > 1) for rest in rests)
        return copies

    def get_sizes(self, choice: PlanChoice) -> _StateSizes:
        """Return the bytes of weights and slots on a device before ZeRO shards them.

        Args:
          choice: The choice.

        Returns:
          The sizes.
        """
        budget = choice.options.get("max_live_parameters")
        split = choice.names, choice.data, choice.model, choice.stage, choice.experts
        return self._cached_sizes(
            *split, choice.recompute, budget, _is_offloaded(choice), bool(choice.zero)
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

    # ---- a step ----------------------------------------------------------------------------

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

    def _compute_later_weights(self, names: tuple[str, ...], model: int, over: int) -> list[int]:
        """Return for each layer the bytes of the weights that later layers use."""
        sizes = self._cached_weights(names, model, over)
        sizes_of_later, used = [], set[int]()
        for layer_weights in reversed(self.profile.uses):
            sizes_of_later.append(sum(sizes[n] for n in used))
            used.update(layer_weights)
        return sizes_of_later[::-1]

    def _get_split_key(self, choice: PlanChoice) -> tuple[tuple[str, ...], int, int]:
        """Return the parts of a choice that determine how rules split weights."""
        return choice.names, choice.model, choice.experts or 1

    def _sum_weight_bytes(self, weights: Sequence[int], choice: PlanChoice) -> int:
        """Return the bytes of some weights on a device."""
        sizes = self._cached_weights(*self._get_split_key(choice))
        return sum(sizes[n] for n in weights)

    def _compute_activations(
        self, choice: PlanChoice, split: SplitProfile, layers: range, rows: int
    ) -> int:
        """Return the bytes of the residuals and temporaries of layers in a backward pass."""
        is_split = choice.sequence == "split"
        residuals = [(split.shared if is_split else split.kept)[u] for u in layers]
        edges = self._list_edges(choice, split, layers)
        largest = max(residuals, default=0)
        between = self._compute_boundary(choice, split, layers)
        if "activations" in choice.offload:
            # One layer's residuals are used while those of another are transferred.
            at_hand = max(edges, default=0) if choice.recompute == "layer" else largest
            return rows * (between + largest + at_hand)
        if choice.recompute == "layer":
            overlap = largest // _STAGE_OVERLAP_DIVISOR
            return rows * (between + sum(edges) + largest + overlap)
        # In the backward pass of a layer, the residuals of earlier layers are held.
        largest = max(
            total + split.ends[u] * (not is_split) + kept // _INNER_GRADIENT_DIVISOR
            for u, kept, total in zip(
                layers, residuals, itertools.accumulate(residuals), strict=True
            )
        )
        return max(rows * largest, rows * sum(residuals) + self._compute_head(choice, layers, rows))

    def _compute_head(self, choice: PlanChoice, layers: range, rows: int) -> int:
        """Return the bytes of the gradients of the last product, before which nothing is freed.

        ZeRO 3 has released the kernel before it computes the gradient of the kernel.
        """
        last = self.profile.products[-1] if self.profile.products else None
        if last is None or last.weight not in self.profile.uses[layers[-1]]:
            return 0
        parts = self._cached_weights(*self._get_split_key(choice))[last.weight]
        split = max(self.profile.weights[last.weight].bytes // max(parts, 1), 1)
        return rows * last.output_bytes // split + (0 if choice.zero == 3 else parts)

    def _list_edges(self, choice: PlanChoice, split: SplitProfile, layers: range) -> list[int]:
        """Return the bytes of an example that each layer passes to others on a device."""
        if choice.sequence == "split":
            edges = self.profile.split_weights((), 1).edges
            return [edges[u] // choice.model for u in layers]
        return [split.edges[u] for u in layers]

    def _compute_boundary(self, choice: PlanChoice, split: SplitProfile, layers: range) -> int:
        """Return the bytes of an example at the boundary between layers."""
        return _BOUNDARY_COPIES * max((split.edges[u] for u in layers), default=0)

    def _compute_recomputed(
        self, choice: PlanChoice, split: SplitProfile, rows: int
    ) -> tuple[int, int]:
        """Return the largest bytes in the backward pass of recomputed layers, without a pipeline.

        During the backward pass of a layer, the inputs of earlier layers and the gradients of later layers are held. ZeRO 3
        gathers its kernels. It releases them before it computes their gradients, if the results of the layer's products need
        less memory than the kernels. In a loop over micro-batches, `_compute_step_bytes` counts the kernels.

        Returns:
          The bytes of activations, and of gathered kernels.
        """
        layers = range(len(self.profile.layers))
        is_split = choice.sequence == "split"
        edges = self._list_edges(choice, split, layers)
        # A sequence that is split between layers is gathered for the layer.
        gathered = choice.model * max(edges, default=0)
        boundary = gathered if is_split else self._compute_boundary(choice, split, layers)
        # Gradients wait to be sent together, unless they are accumulated or each layer has its own exchange.
        waits = choice.micro_batches == 1 and choice.zero != 3
        later_weights = self._cached_later_weights(*self._get_split_key(choice))
        divisor = _RECOMPUTED_SPLIT_DIVISOR if is_split else _RECOMPUTED_INNER_DIVISOR
        weights = self._cached_weights(*self._get_split_key(choice))
        in_products = {p.weight for p in self.profile.products}
        gathers, uses = choice.zero == 3 and choice.micro_batches == 1, self.profile.uses
        largest = 0, 0
        for u, inputs in enumerate(itertools.accumulate(edges)):
            residuals = (split.shared if is_split else split.kept)[u]
            residuals += residuals // divisor
            gradients = later_weights[u] if waits else 0
            kernel = max((weights[n] for n in uses[u] if n in in_products), default=0)
            kernels = self._sum_weight_bytes(uses[u], choice)
            outputs = sum(p.output_bytes for p in self.profile.products if p.weight in uses[u])
            copies = 1 if rows * outputs <= kernels else _KERNELS_AND_GRADIENTS
            sizes = (
                rows * (inputs + residuals + boundary) + gradients,
                max(kernels, copies * kernel) * gathers,
            )
            largest = max(largest, sizes, key=sum)
        # The gradient of the logits is computed before the last layer gathers its kernel.
        head = rows * (sum(edges) + split.kept[-1]) + self._compute_head(choice, layers, rows)
        return max(largest, (head, 0), key=sum)

    def _compute_step_bytes(self, choice: PlanChoice, split: SplitProfile) -> dict[str, int]:
        sizes, d, rows = self.get_sizes(choice), choice.data, self._count_rows(choice)
        if choice.zero == 3 and self.profile.own_step and choice.micro_batches > 1:
            # A loop of the step gathers all weights at its start, and scatters gradients as with ZeRO 2.
            scattered = dataclasses.replace(choice, zero=2, keeps_weights=False)
            return self._compute_step_bytes(scattered, split) | {"gathered": sizes.divisible}
        layers = range(len(self.profile.layers))
        recomputes = choice.recompute == "layer" and "activations" not in choice.offload
        gathered_layer = 0
        if recomputes:
            activations, gathered_layer = self._compute_recomputed(choice, split, rows)
        else:
            activations = self._compute_activations(choice, split, layers, rows)
        full, parts = sizes.weights, sizes.weights - sizes.divisible * (d - 1) // d
        largest = max((self._sum_weight_bytes(u, choice) for u in self.profile.uses), default=0)
        weights = self._cached_weights(*self._get_split_key(choice))
        largest_product = max((weights[p.weight] for p in self.profile.products), default=0)
        has_loop = choice.micro_batches > 1
        gathered = 0
        if choice.zero == 3:
            if has_loop and recomputes:
                # At the end of the loop the kernels and gradients of a layer use the space of its residuals.
                residuals = rows * max(split.shared if choice.sequence == "split" else split.kept)
                at_end = _KERNELS_AND_GRADIENTS * largest - residuals
                gathered_layer = max(largest // _LOOP_KERNEL_DIVISOR, at_end)
            # A layer that keeps its activations releases its weights before it computes their gradients.
            unit = (
                gathered_layer if recomputes else self._cached_units(*self._get_split_key(choice))
            )
            gathered = sizes.divisible - sizes.released + min(sizes.released, unit)
        own_step = self._is_whole_step(choice)
        if own_step and choice.zero and not (choice.zero == 3 and recomputes):
            # By layouts, all weights are gathered at the same time, and gradients are complete.
            gathered = sizes.divisible
        pending = 0
        if has_loop and recomputes and choice.zero != 3:
            pending = largest // _PENDING_GRADIENT_DIVISOR
        # While the gradient of a kernel waits to be added or scattered, the residuals of earlier layers are held.
        waiting = 0
        if not recomputes and "activations" not in choice.offload:
            held = itertools.accumulate(split.shared if choice.sequence == "split" else split.kept)
            in_products = {p.weight for p in self.profile.products}
            # Without ZeRO 3, small gradients of later layers wait for a scatter that they share.
            scatters = choice.zero == 2 or (choice.zero == 1 and not has_loop)
            packed = self._count_packed_gradients(choice) if scatters else {}
            later, pending_small = list[int](), 0
            for used in reversed(self.profile.uses):
                later.append(pending_small)
                pending_small += sum(packed.pop(n, 0) for n in used)
            waiting = max(
                rows * total
                + small
                # While a scatter runs, its operand and its result are live.
                + max(
                    (weights[n] + scatters * weights[n] // d for n in used if n in in_products),
                    default=0,
                )
                + sum(weights[n] for n in used if self.profile.reads[n].in_loop)
                for total, used, small in zip(held, self.profile.uses, reversed(later), strict=True)
            )
            waiting = max(waiting, _ALL_REDUCE_COPIES * pending_small)
        # Gradient buffers reuse freed activation memory.
        if has_loop:
            sums = parts if choice.zero >= 2 else full
            gradients = sums + max(pending, max(sums, largest, waiting) - activations)
        else:
            at_end = full * (_ALL_REDUCE_COPIES if d > 1 else 1)
            if not self._uses_region(choice) and d > 1:
                # Terms are summed over devices before they are added. Rows are added to copies of slots.
                at_end = _ALL_REDUCE_COPIES * (sizes.terms + sizes.own) + sizes.row_slots
            if choice.zero and not own_step:
                at_end = max(parts, _PENDING_KERNELS * largest_product, waiting)
            gradients = max(0, at_end - activations)
        if choice.sequence in SEQUENCE_PARALLEL_MODES:
            # One all-reduce sums the gradients of all weights, so operands and results are live, unless results use the memory
            # of activations: after a loop, or after recomputed layers. Looked up rows of tables are gathered, too.
            summed, looked_up = self.count_sequence_gradients(choice)
            reuses = choice.recompute == "layer"
            if has_loop:
                # ZeRO 2 scatters the gradients of each micro-batch only after this all-reduce.
                reuses = choice.zero != 2 and not choice.keeps_weights
            if recomputes and not has_loop and choice.zero != 3:
                gradients = max(gradients, _ALL_REDUCE_COPIES * summed - activations)
            gradients += looked_up + (0 if reuses else summed - min(summed, pending))
        if self._uses_region(choice) and not recomputes and choice.zero != 3:
            gradients += self._compute_table_gradients(choice)
        return {"gathered": gathered, "gradients": gradients, "activations": activations}

    def _count_packed_gradients(self, choice: PlanChoice) -> dict[int, int]:
        """Return for each small weight the bytes of its gradient, which shares a collective with others."""
        sizes = self._cached_weights(*self._get_split_key(choice))
        experts = self.profile.find_named_axes(("experts",) if choice.experts else ())
        return {
            n: size
            for n, (w, size, axis) in enumerate(
                zip(self.profile.weights, sizes, experts, strict=True)
            )
            if axis is None and w.bytes <= PACKED_BYTES
        }

    def _compute_table_gradients(self, choice: PlanChoice) -> int:
        """Return the bytes of the gradients of tables.

        XLA's schedule for CPUs fills them with zeros at the start of a step, unless layers are recomputed or gather their weights.
        """
        weights = self._cached_weights(*self._get_split_key(choice))
        pairs = zip(weights, self.profile.reads, strict=True)
        return sum(size for size, reads in pairs if reads.rows)

    def _compute_largest_unit(self, names: tuple[str, ...], model: int, over: int) -> int:
        """Return the bytes of the weights of the layer that gathers most; blocks are several layers."""
        units: dict[str, int] = {}
        sizes = self._cached_weights(names, model, over)
        for w, size in zip(self.profile.weights, sizes, strict=True):
            is_attention = any("heads" in axis for axis in w.dims or ())
            unit = w.name.rsplit("/", 1 + is_attention)[0]
            units[unit] = units.get(unit, 0) + size
        return max(units.values())

    def _compute_stages(
        self, count: int, names: tuple[str, ...], model: int, is_offloaded: bool
    ) -> tuple[list[range], list[int]]:
        """Return the layers of each stage of a pipeline, and the bytes of the weights that it gathers."""
        resident = {} if is_offloaded else self._find_resident_weights(count)
        ends = self.profile.find_stage_ends(count)
        parts = [range(a, b) for a, b in itertools.pairwise([0, *ends])]
        choice = PlanChoice(1, model, 1, names=names)
        weights = [
            self._sum_weight_bytes(
                sorted({n for u in part for n in self.profile.uses[u]} - resident.keys()), choice
            )
            for part in parts
        ]
        return parts, weights

    def _get_stages(self, choice: PlanChoice) -> tuple[list[range], list[int], int]:
        """Return layers and gathered weights of each stage, and the bytes of a micro-batch's largest edge."""
        parts, weights = self._cached_stages(
            choice.stage, choice.names, choice.model, _is_offloaded(choice)
        )
        crossing = self.profile.count_crossing_bytes()
        edge = max(crossing[part[-1]] for part in parts[:-1])
        return parts, weights, edge * self._count_rows(choice)

    def _compute_pipeline_bytes(self, choice: PlanChoice, split: SplitProfile) -> dict[str, int]:
        parts, weights, edge = self._get_stages(choice)
        rows = self._count_rows(choice)
        activations = max(self._compute_activations(choice, split, part, rows) for part in parts)
        inside = activations
        # The number of micro-batches in flight with paired 1F1B.
        inputs = min(2 * choice.stage - 1, choice.micro_batches)
        if choice.keep == "residuals":
            # One more slot takes values that are not needed.
            inside += (inputs + 1) * rows * self._compute_stage_residuals(choice, split, parts)
            inputs = 1
        sizes = self.get_sizes(choice)
        gathered = max(weights) + (sizes.divisible_resident if choice.zero == 3 else 0)
        if not _is_offloaded(choice):
            gathered += self._cached_copies(choice.stage, *self._get_split_key(choice))
        # At the end of a step, gradients use the memory of activations and of gathered weights.
        sums = max(weights) + sizes.resident
        return {
            "gathered": gathered,
            "gradients": max(sums, _PIPELINE_GRADIENTS * sums - activations - gathered),
            "activations": inside + (inputs + _ARRIVING_BUFFERS) * edge,
        }

    def _compute_stage_residuals(
        self, choice: PlanChoice, split: SplitProfile, parts: Sequence[range]
    ) -> int:
        """Return the largest bytes of an example that a stage keeps until its backward pass."""
        if choice.recompute == "layer":
            return max(sum(self._list_edges(choice, split, part)) for part in parts[:-1])
        kept = split.shared if choice.sequence == "split" else split.kept
        return int(_STORED_SHARE * max(sum(kept[u] for u in part) for part in parts[:-1]))

    # ---- traffic ---------------------------------------------------------------------------

    def count_sent_bytes(self, choice: PlanChoice) -> dict[str, int]:
        """Return the bytes that each device sends in a step, by purpose.

        Args:
          choice: The choice.

        Returns:
          Bytes by purpose.
        """
        sizes, d, m = self.get_sizes(choice), choice.data, choice.micro_batches
        sent = dict[str, int]()
        if choice.stage > 1:
            return self._add_product_sums(choice, self._count_pipeline_bytes(choice, sizes))
        if choice.experts:
            sent["tokens"] = sum(
                e.count_sent_bytes(self.profile.batch, d, m, choice.token_exchanges, choice.experts)
                for e in self.profile.experts
            )
        if choice.sequence in SEQUENCE_PARALLEL_MODES:
            sent["attention"] = self._count_attention_bytes(choice)
        if choice.sequence:
            sent["parts"] = self.count_part_sums(choice, self.has_joint_sums(choice))
        rest = sizes.weights - sizes.divisible - sizes.own
        own_sums = self._count_own_sums(choice, sizes)
        own_step = self._is_whole_step(choice)
        if not choice.zero or own_step:
            # By layouts, XLA sums complete gradients.
            summed = sizes.weights - sizes.own
            if not self._uses_region(choice):
                summed = sizes.terms
                sent |= {"rows": count_ring_bytes(sizes.rows, d)} if sizes.rows else {}
            sent["gradients"] = _ALL_REDUCE_HALVES * count_ring_bytes(summed, d) + own_sums
        else:
            turns = m if choice.zero >= 2 else 1
            again = sizes.rescattered * (choice.zero == 3)
            scattered = count_ring_bytes(sizes.divisible + again, d)
            summed = _ALL_REDUCE_HALVES * count_ring_bytes(rest, d)
            sent["gradients"] = turns * (scattered + summed + own_sums)
        if choice.zero == 3 or (choice.zero and (sizes.divisible_slots or not own_step)):
            # By layouts, weights without slots are updated on all devices.
            loops = max(self.profile.step_loops, 1) if choice.zero == 3 and not own_step else 1
            sent["weights"] = loops * count_ring_bytes(sizes.divisible, d)
        if choice.zero == 3 and not choice.keeps_weights and (choice.recompute or not own_step):
            again = m * (sizes.released + sizes.regathered) - sizes.released
            sent["weights"] = count_ring_bytes(sizes.divisible + again, d)
        return self._add_product_sums(choice, sent)

    def count_gradient_terms(self, choice: PlanChoice) -> list[int]:
        """Return for each weight the number of terms of its gradient that are summed over devices separately.

        By layouts, XLA's compiler for CPUs sums the term of each operation that reads the weight. In a region, devices add
        the terms before.

        Args:
          choice: The choice.

        Returns:
          The numbers; 0 for tables of which rows are gathered instead.
        """
        if self._uses_region(choice):
            return [1] * len(self.profile.weights)
        axes = self.profile.find_named_axes(choice.names if choice.model > 1 else ())
        return [
            0 if self._count_rows_bytes(n, axis, choice.model) else self.profile.reads[n].terms
            for n, axis in enumerate(axes)
        ]

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

    def _uses_region(self, choice: PlanChoice) -> bool:
        uses_region = self._in_region or ParallelOptions(**choice.options).uses_region
        return uses_region and not self._is_whole_step(choice)

    def _is_whole_step(self, choice: PlanChoice) -> bool:
        """Check whether XLA partitions a step that computes gradients itself; micro-batches are loops like those of `fit`."""
        return self.profile.own_step and choice.micro_batches == 1

    def _count_own_sums(self, choice: PlanChoice, sizes: _StateSizes) -> int:
        """Return the bytes sent to sum the gradients of experts over the devices with copies of them."""
        # Each expert has copies if there are more devices than it is split over.
        copies = choice.data // choice.experts if choice.experts else 1
        return _ALL_REDUCE_HALVES * count_ring_bytes(sizes.own, copies)

    def _count_attention_bytes(self, choice: PlanChoice) -> int:
        """Return the bytes sent for attention between parts of sequences."""
        t, attention = choice.model, self.profile.attention
        assert attention is not None and choice.sequence is not None
        forward, backward = attention.count_sent_bytes(choice.sequence, t)
        keys_and_values = forward
        if choice.recompute == "layer":
            forward *= 2
        releases = choice.zero == 3 and not (choice.recompute or choice.keeps_weights)
        if choice.sequence == "ring" and t == 2 and not releases:
            # XLA sends keys and values only once for the last forward pass and the backward pass.
            forward -= keys_and_values
        return (forward + backward) * choice.micro_batches * self._count_rows(choice)

    def count_part_sums(self, choice: PlanChoice, joint: bool) -> int:
        """Return the bytes sent over the parts of sequences for weights that rules do not split.

        Args:
          choice: The choice.
          joint: Whether gradients are summed over the batch and sequences together, or scattered over
            the batch first. Otherwise they are summed over sequences first.

        Returns:
          The bytes.
        """
        summed, looked_up = self.count_sequence_gradients(choice)
        turns = choice.micro_batches
        sums = turns if choice.zero >= 2 else 1
        summed //= choice.data if joint else 1
        return sums * _ALL_REDUCE_HALVES * count_ring_bytes(
            summed, choice.model
        ) + turns * count_ring_bytes(looked_up, choice.model)

    def has_joint_sums(self, choice: PlanChoice) -> bool:
        """Check whether gradients are summed over the batch and the parts of sequences together.

        Args:
          choice: The choice.

        Returns:
          Whether they are; with `sequence="split"` only in a region.
        """
        if choice.sequence == "split":
            return self._uses_region(choice)
        return choice.sequence in SEQUENCE_PARALLEL_MODES

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

    def _count_pipeline_bytes(self, choice: PlanChoice, sizes: _StateSizes) -> dict[str, int]:
        """Return the bytes that a pipeline sends to neighbors, and for the weights of stages."""
        _, weights, edge = self._get_stages(choice)
        p, d = choice.stage, choice.data
        packed = max(weights)
        fixed, divisible = (
            sizes.weights - sizes.resident,
            sizes.divisible - sizes.divisible_resident,
        )
        # Gathered weights that are sharded over the devices of the pipeline and of the batch.
        both = packed * divisible // max(fixed, 1) if choice.zero else 0
        scattered = _ALL_REDUCE_HALVES * count_ring_bytes(packed - both, d) + count_ring_bytes(
            packed - both, p
        )
        scattered += count_ring_bytes(both, d) + count_ring_bytes(both, p) // d
        gathered = count_ring_bytes(packed - both, p)
        if choice.zero == 3:
            gathered += count_ring_bytes(both, d) + count_ring_bytes(both, p) // d
        else:
            # The optimizer updates parts, which are gathered over the batch's devices before they
            # are sent to their stages.
            gathered += count_ring_bytes(both, p) + (
                count_ring_bytes(divisible, d) if choice.zero else 0
            )
        # Resident weights are exchanged with the devices of the batch only.
        own = sizes.divisible_resident if choice.zero else 0
        gathered += count_ring_bytes(own, d)
        scattered += count_ring_bytes(own, d)
        summed = sizes.resident - own - sizes.own
        scattered += _ALL_REDUCE_HALVES * count_ring_bytes(summed, d) + sizes.shared
        scattered += self._count_own_sums(choice, sizes)
        sent = {
            "neighbours": self._count_sends(choice) * edge,
            "weights": gathered,
            "gradients": scattered,
        }
        return sent | ({"tokens": self._count_tick_tokens(choice)} if choice.experts else {})

    def _count_tick_tokens(self, choice: PlanChoice) -> int:
        """Return the bytes of tokens that a device of a pipeline exchanges with experts in a step."""
        p, d, m = choice.stage, choice.data, choice.micro_batches
        users = self._find_resident_weights(p)
        forward = [0] * p
        for layer in self.profile.experts:
            size = layer.count_sent_bytes(self.profile.batch, d, m, 1, choice.experts)
            for s in users.get(-1 if layer.kernel is None else layer.kernel, (0,)):
                forward[s] += _EXPERT_PASSES * size // m
        # The last stage has no forward pass of its own, as the backward passes of stages that keep inputs contain one.
        repeats = [choice.keep == "inputs"] * (p - 1) + [True]
        passes = 1 + (choice.recompute == "layer")
        backward = [size * (passes + again) for size, again in zip(forward, repeats, strict=True)]
        ticks = m + 2 * p - 2
        return ticks * (max(forward[:-1]) + max(backward))

    def _add_product_sums(self, choice: PlanChoice, sent: dict[str, int]) -> dict[str, int]:
        """Return the sent bytes, with the sums of tensor parallelism."""
        t = choice.model
        if t > 1 and choice.names:
            split = self._get_split(choice)
            total = split.total
            sums = total.forward + total.backward
            if choice.stage > 1:
                ticks = choice.micro_batches + 2 * choice.stage - 2
                sums = self._count_tick_sums(choice, split) * ticks // choice.micro_batches
            elif choice.recompute == "layer":
                sums += total.recomputed
                if choice.sequence == "split":
                    # A layer's result is scattered after it and gathered before the next layer,
                    # whose recomputation repeats the gather.
                    sums += total.last // 2
            sums = sums * self.profile.batch // choice.data + self._count_added_slots(choice)
            sent["products"] = _ALL_REDUCE_HALVES * sums * (t - 1) // t
        return sent

    def _count_added_slots(self, choice: PlanChoice) -> int:
        """Return the bytes that devices sum for experts in addition to those of the traced examples.

        Capacities are rounded up, so a group of other size than the traced one has not the same number of slots per token.
        """
        axes = self.profile.find_named_axes(choice.names)
        d, m, added = choice.data, choice.micro_batches, 0
        passes = _EXPERT_PASSES + (choice.recompute == "layer")
        for layer in self.profile.experts:
            if layer.kernel is not None and axes[layer.kernel] is not None:
                size = layer.count_slot_bytes(self.profile.batch, d, m)
                traced = layer.count_slot_bytes(TRACED_ROWS, 1, 1) // TRACED_ROWS
                added += passes * (size - traced * (self.profile.batch // d))
        return added

    def _count_tick_sums(self, choice: PlanChoice, split: SplitProfile) -> int:
        """Return the bytes of an example that the busiest forward and backward passes sum."""
        parts, _, _ = self._get_stages(choice)
        forward, backward = [0], []
        for stage, part in enumerate(parts):
            sums = [split.sums[u] for u in part]
            forward_sums = sum(s.forward for s in sums)
            backward_sums = sum(s.backward for s in sums)
            if choice.sequence == "split":
                backward_sums = (backward_sums + sum(s.each for s in sums)) // 2
            if choice.recompute == "layer":
                backward_sums += sum(s.recomputed for s in sums)
            if stage < choice.stage - 1:
                forward.append(forward_sums)
                # Recomputation does not repeat the sum of the stage's result.
                repeats = choice.keep == "inputs"
                forward_sums = (forward_sums - sums[-1].last) * repeats
            backward.append(forward_sums + backward_sums)
        return max(forward) + max(backward)

    # ---- time ------------------------------------------------------------------------------

    def _estimate_seconds(
        self, choice: PlanChoice, split: SplitProfile, sent: Mapping[str, int]
    ) -> tuple[dict[str, float], float]:
        examples = self.profile.batch / choice.data
        work, bubble = sum(split.work), 0.0
        passes = _TRAINING_PASSES
        if choice.stage > 1:
            parts, _, _ = self._get_stages(choice)
            work = max(sum(split.work[u] for u in part) for part in parts)
            p, m = choice.stage, choice.micro_batches
            bubble = (p - 1) / (m + p - 1)
            passes = _PIPELINE_PASSES if choice.keep == "inputs" else _TRAINING_PASSES
        # Recomputation repeats the forward pass.
        passes += choice.recompute == "layer"
        compute = passes * work * examples / self._product_speed / (1 - bubble)
        # Each pass of a layer takes at least a latency, so small micro-batches are slower.
        launches = passes * len(self.profile.layers) * choice.micro_batches / choice.stage
        compute += launches * self.hardware.wait / (1 - bubble)
        exchanges = self._count_exchanges(choice)
        moved = self._count_host_bytes(choice)
        return {
            "compute": compute,
            "exchange": sum(n / self._get_link(name, choice) for name, n in sent.items())
            + exchanges * self.hardware.wait,
            "host": moved / self.hardware.host,
        }, bubble

    def _get_link(self, purpose: str, choice: PlanChoice) -> float:
        """Return the bytes per second that a device sends for a purpose."""
        if purpose in _MODEL_PURPOSES:
            return self.hardware.get_link(choice.model)
        is_ring = purpose in ("gradients", "weights") and choice.stage == 1
        return self.hardware.get_link(choice.devices, choice.model if is_ring else None)

    def _count_exchanges(self, choice: PlanChoice) -> int:
        """Estimate the number of exchanges that wait for each other."""
        layers, m = len(self.profile.layers), choice.micro_batches
        count = 1 if choice.data > 1 else 0
        if choice.zero:
            count = layers * (1 + (m if choice.zero >= 2 else 1))
            if choice.zero == 3 and not choice.keeps_weights:
                count = layers * _ZERO3_EXCHANGES * m
        if choice.model > 1:
            count += _TENSOR_EXCHANGES * layers * m // choice.stage
        if choice.stage > 1:
            count += self._count_sends(choice)
        return count

    def _count_sends(self, choice: PlanChoice) -> int:
        """Return the number of activations and gradients that a device of a pipeline sends."""
        # No stage receives anything in the first and the last ticks.
        return _SENDS_PER_TICK * (choice.micro_batches + choice.stage - 2)

    def _count_host_bytes(self, choice: PlanChoice) -> int:
        """Return the bytes that move between a device and its host, in both directions."""
        held, moved = self._compute_state_bytes(choice), 0
        if "optimizer" in choice.offload:
            moved += _HOST_TRANSFERS * held["slots"]
        if "parameters" in choice.offload:
            moved += _HOST_TRANSFERS * held["weights"]
        if "activations" in choice.offload:
            split = self._get_split(choice)
            residuals = split.edges if choice.recompute == "layer" else split.kept
            moved += (
                _HOST_TRANSFERS * sum(residuals) * self.profile.batch // choice.data // choice.stage
            )
        return moved


def _is_offloaded(choice: PlanChoice) -> bool:
    """Check whether weights or slots are not on the devices between steps."""
    return not {"optimizer", "parameters"}.isdisjoint(choice.offload)
