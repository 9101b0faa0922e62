"""Weights of a pipeline's stages: where their parts lie between steps, and how a step has them together.

A weight may be divided along several axes at once: over the pipeline's devices, so that none of them has all
stages' weights; over the devices that share a batch, as `zero` says; and over dimensions that rules name. A step
brings the first two together for the stage that a device computes. The last stay: XLA divides what is computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.packs import Buffers, Pack, alike, chosen, total
from meshflow.distribute.replicas.shares import LocalPart, variable_of
from meshflow.placement.layout import dimensions_of

__all__ = ["Cut", "WeightPack", "beside", "cut_of"]

_Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Cut:
    """The axes along which a weight is divided.

    Attributes:
      stage: that over the pipeline's devices, or None.
      zero: that over devices which share a batch: of the weight's gradient, and of itself where it is `held` so.
      over: the mesh dimensions of these devices.
      held: whether the weight itself is divided along `zero` between steps.
      rules: those over dimensions that rules name, with their names.
      local: that along which a device has a part of its own, such as experts, with the mesh dimensions: nothing is
        brought together, and gradients are not summed over them.
    """

    stage: int | None = None
    zero: int | None = None
    over: _Names = ()
    held: bool = False
    rules: tuple[tuple[int, _Names], ...] = ()
    local: tuple[int, _Names] | None = None

    def spec(self, dimension: str, gradient: bool = False) -> PartitionSpec:
        """How the weight, or its gradient, comes in and goes out of what runs on each device.

        Args:
          dimension: the mesh dimension of the pipeline.
          gradient: whether it is the gradient.
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
    def kind(self) -> Any:
        """Equal for weights that lie in buffers of one shape."""
        names = tuple(names for _, names in self.rules)
        own = None if self.local is None else self.local[1]
        return self.stage is None, self.zero is None, self.over, self.held, names, own


def cut_of(capture: Any, over: str, axes: Sequence[str]) -> Cut:
    """How a pipeline takes a weight.

    Args:
      capture: the weight, or a device's part of one.
      over: the mesh dimension of the pipeline.
      axes: those of the batch.

    Raises:
      ValueError: for an axis that is split over one of these dimensions and another one.
    """
    here = isinstance(capture, LocalPart)
    variable = variable_of(capture)
    layout = variable.layout if isinstance(variable, Variable) else None
    if layout is None or layout.is_single_device():
        return Cut()
    cut: dict[str, Any] = {}
    rules: list[tuple[int, _Names]] = []
    for axis, spec in enumerate(layout.sharding_specs):
        names = dimensions_of(spec, layout.mesh)
        if names == (over,):
            cut["stage"] = axis
        elif here and names and set(names) <= set(axes):
            cut["local"] = axis, names
        elif names and set(names) <= set(axes):
            cut |= {"zero": axis, "over": names, "held": True}
        elif names and {over, *axes}.isdisjoint(names):
            rules.append((axis, names))
        elif names:
            raise InvalidValueError(
                f"Pipeline: a rule splits axis {axis} of the weight {capture.name} over {spec!r}. The dimension of the "
                f"stages, {over!r}, those of the batch, {list(axes)}, and others each split an axis of their own."
            )
    slots = None if here else getattr(variable, "_slot_layout", None)
    if "zero" not in cut and slots is not None:
        for axis, spec in enumerate(slots.sharding_specs):
            names = dimensions_of(spec, slots.mesh)
            if names and set(names) <= set(axes):
                cut |= {"zero": axis, "over": names}
    if "stage" not in cut:
        # Such weights are small, mostly; they come in whole.
        cut = {name: value for name, value in cut.items() if name == "local"}
    return Cut(**cut, rules=tuple(rules))


