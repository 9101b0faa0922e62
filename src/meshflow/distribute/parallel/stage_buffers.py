"""Variables of a pipeline that live on their stages.

Weights of all stages, and each of their optimizer slots, are parts of arrays with a row for each
device of the pipeline (`StageBuffer`): weights of equal sizes, one of each stage, have an array,
and all others another one. A training step reads the rows of its device, and the optimizer updates
an array as one variable, so that neither weights nor gradients are sent. The variables of the user
remain the same objects: they become `StageVariable`s, which read and write their part of an array.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.distribute.parallel.program import UpdateGroup
from meshflow.distribute.parallel.stage_weights import ResidentPack, merge_axes, split_axes
from meshflow.distribute.replicas.shares import current_shares
from meshflow.distribute.replicas.variables import MirroredVariable
from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.passes.stage_partition import READ, WRITE, broadcast_from
from meshflow.placement.layout import Layout


@dataclasses.dataclass(frozen=True)
class PartForm:
    """Form of a variable as a part of a `StageBuffer`.

    Attributes:
      mesh: Mesh of the buffer.
      over: Mesh dimension of the pipeline.
      shape: Shape of the variable.
      pairs: (axis, number of parts) of the axes that the buffer has in front.
      spec: Spec of the variable over the mesh dimensions of these axes.
    """

    mesh: jax.sharding.Mesh
    over: str
    shape: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    spec: PartitionSpec

    def read(self, buffer: Array, position: Array) -> Array:
        """Return the part at a position (device, stage of the device, offset), on all devices."""

        def run(rows: Array, position: Array) -> Array:
            value = self.extract(rows, position[1], position[2])
            return broadcast_from(value, lax.axis_index(self.over) == position[0], self.over)

        return self._map(run, 0)(buffer, position)

    def write(self, buffer: Array, positions: Array, value: Array) -> Array:
        """Return the buffer with another value of the part at each of some positions."""

        def run(rows: Array, positions: Array, value: Array) -> Array:
            for position in positions:
                new = self.insert(rows, position[1], position[2], value)
                rows = jnp.where(lax.axis_index(self.over) == position[0], new, rows)
            return rows

        return self._map(run, 1)(buffer, positions, value)

    def extract(self, rows: Array, chunk: Any, offset: Any) -> Array:
        """Return a part of the row of one device."""
        parts, lead = dict(self.pairs), rows.shape[2:-1]
        part_shape = [n // parts.get(axis, 1) for axis, n in enumerate(self.shape)]
        starts = _list_starts(lead, chunk, offset)
        row = lax.dynamic_slice(rows, starts, (1, 1, *lead, math.prod(part_shape)))
        return merge_axes(row.reshape(*lead, *part_shape), self.pairs)

    def insert(self, rows: Array, chunk: Any, offset: Any, value: Array) -> Array:
        """Return the row of one device with another value of a part."""
        lead = rows.shape[2:-1]
        row = split_axes(value.astype(rows.dtype), self.pairs).reshape(1, 1, *lead, -1)
        return lax.dynamic_update_slice(rows, row, _list_starts(lead, chunk, offset))

    def _map(self, run: Any, num_values: int) -> Any:
        row = PartitionSpec(self.over)
        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=(row, PartitionSpec(), *[PartitionSpec()] * num_values),
            out_specs=row if num_values else PartitionSpec(),
            axis_names={self.over},
            check_vma=False,
        )


def _list_starts(lead: tuple[int, ...], chunk: Any, offset: Any) -> list[Any]:
    return [jnp.asarray(i, np.int32) for i in (0, chunk, *[0] * len(lead), offset)]


_read_p, _write_p = map(jex_core.Primitive, (READ, WRITE))
register_composite(
    _read_p, lambda b, form, positions: form.read(b, np.array(positions[0], np.int32)), None, None
)
register_composite(
    _write_p,
    lambda b, v, form, positions: form.write(b, np.array(positions, np.int32), v),
    None,
    None,
)
_READ = Op(READ, lambda o, s: _bind_part(_read_p, o, *s), differentiable=False, is_foldable=False)
_WRITE = Op(
    WRITE, lambda o, s: _bind_part(_write_p, o, *s), differentiable=False, is_foldable=False
)


def _bind_part(primitive: Any, operands: Sequence[Array], form: PartForm, positions: Any) -> Any:
    return primitive.bind(*operands, form=form, positions=positions)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _read(form: PartForm, buffer: Array, position: Array, sharding: Any) -> Array:
    return lax.with_sharding_constraint(form.read(buffer, position), sharding)


@functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=1)
def _write(form: PartForm, buffer: Array, positions: Array, value: Array, sharding: Any) -> Array:
    return lax.with_sharding_constraint(form.write(buffer, positions, value), sharding)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _make_row(
    forms: tuple[PartForm, ...],
    offsets: tuple[tuple[int, int], ...],
    aval: tuple[tuple[int, ...], str],
    fill: float,
    sharding: Any,
    values: Sequence[Array],
) -> Array:
    row = jnp.full(aval[0], fill, aval[1])
    for form, (chunk, offset), value in zip(forms, offsets, values, strict=True):
        row = form.insert(row, chunk, offset, value)
    return lax.with_sharding_constraint(row, sharding)


@dataclasses.dataclass(frozen=True)
class BufferPart:
    """A variable's part of a `StageBuffer`.

    Attributes:
      form: Its form.
      positions: Device, stage of the device, and offset of each copy; several stages can use a
        weight.
    """

    form: PartForm
    positions: tuple[tuple[int, int, int], ...]

    @property
    def position_array(self) -> np.ndarray:
        """Return the positions as an array."""
        return np.array(self.positions, np.int32)

    def read(self, buffer: Tensor) -> Tensor:
        """Return the part of a buffer's value, or of an array of gradients, in a trace."""
        return apply(_READ, (buffer,), (self.form, self.positions))


