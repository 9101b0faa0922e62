"""Weights of pipeline stages: their sharding between steps, and the collectives of a step.

A weight can be sharded along several axes at once: over the pipeline's devices, so that none of
them holds the weights of all stages; over the devices that share a batch, by ZeRO; and over
dimensions of rules. A step gathers the first two for the stage that a device computes. XLA
partitions the computation over the last.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.distribute.parallel.packs import (
    AbstractArray,
    Buffers,
    StagePack,
    concatenate_rows,
    constrain_sharding,
    sum_buffers,
    switch_on_index,
)
from meshflow.distribute.parallel.program import RegionStrategy, UpdateGroup
from meshflow.distribute.parallel.zero import shard_layout
from meshflow.distribute.replicas.shares import LocalPart, get_captured_variable
from meshflow.distribute.replicas.variables import get_ruled_layout
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions
from meshflow.placement.mesh import Mesh

_Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WeightCut:
    """Axes along which a weight is sharded.

    Attributes:
      stage: Axis over the pipeline's devices, or None.
      zero: Axis over the devices that share a batch: of the weight's gradient, and of the weight if
        `held`.
      over: Mesh dimensions of `zero`.
      held: Whether the weight itself is sharded along `zero` between steps.
      rules: Axes over dimensions of rules, with their mesh dimensions.
      local: Axis along which a device has a part of its own, such as experts, with the mesh
        dimensions: the part is not gathered, and its gradient is not summed over them.
      group: Key of resident weights, which the optimizer updates together;
        None for a weight that each step gathers.
    """

    stage: int | None = None
    zero: int | None = None
    over: _Names = ()
    held: bool = False
    rules: tuple[tuple[int, _Names], ...] = ()
    local: tuple[int, _Names] | None = None
    group: UpdateGroup | None = None

    def spec(self, dimension: str, gradient: bool = False) -> PartitionSpec:
        """Return the spec of the weight, or of its gradient, in the `jax.shard_map` of the pipeline.

        Args:
          dimension: Mesh dimension of the pipeline.
          gradient: Whether to return the spec of the gradient.

        Returns:
          The partition spec.
        """
        entries: dict[int, Any] = {}
        if self.stage is not None:
            entries[self.stage] = dimension
        if self.zero is not None and (self.held or gradient):
            entries[self.zero] = self.over
        if self.local is not None:
            entries[self.local[0]] = self.local[1]
        return PartitionSpec(*(entries.get(i) for i in range(max(entries, default=-1) + 1)))

    @property
    def kind(self) -> tuple[object, ...]:
        """Return a key that is equal for weights that can share buffers."""
        names = tuple(names for _, names in self.rules)
        local = None if self.local is None else self.local[1]
        return self.stage is None, self.zero is None, self.over, self.held, names, local, self.group


def resolve_weight_cut(capture: Any, over: str, axes: Sequence[str]) -> WeightCut:
    """Return the axes along which a pipeline shards a weight.

    Args:
      capture: The weight, or a device's part of one.
      over: Mesh dimension of the pipeline.
      axes: Mesh dimensions of the batch.

    Returns:
      The axes.

    Raises:
      ValueError: If an axis is split over one of these dimensions and over another one.
    """
    is_local = isinstance(capture, LocalPart)
    variable = get_captured_variable(capture)
    layout = variable.layout if isinstance(variable, Variable) else None
    if layout is None or layout.is_single_device():
        return WeightCut()
    cut: dict[str, Any] = {}
    rules: list[tuple[int, _Names]] = []
    for axis, spec in enumerate(layout.sharding_specs):
        names = list_spec_dimensions(spec, layout.mesh)
        if names == (over,):
            cut["stage"] = axis
        elif is_local and names and set(names) <= set(axes):
            cut["local"] = axis, names
        elif names and set(names) <= set(axes):
            cut |= {"zero": axis, "over": names, "held": True}
        elif names and {over, *axes}.isdisjoint(names):
            rules.append((axis, names))
        elif names:
            raise InvalidValueError(
                f"Pipeline: a rule splits axis {axis} of the weight {capture.name} over {spec!r}. The dimension of the "
                f"stages, {over!r}, those of the batch, {list(axes)}, and others must each split a separate axis."
            )
    slots = None if is_local else getattr(variable, "_slot_layout", None)
    if "zero" not in cut and slots is not None:
        for axis, spec in enumerate(slots.sharding_specs):
            names = list_spec_dimensions(spec, slots.mesh)
            if names and set(names) <= set(axes):
                cut |= {"zero": axis, "over": names}
    if "stage" not in cut:
        # A weight that the stages do not divide is usually small, so it enters the region
        # unsharded.
        cut = {name: value for name, value in cut.items() if name == "local"}
    return WeightCut(**cut, rules=tuple(rules))


def resolve_resident_cut(
    strategy: RegionStrategy, capture: Any, group: UpdateGroup
) -> WeightCut | None:
    """Return the axes along which a resident weight is sharded.

    Args:
      strategy: The strategy.
      capture: The weight, or a device's part of one.
      group: Key of the weights that the optimizer updates together.

    Returns:
      The axes; None if rules split the weight over devices of the batch or of the pipeline.
    """
    variable = get_captured_variable(capture)
    ruled = get_ruled_layout(variable)
    axes, mesh = strategy.batch_dimensions, ruled.mesh
    layout = shard_layout(ruled, get_value_shape(variable), strategy.zero_dimensions)
    cut: dict[str, Any] = {}
    rules: list[tuple[int, _Names]] = []
    for axis, (spec, rule) in enumerate(
        zip(layout.sharding_specs, ruled.sharding_specs, strict=True)
    ):
        names = list_spec_dimensions(spec, mesh)
        if isinstance(capture, LocalPart) and names and set(names) <= set(axes):
            cut["local"] = axis, names
        elif list_spec_dimensions(rule, mesh):
            rules.append((axis, names))
        elif names:
            cut |= {"zero": axis, "over": names, "held": strategy.options.zero == 3}
    taken = {strategy.options.pipeline_options.over, *axes}
    if not taken.isdisjoint(name for _, names in rules for name in names):
        return None
    if not set(cut.get("over", ())) <= set(axes):
        return None
    return WeightCut(**cut, rules=tuple(rules), group=group)


class WeightPack:
    """Weights with equal shardings, concatenated for each stage.

    A buffer has the shape [parts by each rule, parts by ZeRO, parts by stage, length], without axes
    for shardings that the weights do not have.

    Args:
      stages: For each stage the shapes and dtypes of its weights by index.
      cuts: Sharding of each weight; all have the same kind.
      sizes: Sizes of the mesh dimensions.
      over: Mesh dimension of the pipeline.
      axes: Mesh dimensions of the batch.
      divided: Whether rules split any weights, so that unsharded buffers need a constraint.
    """

    def __init__(
        self,
        stages: Sequence[Mapping[int, AbstractArray]],
        cuts: Mapping[int, WeightCut],
        sizes: Mapping[str, int],
        over: str,
        axes: Sequence[str],
        divided: bool,
    ) -> None:
        self.divided = divided
        self.cuts, self.cut = dict(cuts), next(iter(cuts.values()))
        local = () if self.cut.local is None else self.cut.local[1]
        # Gradients are summed over these dimensions.
        self.over, self.axes = over, tuple(a for a in axes if a not in local)
        self.names = [names for _, names in self.cut.rules]
        self._rules = [math.prod(sizes[n] for n in names) for names in self.names]
        self._zero = [math.prod(sizes[n] for n in self.cut.over)] * (self.cut.zero is not None)
        self._stage = [sizes[over]] * (self.cut.stage is not None)
        self.leading_shape = (*self._rules, *self._zero, *self._stage)
        self._devices = sizes[over]
        self._local = [math.prod(sizes[n] for n in local)] * bool(local)
        self._shapes = {n: a.shape for arrays in stages for n, a in arrays.items()}
        self._pack = StagePack(
            [
                {
                    n: jax.ShapeDtypeStruct(self._get_part_shape(n), a.dtype)
                    for n, a in arrays.items()
                }
                for arrays in stages
            ]
        )
        self.spans, self.lengths = self._pack.spans, self._pack.lengths

    def _list_cut_axes(
        self, index: int, rules: bool = True, zero: bool = True, stage: bool = True
    ) -> list[tuple[int, int]]:
        """Return a weight's (axis, number of parts) pairs in the order of the leading axes."""
        cut = self.cuts[index]
        pairs = [(axis, n) for (axis, _), n in zip(cut.rules, self._rules, strict=True)] * rules
        if cut.zero is not None and zero:
            pairs += [(cut.zero, n) for n in self._zero]
        if cut.stage is not None and stage:
            pairs += [(cut.stage, n) for n in self._stage]
        return pairs

    def _get_part_shape(self, index: int) -> tuple[int, ...]:
        sizes = list(self._shapes[index])
        for axis, n in self._list_cut_axes(index):
            sizes[axis] //= n
        return tuple(sizes)

    # ---- buffers ---------------------------------------------------------------------------

    def count_bytes(self) -> int:
        """Return the bytes of a stage's buffers on a device."""
        return self._pack.count_bytes() * math.prod(self.leading_shape) // math.prod(self._rules)

    def make_zeros(self, floats: bool = False) -> Buffers:
        """Create buffers of zeros; with `floats` only those of dtypes that have gradients."""
        return {
            n: jnp.zeros((*self.leading_shape, z.size), n)
            for n, z in self._pack.make_zeros(floats).items()
        }

    def constrain_layout(self, buffer: jax.Array, before: int = 0) -> jax.Array:
        """Constrain a buffer, after a number of other axes, to the sharding of the rules."""
        if not self.divided:
            return buffer
        return constrain_sharding(buffer, [*[None] * before, *self.names])

    def unpack(self, buffers: Buffers, stage: int) -> dict[int, jax.Array]:
        """Return the full weights of a stage."""
        weights = {}
        for index, p in self.spans[stage].items():
            rows = self.constrain_layout(buffers[p.dtype])[..., p.offset : p.offset + p.size]
            # XLA would otherwise exchange rows that it splits differently.
            rows = self.constrain_layout(rows)
            weights[index] = merge_axes(
                rows.reshape(*self.leading_shape, *p.shape), self._list_cut_axes(index)
            )
        return weights

    def pack(self, arrays: Mapping[int, jax.Array], stage: int, floats: bool = False) -> Buffers:
        """Pack full weights, or their gradients; missing arrays are zeros."""
        return self._pack_parts(arrays, stage, self.leading_shape, self._list_cut_axes, floats)

    def _pack_parts(
        self,
        arrays: Mapping[int, jax.Array],
        stage: int,
        lead: tuple[int, ...],
        pairs: Callable[[int], list[tuple[int, int]]],
        floats: bool = False,
    ) -> Buffers:
        rows: dict[str, list[jax.Array]] = {name: [] for name in self._pack.make_zeros(floats)}
        for index, p in self.spans[stage].items():
            if index not in arrays:
                rows[p.dtype].append(jnp.zeros((*lead, p.size), p.dtype))
                continue
            parts = split_axes(arrays[index].astype(p.dtype), pairs(index))
            rows[p.dtype].append(self.constrain_layout(parts.reshape(*lead, -1)))
        buffers = {}
        for name, arrays_of_type in rows.items():
            rest = self.lengths[name] - sum(row.shape[-1] for row in arrays_of_type)
            padding = [jnp.zeros((*lead, rest), name)] if rest else []
            buffers[name] = self.constrain_layout(concatenate_rows([*arrays_of_type, *padding]))
        return buffers

    # ---- over the mesh ---------------------------------------------------------------------

    def pack_own_stages(
        self, values: Mapping[int, jax.Array], stages: Sequence[jax.Array]
    ) -> list[Buffers]:
        """Gather the weights of a device's stages.

        Args:
          values: The device's part of each weight, by index.
          stages: Indices of its stages, which are values of the program.

        Returns:
          The buffers of each stage.
        """
        count = len(self.spans)
        if not self._stage:
            return [
                switch_on_index(s, [lambda n=n: self.pack(values, n) for n in range(count)])
                for s in stages
            ]
        zero = not self.cut.held
        lead = (*self._rules, *self._zero * zero)
        pairs = lambda index: self._list_cut_axes(index, zero=zero, stage=False)
        p, axis = self._stage[0], len(lead)
        buffers: list[Buffers] = []
        for c in range(len(stages)):
            rows = [self._pack_parts(values, s, lead, pairs) for s in range(c * p, (c + 1) * p)]
            stacked = {n: jnp.stack([row[n] for row in rows], axis=axis) for n in self.lengths}
            buffers.append({n: self._gather_stage(b, axis) for n, b in stacked.items()})
        return buffers

    def _gather_stage(self, rows: jax.Array, axis: int) -> jax.Array:
        def run(v: jax.Array) -> jax.Array:
            v = lax.all_to_all(v, self.over, split_axis=axis, concat_axis=axis, tiled=True)
            return lax.all_gather(v, self.cut.over, axis=len(self._rules)) if self.cut.held else v

        return self.constrain_layout(run_over_split_axes(run, rows, self.names))

    def reduce_gradients(
        self, sums: Sequence[Buffers], stages: Sequence[jax.Array]
    ) -> dict[int, jax.Array]:
        """Reduce the gradients of stages, and return the parts that this device keeps.

        Args:
          sums: Buffers of gradients of each of the device's stages.
          stages: Indices of the device's stages.

        Returns:
          Gradients by index of the weight.
        """
        if not self._stage:
            return self._sum_replicated(sums, stages)
        gradients: dict[int, jax.Array] = {}
        p, axis = self._stage[0], len(self._rules)
        for c, buffers in enumerate(sums):
            rows = {
                n: run_over_split_axes(self._scatter_stage, b, self.names)
                for n, b in buffers.items()
            }
            for d in range(p):
                for index, span in self.spans[c * p + d].items():
                    if span.dtype not in rows:
                        continue
                    row = lax.index_in_dim(rows[span.dtype], d, axis, keepdims=False)
                    part = row[..., span.offset : span.offset + span.size].reshape(
                        *self._rules, *span.shape
                    )
                    value = merge_axes(part, self._list_cut_axes(index, zero=False, stage=False))
                    gradients[index] = gradients[index] + value if index in gradients else value
        return gradients

    def _scatter_stage(self, v: jax.Array) -> jax.Array:
        axis, rest = len(self._rules), tuple(a for a in self.axes if a not in self.cut.over)
        if self._zero:
            v = lax.psum_scatter(v, self.cut.over, scatter_dimension=axis)
        if rest:
            v = lax.psum(v, rest)
        return lax.all_to_all(v, self.over, split_axis=axis, concat_axis=axis, tiled=True)

    def _sum_replicated(
        self, sums: Sequence[Buffers], stages: Sequence[jax.Array]
    ) -> dict[int, jax.Array]:
        """Sum gradients of weights that all devices hold; other stages contribute zeros."""
        order: dict[str, list[int]] = {}
        for spans in self.spans:
            for index, span in spans.items():
                if index not in order.setdefault(span.dtype, []):
                    order[span.dtype].append(index)

        def spread(buffers: Buffers, stage: int) -> Buffers:
            def get_row(index: int) -> jax.Array:
                span = self.spans[stage].get(index)
                if span is None:
                    shape = (*self.leading_shape, math.prod(self._get_part_shape(index)))
                    return jnp.zeros(shape, next(iter(buffers.values())).dtype)
                return buffers[span.dtype][..., span.offset : span.offset + span.size]

            rows = {n: [get_row(k) for k in order[n]] for n in buffers}
            return {
                n: self.constrain_layout(jnp.concatenate(parts, axis=-1))
                for n, parts in rows.items()
            }

        count = len(self.spans)
        parts = [
            switch_on_index(s, [lambda n=n, b=b: spread(b, n) for n in range(count)])
            for b, s in zip(sums, stages, strict=True)
        ]
        totals = sum_buffers(
            {n: sum(part[n] for part in parts) for n in sums[0]}, (self.over, *self.axes)
        )
        gradients = {}
        for name, buffer in totals.items():
            start = 0
            for index in order[name]:
                shape = self._get_part_shape(index)
                end = start + math.prod(shape)
                row = buffer[..., start:end].reshape(*self.leading_shape, *shape)
                gradients[index], start = merge_axes(row, self._list_cut_axes(index)), end
        return gradients


