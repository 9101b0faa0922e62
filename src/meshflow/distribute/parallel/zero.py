"""ZeRO: sharding of values over devices that share a batch, and the collectives that combine them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import RegionStrategy
from meshflow.distribute.replicas.shares import LocalPart, get_captured_variable
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions

__all__ = ["RegionSharding", "find_free_axis", "resolve_region_sharding", "shard_layout"]


def shard_layout(layout: Layout, shape: Sequence[int], dimensions: Sequence[str]) -> Layout:
    """Shard a layout over more mesh dimensions, along its first divisible axis.

    Args:
      layout: Current layout of the variable.
      shape: Global shape of the variable.
      dimensions: Mesh dimensions to shard over.

    Returns:
      The new layout; `layout` if no axis size is divisible or if it is sharded over one of the
      dimensions already.
    """
    mesh = layout.mesh
    taken = {d for spec in layout.sharding_specs for d in list_spec_dimensions(spec, mesh)}
    free = [d for d in dimensions if mesh.dim_size(d) > 1]
    if not free or taken & set(dimensions):
        return layout
    parts = 1
    for name in free:
        parts *= mesh.dim_size(name)
    specs = list(layout.sharding_specs)
    axis = find_free_axis(shape, parts, [i for i, spec in enumerate(specs) if spec != UNSHARDED])
    if axis is None:
        return layout
    specs[axis] = "+".join(free)
    return Layout(specs, mesh)


def find_free_axis(shape: Sequence[int], parts: int, taken: Sequence[int | None]) -> int | None:
    """Return the first axis that is unsharded and divisible, or None.

    Args:
      shape: Shape of the variable.
      parts: Number of parts that the axis size must be divisible by.
      taken: Axes that are sharded already.

    Returns:
      The index of the axis, or None.
    """
    return next((i for i, n in enumerate(shape) if i not in taken and n and n % parts == 0), None)


@dataclasses.dataclass(frozen=True)
class RegionSharding:
    """Sharding of a value in the region, and the collectives for the value and its gradient.

    Attributes:
      spec: Spec with which the value enters the region, over the dimensions of the batch.
      gradient_spec: Spec with which its gradient leaves the region.
      gathers: (axis, mesh dimensions) of the all-gather before its use, or None.
      scatters: (axis, mesh dimensions) of the reduce-scatter of its gradient, or None.
      sums: Mesh dimensions of the all-reduce of its gradient.
      auto_spec: Spec over all other mesh dimensions, which the region leaves to XLA's partitioner.
      parts: Number of parts that `scatters` splits the gradient into.
    """

    spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gradient_spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gathers: tuple[int, tuple[str, ...]] | None = None
    scatters: tuple[int, tuple[str, ...]] | None = None
    sums: tuple[str, ...] = ()
    auto_spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    parts: int = 1

    def gather_value(self, value: jax.Array) -> jax.Array:
        """All-gather the value; the transpose is the reduce-scatter of its gradient."""
        if self.gathers is None:
            return value
        axis, names = self.gathers
        return self._run_collective(
            lambda v: lax.all_gather(v, names, axis=axis, tiled=True), value
        )

    def reduce_gradient(self, gradient: jax.Array) -> jax.Array:
        """Sum a gradient over the devices by an all-reduce or a reduce-scatter."""
        if self.scatters is not None:
            axis, names = self.scatters

            def scatter(g: jax.Array) -> jax.Array:
                return lax.psum_scatter(g, names, scatter_dimension=axis, tiled=True)

            gradient = self._run_collective(scatter, gradient)
        return lax.psum(gradient, self.sums) if self.sums else gradient

    def get_gradient_shape(self, shape: tuple[int, ...], scattered: bool) -> tuple[int, ...]:
        """Return the shape of the gradient of a full value, before or after the reduce-scatter."""
        if self.scatters is None or not scattered:
            return shape
        axis, _ = self.scatters
        return (*shape[:axis], shape[axis] // self.parts, *shape[axis + 1 :])

    def _run_collective(
        self, collective: Callable[[jax.Array], jax.Array], value: jax.Array
    ) -> jax.Array:
        """Run a collective on a value that remains sharded over other dimensions, which XLA would gather otherwise."""
        names = {
            n
            for entry in self.auto_spec
            for n in (entry if isinstance(entry, tuple) else (entry,))
            if n
        }
        if not names:
            return collective(value)
        return jax.shard_map(
            collective,
            mesh=jax.sharding.get_abstract_mesh(),
            in_specs=self.auto_spec,
            out_specs=self.auto_spec,
            axis_names=names,
            check_vma=False,
        )(value)


def resolve_region_sharding(strategy: RegionStrategy, capture: object) -> RegionSharding:
    """Return the sharding with which a captured value enters the region.

    Args:
      strategy: The strategy.
      capture: A variable, a `LocalPart` of one, or a tensor.

    Returns:
      The sharding.
    """
    variable = get_captured_variable(capture)
    layout = variable.layout if isinstance(variable, Variable) else None
    axes = strategy.batch_dimensions
    if layout is None or layout.is_single_device():
        return RegionSharding(sums=axes)
    batch_names = [_select_dimensions(s, layout, axes) for s in layout.sharding_specs]
    auto_spec = PartitionSpec(
        *[_to_spec_entry(_select_dimensions(s, layout, axes, False)) for s in layout.sharding_specs]
    )
    spec = PartitionSpec(*map(_to_spec_entry, batch_names))
    axis = next((i for i, names in enumerate(batch_names) if names), None)
    rest = tuple(a for a in axes if axis is None or a not in batch_names[axis])
    if axis is not None and isinstance(capture, LocalPart):
        return RegionSharding(spec, spec, sums=rest, auto_spec=auto_spec)
    if axis is not None:
        along, count = (axis, batch_names[axis]), layout.num_shards(axis)
        return RegionSharding(spec, spec, along, along, rest, auto_spec, count)
    slots = getattr(variable, "_slot_layout", None)
    if slots is None:
        return RegionSharding(spec, spec, sums=axes, auto_spec=auto_spec)
    parts = [_select_dimensions(s, slots, axes) for s in slots.sharding_specs]
    axis = next((i for i, names in enumerate(parts) if names), None)
    if axis is None:
        return RegionSharding(spec, spec, sums=axes, auto_spec=auto_spec)
    rest = tuple(a for a in axes if a not in parts[axis])
    gradient_spec = PartitionSpec(*map(_to_spec_entry, parts))
    scatters = axis, parts[axis]
    return RegionSharding(
        spec, gradient_spec, None, scatters, rest, auto_spec, slots.num_shards(axis)
    )


def _select_dimensions(
    spec: str, layout: Layout, axes: Sequence[str], inside: bool = True
) -> tuple[str, ...]:
    """Return the mesh dimensions of a spec that are in `axes`, or those that are not."""
    return tuple(d for d in list_spec_dimensions(spec, layout.mesh) if (d in axes) is inside)


def _to_spec_entry(names: tuple[str, ...]) -> tuple[str, ...] | str | None:
    return names if len(names) > 1 else names[0] if names else None