class WeightPack:
    """Weights that are divided alike, laid end to end for each stage.

    A buffer is [parts by each rule's names, parts by `zero`, parts by stage, length], without what there is not.

    Args:
      stages: for each stage the shapes of its weights by number.
      cuts: how each is divided; all of one kind.
      sizes: the sizes of the mesh's dimensions.
      over: the mesh dimension of the pipeline.
      axes: those of the batch.
      divided: whether rules divide any weights, so that others must say that they are not.
    """

    def __init__(
        self,
        stages: Sequence[Mapping[int, Any]],
        cuts: Mapping[int, Cut],
        sizes: Mapping[str, int],
        over: str,
        axes: Sequence[str],
        divided: bool,
    ) -> None:
        self.divided = divided
        self.cuts, self.cut = dict(cuts), next(iter(cuts.values()))
        own = () if self.cut.local is None else self.cut.local[1]
        # Over which gradients are summed.
        self.over, self.axes = over, tuple(a for a in axes if a not in own)
        self.names = [names for _, names in self.cut.rules]
        self._rules = [math.prod(sizes[n] for n in names) for names in self.names]
        self._zero = [math.prod(sizes[n] for n in self.cut.over)] * (self.cut.zero is not None)
        self._stage = [sizes[over]] * (self.cut.stage is not None)
        self.lead = (*self._rules, *self._zero, *self._stage)
        self._shapes = {n: a.shape for arrays in stages for n, a in arrays.items()}
        self._pack = Pack(
            [
                {n: jax.ShapeDtypeStruct(self._part(n), a.dtype) for n, a in arrays.items()}
                for arrays in stages
            ]
        )
        self.places, self.lengths = self._pack.places, self._pack.lengths

    def _pairs(self, number: int, rules: bool = True, zero: bool = True, stage: bool = True) -> Any:
        """The axes that a weight is divided along, with the number of parts, as buffers begin with them."""
        cut = self.cuts[number]
        found = [(axis, n) for (axis, _), n in zip(cut.rules, self._rules, strict=True)] * rules
        if cut.zero is not None and zero:
            found += [(cut.zero, n) for n in self._zero]
        if cut.stage is not None and stage:
            found += [(cut.stage, n) for n in self._stage]
        return found

    def _part(self, number: int) -> tuple[int, ...]:
        sizes = list(self._shapes[number])
        for axis, n in self._pairs(number):
            sizes[axis] //= n
        return tuple(sizes)

    # ---- buffers ---------------------------------------------------------------------------

    def bytes(self) -> int:
        """Bytes of a stage's buffers on a device."""
        return self._pack.bytes() * math.prod(self.lead) // math.prod(self._rules)

    def zeros(self, floats: bool = False) -> Buffers:
        """Buffers of zeros."""
        return {n: jnp.zeros((*self.lead, z.size), n) for n, z in self._pack.zeros(floats).items()}

    def laid(self, buffer: Any, before: int = 0) -> Any:
        """A buffer that lies as rules say, behind a number of other axes."""
        return alike(buffer, [None] * before + self.names) if self.divided else buffer

    def take(self, buffers: Buffers, stage: int) -> dict[int, Any]:
        """The whole weights of a stage."""
        found = {}
        for number, p in self.places[stage].items():
            rows = self.laid(buffers[p.dtype])[..., p.offset : p.offset + p.size]
            found[number] = _joined(rows.reshape(*self.lead, *p.shape), self._pairs(number))
        return found

    def put(self, arrays: Mapping[int, Any], stage: int, floats: bool = False) -> Buffers:
        """The buffers of whole weights, or of their gradients: zeros where there are none."""
        return self._filled(arrays, stage, self.lead, self._pairs, floats)

    def _filled(self, arrays: Any, stage: int, lead: Any, pairs: Any, floats: bool = False) -> Any:
        rows: dict[str, list[Any]] = {name: [] for name in self._pack.zeros(floats)}
        for number, p in self.places[stage].items():
            if number not in arrays:
                rows[p.dtype].append(jnp.zeros((*lead, p.size), p.dtype))
                continue
            parts = _divided(arrays[number].astype(p.dtype), pairs(number))
            rows[p.dtype].append(parts.reshape(*lead, -1))
        made = {}
        for name, found in rows.items():
            rest = self.lengths[name] - sum(row.shape[-1] for row in found)
            filling = [jnp.zeros((*lead, rest), name)] if rest else []
            made[name] = self.laid(jnp.concatenate([*found, *filling], axis=-1))
        return made

    # ---- over the mesh ---------------------------------------------------------------------

    def own(self, values: Mapping[int, Any], stages: Sequence[Any]) -> list[Buffers]:
        """The buffers of each of a device's stages.

        Args:
          values: what the device has of each weight, by number.
          stages: the numbers of its stages, which only devices know.
        """
        count = len(self.places)
        if not self._stage:
            return [
                chosen(s, [lambda n=n: self.put(values, n) for n in range(count)]) for s in stages
            ]
        zero = not self.cut.held
        lead = (*self._rules, *self._zero * zero)
        pairs = lambda number: self._pairs(number, zero=zero, stage=False)
        p, place = self._stage[0], len(lead)
        found: list[Buffers] = []
        for c in range(len(stages)):
            rows = [self._filled(values, s, lead, pairs) for s in range(c * p, (c + 1) * p)]
            stacked = {n: jnp.stack([row[n] for row in rows], axis=place) for n in self.lengths}
            found.append({n: self._together(b, place) for n, b in stacked.items()})
        return found

    def _together(self, rows: Any, place: int) -> Any:
        def run(v: Any) -> Any:
            v = lax.all_to_all(v, self.over, split_axis=place, concat_axis=place, tiled=True)
            return lax.all_gather(v, self.cut.over, axis=len(self._rules)) if self.cut.held else v

        return self.laid(beside(run, rows, self.names))

    def gathered(self, sums: Sequence[Buffers], stages: Sequence[Any]) -> dict[int, Any]:
        """What this device keeps of the gradients, from those of its stages.

        Args:
          sums: by stage.
          stages: the numbers of the device's stages.
        """
        if not self._stage:
            return self._all_of(sums, stages)
        found: dict[int, Any] = {}
        p, place = self._stage[0], len(self._rules)
        for c, of_stage in enumerate(sums):
            rows = {n: beside(self._apart, b, self.names) for n, b in of_stage.items()}
            for d in range(p):
                for number, at in self.places[c * p + d].items():
                    if at.dtype not in rows:
                        continue
                    row = lax.index_in_dim(rows[at.dtype], d, place, keepdims=False)
                    part = row[..., at.offset : at.offset + at.size].reshape(
                        *self._rules, *at.shape
                    )
                    value = _joined(part, self._pairs(number, zero=False, stage=False))
                    found[number] = found[number] + value if number in found else value
        return found

    def _apart(self, v: Any) -> Any:
        place, rest = len(self._rules), tuple(a for a in self.axes if a not in self.cut.over)
        if self._zero:
            v = lax.psum_scatter(v, self.cut.over, scatter_dimension=place)
        if rest:
            v = lax.psum(v, rest)
        return lax.all_to_all(v, self.over, split_axis=place, concat_axis=place, tiled=True)

    def _all_of(self, sums: Sequence[Buffers], stages: Sequence[Any]) -> dict[int, Any]:
        """Gradients of weights that are whole on all devices: each stage's among zeros, added over stages."""
        order: dict[str, list[int]] = {}
        for places in self.places:
            for number, at in places.items():
                if number not in order.setdefault(at.dtype, []):
                    order[at.dtype].append(number)

        def spread(buffers: Buffers, stage: int) -> Buffers:
            def row(number: int) -> Any:
                at = self.places[stage].get(number)
                if at is None:
                    shape = (*self.lead, math.prod(self._part(number)))
                    return jnp.zeros(shape, next(iter(buffers.values())).dtype)
                return buffers[at.dtype][..., at.offset : at.offset + at.size]

            rows = {n: [row(k) for k in order[n]] for n in buffers}
            return {n: self.laid(jnp.concatenate(found, axis=-1)) for n, found in rows.items()}

        count = len(self.places)
        parts = [
            chosen(s, [lambda n=n, b=b: spread(b, n) for n in range(count)])
            for b, s in zip(sums, stages, strict=True)
        ]
        whole = total({n: sum(part[n] for part in parts) for n in sums[0]}, (self.over, *self.axes))
        found = {}
        for name, buffer in whole.items():
            begin = 0
            for number in order[name]:
                shape = self._part(number)
                end = begin + math.prod(shape)
                row = buffer[..., begin:end].reshape(*self.lead, *shape)
                found[number], begin = _joined(row, self._pairs(number)), end
        return found


