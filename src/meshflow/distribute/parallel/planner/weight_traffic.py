"""What devices send for weights and their gradients, by how each weight lies on the mesh of a strategy."""

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
    """How a weight lies on a mesh.

    Attributes:
      axes: the mesh dimensions that rules, or a layout map, split each axis over.
      parts: those over which `zero` splits it besides, its gradient or its slots.
      copies: those of the batch along which devices have copies, whose gradients are summed.
      bytes: its size on a device without what `zero` splits.
      sizes: the sizes of the mesh's dimensions.
    """

    axes: tuple[tuple[str, ...], ...]
    parts: tuple[str, ...]
    copies: tuple[str, ...]
    bytes: int
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, variable: Variable, strategy: MeshStrategy) -> Lying:
        """How a weight of a strategy lies.

        Args:
          variable: the weight.
          strategy: its strategy.
        """
        mesh = strategy.mesh
        sizes = dict(zip(mesh.dim_names, mesh.shape(), strict=True))
        dims = lambda spec: tuple(n for n in dimensions_of(spec, mesh) if sizes[n] > 1)
        axes = tuple(dims(spec) for spec in variable._ruled_layout.sharding_specs)  # type: ignore[attr-defined]
        own = {n for names in axes for n in names}
        slots = variable._slot_layout.sharding_specs if strategy.options.zero else ()  # type: ignore[attr-defined]
        parts = tuple(n for spec in slots for n in dims(spec) if n not in own)
        copies = tuple(
            n for n in strategy.batch_dimensions if n not in (*own, *parts) and sizes[n] > 1
        )
        number = math.prod(variable.shape.as_list()) * variable.dtype.size
        number //= math.prod(sizes[n] for n in own)
        return cls(axes, parts, copies, number, sizes)

    def devices(self, names: Sequence[str]) -> int:
        """How many devices lie along some dimensions of the mesh."""
        return math.prod(self.sizes[n] for n in names)

    @property
    def over(self) -> set[str]:
        """The mesh dimensions that rules, or a layout map, split it over."""
        return {n for names in self.axes for n in names}

    def scattered(self) -> int:
        """Bytes that a device sends to have its part of the gradient, and to have the whole weight from its part."""
        return ring(self.bytes, self.devices(self.parts))

    def summed(self) -> int:
        """Bytes that it sends to sum gradients, or parts of them, over copies."""
        return 2 * ring(self.bytes // self.devices(self.parts), self.devices(self.copies))


def weight_traffic(
    strategy: MeshStrategy, lying: Sequence[tuple[Variable, Lying]], updates: int
) -> dict[str, int]:
    """What each device sends in a step for weights and gradients, by purpose, without a pipeline.

    Args:
      strategy: the strategy.
      lying: how each weight lies.
      updates: every so many steps there is an update, which new weights are sent for.
    """
    options = strategy.options
    turns = options.micro_batches if options.zero >= 2 and not options.compress else 1
    again = 2 * options.micro_batches if options.zero == 3 and options.recompute else 1
    gradients = weights = coded = 0
    for variable, one in lying:
        weights += again * one.scattered()
        sent = None
        if options.compress:
            kept = kept_like(strategy, variable)
            sent = Sent.of(kept, variable.shape.as_list(), strategy)
        if sent is None:
            gradients += turns * (one.scattered() + one.summed())
            continue
        part = ring(sent.bytes, sent.devices)
        coded += part
        if sent.axis is not None:
            gradients += one.summed()
        elif options.zero:
            # All devices have all of it, as of new weights.
            weights += part
        else:
            coded += part
    held = 1 if options.zero == 3 else updates
    return {"gradients": gradients, "weights": weights // held, "coded": coded}
