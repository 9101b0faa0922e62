"""ZeRO: sharding of values over devices that share a batch, and the collectives that combine them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import RegionStrategy
from meshflow.distribute.replicas.shares import LocalPart, WeightCopies, get_captured_variable
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions

# Values of at most so many bytes share a collective, which costs a copy. A link of 100 Gbit/s sends
# so much while a collective starts.
PACKED_BYTES = 1 << 17
# By default the smallest weights, such as biases and scales, remain gathered: at most this part of
# all weights. It is more than the biases and scales of transformers of usual width.
_LIVE_DIVISOR = 32


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


def select_live_weights(sizes: Sequence[int], budget: int | None) -> set[int]:
    """Select the weights that remain gathered during a step of ZeRO 3: the smallest ones.

    Args:
      sizes: Number of elements of each weight.
      budget: Number of elements of all selected weights; None is the default, a part of all.

    Returns:
      Indices of the weights.
    """
    if budget is None:
        budget = sum(sizes) // _LIVE_DIVISOR
    live = set[int]()
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        budget -= sizes[i]
        if budget < 0:
            break
        live.add(i)
    return live


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
      copies: Mesh dimensions, not of the batch, along which the value has copies on a first axis.
    """

    spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gradient_spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    gathers: tuple[int, tuple[str, ...]] | None = None
    scatters: tuple[int, tuple[str, ...]] | None = None
    sums: tuple[str, ...] = ()
    auto_spec: PartitionSpec = dataclasses.field(default_factory=PartitionSpec)
    parts: int = 1
    copies: tuple[str, ...] = ()

    @property
    def auto_names(self) -> frozenset[str]:
        """Return the mesh dimensions of `auto_spec`."""
        entries = [e if isinstance(e, tuple) else (e,) for e in self.auto_spec]
        return frozenset(n for entry in entries for n in entry if n)

    def get_gradient_shape(self, shape: tuple[int, ...], scattered: bool) -> tuple[int, ...]:
        """Return the shape of the gradient of a full value, before or after the reduce-scatter."""
        if not scattered:
            return shape
        shape = shape[1:] if self.copies else shape
        if self.scatters is None:
            return shape
        axis, _ = self.scatters
        return (*shape[:axis], shape[axis] // self.parts, *shape[axis + 1 :])


def gather_values(
    shardings: Sequence[RegionSharding], values: Sequence[jax.Array]
) -> list[jax.Array]:
    """All-gather values; small values with the same sharding are packed into one collective.

    Args:
      shardings: Sharding of each value.
      values: The values.

    Returns:
      The full values.
    """

    def gather(parts: list[jax.Array], axes: list[int], names: tuple[str, ...]) -> list[jax.Array]:
        if len(parts) == 1:
            return [lax.all_gather(parts[0], names, axis=axes[0], tiled=True)]
        rows = [jnp.moveaxis(p, axis, 0) for p, axis in zip(parts, axes, strict=True)]
        packed = lax.all_gather(jnp.concatenate([r.reshape(-1) for r in rows]), names)
        full = jnp.split(packed, np.cumsum([r.size for r in rows])[:-1], axis=1)
        return [
            jnp.moveaxis(f.reshape(-1, *r.shape[1:]), 0, axis)
            for f, r, axis in zip(full, rows, axes, strict=True)
        ]

    sizes = [v.size * k.parts for v, k in zip(values, shardings, strict=True)]
    full = _run_packed([k.gathers for k in shardings], shardings, values, sizes, gather)
    return [
        _run_in_shards(lambda v: [v], [k], [v])[0] if k.copies and k.gathers is None else v
        for k, v in zip(shardings, full, strict=True)
    ]


def reduce_gradients(
    shardings: Sequence[RegionSharding], gradients: Sequence[jax.Array]
) -> list[jax.Array]:
    """Sum gradients over the devices; those of small values are packed into one collective.

    Args:
      shardings: Sharding of each value.
      gradients: Gradients of the full values.

    Returns:
      The sums, or this device's parts of them.
    """

    def scatter(full: list[jax.Array], axes: list[int], names: tuple[str, ...]) -> list[jax.Array]:
        if len(full) == 1:
            return [lax.psum_scatter(full[0], names, scatter_dimension=axes[0], tiled=True)]
        count = lax.axis_size(names)
        rows = [jnp.moveaxis(g, axis, 0) for g, axis in zip(full, axes, strict=True)]
        packed = jnp.concatenate([r.reshape(count, -1) for r in rows], axis=1)
        parts = lax.psum_scatter(packed, names)
        split = jnp.split(parts, np.cumsum([r.size // count for r in rows])[:-1])
        return [
            jnp.moveaxis(p.reshape(-1, *r.shape[1:]), 0, axis)
            for p, r, axis in zip(split, rows, axes, strict=True)
        ]

    copied = [i for i, k in enumerate(shardings) if k.copies]
    if copied:
        return _reduce_copies(copied, shardings, gradients)
    sizes = [g.size for g in gradients]
    parts = _run_packed([k.scatters for k in shardings], shardings, gradients, sizes, scatter)
    return [lax.psum(p, k.sums) if k.sums else p for p, k in zip(parts, shardings, strict=True)]


def _reduce_copies(
    copied: Sequence[int], shardings: Sequence[RegionSharding], gradients: Sequence[jax.Array]
) -> list[jax.Array]:
    """Sum gradients, some of which have copies along other mesh dimensions."""
    rest = [i for i in range(len(gradients)) if i not in copied]
    sums = dict(
        zip(
            rest,
            reduce_gradients([shardings[i] for i in rest], [gradients[i] for i in rest]),
            strict=True,
        )
    )
    chosen = [shardings[i] for i in copied]
    plain = [dataclasses.replace(k, copies=(), sums=(*k.sums, *k.copies)) for k in chosen]
    mapped = jax.shard_map(
        lambda *own: reduce_gradients(plain, [g[0] for g in own]),
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=tuple(PartitionSpec(k.copies) for k in chosen),
        out_specs=[PartitionSpec()] * len(chosen),
        axis_names={name for k in chosen for name in k.copies},
        check_vma=False,
    )
    sums.update(zip(copied, mapped(*(gradients[i] for i in copied)), strict=True))
    return [sums[i] for i in range(len(gradients))]


def _run_packed(
    splits: Sequence[tuple[int, tuple[str, ...]] | None],
    shardings: Sequence[RegionSharding],
    values: Sequence[jax.Array],
    sizes: Sequence[int],
    collective: Callable[[list[jax.Array], list[int], tuple[str, ...]], list[jax.Array]],
) -> list[jax.Array]:
    """Run a collective on each value with a split, and one for all small values of a kind."""
    results, groups = list(values), dict[Hashable, list[int]]()
    for i, (split, value) in enumerate(zip(splits, values, strict=True)):
        if split is not None:
            own = i if sizes[i] * value.dtype.itemsize > PACKED_BYTES else None
            kind = split[1], value.dtype, shardings[i].auto_names, shardings[i].copies, own
            groups.setdefault(kind, []).append(i)
    for indices in groups.values():
        chosen = [splits[i] for i in indices]
        axes, names = [s[0] for s in chosen if s], chosen[0][1]  # type: ignore[index]
        run = lambda *parts, axes=axes, names=names: collective(list(parts), axes, names)
        outputs = _run_in_shards(run, [shardings[i] for i in indices], [values[i] for i in indices])
        for i, output in zip(indices, outputs, strict=True):
            results[i] = output
    return results


def _run_in_shards(
    run: Callable[..., list[jax.Array]],
    shardings: Sequence[RegionSharding],
    values: Sequence[jax.Array],
) -> list[jax.Array]:
    """Run collectives on values that remain sharded over other dimensions, which XLA would gather otherwise."""
    copies = shardings[0].copies
    names = shardings[0].auto_names | {*copies}
    if not names:
        return run(*values)
    specs = [k.auto_spec for k in shardings]
    # The transpose sums gradients over the copies after they have been scattered.
    return jax.shard_map(
        lambda *parts: [v[None] if copies else v for v in run(*parts)],
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=tuple(specs),
        out_specs=[PartitionSpec(copies, *spec) if copies else spec for spec in specs],
        axis_names=set(names),
        check_vma=False,
    )(*values)


def resolve_region_sharding(strategy: RegionStrategy, capture: object) -> RegionSharding:
    """Return the sharding with which a captured value enters the region.

    Args:
      strategy: The strategy.
      capture: A variable, a `LocalPart` of one, or a tensor.

    Returns:
      The sharding.
    """
    if isinstance(capture, WeightCopies):
        sharding = resolve_region_sharding(strategy, capture.variable)
        return dataclasses.replace(sharding, copies=capture.axes)
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
