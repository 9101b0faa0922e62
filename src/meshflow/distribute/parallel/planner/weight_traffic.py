"""Bytes that devices send for weights and their gradients, by the layout of each weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.compress import Sent
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.parallel.zero import kept_like
from meshflow.placement.expected_traffic import ring
from meshflow.placement.layout import dimensions_of

__all__ = ["Lying", "weight_traffic"]


@dataclasses.dataclass(frozen=True)
class Lying:
    """Layout of a weight on the mesh of a strategy.

    Attributes:
      axes: Mesh dimensions that rules, or a layout map, split each axis over.
      parts: Mesh dimensions that ZeRO shards over in addition: the weight, its gradient or its
        slots.
      copies: Mesh dimensions of the batch along which devices have copies, whose gradients are
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
    def of(cls, variable: Variable, strategy: MeshStrategy) -> Lying:
        """Return the layout of a weight of a strategy.

        Args:
          variable: The weight.
          strategy: Its strategy.

        Returns:
          The layout.
        """
        mesh = strategy.mesh
        sizes = dict(zip(mesh.dim_names, mesh.shape(), strict=True))
        dims = lambda spec: tuple(n for n in dimensions_of(spec, mesh) if sizes[n] > 1)
        axes = tuple(dims(spec) for spec in variable._ruled_layout.sharding_specs)  # type: ignore[attr-defined]
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

    def devices(self, names: Sequence[str]) -> int:
        """Return the number of devices along mesh dimensions."""
        return math.prod(self.sizes[n] for n in names)

    @property
    def over(self) -> set[str]:
        """Return the mesh dimensions that rules, or a layout map, split the weight over."""
        return {n for names in self.axes for n in names}

    def scattered(self) -> int:
        """Return the bytes of a reduce-scatter of the gradient, or of an all-gather."""
        return ring(self.bytes, self.devices(self.parts))

    def summed(self) -> int:
        """Return the bytes that a device sends to sum gradients, or parts of them, over copies."""
        return 2 * ring(self.bytes // self.devices(self.parts), self.devices(self.copies))


def weight_traffic(
    strategy: MeshStrategy, layouts: Sequence[tuple[Variable, Lying]], updates: int
) -> dict[str, int]:
    """Return the bytes that each device sends in a step for weights, without a pipeline.

    Args:
      strategy: The strategy.
      layouts: Each weight with its layout.
      updates: Number of steps per update; new weights are sent once per update.

    Returns:
      Bytes by purpose: "gradients", "weights" and "coded" (compressed gradients).
    """
    options = strategy.options
    turns = options.micro_batches if options.zero >= 2 and not options.compress else 1
    again = 2 * options.micro_batches if options.zero == 3 and options.recompute else 1
    gradients = weights = coded = 0
    for variable, layout in layouts:
        weights += again * layout.scattered()
        plan = None
        if options.compress:
            sharding = kept_like(strategy, variable)
            plan = Sent.of(sharding, variable.shape.as_list(), strategy)
        if plan is None:
            gradients += turns * (layout.scattered() + layout.summed())
            continue
        part = ring(plan.bytes, plan.devices)
        coded += part
        if plan.axis is not None:
            gradients += layout.summed()
        elif options.zero:
            # All devices receive the full sum, as they receive new weights.
            weights += part
        else:
            coded += part
    steps = 1 if options.zero == 3 else updates
    return {"gradients": gradients, "weights": weights // steps, "coded": coded}
