"""TPUs as described by `tf.tpu.experimental`: topology, and assignment of cores to replicas."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.typing import ArrayLike

from meshflow.core.runtime.devices import format_device_name, list_devices
from meshflow.core.runtime.errors import InvalidValueError, NotFoundError


class TpuResolver(Protocol):
    """Interface of a resolver that stores a topology."""

    def set_tpu_topology(self, serialized_tpu_topology: Topology) -> None:
        """Store the topology."""


class NoTpuError(NotFoundError, ValueError):
    """Error for a missing TPU; scripts catch either of TensorFlow's two errors."""


def list_tpus() -> list[jax.Device]:
    """Return the TPU devices of all processes, or the virtual devices that emulate them.

    Raises:
      NoTpuError: If there are none.
    """
    devices = list_devices("TPU", local=False)
    if not devices:
        raise NoTpuError(
            "No TPU was found. Looked for devices of JAX's platform 'tpu' on this machine (there are "
            f"{sorted({d.platform for d in jax.devices()})}) and for MESHFLOW_EMULATE_TPU, which is not set. "
            "On a TPU VM install jax[tpu]; elsewhere set MESHFLOW_EMULATE_TPU=8 before starting Python to run on "
            "that many virtual devices."
        )
    return devices


class DeviceOrderMode(enum.IntEnum):
    """Order of the cores in a device assignment; `AUTO` keeps the order of the devices."""

    AUTO = 0
    RING = 1
    MESH = 2


class TPUSystemMetadata(NamedTuple):
    """Numbers of cores and hosts, topology, and device names of a TPU system."""

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Topology
    devices: tuple[str, ...]


