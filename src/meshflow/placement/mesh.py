"""`Mesh`: a named grid of devices, over which tensors and batches are sharded."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.devices import find_device, get_device_type, get_local_index
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.placement.protos import DimensionProto, MeshProto


class MeshDimension(NamedTuple):
    """Dimension of a mesh: its `name` and its `size`."""

    name: str
    size: int


def get_device_name(device: jax.Device) -> str:
    """Return TensorFlow's full name of a JAX device, with the process as the task."""
    job = "localhost" if jax.process_count() == 1 else "worker"
    task = f"/job:{job}/replica:0/task:{device.process_index}"
    return f"{task}/device:{get_device_type(device)}:{get_local_index(device)}"


def complete_device_name(device: object) -> str:
    """Return the full name of a device, which need not exist.

    Raises:
      ValueError: If the text does not name a device.
    """
    is_distributed = jax.distributed.is_initialized()
    local = DeviceSpec(
        "worker" if is_distributed else "localhost",
        0,
        jax.process_index() if is_distributed else 0,
        None,
        0,
    )
    spec = local.make_merged_spec(DeviceSpec.from_string(to_device_string(device)))
    if spec.device_type is None:
        raise InvalidValueError(
            f"{to_device_string(device)!r} does not name a device such as 'CPU:0'."
        )
    return spec.to_string()


def to_device_string(device: object) -> str:
    """Return the name of a device: of a string, a `tf.DeviceSpec` or a logical device."""
    return str(getattr(device, "name", None) or getattr(device, "to_string", lambda: device)())


def find_jax_device(name: object) -> jax.Device:
    """Find the JAX device of a device string, a `tf.DeviceSpec` or a logical device.

    Raises:
      ValueError: If there is no such device.
    """
    text = to_device_string(name)
    if jax.process_count() > 1 and "/task:" in text.lower():
        task = int(text.lower().split("/task:")[1].split("/")[0])
        if task != jax.process_index():
            for device in jax.devices():
                if get_device_name(device).lower() == text.lower():
                    return device
    return find_device(text)