class StageBuffer(MirroredVariable):
    """Variables of all stages in one array, of which each device of a pipeline has a row.

    Args:
      pack: Positions of the weights.
      shape: Shape of the array.
      members: The variables, which become `StageVariable`s.
      parts: Part of each variable.
      layout: Layout of the array.
      stage_layers: Names of the layers of each stage.
      fill: Value of the elements that belong to no variable.
    """

    def __init__(
        self,
        pack: ResidentPack,
        shape: tuple[int, ...],
        members: Sequence[Variable],
        parts: Sequence[BufferPart],
        layout: Layout,
        stage_layers: Sequence[Sequence[str]],
        fill: float = 0.0,
    ) -> None:
        self.pack, self.stage_layers, self.fill = pack, stage_layers, fill
        self.members, self.parts = list(members), list(parts)
        for member in members:
            if isinstance(member, StageVariable):
                member.buffer.release()
        dtype = members[0].dtype
        with init_scope():
            value: Any = jax.ShapeDtypeStruct(shape, dtype.dtype, sharding=layout.to_sharding())
            if not any(member.has_no_value for member in members):
                value = Tensor(self._assemble(shape, layout))
            super().__init__(value, trainable=False, name="stage_weights", dtype=dtype)
        self._own_layout = layout
        for member, part in zip(members, parts, strict=True):
            del member.__dict__["_value"]
            member.__dict__.update(released_class=type(member), buffer=self, part=part)
            member.__class__ = StageVariable

    @property
    def group(self) -> UpdateGroup | None:
        """Return the key of the weights that the optimizer updates together."""
        return self.pack.cut.group

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._static_shape.as_list())

    def combine_named_slots(
        self,
        slots: Sequence[dict[str, Variable]],
        fills: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Move the slots of the members into buffers; see `combine_slots`.

        Args:
          slots: The slots of each member by their names.
          fills: Values of the elements that belong to no variable, by the names of slots, if they are not 1.
        """
        for name in slots[0]:
            self.combine_slots([own.get(name) for own in slots], fills.get(name, 1.0))

    def combine_slots(self, slots: Sequence[Variable | None], fill: float = 1.0) -> None:
        """Move slots of the members into a buffer, unless they are in one or differ from the members.

        Args:
          slots: A slot of each member, or None.
          fill: Value of the elements that belong to no variable, and have gradients of zero.
        """
        similar = [
            slot
            for slot, v in zip(slots, self.members, strict=True)
            if isinstance(slot, Variable) and (slot.shape, slot.dtype) == (v.shape, v.dtype)
        ]
        if len(similar) < len(slots):
            return
        buffer = get_storage(similar[0])
        if isinstance(buffer, StageBuffer) and buffer.holds(similar, self.parts):
            return
        layout = self.pack.make_layout(self.layout.mesh, is_slot=True)
        StageBuffer(self.pack, self._shape, similar, self.parts, layout, self.stage_layers, fill)

    def _assemble(self, shape: tuple[int, ...], layout: Layout) -> Array:
        """Return the array of the members' values; a device also holds one row of other devices."""
        sharding = layout.to_sharding()
        row_sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:]))
        indices = sharding.addressable_devices_indices_map(shape)
        shards: dict[Any, Array] = {}
        for index in range(shape[0]):
            parts = [
                (part.form, (chunk, offset), member)
                for part, member in zip(self.parts, self.members, strict=True)
                for device, chunk, offset in part.positions
                if device == index
            ]
            row = _make_row(
                tuple(form for form, _, _ in parts),
                tuple(offsets for _, offsets, _ in parts),
                ((1, *shape[1:]), self.members[0].dtype.name),
                self.fill,
                row_sharding,
                [member.value().array for _, _, member in parts],
            )
            own = {device for device, i in indices.items() if i and (i[0].start or 0) == index}
            shards |= {s.device: s.data for s in row.addressable_shards if s.device in own}
        return jax.make_array_from_single_device_arrays(
            shape, sharding, [shards[device] for device in indices]
        )

    def holds(self, members: Sequence[Variable], parts: Sequence[BufferPart]) -> bool:
        """Check whether variables are exactly the parts of this buffer."""
        return (
            type(self) is StageBuffer
            and len(members) == len(self.members)
            and all(a is b for a, b in zip(members, self.members, strict=True))
            and list(parts) == self.parts
        )

    def release(self) -> None:
        """Give the members arrays of their own; programs that use the buffer read and write these."""
        with init_scope():
            values = [
                _to_abstract(member) if member.has_no_value else member.value().array
                for member in self.members
            ]
        for member, value in zip(self.members, values, strict=True):
            member.__class__ = member.__dict__["released_class"]
            for name in StageVariable.STATE_ATTRIBUTES:
                del member.__dict__[name]
            member.__dict__["_value"] = value
        del self.__dict__["_value"]
        self.__class__ = ReleasedBuffer


