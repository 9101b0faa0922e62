"""Meshes and layouts as plain messages with the fields of TensorFlow's protocol buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DimensionProto", "LayoutProto", "MeshProto", "ShardingSpecProto"]


@dataclass
class DimensionProto:
    """A mesh dimension: `name` and `size`."""

    name: str
    size: int


@dataclass
class MeshProto:
    """What `Mesh.as_proto` gives.

    Attributes:
      mesh_dimensions: the dimensions.
      global_device_ids: flat global ids.
      local_device_ids: flat ids of this process.
      local_devices: names of this process's devices.
      global_devices: names of all devices.
      name: the mesh's name.
      use_xla_spmd: as given to the mesh.
    """

    mesh_dimensions: list[DimensionProto] = field(default_factory=list)
    global_device_ids: list[int] = field(default_factory=list)
    local_device_ids: list[int] = field(default_factory=list)
    local_devices: list[str] = field(default_factory=list)
    global_devices: list[str] = field(default_factory=list)
    name: str = ""
    use_xla_spmd: bool = False


@dataclass
class ShardingSpecProto:
    """The mesh dimension of one axis, or several joined by "+": `sharding_spec`."""

    sharding_spec: str


@dataclass
class LayoutProto:
    """What `Layout.as_proto` gives.

    Attributes:
      sharding_specs: one for each axis.
      mesh_config: the mesh.
      type: the kind of layout, as text.
    """

    sharding_specs: list[ShardingSpecProto]
    mesh_config: MeshProto
    type: str = "static"
