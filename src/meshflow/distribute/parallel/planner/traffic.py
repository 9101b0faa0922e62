"""Bytes that each device sends in a step, by the planner's formulas.

A reduce-scatter or an all-gather over N devices sends (N-1)/N of the bytes, an all-reduce twice as many.
"""

from __future__ import annotations

from meshflow.distribute.parallel.planner.choices import SEQUENCE_PARALLEL_MODES, PlanChoice
from meshflow.distribute.parallel.planner.model_profile import (
    TRACED_ROWS,
    SplitProfile,
)
from meshflow.distribute.parallel.planner.state_sizes import SizeModel, StateSizes
from meshflow.placement.expected_traffic import count_ring_bytes

# A tick sends an activation to the next stage and a gradient to the previous one.
_SENDS_PER_TICK = 2
# An all-reduce is a reduce-scatter and an all-gather.
_ALL_REDUCE_HALVES = 2
# Tokens are sent to experts and back in each pass. The second product of experts with split hidden units sums its
# results, and the first one the gradients of its inputs.
_EXPERT_PASSES = 2


class TrafficModel(SizeModel):
    """Estimates of the traffic of choices for one model; see `SizeModel`."""

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

    def _count_own_sums(self, choice: PlanChoice, sizes: StateSizes) -> int:
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

    def _count_pipeline_bytes(self, choice: PlanChoice, sizes: StateSizes) -> dict[str, int]:
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
                    # A layer's result is scattered after it and gathered before the next layer;
                    # its recomputation repeats the gather.
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

    def _count_sends(self, choice: PlanChoice) -> int:
        """Return the number of activations and gradients that a device of a pipeline sends."""
        # No stage receives anything in the first and the last ticks.
        return _SENDS_PER_TICK * (choice.micro_batches + choice.stage - 2)