class ReleasedBuffer(StageBuffer):
    """A `StageBuffer` of variables that have other arrays now, for programs compiled before."""

    @property
    def _value(self) -> Any:
        if self.has_no_value:
            return _to_abstract(self)
        with init_scope():
            return self._assemble(self._shape, self.layout)

    @_value.setter
    def _value(self, value: Any) -> None:
        for member, part in zip(self.members, self.parts, strict=True):
            sharding = member.layout.to_sharding()
            member.assign(Tensor(_read(part.form, value, part.position_array[0], sharding)))

    @property
    def has_no_value(self) -> bool:
        """Return whether only the shape is known, because the model is planned but not run."""
        return any(member.has_no_value for member in self.members)


class StageVariable(MirroredVariable):
    """A variable that is a part of a `StageBuffer`; it reads and writes this part.

    Attributes:
      buffer: The buffer.
      part: Its part.
      released_class: Class of the variable outside of a buffer.
    """

    STATE_ATTRIBUTES = ("buffer", "part", "released_class")
    buffer: StageBuffer
    part: BufferPart
    released_class: type[Variable]

    @property
    def _value(self) -> Any:
        form, sharding = self.part.form, self._find_sharding()
        if self.buffer.has_no_value:
            return _to_abstract(self)
        with init_scope():
            array = self.buffer.value().array
            return _read(form, array, self.part.position_array[0], sharding)

    @_value.setter
    def _value(self, value: Any) -> None:
        if self.buffer.has_no_value:
            return
        form, positions = self.part.form, self.part.position_array
        sharding = self.buffer.layout.to_sharding()
        with init_scope():
            value = jax.device_put(value, self._find_sharding())
            array = self.buffer.value().array
            self.buffer.assign(Tensor(_write(form, array, positions, value, sharding)))

    def _find_sharding(self) -> Any:
        if self._own_layout is None:
            return NamedSharding(self.part.form.mesh, PartitionSpec())
        return self._own_layout.to_sharding()

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.part.form.shape

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shape)

    @property
    def device(self) -> str:
        """Return the name of the device that holds the value."""
        return self.buffer.device

    @property
    def has_no_value(self) -> bool:
        """Return whether only the shape is known, because the model is planned but not run."""
        return self.buffer.has_no_value

    @property
    def _is_captured(self) -> bool:
        """Return whether traces capture this variable instead of its buffer."""
        # Stages take the weights from the rows of the buffer. The planner traces models without
        # layouts for one device.
        return current_shares() is not None or self._own_layout is None

    def _read_in_trace(self, trace: ActiveTrace) -> Tensor:
        if self._is_captured:
            return super()._read_in_trace(trace)
        return self.part.read(self.buffer.value())

    def _write(self, value: Tensor) -> None:
        if context.trace is None or self._is_captured:
            super()._write(value)
            return
        static = self.part.form, self.part.positions
        self.buffer.assign(apply(_WRITE, (self.buffer.value(), value), static))


