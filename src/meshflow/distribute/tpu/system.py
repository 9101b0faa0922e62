"""TPUs as `tf.tpu.experimental` describes them: their topology, and which cores a replica takes."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.devices import devices_of, full_name
from meshflow.core.runtime.errors import InvalidValueError, NotFoundError

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
    "tpus",
]


class NoTpuError(NotFoundError, ValueError):
    """There is no TPU; scripts look for either of TensorFlow's two errors."""


def tpus() -> list[Any]:
    """The TPU devices of all processes, or the virtual devices that stand for them.

    Raises:
      NoTpuError: when there are none, saying what was looked for.
    """
    found = devices_of("TPU", local=False)
    if not found:
        raise NoTpuError(
            "No TPU was found. Looked for devices of JAX's platform 'tpu' on this machine (there are "
            f"{sorted({d.platform for d in jax.devices()})}) and for MESHFLOW_EMULATE_TPU, which is not set. "
            "On a TPU VM install jax[tpu]; elsewhere set MESHFLOW_EMULATE_TPU=8 before starting Python to run on "
            "that many virtual devices."
        )
    return found


class DeviceOrderMode(enum.IntEnum):
    """How cores are ordered in a device assignment; `AUTO` takes them as they come."""

    AUTO = 0
    RING = 1
    MESH = 2


class TPUSystemMetadata(NamedTuple):
    """What a TPU system consists of."""

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Any
    devices: tuple[str, ...]