class Topology:
    """Coordinates of each TPU core in the grid of the TPU.

    Args:
      serialized: Not supported.
      mesh_shape: Size of the grid: x, y, z and cores per chip.
      device_coordinates: Array of shape [tasks, cores of a task, 4] with the coordinates of each
        core.

    Raises:
      ValueError: If an array has another shape.
    """

    def __init__(
        self,
        serialized: object = None,
        mesh_shape: ArrayLike | Sequence[int] | None = None,
        device_coordinates: ArrayLike | Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:
        if serialized is not None:
            raise NotImplementedError(
                "Topology: serialized topologies are not supported; pass mesh_shape and device_coordinates."
            )
        self._shape = np.asarray(mesh_shape, np.int32)
        self._coordinates = np.asarray(device_coordinates, np.int32)
        if self._shape.shape != (4,) or np.any(self._shape < 1):
            raise InvalidValueError(
                f"`mesh_shape` must be a sequence of 4 positive entries, got {mesh_shape}."
            )
        if self._coordinates.ndim != 3 or self._coordinates.shape[2] != 4:
            raise InvalidValueError(
                "`device_coordinates` must have shape [tasks, cores of a task, 4], got "
                f"{list(self._coordinates.shape)}."
            )

    @property
    def mesh_shape(self) -> np.ndarray:
        """Return the size of the grid."""
        return self._shape

    @property
    def mesh_rank(self) -> int:
        """Return the number of dimensions of the grid: 4."""
        return len(self._shape)

    @property
    def device_coordinates(self) -> np.ndarray:
        """Return the coordinates of each core as an array of shape [tasks, cores of a task, 4]."""
        return self._coordinates

    @property
    def missing_devices(self) -> np.ndarray:
        """Return the coordinates without a core as an array of shape [count, 4]."""
        present = {tuple(c) for c in self._coordinates.reshape(-1, 4).tolist()}
        all_coordinates = itertools.product(*(range(int(n)) for n in self._shape))
        return np.array([c for c in all_coordinates if c not in present], np.int32).reshape(-1, 4)

    @property
    def num_tasks(self) -> int:
        """Return the number of hosts."""
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """Return the number of cores of a host."""
        return self._coordinates.shape[1]

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the host of the core at some coordinates."""
        return self._locate_core(device_coordinates)[0]

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the index on its host of the core at some coordinates."""
        return self._locate_core(device_coordinates)[1]

    def tpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """Return the name of the core at some coordinates."""
        task, ordinal = self._locate_core(device_coordinates)
        return f"/job:{job or 'localhost'}/task:{task}/device:TPU:{ordinal}"

    def _locate_core(self, coordinates: Sequence[int]) -> tuple[int, int]:
        matches = np.argwhere(np.all(self._coordinates == np.asarray(coordinates), axis=2))
        if not len(matches):
            raise InvalidValueError(f"The topology has no core at {list(coordinates)}.")
        return int(matches[0][0]), int(matches[0][1])

    def __repr__(self) -> str:
        return f"Topology(mesh_shape={self._shape.tolist()}, tasks={self.num_tasks})"


def _get_coordinates(device: jax.Device, index: int, count: int) -> tuple[int, int, int, int]:
    if hasattr(device, "coords"):
        x, y, z = device.coords
        return x, y, z, getattr(device, "core_on_chip", 0)
    # Virtual devices are arranged like the chips of a board: two columns, two cores per chip.
    cores = 2 if count % 2 == 0 else 1
    chip, core = divmod(index, cores)
    columns = 2 if count % (2 * cores) == 0 else 1
    return chip % columns, chip // columns, 0, core


def find_topology() -> Topology:
    """Return the topology of this job's TPUs.

    Raises:
      NoTpuError: If there are none.
    """
    hosts: dict[int, list[jax.Device]] = {}
    for device in list_tpus():
        hosts.setdefault(device.process_index, []).append(device)
    coordinates = []
    for host, devices in sorted(hosts.items()):
        host_coordinates = [_get_coordinates(d, i, len(devices)) for i, d in enumerate(devices)]
        if not hasattr(devices[0], "coords"):
            host_coordinates = [(x, y, host, c) for x, y, _, c in host_coordinates]
        coordinates.append(host_coordinates)
    array = np.array(coordinates, np.int32)
    return Topology(mesh_shape=array.reshape(-1, 4).max(axis=0) + 1, device_coordinates=array)


def initialize_tpu_system(cluster_resolver: TpuResolver | None = None) -> Topology:
    """Initialize the TPUs.

    Args:
      cluster_resolver: A `TPUClusterResolver`; default the TPUs of this machine.

    Raises:
      NotFoundError: If there is no TPU; the error is a ValueError, too.
    """
    tpu_topology = find_topology()
    if cluster_resolver is not None:
        cluster_resolver.set_tpu_topology(tpu_topology)
    return tpu_topology


def shutdown_tpu_system(cluster_resolver: TpuResolver | None = None) -> None:
    """Clear the compilation caches; the devices remain available until the process ends."""
    del cluster_resolver
    jax.clear_caches()


def get_metadata() -> TPUSystemMetadata:
    """Return the numbers of cores and hosts, the topology and the device names of this job's TPUs.

    Raises:
      NoTpuError: If there are none.
    """
    tpu_topology = find_topology()
    names = [format_device_name("CPU", 0)]
    names += [format_device_name("TPU", i) for i in range(len(list_tpus()))]
    hosts, cores = tpu_topology.num_tasks, tpu_topology.num_tpus_per_task
    return TPUSystemMetadata(hosts * cores, hosts, cores, tpu_topology, tuple(names))


class DeviceAssignment:
    """Assignment of cores to replicas.

    Args:
      topology: A `Topology`.
      core_assignment: Array of shape [replicas, cores of a replica, 4] with coordinates in the
        topology.

    Raises:
      ValueError: If the array has another shape, or contains coordinates without a core or twice.
    """

    def __init__(
        self, topology: Topology, core_assignment: ArrayLike | Sequence[Sequence[ArrayLike]]
    ) -> None:
        self._topology = topology
        self._cores = np.asarray(core_assignment, np.int32)
        if self._cores.ndim != 3 or self._cores.shape[2] != topology.mesh_rank:
            raise InvalidValueError(
                "`core_assignment` must have shape [replicas, cores of a replica, 4], got "
                f"{list(self._cores.shape)}."
            )
        cores = [tuple(c) for c in self._cores.reshape(-1, 4).tolist()]
        if len(set(cores)) != len(cores):
            raise InvalidValueError("`core_assignment` takes a core more than once.")
        for core in cores:
            topology.task_ordinal_at_coordinates(core)

    @staticmethod
    def build(
        topology: Topology,
        computation_shape: ArrayLike | Sequence[int] | None = None,
        computation_stride: ArrayLike | Sequence[int] | None = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> DeviceAssignment:
        """Create an assignment that tiles the grid with one block of cores for each replica.

        Args:
          topology: Topology of the TPUs.
          computation_shape: Size of the block: cores along each of the grid's 4 dimensions; default
            one core.
          computation_stride: Distance between the cores of a block along each dimension; default 1.
          num_replicas: Number of replicas.
          device_order_mode: Ignored; XLA orders collectives.

        Raises:
          ValueError: If the grid is too small for the blocks.
        """
        del device_order_mode
        shape = np.asarray([1, 1, 1, 1] if computation_shape is None else computation_shape)
        stride = np.asarray([1, 1, 1, 1] if computation_stride is None else computation_stride)
        if shape.shape != (4,) or np.any(shape < 1) or stride.shape != (4,) or np.any(stride < 1):
            raise InvalidValueError(
                "`computation_shape` and `computation_stride` must have 4 positive entries, got "
                f"{shape.tolist()} and {stride.tolist()}."
            )
        spans = shape * stride
        counts = topology.mesh_shape // spans
        possible = int(np.prod(counts * stride))
        if num_replicas > possible:
            raise InvalidValueError(
                f"DeviceAssignment.build: {num_replicas} replicas of {math.prod(shape)} cores "
                f"{shape.tolist()} do not fit on a grid of {topology.mesh_shape.tolist()}, which holds {possible}."
            )
        blocks = []
        for block in itertools.product(*(range(int(n)) for n in counts)):
            for shift in itertools.product(*(range(int(n)) for n in stride)):
                origin = np.asarray(block) * spans + shift
                inside = itertools.product(*(range(int(n)) for n in shape))
                blocks.append([origin + np.asarray(i) * stride for i in inside])
        return DeviceAssignment(topology, blocks[:num_replicas])

    @property
    def topology(self) -> Topology:
        """Return the topology."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas."""
        return self._cores.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """Return the number of cores of a replica."""
        return self._cores.shape[1]

    @property
    def core_assignment(self) -> np.ndarray:
        """Return the core coordinates as an array of shape [replicas, cores of a replica, 4]."""
        return self._cores

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Return the coordinates of a replica's core."""
        return tuple(self._cores[replica, logical_core].tolist())

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Return the replicas with a core on a host.

        Args:
          task_id: Index of the host.
          logical_core: Index of the core in the replica.

        Raises:
          ValueError: If there is no such replica.
        """
        replicas = [
            r
            for r in range(self.num_replicas)
            if self._topology.task_ordinal_at_coordinates(self.coordinates(r, logical_core))
            == task_id
        ]
        if not replicas:
            raise InvalidValueError(
                f"Cannot find any replica in task {task_id} with logical core {logical_core}."
            )
        return replicas

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Return the index on its host of a replica's core."""
        coordinates = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_ordinal_at_coordinates(coordinates)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of a replica's core."""
        coordinates = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_name_at_coordinates(coordinates, job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of the CPU of the host of a replica's core."""
        task = self._topology.task_ordinal_at_coordinates(self.coordinates(replica, logical_core))
        return f"/job:{job or 'localhost'}/task:{task}/device:CPU:0"

    def list_devices(self) -> list[list[jax.Device]]:
        """Return the JAX devices of each replica's cores."""
        all_devices = list_tpus()
        hosts = sorted({d.process_index for d in all_devices})
        by_host = [[d for d in all_devices if d.process_index == host] for host in hosts]

        def find_device(core: np.ndarray) -> jax.Device:
            task = self._topology.task_ordinal_at_coordinates(core.tolist())
            return by_host[task][self._topology.tpu_device_ordinal_at_coordinates(core.tolist())]

        return [[find_device(core) for core in replica] for replica in self._cores]