def _to_abstract(variable: Variable) -> jax.ShapeDtypeStruct:
    sharding = variable.layout and variable.layout.to_sharding()
    shape = get_value_shape(variable)
    return jax.ShapeDtypeStruct(shape, variable.dtype.dtype, sharding=sharding)


def get_storage(variable: Variable) -> Variable:
    """Return the buffer that a variable is a part of, or the variable itself."""
    return variable.buffer if isinstance(variable, StageVariable) else variable


def can_join_buffer(variable: object) -> bool:
    """Check whether a weight, and its slots, can be parts of buffers.

    Args:
      variable: A captured object.
    """
    layout = getattr(variable, "_own_layout", None)
    slots = getattr(variable, "_slot_layout", None)
    if type(variable) not in (Variable, MirroredVariable, StageVariable) or layout is None:
        return False
    is_offloaded = (
        getattr(variable, "_held", None) is not None
        or getattr(variable, "_slot_store", None) is not None
        or "host" in (layout.memory, getattr(slots, "memory", None))
    )
    scope: Any = context.trace
    while scope is not None and not is_offloaded:
        if scope.has_read(variable):
            return False
        scope = scope.parent
    return not is_offloaded


def place_weights(
    pack: ResidentPack,
    members: dict[int, Variable],
    layout: Layout,
    stage_layers: Sequence[Sequence[str]],
    creates: bool,
) -> dict[str, StageBuffer] | None:
    """Return the buffers of a pack's weights by dtype.

    Args:
      pack: Positions of the weights.
      members: The weights by index in the pack.
      layout: Layout of the buffers.
      stage_layers: Names of the layers of each stage.
      creates: Whether to move the weights into new buffers if they are not in buffers of this form.

    Returns:
      The buffers; None if they do not exist and are not created.
    """
    buffers: dict[str, StageBuffer] = {}
    p = layout.mesh.dim_size(pack.over)
    for dtype in pack.lengths:
        positions: dict[int, list[tuple[int, int, int]]] = {}
        for stage, spans in enumerate(pack.spans):
            for index, span in spans.items():
                if span.dtype == dtype:
                    position = stage % p, stage // p, span.offset
                    positions.setdefault(index, []).append(position)
        own, parts = [members[index] for index in positions], []
        for index, copies in positions.items():
            shape, pairs = pack.get_shape(index), tuple(pack.list_parts(index))
            form = PartForm(
                layout.mesh.jax_mesh, pack.over, shape, pairs, pack.get_part_spec(index)
            )
            parts.append(BufferPart(form, tuple(copies)))
        buffer = get_storage(own[0])
        if not (isinstance(buffer, StageBuffer) and buffer.holds(own, parts)):
            if not creates:
                return None
            shape = pack.get_array_shape(dtype, p)
            buffer = StageBuffer(pack, shape, own, parts, layout, stage_layers)
        buffers[dtype] = buffer
    return buffers
