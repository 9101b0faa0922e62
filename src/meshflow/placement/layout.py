"""`Layout`: the mesh dimensions over which each axis of a tensor is split."""

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
from meshflow.environment.types import ArrayLike
from meshflow.placement.mesh import Mesh, get_or_create_mesh
from meshflow.placement.protos import LayoutProto, ShardingSpecProto
from meshflow.placement.sharding_groups import shard_like

UNSHARDED = "unsharded"
MATCH = "match"


class Layout:
    """Sharding of a tensor over a mesh: mesh dimensions, or `UNSHARDED`, for each axis.

    Layouts with the same effect are equal: a mesh dimension of size 1 does not split an axis.

    Args:
      sharding_specs: One entry per axis of the tensor. An axis that is split over several mesh
        dimensions has "data+model" or ("data", "model"): it is split over the first one, and each
        of these parts over the second one.
      mesh: Mesh of the devices.
      memory: "device" or "host". Variables in the memory of the host are transferred to the devices
        while a program runs. `to_string` and `as_proto` do not record the memory.

    Raises:
      ValueError: If a mesh dimension is unknown or repeated, or if the devices cannot access the
        memory.

    Example:
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
        specs = [_format_spec(s) for s in sharding_specs]
        used = [name for spec in specs for name in list_spec_dimensions(spec, mesh)]
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

    # ---- constructors ------------------------------------------------------------------------

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """Create a layout with a full copy on every device.

        Args:
          mesh: Mesh of the devices.
          rank: Number of axes of the tensor.
        """
        return cls([] if mesh.is_single_device() else [UNSHARDED] * rank, mesh)

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Create a layout that is split along one axis.

        Args:
          mesh: Mesh of the devices.
          batch_dim: Mesh dimension to split over.
          rank: Number of axes of the tensor.
          axis: Axis that is split; default the first.
        """
        specs = [UNSHARDED] * rank
        specs[axis] = batch_dim
        return cls(specs, mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """Create a layout that is split along the last axis.

        Args:
          mesh: Mesh of the devices.
          inner_dim: Mesh dimension to split over.
          rank: Number of axes of the tensor.
        """
        return cls.batch_sharded(mesh, inner_dim, rank, axis=rank - 1)

    @classmethod
    def from_single_device_mesh(cls, mesh: Mesh) -> Layout:
        """Create the layout of the tensors on a mesh of one device."""
        return cls([], mesh)

    @classmethod
    def from_device(cls, device: str) -> Layout:
        """Create the layout of the tensors on one device."""
        return cls([], Mesh.from_device(device))

    @classmethod
    def from_string(cls, layout_str: str) -> Layout:
        """Parse a layout.

        Args:
          layout_str: Text that `to_string` returned.

        Raises:
          ValueError: If the text is not a layout.
        """
        head, separator, mesh = layout_str.partition(" mesh:")
        if not separator or not head.startswith("sharding_specs:"):
            raise InvalidValueError(
                f"{layout_str!r} is not a layout: expected 'sharding_specs:x,unsharded, mesh:...'."
            )
        specs = [s for s in head.removeprefix("sharding_specs:").split(",") if s]
        return cls(specs, Mesh.from_string(mesh))

    def to_string(self) -> str:
        """Return the layout as text, in TensorFlow's format."""
        specs = "".join(f"{s}," for s in self.sharding_specs)
        return f"sharding_specs:{specs} mesh:{self.mesh.to_string()}"

    def as_proto(self) -> LayoutProto:
        """Return a message with the fields of TensorFlow's `LayoutProto`."""
        specs = [ShardingSpecProto(s) for s in self.sharding_specs]
        return LayoutProto(specs, self.mesh.as_proto(), self.type)

    @classmethod
    def from_proto(cls, layout_proto: LayoutProto) -> Layout:
        """Create a layout from a message."""
        specs = [s.sharding_spec for s in layout_proto.sharding_specs]
        return cls(specs, Mesh.from_proto(layout_proto.mesh_config))

    def unravel(self, unpacked_tensors: Sequence[Any]) -> np.ndarray:
        """Arrange the shards of a tensor by their positions in it.

        Args:
          unpacked_tensors: Shards in the order of the devices, as `unpack` returns them.

        Returns:
          An object array with one entry per shard along each axis.
        """
        parts = np.empty([self.num_shards(i) for i in range(self.rank)], object)
        for offset, part in zip(self.offset_to_shard(), unpacked_tensors, strict=True):
            parts[offset] = part
        return parts

    def delete(self, dims: Sequence[int]) -> Layout:
        """Return the layout without some axes.

        Args:
          dims: Indices of the axes to remove.
        """
        removed = {d % max(self.rank, 1) for d in dims}
        return Layout([s for i, s in enumerate(self.sharding_specs) if i not in removed], self.mesh)

    def to_parted(self) -> Layout:
        """Return this layout."""
        return self

    # ---- properties --------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Return the number of axes."""
        return len(self.sharding_specs)

    @property
    def shape(self) -> list[int]:
        """Return the shape of the mesh, as TensorFlow does."""
        return self.mesh.shape()

    @property
    def type(self) -> str:
        """Return 'static' or 'single_device'."""
        return "single_device" if self.is_single_device() else "static"

    def num_shards(self, idx: int) -> int:
        """Return the number of shards along an axis.

        Args:
          idx: Index of the axis.

        Raises:
          ValueError: If the layout has no such axis.
        """
        if not -self.rank <= idx < self.rank:
            raise InvalidValueError(
                f"num_shards: axis {idx} of a layout of rank {self.rank}: {self.sharding_specs}."
            )
        return math.prod(self.mesh.dim_size(d) for d in self._dimensions[idx])

    @functools.cached_property
    def _dimensions(self) -> list[tuple[str, ...]]:
        """Return the mesh dimensions that each axis is split over."""
        return [list_spec_dimensions(spec, self.mesh) for spec in self.sharding_specs]

    def is_fully_replicated(self) -> bool:
        """Check whether every device has the full tensor."""
        return all(self.num_shards(i) == 1 for i in range(self.rank))

    def is_batch_parallel(self) -> bool:
        """Check whether the first axis is split and no other."""
        if not self.rank:
            return False
        return self.num_shards(0) > 1 and all(self.num_shards(i) == 1 for i in range(1, self.rank))

    def is_single_device(self) -> bool:
        """Check whether the mesh has one device and no dimensions."""
        return self.mesh.is_single_device()

    def local_shape_from_global_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the shard of one device.

        Args:
          global_shape: Shape of the full tensor.

        Raises:
          InvalidArgumentError: If the rank differs, or if a size is not divisible by the number of
            shards.
        """
        self.check_shape(global_shape)
        return tuple(int(s) // self.num_shards(i) for i, s in enumerate(global_shape))

    local_shape = local_shape_from_global_shape

    def global_shape_from_local_shape(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the full tensor.

        Args:
          local_shape: Shape of the shard of one device.
        """
        return tuple(int(s) * self.num_shards(i) for i, s in enumerate(local_shape))

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return the index of each device's shard along every axis, in the order of the devices."""

        def compute_index(location: dict[str, int], dimensions: tuple[str, ...]) -> int:
            index = 0
            for name in dimensions:
                index = index * self.mesh.dim_size(name) + location[name]
            return index

        return [
            tuple(compute_index(location, dimensions) for dimensions in self._dimensions)
            for location in self.mesh.unravel_index().values()
        ]

    def offset_tuple_to_global_index(self, offset_tuple: Sequence[int]) -> int:
        """Return the row-major index of a shard.

        Args:
          offset_tuple: Index of the shard along each axis.
        """
        index = 0
        for axis, offset in enumerate(offset_tuple):
            index = index * self.num_shards(axis) + offset
        return index

    def check_shape(self, shape: Sequence[int], label: str = "tensor") -> None:
        """Check that a tensor can have this layout.

        Args:
          shape: Global shape of the tensor.
          label: Description of the tensor in error messages.

        Raises:
          InvalidArgumentError: If the rank differs, or if a size is not divisible by the number of
            shards.
        """
        if self.is_single_device():
            return
        if len(shape) != self.rank:
            raise InvalidArgumentError(
                f"Rank mismatch: the {label} of shape {tuple(shape)} has {len(shape)} axes, the layout "
                f"{self.sharding_specs} has {self.rank}."
            )
        for axis, size in enumerate(shape):
            if int(size) % self.num_shards(axis):
                names = self._dimensions[axis]
                noun = "mesh dimension" if len(names) == 1 else "the mesh dimensions"
                raise InvalidArgumentError(
                    f"Axis {axis} of the {label} has size {size}, which does not divide into the "
                    f"{self.num_shards(axis)} parts of {noun} {' and '.join(map(repr, names))} "
                    f"(shape {tuple(shape)}, layout {self.sharding_specs}). Pad it with tf.pad to a "
                    f"multiple of {self.num_shards(axis)}, or leave the axis unsharded."
                )

    def to_sharding(self) -> jax.sharding.NamedSharding:
        """Return the JAX sharding of this layout."""
        return self._sharding

    def with_memory(self, memory: str) -> Layout:
        """Return the layout in another memory."""
        return self if memory == self.memory else Layout(self.sharding_specs, self.mesh, memory)

    @functools.cached_property
    def _sharding(self) -> jax.sharding.NamedSharding:
        # A `MATCH` axis keeps the sharding that XLA chooses for it.
        unconstrained = jax.sharding.PartitionSpec.UNCONSTRAINED
        entries = [
            unconstrained if s == MATCH else d[0] if len(d) == 1 else d or None
            for s, d in zip(self.sharding_specs, self._dimensions, strict=True)
        ]
        kind = _HOST_MEMORY_KIND if self.memory == "host" else None
        spec = jax.sharding.PartitionSpec(*entries)
        return jax.sharding.NamedSharding(self.mesh.jax_mesh, spec, memory_kind=kind)

    def constrain(self, tensor: Tensor) -> Tensor:
        """Return a tensor with this layout; variables with a layout call it on every write."""
        return apply_layout(tensor, self)

    def _get_effective_specs(self) -> list[str | tuple[str, ...]]:
        """Return the specs without mesh dimensions of size 1, which XLA drops, too."""
        return [
            MATCH if spec == MATCH else tuple(d for d in dimensions if self.mesh.dim_size(d) > 1)
            for spec, dimensions in zip(self.sharding_specs, self._dimensions, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.mesh == other.mesh
            and self.memory == other.memory
            and (
                self.sharding_specs == other.sharding_specs
                or self._get_effective_specs() == other._get_effective_specs()
            )
        )

    def __hash__(self) -> int:
        return hash((tuple(self._get_effective_specs()), self.mesh))

    def __repr__(self) -> str:
        return f"Layout.from_string({self.to_string()})"

    def __reduce__(self) -> tuple[object, tuple[list[str], Mesh, str]]:
        return Layout, (self.sharding_specs, self.mesh, self.memory)


# JAX's name of host memory that devices can access directly.
_HOST_MEMORY_KIND = "pinned_host"


def check_memory(memory: str, mesh: Mesh, request: str = 'Layout: memory="host"') -> str:
    """Check the memory of a layout and return it.

    Args:
      memory: "device" or "host".
      mesh: Mesh of the devices.
      request: Option that requires the memory, for error messages.

    Raises:
      ValueError: If the memory is unknown, or if the devices cannot access it.
    """
    if memory not in ("device", "host"):
        raise InvalidValueError(f'Layout: memory must be "device" or "host", got {memory!r}.')
    if memory == "host":
        device = mesh.jax_mesh.devices.flat[0]
        kinds = {m.kind for m in device.addressable_memories()}
        if _HOST_MEMORY_KIND not in kinds:
            raise InvalidValueError(
                f"{request} needs devices that reach the memory {_HOST_MEMORY_KIND!r}; those of the mesh ({device.device_kind}) have "
                f"{sorted(kinds)}. Leave it out, or take devices that have it."
            )
    return memory


def _format_spec(entry: str | Sequence[str]) -> str:
    """Return an entry of `sharding_specs` as text."""
    return (
        "+".join(map(str, entry)) or UNSHARDED if isinstance(entry, (tuple, list)) else str(entry)
    )


def list_spec_dimensions(spec: str, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh dimensions that a sharding spec splits an axis over, the outermost first."""
    if spec in (UNSHARDED, MATCH):
        return ()
    return (spec,) if spec in mesh else tuple(spec.split("+"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _constrain(array: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(array, sharding)


def _constrain_forward(
    array: jax.Array, sharding: jax.sharding.Sharding
) -> tuple[jax.Array, jax.Array]:
    return _constrain(array, sharding), array


def _constrain_backward(
    sharding: jax.sharding.Sharding, array: jax.Array, gradient: jax.Array
) -> tuple[jax.Array]:
    # A gradient has the sharding of the array that it belongs to.
    return (shard_like(gradient, array),)


_constrain.defvjp(_constrain_forward, _constrain_backward)


def _compute_relayout(operands: Sequence[jax.Array], static: Sequence[Layout]) -> jax.Array:
    # Programs compute in device memory, even if variables are in host memory between the steps.
    return _constrain(operands[0], static[0].with_memory("device").to_sharding())


_relayout = Op("relayout", _compute_relayout, is_foldable=False)


def apply_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """Return a tensor with a layout: moved now or, while a function is traced, when it runs.

    Layouts have no effect inside a shard region and in programs that are exported.

    Raises:
      InvalidArgumentError: If the shape does not fit the layout.
    """
    layout.check_shape(tensor.shape.as_list())
    # An exported program runs on devices of its caller, on any number of them.
    if context.in_shard_region or context.exporting:
        return tensor
    value = tensor.array
    if context.trace is None and not context.tapes and not isinstance(value, jax.core.Tracer):
        if isinstance(value, jax.Array) and value.sharding == layout.to_sharding():
            return tensor
        return Tensor(put_on_mesh(value, layout))
    if context.trace is None:
        # The operands of a jitted sharding constraint must be on its mesh.
        _check_mesh(tensor, layout)
    return apply(_relayout, (tensor,), (layout,))


def put_on_mesh(value: ArrayLike, layout: Layout) -> jax.Array:
    """Copy an array to a mesh; if there are several processes, each passes the same full value."""
    sharding = layout.to_sharding()
    if isinstance(value, jax.Array) and value.is_fully_addressable == (jax.process_count() == 1):
        return jax.device_put(value, sharding)
    # Copying shard by shard takes half the time of `device_put`.
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def _compute_relayout_like(operands: Sequence[jax.Array], _: object) -> jax.Array:
    return shard_like(operands[0], operands[1])


_relayout_like = Op("relayout_like", _compute_relayout_like, is_foldable=False)


def apply_layout_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Return a tensor with the layout of another tensor, which may be unknown until the function runs.

    Raises:
      InvalidArgumentError: If the shapes differ.
    """
    if tensor.shape.as_list() != model.shape.as_list():
        raise InvalidArgumentError(
            f"relayout_like: a tensor of shape {tensor.shape} cannot take the layout of one of shape {model.shape}."
        )
    return apply(_relayout_like, (tensor, model))


def _check_mesh(tensor: Tensor, layout: Layout) -> None:
    value = tensor.array
    if isinstance(value, jax.Array) and value.committed:
        current = find_layout(tensor)
        if current is not None and current.mesh.jax_mesh.devices.tolist() != (
            layout.mesh.jax_mesh.devices.tolist()
        ):
            raise InvalidArgumentError(
                f"relayout: the tensor is on {current.mesh}, the layout on {layout.mesh}. A tensor that a "
                "GradientTape watches stays on its mesh; move it outside the tape."
            )


def find_layout(tensor: Any) -> Layout | None:
    """Return the layout of a tensor or variable on a mesh, or None if it is not on a mesh."""
    return find_array_layout(tensor._value)


def find_array_layout(array: object) -> Layout | None:
    """Return the layout of an array on a mesh, or None for other arrays and for tracers."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return None
    sharding = array.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    entries = itertools.chain(sharding.spec, itertools.repeat(None))
    specs = []
    for _, entry in zip(range(array.ndim), entries, strict=False):
        names = (entry,) if isinstance(entry, str) else tuple(entry or ())
        specs.append(_format_spec(names))
    jax_mesh: Any = sharding.mesh
    mesh = get_or_create_mesh(jax_mesh)
    return Layout([] if mesh.is_single_device() else specs, mesh)