class Topology:
    """Where each TPU core is in the TPU's grid.

    Args:
      serialized: not supported.
      mesh_shape: size of the grid: x, y, z and cores of a chip.
      device_coordinates: array of shape [tasks, cores of a task, 4] with each core's place in it.

    Raises:
      ValueError: when the two do not fit together.
    """

    def __init__(
        self, serialized: Any = None, mesh_shape: Any = None, device_coordinates: Any = None
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
        """Size of the grid."""
        return self._shape

    @property
    def mesh_rank(self) -> int:
        """How many dimensions the grid has: 4."""
        return len(self._shape)

    @property
    def device_coordinates(self) -> np.ndarray:
        """Each core's place in the grid, as an array of shape [tasks, cores of a task, 4]."""
        return self._coordinates

    @property
    def missing_devices(self) -> np.ndarray:
        """Places of the grid without a core, as an array of shape [count, 4]."""
        there = {tuple(c) for c in self._coordinates.reshape(-1, 4).tolist()}
        everywhere = itertools.product(*(range(int(n)) for n in self._shape))
        return np.array([c for c in everywhere if c not in there], np.int32).reshape(-1, 4)

    @property
    def num_tasks(self) -> int:
        """How many hosts there are."""
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """How many cores a host has."""
        return self._coordinates.shape[1]

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The host of the core at a place.

        Args:
          device_coordinates: the place.
        """
        return self._find(device_coordinates)[0]

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The number on its host of the core at a place.

        Args:
          device_coordinates: the place.
        """
        return self._find(device_coordinates)[1]

    def tpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """The name of the core at a place.

        Args:
          device_coordinates: the place.
          job: the job to name it by; default "localhost".
        """
        task, ordinal = self._find(device_coordinates)
        return f"/job:{job or 'localhost'}/task:{task}/device:TPU:{ordinal}"

    def _find(self, place: Sequence[int]) -> tuple[int, int]:
        found = np.argwhere(np.all(self._coordinates == np.asarray(place), axis=2))
        if not len(found):
            raise InvalidValueError(f"The topology has no core at {list(place)}.")
        return int(found[0][0]), int(found[0][1])

    def __repr__(self) -> str:
        return f"Topology(mesh_shape={self._shape.tolist()}, tasks={self.num_tasks})"


def _place(device: Any, index: int, count: int) -> tuple[int, int, int, int]:
    if hasattr(device, "coords"):
        x, y, z = device.coords
        return x, y, z, getattr(device, "core_on_chip", 0)
    # Virtual devices are laid out as the chips of a board: two columns, two cores a chip.
    cores = 2 if count % 2 == 0 else 1
    chip, core = divmod(index, cores)
    columns = 2 if count % (2 * cores) == 0 else 1
    return chip % columns, chip // columns, 0, core


def topology() -> Topology:
    """The topology of this job's TPUs.

    Raises:
      NoTpuError: when there are none.
    """
    hosts: dict[int, list[Any]] = {}
    for device in tpus():
        hosts.setdefault(device.process_index, []).append(device)
    places = []
    for host, devices in sorted(hosts.items()):
        own = [_place(d, i, len(devices)) for i, d in enumerate(devices)]
        if not hasattr(devices[0], "coords"):
            own = [(x, y, host, c) for x, y, _, c in own]
        places.append(own)
    array = np.array(places, np.int32)
    return Topology(mesh_shape=array.reshape(-1, 4).max(axis=0) + 1, device_coordinates=array)


def initialize_tpu_system(cluster_resolver: Any = None) -> Topology:
    """Starts the TPUs.

    Args:
      cluster_resolver: a `TPUClusterResolver`; default the TPUs of this machine.

    Returns:
      Their `Topology`.

    Raises:
      NotFoundError: also a ValueError; when there is no TPU.
    """
    found = topology()
    if cluster_resolver is not None:
        cluster_resolver.set_tpu_topology(found)
    return found


def shutdown_tpu_system(cluster_resolver: Any = None) -> None:
    """Forgets compiled programs; the devices stop with the process.

    Args:
      cluster_resolver: accepted.
    """
    del cluster_resolver
    jax.clear_caches()


def metadata() -> TPUSystemMetadata:
    """What this job's TPUs consist of.

    Raises:
      NoTpuError: when there are none.
    """
    found = topology()
    names = [full_name("CPU", 0)]
    names += [full_name("TPU", i) for i in range(len(tpus()))]
    hosts, cores = found.num_tasks, found.num_tpus_per_task
    return TPUSystemMetadata(hosts * cores, hosts, cores, found, tuple(names))


class DeviceAssignment:
    """Which cores each replica takes.

    Args:
      topology: a `Topology`.
      core_assignment: array of shape [replicas, cores of a replica, 4] with places in the topology.

    Raises:
      ValueError: for an array of another shape, a place that the topology lacks, or one taken twice.
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        self._topology = topology
        self._cores = np.asarray(core_assignment, np.int32)
        if self._cores.ndim != 3 or self._cores.shape[2] != topology.mesh_rank:
            raise InvalidValueError(
                "`core_assignment` must have shape [replicas, cores of a replica, 4], got "
                f"{list(self._cores.shape)}."
            )
        places = [tuple(c) for c in self._cores.reshape(-1, 4).tolist()]
        if len(set(places)) != len(places):
            raise InvalidValueError("`core_assignment` takes a core more than once.")
        for place in places:
            topology.task_ordinal_at_coordinates(place)

    @staticmethod
    def build(
        topology: Topology,
        computation_shape: Any = None,
        computation_stride: Any = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> DeviceAssignment:
        """An assignment that tiles the grid with blocks, one for each replica.

        Args:
          topology: the TPUs.
          computation_shape: the block: cores along each of the grid's 4 dimensions; default one core.
          computation_stride: distance of a block's cores along each dimension; default 1.
          num_replicas: how many replicas.
          device_order_mode: accepted; XLA orders collectives.

        Raises:
          ValueError: when that many blocks do not fit.
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
        """The topology."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return self._cores.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """How many cores a replica has."""
        return self._cores.shape[1]

    @property
    def core_assignment(self) -> np.ndarray:
        """Places of the cores, as an array of shape [replicas, cores of a replica, 4]."""
        return self._cores

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """The place of a replica's core.

        Args:
          replica: the replica.
          logical_core: its core.
        """
        return tuple(self._cores[replica, logical_core].tolist())

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas whose core of that number is on a host.

        Args:
          task_id: the host.
          logical_core: the core.

        Raises:
          ValueError: when there is none.
        """
        found = [
            r
            for r in range(self.num_replicas)
            if self._topology.task_ordinal_at_coordinates(self.coordinates(r, logical_core))
            == task_id
        ]
        if not found:
            raise InvalidValueError(
                f"Cannot find any replica in task {task_id} with logical core {logical_core}."
            )
        return found

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """The number on its host of a replica's core.

        Args:
          replica: the replica.
          logical_core: its core.
        """
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_ordinal_at_coordinates(place)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of a replica's core.

        Args:
          replica: the replica.
          logical_core: its core.
          job: the job to name it by.
        """
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_name_at_coordinates(place, job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of the CPU of the host of a replica's core.

        Args:
          replica: the replica.
          logical_core: its core.
          job: the job to name it by.
        """
        task = self._topology.task_ordinal_at_coordinates(self.coordinates(replica, logical_core))
        return f"/job:{job or 'localhost'}/task:{task}/device:CPU:0"

    def devices(self) -> list[list[Any]]:
        """The JAX devices of each replica's cores."""
        found = tpus()
        hosts = sorted({d.process_index for d in found})
        by_host = [[d for d in found if d.process_index == host] for host in hosts]

        def at(place: Any) -> Any:
            task = self._topology.task_ordinal_at_coordinates(place)
            return by_host[task][self._topology.tpu_device_ordinal_at_coordinates(place)]

        return [[at(core) for core in replica] for replica in self._cores]
