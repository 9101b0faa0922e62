"""ZeRO: what each of the devices that share a batch holds its part of, and how parts come together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.shares import LocalPart, variable_of
from meshflow.placement.layout import UNSHARDED, Layout, dimensions_of

__all__ = ["Kept", "free_axis", "kept_like", "split"]


def split(layout: Layout, shape: Sequence[int], dimensions: Sequence[str]) -> Layout:
    """A layout split further, along the first axis that is whole and divides.

    Args:
      layout: the layout.
      shape: the variable's shape.
      dimensions: the mesh dimensions to split over.

    Returns:
      The layout; unchanged where no axis divides, or where it is split over one of them already.
    """
    mesh = layout.mesh
    taken = {d for spec in layout.sharding_specs for d in dimensions_of(spec, mesh)}
    free = [d for d in dimensions if mesh.dim_size(d) > 1]
    if not free or taken & set(dimensions):
        return layout
    parts = 1
    for name in free:
        parts *= mesh.dim_size(name)
    specs = list(layout.sharding_specs)
    axis = free_axis(shape, parts, [i for i, spec in enumerate(specs) if spec != UNSHARDED])
    if axis is None:
        return layout
    specs[axis] = "+".join(free)
    return Layout(specs, mesh)


def free_axis(shape: Sequence[int], parts: int, taken: Sequence[int | None]) -> int | None:
    """The first axis that is whole and divides into parts, or None.

    Args:
      shape: the variable's shape.
      parts: how many.
      taken: the axes that are not whole.
    """
    return next((i for i, n in enumerate(shape) if i not in taken and n and n % parts == 0), None)


@dataclasses.dataclass(frozen=True)
class Kept:
    """How a device holds a value of the region, and what it sends for it.

    Attributes:
      spec: how it comes into the region, over the dimensions of the batch.
      gradient_spec: how its gradient leaves.
      gathers: the (axis, mesh dimensions) along which parts are brought together before use.
      scatters: the (axis, mesh dimensions) along which its gradient is divided.
      sums: the mesh dimensions over which its gradient is summed.
      others: its spec over all other mesh dimensions, which stays as it is.
      parts: into how many parts the gradient is divided by `scatters`.
    """

    spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gradient_spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gathers: tuple[int, tuple[str, ...]] | None = None
    scatters: tuple[int, tuple[str, ...]] | None = None
    sums: tuple[str, ...] = ()
    others: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    parts: int = 1

    def whole(self, value: Any) -> Any:
        """The value that the share computes with; its transpose sums gradients and divides them."""
        if self.gathers is None:
            return value
        axis, names = self.gathers
        return self._beside(lambda v: lax.all_gather(v, names, axis=axis, tiled=True), value)

    def collected(self, gradient: Any) -> Any:
        """A gradient summed over the devices, or this device's part of the sum."""
        if self.scatters is not None:
            axis, names = self.scatters

            def scattered(g: Any) -> Any:
                return lax.psum_scatter(g, names, scatter_dimension=axis, tiled=True)

            gradient = self._beside(scattered, gradient)
        return lax.psum(gradient, self.sums) if self.sums else gradient

    def part_shape(self, shape: tuple[int, ...], divided: bool) -> tuple[int, ...]:
        """The shape of the gradient of a whole value, before or after it is divided."""
        if self.scatters is None or not divided:
            return shape
        axis, _ = self.scatters
        return (*shape[:axis], shape[axis] // self.parts, *shape[axis + 1 :])

    def _beside(self, function: Any, value: Any) -> Any:
        """A collective of parts that stay split over other mesh dimensions, which else would travel whole."""
        names = {
            n
            for entry in self.others
            for n in (entry if isinstance(entry, tuple) else (entry,))
            if n
        }
        if not names:
            return function(value)
        return jax.shard_map(
            function,
            mesh=jax.sharding.get_abstract_mesh(),
            in_specs=self.others,
            out_specs=self.others,
            axis_names=names,
            check_vma=False,
        )(value)


def kept_like(strategy: Any, capture: Any) -> Kept:
    """How the region takes a captured value.

    Args:
      strategy: the strategy.
      capture: a variable, a part of one, or a tensor.
    """
    variable = variable_of(capture)
    layout = variable.layout if isinstance(variable, Variable) else None
    axes = strategy.batch_dimensions
    if layout is None or layout.is_single_device():
        return Kept(sums=axes)
    mine = [_among(s, layout, axes) for s in layout.sharding_specs]
    others = PartitionSpec(*[_entry(_among(s, layout, axes, False)) for s in layout.sharding_specs])
    spec = PartitionSpec(*map(_entry, mine))
    at = next((i for i, names in enumerate(mine) if names), None)
    rest = tuple(a for a in axes if at is None or a not in mine[at])
    if at is not None and isinstance(capture, LocalPart):
        return Kept(spec, spec, sums=rest, others=others)
    if at is not None:
        along, number = (at, mine[at]), layout.num_shards(at)
        return Kept(spec, spec, along, along, rest, others, number)
    slots = getattr(variable, "_slot_layout", None)
    if slots is None:
        return Kept(spec, spec, sums=axes, others=others)
    parts = [_among(s, slots, axes) for s in slots.sharding_specs]
    at = next((i for i, names in enumerate(parts) if names), None)
    if at is None:
        return Kept(spec, spec, sums=axes, others=others)
    rest = tuple(a for a in axes if a not in parts[at])
    number = slots.num_shards(at)
    return Kept(
        spec, PartitionSpec(*map(_entry, parts)), None, (at, parts[at]), rest, others, number
    )


def _among(spec: str, layout: Layout, axes: Sequence[str], inside: bool = True) -> tuple[str, ...]:
    return tuple(d for d in dimensions_of(spec, layout.mesh) if (d in axes) is inside)


def _entry(names: tuple[str, ...]) -> Any:
    return names if len(names) > 1 else names[0] if names else None