class Mesh:
    """Grid of devices with named dimensions.

    Most programs call `create_mesh`; the constructor takes the parts of the mesh's text format.
    Devices are looked up when the mesh is first used, so a mesh can be created before virtual
    devices are configured.

    Args:
      dim_names: Names of the dimensions.
      global_device_ids: Array of the mesh's shape with the consecutive global ids 0, 1, 2, ... of
        its devices.
      local_device_ids: Global ids of the devices of this process, flat.
      local_devices: Devices of this process, as strings such as "CPU:0".
      mesh_name: Name of the mesh.
      global_devices: All devices in the order of their ids; default the local devices.
      use_xla_spmd: Accepted for TPUs; XLA partitions programs in any case.

    Raises:
      ValueError: If dimension names or devices are repeated, ids are not consecutive, the shape
        does not fit the names, or `use_xla_spmd` is set for other devices than TPUs.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
      >>> mesh.dim_names, mesh.size
      (['batch'], 1)
    """

    # Printed tensors show the mesh, unless the mesh belongs to a strategy.
    is_printed = True

    def __init__(
        self,
        dim_names: Sequence[str],
        global_device_ids: np.typing.ArrayLike,
        local_device_ids: Sequence[int],
        local_devices: Sequence[object],
        mesh_name: str = "",
        global_devices: Sequence[object] | None = None,
        use_xla_spmd: bool = False,
    ) -> None:
        names = [str(n) for n in dim_names]
        ids = np.asarray(global_device_ids)
        if ids.ndim != len(names):
            raise InvalidValueError(
                f"Mesh: global_device_ids has {ids.ndim} dimensions, but there are {len(names)} "
                f"dimension names {names}."
            )
        if len(set(names)) != len(names):
            raise InvalidValueError(f"Mesh: dimension names must be different, got {names}.")
        flat = [int(i) for i in ids.ravel()]
        if flat != list(range(flat[0] if flat else 0, (flat[0] if flat else 0) + len(flat))):
            raise InvalidValueError(
                f"Mesh: global_device_ids must sequentially increase, each by one; got {flat}."
            )
        listed = list(global_devices if global_devices else local_devices)
        if not global_devices and len(listed) == len(local_device_ids) == len(flat):
            # The local devices are listed in the order of `local_device_ids`, the devices of the
            # mesh by rising id.
            by_id = dict(zip(local_device_ids, listed, strict=True))
            listed = [by_id.get(i, device) for i, device in zip(flat, listed, strict=True)]
        devices = [d if isinstance(d, jax.Device) else complete_device_name(d) for d in listed]
        if len(devices) != len(flat):
            raise InvalidValueError(
                f"Mesh: {len(flat)} device ids, but {len(devices)} devices {listed}."
            )
        if len(set(devices)) != len(devices):
            raise InvalidValueError(f"Duplicate devices found in mesh specification {listed}.")
        types = {d.split(":")[-2] if isinstance(d, str) else get_device_type(d) for d in devices}
        if len(types) > 1:
            raise InvalidValueError(
                f"Devices containing multiple device_types: {listed}. A mesh has devices of one type."
            )
        if use_xla_spmd and types != {"TPU"}:
            raise InvalidValueError(
                f"XLA SPMD is not currently not supported for {types.pop()} meshes: leave use_xla_spmd out."
            )
        self._dim_names = names
        self._ids = ids
        self._name = mesh_name
        self._use_xla_spmd = bool(use_xla_spmd)
        self._type = types.pop() if types else ""
        self._devices = devices
        self._local_ids = [int(i) for i in local_device_ids]

    @functools.cached_property
    def jax_mesh(self) -> jax.sharding.Mesh:
        """Return the mesh of JAX devices.

        Raises:
          ValueError: If a device does not exist.
        """
        devices = np.empty(len(self._devices), object)
        devices[:] = [find_jax_device(d) if isinstance(d, str) else d for d in self._devices]
        jax_mesh = jax.sharding.Mesh(devices.reshape(self._ids.shape), tuple(self._dim_names))
        _MESHES[jax_mesh] = self
        return jax_mesh

    @functools.cached_property
    def _device_names(self) -> tuple[str, ...]:
        return tuple(d if isinstance(d, str) else get_device_name(d) for d in self._devices)

    # ---- dimensions ------------------------------------------------------------------------

    @property
    def dim_names(self) -> list[str]:
        """Return the names of the dimensions."""
        return list(self._dim_names)

    @property
    def name(self) -> str:
        """Return the name of the mesh."""
        return self._name

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return self._ids.size

    @property
    def strides(self) -> list[int]:
        """Return the distance of neighbours along each dimension in the flat list of devices."""
        shape = self.shape()
        return [math.prod(shape[i + 1 :]) for i in range(len(shape))]

    def shape(self) -> list[int]:
        """Return the size of each dimension."""
        return list(self._ids.shape)

    def dim_size(self, dim_name: str) -> int:
        """Return the size of a dimension.

        Raises:
          ValueError: If the mesh has no such dimension.
        """
        if dim_name not in self._dim_names:
            raise InvalidValueError(
                f'"{dim_name}" is not a dimension name of this mesh, whose dimensions are '
                f"{self._dim_names}."
            )
        return self._ids.shape[self._dim_names.index(dim_name)]

    def contains_dim(self, dim_name: str) -> bool:
        """Check whether the mesh has a dimension with a name."""
        return dim_name in self._dim_names

    def __contains__(self, dim_name: object) -> bool:
        return dim_name in self._dim_names

    def __getitem__(self, dim_name: str) -> MeshDimension:
        if dim_name not in self._dim_names:
            raise KeyError(f"Dimension {dim_name} not defined in mesh: {self._dim_names}")
        return MeshDimension(dim_name, self.dim_size(dim_name))

    def coords(self, device_idx: int) -> np.ndarray:
        """Return the coordinates of a device in the mesh.

        Args:
          device_idx: Index of the device in the flat list, modulo the number of devices.
        """
        return np.array(np.unravel_index(device_idx % self.size, self._ids.shape))

    def unravel_index(self) -> dict[int, dict[str, int]]:
        """Return the coordinates of every device by its id, as dictionaries of dimension names."""
        first = self.min_global_device_id()
        return {first + i: self.device_location(first + i) for i in range(self.size)}

    def device_location(self, device_id: int) -> dict[str, int]:
        """Return the coordinate of a device along each dimension.

        Raises:
          ValueError: If the mesh has no such device.
        """
        position = device_id - self.min_global_device_id()
        if not 0 <= position < self.size:
            raise InvalidValueError(
                f"The mesh has devices {self.global_device_ids().ravel().tolist()}, not {device_id}."
            )
        return dict(zip(self._dim_names, self.coords(position).tolist(), strict=True))

    # ---- devices ---------------------------------------------------------------------------

    def device_type(self) -> str:
        """Return the device type: "CPU", "GPU" or "TPU"."""
        return self._type

    def global_device_ids(self) -> np.ndarray:
        """Return the global device ids, in the shape of the mesh."""
        return self._ids

    def min_global_device_id(self) -> int:
        """Return the smallest global device id."""
        return int(self._ids.ravel()[0])

    def global_devices(self) -> list[str]:
        """Return the names of all devices in the order of their ids."""
        return list(self._device_names)

    def local_device_ids(self) -> list[int]:
        """Return the global ids of the devices of this process."""
        return list(self._local_ids)

    def local_devices(self) -> list[str]:
        """Return the names of the devices of this process."""
        first = self.min_global_device_id()
        return [self._device_names[i - first] for i in self._local_ids]

    def num_local_devices(self) -> int:
        """Return the number of devices of this process."""
        return len(self._local_ids)

    def local_device_locations(self) -> list[dict[str, int]]:
        """Return the coordinates of the devices of this process."""
        return [self.device_location(i) for i in self._local_ids]

    def is_remote(self) -> bool:
        """Check whether this process has no device of the mesh."""
        return not self._local_ids

    def is_single_device(self) -> bool:
        """Check whether the mesh is one device without dimensions, as created by `from_device`."""
        return not self._dim_names

    @property
    def single_device(self) -> str:
        """Return the name of the only device, or an empty string for a mesh with dimensions."""
        return self._device_names[0] if self.is_single_device() else ""

    def use_xla_spmd(self) -> bool:
        """Return the argument `use_xla_spmd`; XLA partitions programs in any case."""
        return self._use_xla_spmd

    def host_mesh(self) -> Mesh:
        """Return a mesh of the same shape on the CPUs of this machine."""
        if self.device_type() == "CPU":
            return self
        names = [f"CPU:{i - self.min_global_device_id()}" for i in self._local_ids]
        return Mesh(self._dim_names, self._ids, self._local_ids, names)

    # ---- text and messages -----------------------------------------------------------------

    def to_string(self) -> str:
        """Return TensorFlow's text format: name, dimensions, global ids, local ids, devices."""
        if self.is_single_device():
            return self.single_device
        dims = ",".join(f"{n}={s}" for n, s in zip(self._dim_names, self.shape(), strict=True))
        ids = ",".join(str(int(i)) for i in self._ids.ravel())
        local = ",".join(map(str, self._local_ids))
        text = f"{self._name}|{dims}|{ids}|{local}|{','.join(self.local_devices())}"
        if self.num_local_devices() != self.size:
            text += f"|{','.join(self.global_devices())}"
        return text + ("|use_xla_spmd" if self._use_xla_spmd else "")

    @classmethod
    def from_string(cls, mesh_str: str) -> Mesh:
        """Parse a mesh.

        Args:
          mesh_str: Text that `to_string` returned.

        Raises:
          ValueError: If the text is not a mesh.
        """
        if mesh_str and "|" not in mesh_str:
            return cls.from_device(mesh_str)
        parts = mesh_str.split("|")
        xla = parts[-1] == "use_xla_spmd"
        parts = parts[:-1] if xla else parts
        if len(parts) not in (5, 6):
            raise InvalidValueError(
                f"{mesh_str!r} is not a mesh: expected name|dim=size,...|global ids|local ids|devices."
            )
        dims = [d.split("=") for d in parts[1].split(",") if d]
        ids = np.array([int(i) for i in parts[2].split(",")]).reshape([int(s) for _, s in dims])
        return cls(
            [n for n, _ in dims],
            ids,
            [int(i) for i in parts[3].split(",") if i],
            [d for d in parts[4].split(",") if d],
            parts[0],
            parts[5].split(",") if len(parts) == 6 else None,
            xla,
        )

    def as_proto(self) -> MeshProto:
        """Return a message with the fields of TensorFlow's `MeshProto`."""
        return MeshProto(
            [DimensionProto(n, s) for n, s in zip(self._dim_names, self.shape(), strict=True)],
            [int(i) for i in self._ids.ravel()],
            self.local_device_ids(),
            self.local_devices(),
            self.global_devices(),
            self._name,
            self._use_xla_spmd,
        )

    @classmethod
    def from_proto(cls, proto: MeshProto) -> Mesh:
        """Create a mesh from a message."""
        sizes = [d.size for d in proto.mesh_dimensions]
        return cls(
            [d.name for d in proto.mesh_dimensions],
            np.array(proto.global_device_ids).reshape(sizes),
            proto.local_device_ids,
            proto.local_devices,
            proto.name,
            proto.global_devices or None,
            proto.use_xla_spmd,
        )

    @classmethod
    def from_device(cls, device: str) -> Mesh:
        """Create a mesh of one device without dimensions."""
        return cls([], np.zeros((), np.int64), [0], [device])

    def _get_key(self) -> tuple[object, ...]:
        return tuple(self._dim_names), self._ids.shape, self._device_names, self._name

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Mesh) and self._get_key() == other._get_key())

    def __hash__(self) -> int:
        return hash(self._get_key())

    def __repr__(self) -> str:
        return f"Mesh.from_string({self.to_string()})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Mesh.from_string, (self.to_string(),)


_MESHES: dict[jax.sharding.Mesh, Mesh] = {}


def get_or_create_mesh(jax_mesh: jax.sharding.Mesh) -> Mesh:
    """Return the `Mesh` that was created last for a JAX mesh, or create one."""
    if jax_mesh not in _MESHES:
        devices = list(jax_mesh.devices.ravel())
        ids = np.arange(len(devices)).reshape(jax_mesh.devices.shape)
        local = [i for i, d in enumerate(devices) if d.process_index == jax.process_index()]
        Mesh(jax_mesh.axis_names, ids, local, [devices[i] for i in local], "", devices)
    return _MESHES[jax_mesh]


@functools.cache
def create_1d_mesh(devices: tuple[jax.Device, ...], name: str) -> Mesh:
    """Create a mesh with one dimension over JAX devices."""
    local = [i for i, d in enumerate(devices) if d.process_index == jax.process_index()]
    return Mesh([name], np.arange(len(devices)), local, [devices[i] for i in local], "", devices)
