"""Bytes that devices send for weights and their gradients, by the layout of each weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.gradient_compression import CompressedSum
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.parallel.zero import resolve_region_sharding
from meshflow.distribute.replicas.variables import get_ruled_layout
from meshflow.placement.expected_traffic import count_ring_bytes
from meshflow.placement.layout import list_spec_dimensions


@dataclasses.dataclass(frozen=True)
class WeightLayout:
    """Layout of a weight on the mesh of a strategy.

    Attributes:
      axes: Mesh dimensions that rules, or a layout map, split each axis over.
      parts: Mesh dimensions that ZeRO shards over in addition: the weight, its gradient or its
        slots.
      copies: Mesh dimensions of the batch along which devices have copies; their gradients are
        summed.
      bytes: Bytes on a device without the sharding of ZeRO.
      sizes: Sizes of the mesh dimensions.
    """

    axes: tuple[tuple[str, ...], ...]
    parts: tuple[str, ...]
    copies: tuple[str, ...]
    bytes: int
    sizes: Mapping[str, int]

    @classmethod
    def from_variable(cls, variable: Variable, strategy: MeshStrategy) -> WeightLayout:
        """Return the layout of a weight of a strategy.

        Args:
          variable: The weight.
          strategy: Its strategy.

        Returns:
          The layout.
        """
        mesh = strategy.mesh
        sizes = dict(zip(mesh.dim_names, mesh.shape(), strict=True))
        dims = lambda spec: tuple(n for n in list_spec_dimensions(spec, mesh) if sizes[n] > 1)
        axes = tuple(dims(spec) for spec in get_ruled_layout(variable).sharding_specs)
        rule_dimensions = {n for names in axes for n in names}
        slots = variable._slot_layout.sharding_specs if strategy.options.zero else ()  # type: ignore[attr-defined]
        parts = tuple(n for spec in slots for n in dims(spec) if n not in rule_dimensions)
        copies = tuple(
            n
            for n in strategy.batch_dimensions
            if n not in (*rule_dimensions, *parts) and sizes[n] > 1
        )
        size = math.prod(variable.shape.as_list()) * variable.dtype.size
        size //= math.prod(sizes[n] for n in rule_dimensions)
        return cls(axes, parts, copies, size, sizes)

    def count_devices(self, names: Sequence[str]) -> int:
        """Return the number of devices along mesh dimensions."""
        return math.prod(self.sizes[n] for n in names)

    @property
    def split_dimensions(self) -> set[str]:
        """Return the mesh dimensions that rules, or a layout map, split the weight over."""
        return {n for names in self.axes for n in names}

    def count_scatter_bytes(self) -> int:
        """Return the bytes of a reduce-scatter of the gradient, or of an all-gather."""
        return count_ring_bytes(self.bytes, self.count_devices(self.parts))

    def count_unscattered_bytes(self) -> int:
        """Return the bytes that a device sends to sum the gradient without scattering it."""
        return 2 * count_ring_bytes(self.bytes, self.count_devices((*self.parts, *self.copies)))

    def count_sum_bytes(self) -> int:
        """Return the bytes that a device sends to sum gradients, or parts of them, over copies."""
        return 2 * count_ring_bytes(
            self.bytes // self.count_devices(self.parts), self.count_devices(self.copies)
        )


def count_own_step_traffic(
    layouts: Sequence[WeightLayout], has_slots: Sequence[bool], terms: Sequence[int], updates: int
) -> dict[str, int]:
    """Return the bytes that each device sends for weights if `train_step` computes gradients itself.

    XLA sums these gradients without scattering, micro-batches and compression. It computes new
    weights in parts only if slots are sharded, so weights without slots are not gathered.

    Args:
      layouts: Layout of each weight, without `zero=3`.
      has_slots: For each weight whether it has slots of its shape.
      terms: Number of terms of each gradient that are summed separately.
      updates: Number of steps per update; new weights are sent once per update.

    Returns:
      Bytes by purpose: "gradients" and "weights".
    """
    weights = [one.count_scatter_bytes() for one, s in zip(layouts, has_slots, strict=True) if s]
    return {
        "gradients": sum(
            n * one.count_unscattered_bytes() for one, n in zip(layouts, terms, strict=True)
        ),
        "weights": sum(weights) // updates,
    }


def count_weight_traffic(
    strategy: MeshStrategy,
    layouts: Sequence[tuple[Variable, WeightLayout]],
    regathered: Sequence[tuple[bool, bool]],
    terms: Sequence[int],
    layer_counts: Mapping[int, int],
    updates: int,
) -> dict[str, int]:
    """Return the bytes that each device sends in a step for weights, without a pipeline.

    Args:
      strategy: The strategy.
      layouts: Each weight with its layout.
      regathered: For each weight whether ZeRO 3 releases it, and whether it gathers it again; see
        `ModelProfile.list_regathered`.
      terms: Number of terms of each gradient that are summed separately.
      layer_counts: Number of layers that use each weight, by index.
      updates: Number of steps per update; new weights are sent once per update.

    Returns:
      Bytes by purpose: "gradients", "weights" and "coded" (compressed gradients).
    """
    options = strategy.options
    turns = options.micro_batches if options.zero >= 2 and not options.compress else 1
    releases = options.zero == 3 and not (options.compress and not options.recompute)
    gradients = weights = coded = 0
    for n, ((variable, layout), (is_released, again)) in enumerate(
        zip(layouts, regathered, strict=True)
    ):
        is_released &= releases
        layers = layer_counts[n] if is_released else 1
        gathers = (1 + again) * layers * options.micro_batches if is_released else 1
        weights += gathers * layout.count_scatter_bytes()
        plan = None
        if options.compress:
            sharding = resolve_region_sharding(strategy, variable)
            plan = CompressedSum.from_sharding(sharding, variable.shape.as_list(), strategy)
        if plan is None:
            size = layers * layout.count_scatter_bytes() + layout.count_sum_bytes()
            gradients += turns * terms[n] * size
            continue
        part = count_ring_bytes(plan.encoded_bytes, plan.devices)
        coded += part
        if plan.axis is not None:
            gradients += layout.count_sum_bytes()
        elif options.zero:
            # All devices receive the full sum, as they receive new weights.
            weights += part
        else:
            coded += part
    steps = 1 if options.zero == 3 else updates
    return {"gradients": gradients, "weights": weights // steps, "coded": coded}
