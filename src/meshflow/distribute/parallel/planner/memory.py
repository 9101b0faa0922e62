"""Memory of a step by the planner's formulas.

Counts of copies follow from the algorithm, and are constants with the derivation as a comment. Shares of memory that depend
on the order in which XLA frees buffers have no formula and were fitted to compiled programs; see `FITTED` below.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections import Counter
from collections.abc import Sequence

from meshflow.distribute.parallel.planner.choices import SEQUENCE_PARALLEL_MODES, PlanChoice
from meshflow.distribute.parallel.planner.model_profile import ModelProfile, SplitProfile
from meshflow.distribute.parallel.planner.state_sizes import SizeModel, is_offloaded
from meshflow.distribute.parallel.zero import PACKED_BYTES

# ---- counts that follow from the algorithm -----------------------------------------------------

# Between two layers a result, the summand of a residual connection, and the gradients of both are live. With the
# measurement below: 4.0 % with 3, 3.8 % with 4 (45 plans).
_BOUNDARY_COPIES = 4
# While an all-reduce runs, its operand and its result are live.
_ALL_REDUCE_COPIES = 2
# A recomputed layer with many rows has its kernels and their gradients.
_KERNELS_AND_GRADIENTS = 2
# Before the gradient of a kernel is scattered, that of the next one is computed.
_PENDING_KERNELS = 2
# A pipeline holds the sums of gradients before and after a pass, and the gradients of one micro-batch.
_PIPELINE_GRADIENTS = 3

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


class MemoryModel(SizeModel):
    """Estimates of the memory of choices for one model; see `SizeModel`."""

    def __init__(self, profile: ModelProfile, in_region: bool = False) -> None:
        super().__init__(profile, in_region)
        self._cached_units = functools.cache(self._compute_largest_unit)
        self._cached_later_weights = functools.cache(self._compute_later_weights)
        self._cached_copies = functools.cache(self._compute_copies)

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
        weights = self._list_weight_bytes(choice)
        largest_product = max((weights[p.weight] for p in self.profile.products), default=0)
        has_loop = choice.micro_batches > 1
        gathered = 0
        if choice.zero == 3:
            if has_loop and recomputes:
                gathered_layer = max(gathered_layer, largest // _LOOP_KERNEL_DIVISOR)
            # A layer that keeps its activations releases its weights before it computes their gradients.
            copies = _KERNELS_AND_GRADIENTS if recomputes else 1
            unit = (
                gathered_layer if recomputes else self._cached_units(*self._get_split_key(choice))
            )
            gathered = sizes.divisible - sizes.released + min(copies * sizes.released, unit)
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
            held = itertools.accumulate(_list_residuals(choice, split))
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

    def _compute_activations(
        self, choice: PlanChoice, split: SplitProfile, layers: range, rows: int
    ) -> int:
        """Return the bytes of the residuals and temporaries of layers in a backward pass."""
        is_split = choice.sequence == "split"
        residuals = [_list_residuals(choice, split)[u] for u in layers]
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
        parts = self._list_weight_bytes(choice)[last.weight]
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
        less memory than the kernels. XLA's schedule then runs the next layer before it computes these gradients.

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
        weights = self._list_weight_bytes(choice)
        in_products = {p.weight for p in self.profile.products}
        gathers, uses = choice.zero == 3, self.profile.uses
        divides = _LOOP_KERNEL_DIVISOR if choice.micro_batches > 1 else 1
        packed = self._count_packed_gradients(choice)
        products = [[p.output_bytes for p in self.profile.products if p.weight in u] for u in uses]
        # Inputs of products and gradients of their results, without the layer's own input and gradient.
        needed = [2 * rows * sum(outputs[:-1]) for outputs in products]
        has_late = gathers and not choice.keeps_weights and self._uses_region(choice)
        pairs = zip(needed, uses, strict=True)
        is_late = [has_late and 0 < n <= self._sum_weight_bytes(u, choice) for n, u in pairs]
        largest = 0, 0
        for u, inputs in enumerate(itertools.accumulate(edges)):
            residuals = _list_residuals(choice, split)[u]
            residuals += residuals // divisor
            gradients = later_weights[u] if waits else 0
            kernel = max((weights[n] for n in uses[u] if n in in_products), default=0)
            kernels = self._sum_weight_bytes(uses[u], choice)
            copies = 1 if rows * sum(products[u]) <= kernels else _KERNELS_AND_GRADIENTS
            waiting = max(map(operator.mul, needed[u + 1 :], is_late[u + 1 :]), default=0)
            sizes = (
                rows * (inputs + residuals + boundary) + gradients + waiting,
                max(kernels, copies * kernel) * gathers // divides,
            )
            largest = max(largest, sizes, key=sum)
            if is_late[u]:
                # Small gradients are copied to the operand of their scatter.
                small = sum(packed.get(n, 0) for n in uses[u])
                unpacked = max((weights[n] for n in uses[u] if n not in packed), default=0)
                at_end = rows * (inputs + boundary) + needed[u] + waiting, 2 * small + unpacked
                largest = max(largest, at_end, key=sum)
        # The gradient of the logits is computed before the last layer gathers its kernel.
        head = rows * (sum(edges) + split.kept[-1]) + self._compute_head(choice, layers, rows)
        return max(largest, (head, 0), key=sum)

    def _count_packed_gradients(self, choice: PlanChoice) -> dict[int, int]:
        """Return for each small weight the bytes of its gradient, which shares a collective with others."""
        sizes = self._list_weight_bytes(choice)
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
        weights = self._list_weight_bytes(choice)
        pairs = zip(weights, self.profile.reads, strict=True)
        return sum(size for size, reads in pairs if reads.rows)

    def _compute_later_weights(self, names: tuple[str, ...], model: int, over: int) -> list[int]:
        """Return for each layer the bytes of the weights that later layers use."""
        sizes = self._cached_weights(names, model, over)
        sizes_of_later, used = [], set[int]()
        for layer_weights in reversed(self.profile.uses):
            sizes_of_later.append(sum(sizes[n] for n in used))
            used.update(layer_weights)
        return sizes_of_later[::-1]

    def _compute_largest_unit(self, names: tuple[str, ...], model: int, over: int) -> int:
        """Return the bytes of the weights of the layer that gathers most; blocks are several layers."""
        units: dict[str, int] = {}
        sizes = self._cached_weights(names, model, over)
        for w, size in zip(self.profile.weights, sizes, strict=True):
            is_attention = any("heads" in axis for axis in w.dims or ())
            unit = w.name.rsplit("/", 1 + is_attention)[0]
            units[unit] = units.get(unit, 0) + size
        return max(units.values())

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
        if not is_offloaded(choice):
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
        kept = _list_residuals(choice, split)
        return int(_STORED_SHARE * max(sum(kept[u] for u in part) for part in parts[:-1]))

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


def _list_residuals(choice: PlanChoice, split: SplitProfile) -> Sequence[int]:
    """Return the bytes of an example's residuals in each layer."""
    return split.shared if choice.sequence == "split" else split.kept
