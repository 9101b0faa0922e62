"""`Layout`: which mesh dimensions each axis of a tensor is split over."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.tensor import Tensor
from meshflow.placement.mesh import Mesh, mesh_of
from meshflow.placement.protos import LayoutProto, ShardingSpecProto
from meshflow.placement.sharding_groups import shard_like

__all__ = ["MATCH", "UNSHARDED", "Layout", "dimensions_of", "layout_of", "place", "place_like"]

UNSHARDED = "unsharded"
MATCH = "match"


class Layout:
    """How a tensor lies on a mesh: for each axis a mesh dimension, several of them, or `UNSHARDED`.

    Layouts that split alike are equal: a mesh dimension of size 1 splits nothing.

    Args:
      sharding_specs: one entry per axis of the tensor. An axis split over several mesh dimensions has
        "data+model" or ("data", "model"): over the first, and each of these parts over the second.
      mesh: the mesh.
      memory: "device", or "host": variables lie in the host's memory then, and programs bring them to the devices
        while they run. Text forms of a layout do not say so.

    Raises:
      ValueError: for an unknown or repeated mesh dimension, or memory that the devices do not reach.

    Example:
      >>> import meshflow as tf
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> dtensor.Layout(["x", dtensor.UNSHARDED], mesh).num_shards(0)
      1
    """

    def __init__(
        self, sharding_specs: Sequence[str | Sequence[str]], mesh: Mesh, memory: str = "device"
    ) -> None:
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(f"Layout: mesh is not a valid Mesh object, got {mesh!r}.")
        specs = [_spec(s) for s in sharding_specs]
        used = [name for spec in specs for name in dimensions_of(spec, mesh)]
        for name in used:
            if used.count(name) > 1:
                raise InvalidValueError(
                    f"Mesh dimensions must be unique. Mesh dimension {name} was repeated in sharding specs "
                    f"{specs}; it can split one axis of a tensor only."
                )
            if name not in mesh:
                raise InvalidValueError(
                    f"{name}: A dimension sharding must either be a valid mesh dimension, several of them joined by "
                    f"'+', or UNSHARDED; the mesh has the dimensions {mesh.dim_names}, the sharding specs are {specs}."
                )
        self.sharding_specs = specs
        self.mesh = mesh
        self.memory = check_memory(memory, mesh)

    # ---- making layouts --------------------------------------------------------------------

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """A layout with a full copy on every device.

        Args:
          mesh: the mesh.
          rank: number of axes.
        """
        return cls([] if mesh.is_single_device() else [UNSHARDED] * rank, mesh)

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """A layout split along one axis, by default the first.

        Args:
          mesh: the mesh.
          batch_dim: the mesh dimension.
          rank: number of axes.
          axis: the axis.
        """
        specs = [UNSHARDED] * rank
        specs[axis] = batch_dim
        return cls(specs, mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """A layout split along the last axis.

        Args:
          mesh: the mesh.
          inner_dim: the mesh dimension.
          rank: number of axes.
        """
        return cls.batch_sharded(mesh, inner_dim, rank, axis=rank - 1)

    @classmethod
    def from_single_device_mesh(cls, mesh: Mesh) -> Layout:
        """The layout of all tensors on a mesh of one device.

        Args:
          mesh: the mesh.
        """
        return cls([], mesh)

    @classmethod
    def from_device(cls, device: str) -> Layout:
        """The layout of all tensors on one device.

        Args:
          device: its name.
        """
        return cls([], Mesh.from_device(device))

    @classmethod
    def from_string(cls, layout_str: str) -> Layout:
        """The layout of a text form.

        Args:
          layout_str: what `to_string` gave.

        Raises:
          ValueError: when the text is not a layout.
        """
        head, separator, mesh = layout_str.partition(" mesh:")
        if not separator or not head.startswith("sharding_specs:"):
            raise InvalidValueError(
                f"{layout_str!r} is not a layout: expected 'sharding_specs:x,unsharded, mesh:...'."
            )
        specs = [s for s in head.removeprefix("sharding_specs:").split(",") if s]
        return cls(specs, Mesh.from_string(mesh))

    def to_string(self) -> str:
        """TensorFlow's text form."""
        specs = "".join(f"{s}," for s in self.sharding_specs)
        return f"sharding_specs:{specs} mesh:{self.mesh.to_string()}"

    def as_proto(self) -> LayoutProto:
        """The layout as a message with the fields of TensorFlow's `LayoutProto`."""
        specs = [ShardingSpecProto(s) for s in self.sharding_specs]
        return LayoutProto(specs, self.mesh.as_proto(), self.type)

    @classmethod
    def from_proto(cls, layout_proto: LayoutProto) -> Layout:
        """The layout of a message.

        Args:
          layout_proto: what `as_proto` gave.
        """
        specs = [s.sharding_spec for s in layout_proto.sharding_specs]
        return cls(specs, Mesh.from_proto(layout_proto.mesh_config))

    def unravel(self, unpacked_tensors: Sequence[Any]) -> np.ndarray:
        """The parts of a tensor, arranged as the parts lie in it.

        Args:
          unpacked_tensors: what `unpack` gave.

        Returns:
          An array of objects with one entry per part along each axis.
        """
        parts = np.empty([self.num_shards(i) for i in range(self.rank)], object)
        for offset, part in zip(self.offset_to_shard(), unpacked_tensors, strict=True):
            parts[offset] = part
        return parts

    def delete(self, dims: Sequence[int]) -> Layout:
        """The layout without some axes.

        Args:
          dims: the axes to leave out.
        """
        gone = {d % max(self.rank, 1) for d in dims}
        return Layout([s for i, s in enumerate(self.sharding_specs) if i not in gone], self.mesh)

    def to_parted(self) -> Layout:
        """This layout."""
        return self

    # ---- what it says ----------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.sharding_specs)

    @property
    def shape(self) -> list[int]:
        """The mesh's shape, as in TensorFlow."""
        return self.mesh.shape()

    @property
    def type(self) -> str:
        """'static', or 'single_device'."""
        return "single_device" if self.is_single_device() else "static"

    def num_shards(self, idx: int) -> int:
        """Into how many parts an axis is split.

        Args:
          idx: the axis.

        Raises:
          ValueError: when there is no such axis.
        """
        if not -self.rank <= idx < self.rank:
            raise InvalidValueError(
                f"num_shards: axis {idx} of a layout of rank {self.rank}: {self.sharding_specs}."
            )
        return math.prod(self.mesh.dim_size(d) for d in self._dimensions[idx])

    @functools.cached_property
    def _dimensions(self) -> list[tuple[str, ...]]:
        """For each axis the mesh dimensions that it is split over."""
        return [dimensions_of(spec, self.mesh) for spec in self.sharding_specs]

    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole tensor."""
        return all(self.num_shards(i) == 1 for i in range(self.rank))

    def is_batch_parallel(self) -> bool:
        """Whether the first axis is split and no other."""
        if not self.rank:
            return False
        return self.num_shards(0) > 1 and all(self.num_shards(i) == 1 for i in range(1, self.rank))

    def is_single_device(self) -> bool:
        """Whether the mesh has one device and no dimensions."""
        return self.mesh.is_single_device()

    def local_shape_from_global_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one device's part.

        Args:
          global_shape: the tensor's shape.

        Raises:
          InvalidArgumentError: when the rank differs or a size does not divide.
        """
        self.check(global_shape)
        return tuple(int(s) // self.num_shards(i) for i, s in enumerate(global_shape))

    local_shape = local_shape_from_global_shape

    def global_shape_from_local_shape(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the tensor whose parts have a shape.

        Args:
          local_shape: the shape of one device's part.
        """
        return tuple(int(s) * self.num_shards(i) for i, s in enumerate(local_shape))

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """For each device of the mesh, which part of the tensor it has, per axis."""

        def part(place: dict[str, int], dimensions: tuple[str, ...]) -> int:
            number = 0
            for name in dimensions:
                number = number * self.mesh.dim_size(name) + place[name]
            return number

        return [
            tuple(part(place, dimensions) for dimensions in self._dimensions)
            for place in self.mesh.unravel_index().values()
        ]

    def offset_tuple_to_global_index(self, offset_tuple: Sequence[int]) -> int:
        """Position of a part among all parts in row-major order.

        Args:
          offset_tuple: which part, per axis.
        """
        index = 0
        for axis, offset in enumerate(offset_tuple):
            index = index * self.num_shards(axis) + offset
        return index

    def check(self, shape: Sequence[int], what: str = "tensor") -> None:
        """Checks that a tensor of a shape can have this layout.

        Args:
          shape: the global shape.
          what: what the error calls the tensor.

        Raises:
          InvalidArgumentError: saying which axis does not fit.
        """
        if self.is_single_device():
            return
        if len(shape) != self.rank:
            raise InvalidArgumentError(
                f"Rank mismatch: the {what} of shape {tuple(shape)} has {len(shape)} axes, the layout "
                f"{self.sharding_specs} has {self.rank}."
            )
        for axis, size in enumerate(shape):
            if int(size) % self.num_shards(axis):
                names = self._dimensions[axis]
                of = "mesh dimension" if len(names) == 1 else "the mesh dimensions"
                raise InvalidArgumentError(
                    f"Axis {axis} of the {what} has size {size}, which does not divide into the "
                    f"{self.num_shards(axis)} parts of {of} {' and '.join(map(repr, names))} "
                    f"(shape {tuple(shape)}, layout {self.sharding_specs}). Pad it with tf.pad to a "
                    f"multiple of {self.num_shards(axis)}, or leave the axis unsharded."
                )

    def sharding(self) -> jax.sharding.NamedSharding:
        """The JAX sharding of this layout."""
        return self._sharding

    def in_memory(self, memory: str) -> Layout:
        """The layout in another memory.

        Args:
          memory: "device" or "host".
        """
        return self if memory == self.memory else Layout(self.sharding_specs, self.mesh, memory)

    @functools.cached_property
    def _sharding(self) -> jax.sharding.NamedSharding:
        # What XLA is to leave as it is has no other name in a function.
        free = jax.sharding.PartitionSpec.UNCONSTRAINED
        spec = [
            free if s == MATCH else d[0] if len(d) == 1 else d or None
            for s, d in zip(self.sharding_specs, self._dimensions, strict=True)
        ]
        kind = _HOST if self.memory == "host" else None
        over = jax.sharding.PartitionSpec(*spec)
        return jax.sharding.NamedSharding(self.mesh.jax_mesh, over, memory_kind=kind)

    def constrain(self, tensor: Tensor) -> Tensor:
        """The tensor moved into this layout; a variable with a layout calls it on every write."""
        return place(tensor, self)

    def _splits(self) -> list[Any]:
        """The specs without mesh dimensions of size 1, which split nothing and which XLA forgets."""
        return [
            MATCH if spec == MATCH else tuple(d for d in dimensions if self.mesh.dim_size(d) > 1)
            for spec, dimensions in zip(self.sharding_specs, self._dimensions, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.mesh == other.mesh
            and self.memory == other.memory
            and (self.sharding_specs == other.sharding_specs or self._splits() == other._splits())
        )

    def __hash__(self) -> int:
        return hash((tuple(self._splits()), self.mesh))

    def __repr__(self) -> str:
        return f"Layout.from_string({self.to_string()})"

    def __reduce__(self) -> Any:
        return Layout, (self.sharding_specs, self.mesh, self.memory)


# JAX's name of the memory of hosts that devices read by themselves.
_HOST = "pinned_host"


def check_memory(memory: str, mesh: Mesh, asked: str = 'Layout: memory="host"') -> str:
    """A layout's memory, checked.

    Args:
      memory: "device" or "host".
      mesh: the mesh.
      asked: what errors say asked for it.

    Raises:
      ValueError: for another, or one that the devices do not reach.
    """
    if memory not in ("device", "host"):
        raise InvalidValueError(f'Layout: memory must be "device" or "host", got {memory!r}.')
    if memory == "host":
        device = mesh.jax_mesh.devices.flat[0]
        kinds = {m.kind for m in device.addressable_memories()}
        if _HOST not in kinds:
            raise InvalidValueError(
                f"{asked} needs devices that reach the memory {_HOST!r}; those of the mesh ({device.device_kind}) have "
                f"{sorted(kinds)}. Leave it out, or take devices that have it."
            )
    return memory


def _spec(entry: Any) -> str:
    """The text of an entry of `sharding_specs`."""
    return (
        "+".join(map(str, entry)) or UNSHARDED if isinstance(entry, (tuple, list)) else str(entry)
    )


def dimensions_of(spec: str, mesh: Mesh) -> tuple[str, ...]:
    """The mesh dimensions that an axis with a sharding spec is split over, the coarsest first."""
    if spec in (UNSHARDED, MATCH):
        return ()
    return (spec,) if spec in mesh else tuple(spec.split("+"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _moved(array: Any, sharding: Any) -> Any:
    return jax.lax.with_sharding_constraint(array, sharding)


def _moved_forward(array: Any, sharding: Any) -> tuple[Any, Any]:
    return _moved(array, sharding), array


def _moved_backward(sharding: Any, array: Any, gradient: Any) -> tuple[Any]:
    # A gradient lies as what it is the gradient of.
    return (shard_like(gradient, array),)


_moved.defvjp(_moved_forward, _moved_backward)


def _relaid(operands: Any, static: Any) -> Any:
    # Programs compute in the devices' memory, wherever variables are in between.
    return _moved(operands[0], static[0].in_memory("device").sharding())


_relayout = Op("relayout", _relaid, is_foldable=False)


def place(tensor: Tensor, layout: Layout) -> Tensor:
    """A tensor in a layout: moved now, or (while a function is traced) when it runs.

    Raises:
      InvalidArgumentError: when the shape does not fit the layout.
    """
    layout.check(tensor.shape.as_list())
    if context.on_parts:
        return tensor
    value = tensor._value
    if context.trace is None and not context.tapes and not isinstance(value, jax.core.Tracer):
        if isinstance(value, jax.Array) and value.sharding == layout.sharding():
            return tensor
        return Tensor(put(value, layout))
    if context.trace is None:
        # A jitted constraint takes operands of its own mesh only.
        _to_mesh(tensor, layout)
    return apply(_relayout, (tensor,), (layout,))


def put(value: Any, layout: Layout) -> Any:
    """An array in a layout; in several processes each gives the whole (equal) value."""
    sharding = layout.sharding()
    if isinstance(value, jax.Array) and value.is_fully_addressable == (jax.process_count() == 1):
        return jax.device_put(value, sharding)
    # Part by part, which takes half the time of `device_put`.
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def _move_like(operands: Any, _: Any) -> Any:
    return shard_like(operands[0], operands[1])


_relayout_like = Op("relayout_like", _move_like, is_foldable=False)


def place_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor in the layout of another of its shape, which may be known when the function runs only.

    Raises:
      InvalidArgumentError: when the shapes differ.
    """
    if tensor.shape.as_list() != other.shape.as_list():
        raise InvalidArgumentError(
            f"relayout_like: a tensor of shape {tensor.shape} cannot take the layout of one of shape {other.shape}."
        )
    return apply(_relayout_like, (tensor, other))


def _to_mesh(tensor: Tensor, layout: Layout) -> None:
    value = tensor._value
    if isinstance(value, jax.Array) and value.committed:
        own = layout_of(tensor)
        if own is not None and own.mesh.jax_mesh.devices.tolist() != (
            layout.mesh.jax_mesh.devices.tolist()
        ):
            raise InvalidArgumentError(
                f"relayout: the tensor is on {own.mesh}, the layout on {layout.mesh}. A tensor that a "
                "GradientTape watches stays on its mesh; move it outside the tape."
            )


def layout_of(tensor: Any) -> Layout | None:
    """The layout of a tensor or variable that lies on a mesh; None for any other."""
    value = tensor._value
    sharding = getattr(value, "sharding", None)
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return None
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    entries = itertools.chain(sharding.spec, itertools.repeat(None))
    specs = []
    for _, entry in zip(range(value.ndim), entries, strict=False):
        names = (entry,) if isinstance(entry, str) else tuple(entry or ())
        specs.append(_spec(names))
    mesh = mesh_of(sharding.mesh)
    return Layout([] if mesh.is_single_device() else specs, mesh)
