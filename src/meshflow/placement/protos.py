"""Messages for meshes and layouts, with the fields of TensorFlow's protocol buffers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DimensionProto:
    """Mesh dimension: `name` and `size`."""

    name: str
    size: int


@dataclass
class MeshProto:
    """Message that `Mesh.as_proto` returns.

    Attributes:
      mesh_dimensions: Dimensions of the mesh.
      global_device_ids: Flat list of the global device ids.
      local_device_ids: Flat list of the ids of this process's devices.
      local_devices: Names of this process's devices.
      global_devices: Names of all devices.
      name: Name of the mesh.
      use_xla_spmd: Argument of the mesh.
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
    """Mesh dimension of one axis, or several joined by "+": `sharding_spec`."""

    sharding_spec: str


@dataclass
class LayoutProto:
    """Message that `Layout.as_proto` returns.

    Attributes:
      sharding_specs: One spec for each axis.
      mesh_config: Mesh of the layout.
      type: Type of the layout: "static" or "single_device".
    """

    sharding_specs: list[ShardingSpecProto]
    mesh_config: MeshProto
    type: str = "static"