class ResidentPack(WeightPack):
    """Resident weights: rows of arrays that are split over the pipeline's devices.

    The arrays have the shape [devices, stages of a device, local parts, parts by each rule, parts
    by ZeRO, length]; without axes for shardings that the weights do not have.
    """

    def get_array_shape(self, dtype: str, devices: int) -> tuple[int, ...]:
        """Return the shape of the array of a dtype."""
        lead = *self._local, *self.leading_shape
        return devices, len(self.spans) // devices, *lead, self.lengths[dtype]

    @property
    def _local_names(self) -> list[_Names]:
        return [] if self.cut.local is None else [self.cut.local[1]]

    def get_specs(self, gradient: bool = False) -> PartitionSpec:
        """Return the spec of an array, or of its gradient, in the `jax.shard_map` of the pipeline."""
        is_split = self.cut.zero is not None and (self.cut.held or gradient)
        zero = [self.cut.over] if is_split else []
        rules = [None for _ in self._rules]
        return PartitionSpec(self.over, None, *self._local_names, *rules, *zero)

    def make_layout(self, mesh: Mesh, is_slot: bool = False) -> Layout:
        """Return the layout of an array of weights, or of their slots."""
        is_split = self.cut.held or is_slot
        zero = ["+".join(self.cut.over) if is_split else UNSHARDED for _ in self._zero]
        rules = ["+".join(names) for names in (*self._local_names, *self.names)]
        return Layout([self.over, UNSHARDED, *rules, *zero, UNSHARDED], mesh)

    def get_shape(self, index: int) -> tuple[int, ...]:
        """Return the full shape of a weight."""
        shape = list(self._shapes[index])
        for axis, n in self._list_local_axes(index):
            shape[axis] *= n
        return tuple(shape)

    def _list_local_axes(self, index: int) -> list[tuple[int, int]]:
        local = self.cuts[index].local
        return [] if local is None else [(local[0], n) for n in self._local]

    def list_parts(self, index: int) -> list[tuple[int, int]]:
        """Return a weight's (axis, number of parts) pairs in the order of the leading axes."""
        return [*self._list_local_axes(index), *self._list_cut_axes(index)]

    def get_part_spec(self, index: int) -> PartitionSpec:
        """Return the spec of a weight over the mesh dimensions of the leading axes."""
        names = [*self._local_names, *self.names, self.cut.over]
        entries = {axis: n for (axis, _), n in zip(self.list_parts(index), names, strict=False)}
        return PartitionSpec(*(entries.get(i) for i in range(len(self.get_shape(index)))))

    def take_own_stages(self, rows: Buffers) -> list[Buffers]:
        """Return the buffers of a device's stages from its rows of the arrays."""
        chunks = next(iter(rows.values())).shape[1]

        def gather(row: jax.Array) -> jax.Array:
            def run(v: jax.Array) -> jax.Array:
                return lax.all_gather(v, self.cut.over, axis=len(self._rules), tiled=True)

            full = run_over_split_axes(run, row, self.names) if self.cut.held else row
            return self.constrain_layout(full)

        part = (0,) * len(self._local)
        return [{n: gather(b[0, c, *part]) for n, b in rows.items()} for c in range(chunks)]

    def reduce_rows(self, sums: Sequence[Buffers]) -> Buffers:
        """Sum gradients over the devices of the batch.

        Args:
          sums: Buffers of gradients of each of the device's stages.

        Returns:
          The device's rows of the arrays of gradients.
        """
        rest = tuple(a for a in self.axes if a not in self.cut.over)

        def run(v: jax.Array) -> jax.Array:
            if self._zero:
                v = lax.psum_scatter(
                    v, self.cut.over, scatter_dimension=len(self._rules), tiled=True
                )
            return lax.psum(v, rest) if rest else v

        rows = {n: [run_over_split_axes(run, b[n], self.names) for b in sums] for n in sums[0]}
        if len(self._list_users()) > 1:
            rows = {n: self._sum_copies(row) for n, row in rows.items()}
        part = (None,) * len(self._local)
        return {n: jnp.stack(row)[None, :, *part].astype(n) for n, row in rows.items()}

    def _list_users(self) -> list[tuple[int, int]]:
        """Return (device, chunk) of each copy of a weight that several stages use, otherwise []."""
        stages = [s for s, spans in enumerate(self.spans) if spans]
        indices = {i for s in stages for i in self.spans[s]}
        return (
            [(s % self._devices, s // self._devices) for s in stages] if len(indices) == 1 else []
        )

    def _sum_copies(self, row: list[jax.Array]) -> list[jax.Array]:
        """Sum the gradients of the copies of a weight, which only their devices exchange."""
        users = self._list_users()
        devices = sorted({device for device, _ in users})
        p, k = self._devices, len(devices)
        has_copy = np.zeros((p, len(row)), bool)
        has_copy[tuple(np.transpose(users))] = True
        device = lax.axis_index(self.over)
        is_used = jnp.asarray(has_copy)[device]
        own = [jnp.where(is_used[c], g, jnp.zeros_like(g)) for c, g in enumerate(row)]
        parts = [functools.reduce(jnp.add, own)]
        for distance in range(1, k):
            pairs = [(devices[n], devices[(n + distance) % k]) for n in range(k)]
            send = lambda v, pairs=pairs: lax.ppermute(v, self.over, pairs)
            parts.append(run_over_split_axes(send, parts[0], self.names))
        if k > 2:
            # All devices add in one order, so that their sums are equal.
            ranks = [devices.index(d) if d in devices else 0 for d in range(p)]
            stacked, rank = jnp.stack(parts), jnp.asarray(ranks)[device]
            parts = [stacked[(rank - n) % k] for n in range(k)]
        total = functools.reduce(jnp.add, parts)
        return [jnp.where(is_used[c], total, g) for c, g in enumerate(own)]


def split_axes(array: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
    """Split axes into parts, and return the array with the axes of parts in front.

    Args:
      array: The array.
      pairs: (axis, number of parts) of each axis, in the order of the new axes.
    """
    shape: list[int] = []
    part_axes, parts = {}, dict(pairs)
    for axis, size in enumerate(array.shape):
        if axis in parts:
            part_axes[axis] = len(shape)
            shape.append(parts[axis])
        shape.append(size // parts.get(axis, 1))
    return jnp.moveaxis(array.reshape(shape), [part_axes[a] for a, _ in pairs], range(len(pairs)))


def merge_axes(parts: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
    """Undo `split_axes`.

    Args:
      parts: Result of `split_axes`.
      pairs: Its argument.
    """
    shape = list(parts.shape[len(pairs) :])
    part_axes = {}
    for position, axis in enumerate(sorted(a for a, _ in pairs)):
        part_axes[axis] = position + axis
    array = jnp.moveaxis(parts, range(len(pairs)), [part_axes[a] for a, _ in pairs])
    for axis, n in pairs:
        shape[axis] *= n
    return array.reshape(shape)


def run_over_split_axes(
    run: Callable[[jax.Array], jax.Array], value: jax.Array, names: Sequence[_Names]
) -> jax.Array:
    """Run a collective on a value with leading axes split over other dimensions, without gathering them.

    Args:
      run: The collective.
      value: The value.
      names: Mesh dimensions of the leading axes.

    Returns:
      The result of the collective.
    """
    if not names:
        return run(value)
    return jax.shard_map(
        run,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=PartitionSpec(*names),
        out_specs=PartitionSpec(*names),
        axis_names={name for entry in names for name in entry},
        check_vma=False,
    )(value)