def _divided(array: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """An array with axes of parts in front, one for each (axis, number of parts)."""
    shape: list[int] = []
    places, parts = {}, dict(pairs)
    for axis, size in enumerate(array.shape):
        if axis in parts:
            places[axis] = len(shape)
            shape.append(parts[axis])
        shape.append(size // parts.get(axis, 1))
    return jnp.moveaxis(array.reshape(shape), [places[a] for a, _ in pairs], range(len(pairs)))


def _joined(parts: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """The array of which `_divided` gave the parts."""
    shape = list(parts.shape[len(pairs) :])
    places = {}
    for place, axis in enumerate(sorted(a for a, _ in pairs)):
        places[axis] = place + axis
    array = jnp.moveaxis(parts, range(len(pairs)), [places[a] for a, _ in pairs])
    for axis, n in pairs:
        shape[axis] *= n
    return array.reshape(shape)


def beside(run: Callable[[Any], Any], value: Any, names: Sequence[_Names]) -> Any:
    """A collective of a value whose first axes are split over other mesh dimensions: else it would travel whole."""
    if not names:
        return run(value)
    return jax.shard_map(
        run,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=PartitionSpec(*names),
        out_specs=PartitionSpec(*names),
        axis_names={n for some in names for n in some},
        check_vma=False,
    )(value)
