"""Cost model of the planner: memory, traffic and time of a choice.

Weights, slots, batches and traffic follow from formulas (`state_sizes.py`, `traffic.py`); `memory.py` explains the memory of
a step. Counts of passes and copies that follow from the algorithm are constants with the derivation as a comment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from meshflow.distribute.parallel.planner.choices import PlanChoice
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.memory import MemoryModel
from meshflow.distribute.parallel.planner.model_profile import ModelProfile, SplitProfile
from meshflow.distribute.parallel.planner.traffic import TrafficModel

# A backward pass computes gradients of inputs and of weights, each with the arithmetic of the forward pass.
_TRAINING_PASSES = 3
# A pipeline stage that keeps only its input repeats the forward pass in its backward pass.
_PIPELINE_PASSES = 4
# ZeRO 3 that releases weights: two all-gathers and one reduce-scatter for each layer and micro-batch.
_ZERO3_EXCHANGES = 3
# Tensor parallelism: one sum for each of two products, in the forward and in the backward pass.
_TENSOR_EXCHANGES = 4
# An offloaded value moves to the device and back in each step.
_HOST_TRANSFERS = 2
# Purposes of exchanges over the devices of tensor or sequence parallelism, which are neighbors.
_MODEL_PURPOSES = ("products", "attention", "parts")


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


class CostModel(MemoryModel, TrafficModel):
    """Estimates of choices for one model on one machine.

    Args:
      profile: Profile of the model.
      hardware: The machine.
      in_region: Whether a region computes the gradients, also for options that a choice does not have.
    """

    def __init__(self, profile: ModelProfile, hardware: Hardware, in_region: bool = False) -> None:
        super().__init__(profile, in_region)
        self.hardware = hardware
        speeds = hardware.products, hardware.bfloat16_products or hardware.products
        self._product_speed = speeds[profile.computes_bfloat16]

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
