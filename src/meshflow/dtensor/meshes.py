"""Creation of meshes, and the identity of this process among the clients of a job."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import jax
import numpy as np
from jax.experimental import mesh_utils

from meshflow.core.runtime.context import context
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.devices import (
    MESH_DEVICE,
    create_virtual_cpus,
    get_device_type,
    list_device_types,
    list_devices,
)
from meshflow.core.runtime.errors import DeadlineExceededError, InvalidValueError
from meshflow.distribute.cluster.coordination import join_cluster
from meshflow.environment.jax_internals import distributed
from meshflow.environment.types import Array
from meshflow.placement.layout import Layout, put_on_mesh
from meshflow.placement.mesh import Mesh, find_jax_device

__all__ = [
    "barrier",
    "client_id",
    "create_distributed_mesh",
    "create_mesh",
    "create_tpu_mesh",
    "default_mesh",
    "device_name",
    "full_job_name",
    "get_default_mesh",
    "heartbeat_enabled",
    "initialize_accelerator_system",
    "initialize_multi_client",
    "initialize_tpu_system",
    "job_name",
    "jobs",
    "local_devices",
    "num_clients",
    "num_global_devices",
    "num_local_devices",
    "preferred_device_type",
    "run_on",
    "shutdown_accelerator_system",
    "shutdown_tpu_system",
]

# The names and sizes of the dimensions of a mesh.
_MeshDims: TypeAlias = Mapping[str, int] | Sequence[tuple[str, int]]


def _list_devices(device_type: str | None, local: bool) -> list[jax.Device]:
    kind = (device_type or list_device_types()[-1]).upper()
    devices = list_devices(kind, local)
    if not devices:
        raise InvalidValueError(
            f"There are no devices of type {device_type!r}; this machine has "
            f"{sorted({get_device_type(d) for d in jax.devices()} | {'CPU'})}."
        )
    return devices


def _parse_mesh_dims(mesh_dims: _MeshDims | None, count: int) -> tuple[list[str], list[int]]:
    """Parse the names and sizes of a mesh's dimensions.

    Raises:
      ValueError: If a dimension is no name with a size of at least 1, or -1 for the remaining
        devices.
    """
    dims = [("x", count)] if mesh_dims is None else mesh_dims
    try:
        pairs = [(str(n), operator.index(s)) for n, s in dict(dims).items()]
        if len(pairs) < len(dims) or not all(size == -1 or size > 0 for _, size in pairs):
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidValueError(
            "create_mesh: mesh_dims must have different names, each with an integer number of devices of at least 1, or -1 "
            f"for the remaining devices, such as {{'data': 4, 'model': 2}}, got {mesh_dims!r}."
        ) from None
    names, sizes = [n for n, _ in pairs], [s for _, s in pairs]
    if sizes.count(-1) > 1:
        raise InvalidValueError(f"create_mesh: only one size can be -1, got {dict(pairs)}.")
    if -1 in sizes:
        product = math.prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = max(count // product, 1)
    return names, sizes


def create_mesh(
    mesh_dims: _MeshDims | None = None,
    mesh_name: str = "",
    devices: Sequence[object] | None = None,
    device_type: str | None = None,
    use_xla_spmd: bool = False,
) -> Mesh:
    """Create a mesh of this process's devices, in row-major order.

    Args:
      mesh_dims: Pairs (name, size) or a dictionary; one size may be -1. Default: one dimension "x"
        of all devices.
      mesh_name: Name of the mesh.
      devices: Device strings, all of which the mesh must use; default the devices of `device_type`.
      device_type: "CPU", "GPU" or "TPU"; default the type of the default device.
      use_xla_spmd: Accepted for TPUs; XLA partitions programs in any case.

    Raises:
      ValueError: If a size is no integer of at least 1, or if the product of the sizes is not the
        number of devices.

    Example:
      >>> tf.experimental.dtensor.create_mesh([("x", 1), ("y", 1)], devices=["CPU:0"]).shape()
      [1, 1]
    """
    chosen = list(devices) if devices is not None else _list_devices(device_type, local=True)
    names, sizes = _parse_mesh_dims(mesh_dims, len(chosen))
    size = math.prod(sizes)
    if size != len(chosen):
        raise InvalidValueError(
            f"length of devices ({len(chosen)}) must be equal to total size of the mesh of shape "
            f"{tuple(sizes)} ({size}). Pass devices=['CPU:0', ...] to use some of them, or make more with "
            "tf.config.set_logical_device_configuration before the first op."
        )
    ids = np.arange(size).reshape(sizes)
    flat = list(range(size))
    return Mesh(names, ids, flat, chosen, mesh_name, None, use_xla_spmd)


def create_distributed_mesh(
    mesh_dims: _MeshDims | None,
    mesh_name: str = "",
    local_devices: Sequence[object] | None = None,
    device_type: str | None = None,
    use_xla_spmd: bool = False,
) -> Mesh:
    """Create a mesh of the devices of all processes; each process must pass the same arguments.

    Args:
      mesh_dims: Pairs (name, size) or a dictionary.
      mesh_name: Name of the mesh.
      local_devices: Devices of this process; default all. Other processes use equally many.
      device_type: "CPU", "GPU" or "TPU".
      use_xla_spmd: Accepted for TPUs; XLA partitions programs in any case.

    Raises:
      ValueError: If the product of the sizes is not the number of devices, or if
        `initialize_accelerator_system` was not called.
    """
    if not _AcceleratorSystem.is_initialized:
        raise InvalidValueError(
            "Accelerators are uninitialized: call dtensor.initialize_accelerator_system() first."
        )
    if jax.process_count() == 1:
        return create_mesh(mesh_dims, mesh_name, local_devices, device_type, use_xla_spmd)
    global_devices = sorted(
        _list_devices(device_type, local=False), key=lambda d: (d.process_index, d.id)
    )
    if local_devices is not None:
        count = len(local_devices)
        selected = []
        for process in range(jax.process_count()):
            selected += [d for d in global_devices if d.process_index == process][:count]
        global_devices = selected
    names, sizes = _parse_mesh_dims(mesh_dims, len(global_devices))
    if math.prod(sizes) != len(global_devices):
        raise InvalidValueError(
            f"create_distributed_mesh: {len(global_devices)} devices in {jax.process_count()} processes "
            f"cannot form a mesh of shape {tuple(sizes)}."
        )
    local_ids = [i for i, d in enumerate(global_devices) if d.process_index == jax.process_index()]
    ids = np.arange(len(global_devices)).reshape(sizes)
    own_devices = [global_devices[i] for i in local_ids]
    return Mesh(names, ids, local_ids, own_devices, mesh_name, global_devices, use_xla_spmd)


def create_tpu_mesh(
    mesh_dim_names: Sequence[str],
    mesh_shape: Sequence[int],
    mesh_name: str,
    ring_dims: int | None = None,
    ring_axes: Sequence[str] | None = None,
    ring_bounds: Sequence[int] | None = None,
    can_split_host_across_rings: bool = True,
    build_ring_across_rings: bool = False,
    rotate_ring_across_rings: bool = False,
    use_xla_spmd: bool = False,
) -> Mesh:
    """Create a mesh of all TPU cores, with neighbours in the mesh close to each other in the torus.

    JAX chooses the order of the cores, so the arguments about rings have no effect.

    Raises:
      ValueError: If there are no TPUs, or if the product of the sizes is not the number of cores.
    """
    del ring_dims, ring_axes, ring_bounds, can_split_host_across_rings
    del build_ring_across_rings, rotate_ring_across_rings
    if len(mesh_dim_names) != len(mesh_shape):
        raise InvalidValueError(
            f"create_tpu_mesh: {len(mesh_dim_names)} names {list(mesh_dim_names)} for a mesh of shape "
            f"{tuple(mesh_shape)}."
        )
    cores = _list_devices("TPU", local=False)
    if math.prod(mesh_shape) != len(cores):
        raise InvalidValueError(
            f"length of devices ({len(cores)}) must be equal to total size of the mesh of shape "
            f"{tuple(mesh_shape)} ({math.prod(mesh_shape)})."
        )
    ordered = _sort_by_torus(mesh_shape, cores)
    local_ids = [i for i, d in enumerate(ordered) if d.process_index == jax.process_index()]
    ids = np.arange(len(ordered)).reshape(tuple(mesh_shape))
    own_devices = [ordered[i] for i in local_ids]
    return Mesh(mesh_dim_names, ids, local_ids, own_devices, mesh_name, ordered, use_xla_spmd)


def _sort_by_torus(mesh_shape: Sequence[int], cores: Sequence[jax.Device]) -> list[jax.Device]:
    return list(mesh_utils.create_device_mesh(tuple(mesh_shape), cores).ravel())


# ---- the default mesh ----------------------------------------------------------------------


@contextmanager
def default_mesh(mesh: Mesh) -> Iterator[None]:
    """Replicate the results of eager ops and functions on a mesh, unless they are already on one.

    Args:
      mesh: Mesh, which `get_default_mesh` returns inside the context.

    Raises:
      ValueError: If the argument is not a mesh.

    Example:
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> with dtensor.default_mesh(mesh):
      ...     y = tf.constant([1.0, 2.0]) + 1.0
      >>> dtensor.fetch_layout(y).sharding_specs
      ['unsharded']
    """
    if not isinstance(mesh, Mesh):
        raise InvalidValueError(f"Expect `mesh` to be `Mesh`, got {type(mesh).__name__}.")
    saved, context.place_output = context.place_output, _MeshReplicator(mesh)
    try:
        yield
    finally:
        context.place_output = saved


run_on = default_mesh


class _MeshReplicator:
    """Callable that replicates an array on a mesh, unless it is on a mesh already or holds strings."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def __call__(self, array: Array) -> Array:
        if array.dtype == object or isinstance(array, jax.core.Tracer):
            return array
        if isinstance(getattr(array, "sharding", None), jax.sharding.NamedSharding):
            return array
        return put_on_mesh(array, Layout.replicated(self.mesh, array.ndim))


def get_default_mesh() -> Mesh | None:
    """Return the mesh of the innermost `default_mesh`, or None.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> with tf.experimental.dtensor.default_mesh(mesh):
      ...     tf.experimental.dtensor.get_default_mesh() == mesh
      True
      >>> tf.experimental.dtensor.get_default_mesh() is None
      True
    """
    place_output = context.place_output
    return place_output.mesh if isinstance(place_output, _MeshReplicator) else None


def device_name() -> str:
    """Return TensorFlow's name of the device of tensors on meshes, which can be passed to `tf.device`.

    Example:
      >>> tf.experimental.dtensor.device_name().startswith("/")
      True
    """
    return MESH_DEVICE


# ---- clients -------------------------------------------------------------------------------


class _AcceleratorSystem:
    """State of the accelerator system: whether it is initialized."""

    is_initialized = False


def initialize_accelerator_system(
    device_type: str | None = None,
    enable_coordination_service: bool | None = True,
    num_logical_cpu_devices: int | None = None,
    experimental_reset_context: bool | None = False,
    experimental_enable_megcore: bool | None = False,
) -> str:
    """Initialize the devices, and connect to the other processes that `DTENSOR_JOBS` lists.

    Args:
      device_type: "CPU", "GPU" or "TPU"; default the best available type.
      enable_coordination_service: Ignored.
      num_logical_cpu_devices: Number of virtual CPU devices to create.
      experimental_reset_context: Ignored.
      experimental_enable_megcore: Ignored.

    Returns:
      The device type.

    Raises:
      ValueError: If there is no such device, or if the system is already initialized.
      RuntimeError: If ops were run before the other processes were connected.
      DeadlineExceededError: If a process does not connect in time; the message names it.
    """
    del enable_coordination_service, experimental_reset_context, experimental_enable_megcore
    if _AcceleratorSystem.is_initialized:
        raise InvalidValueError(
            "Accelerator system has already been initialized. Call dtensor.shutdown_accelerator_system() first."
        )
    if num_logical_cpu_devices is not None:
        create_virtual_cpus(num_logical_cpu_devices)
    addresses = jobs()
    if len(addresses) > 1 and jax.distributed.is_initialized() is False:
        join_cluster([f"{job_name()}:{i}" for i in range(len(addresses))], addresses, client_id())
    type_found = get_device_type(_list_devices(device_type, local=True)[0])
    _AcceleratorSystem.is_initialized = True
    return type_found


def preferred_device_type() -> str:
    """Return the best available device type: "TPU", else "GPU", else "CPU".

    Example:
      >>> tf.experimental.dtensor.preferred_device_type() in ("CPU", "GPU", "TPU")
      True
    """
    return next(t for t in ("TPU", "GPU", "CPU") if num_local_devices(t))


def heartbeat_enabled() -> bool:
    """Return the setting `DTENSOR_ENABLE_HEARTBEAT`; jax.distributed always sends heartbeats."""
    return os.environ.get("DTENSOR_ENABLE_HEARTBEAT", "true").lower() in ("true", "1")


initialize_multi_client = initialize_accelerator_system
initialize_tpu_system = initialize_accelerator_system


def shutdown_accelerator_system() -> None:
    """Disconnect from the other processes and mark the accelerator system as not initialized.

    Raises:
      ValueError: If the system was not initialized.
    """
    if not _AcceleratorSystem.is_initialized:
        raise InvalidValueError(
            "Accelerator system is not initialized. Call dtensor.initialize_accelerator_system() first."
        )
    _AcceleratorSystem.is_initialized = False
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


shutdown_tpu_system = shutdown_accelerator_system


def jobs() -> list[str]:
    """Return the addresses of all clients, from `DTENSOR_JOBS`; empty for a single client.

    Raises:
      ValueError: If the names of Borg tasks are not sorted by their numbers.

    Example:
      >>> tf.experimental.dtensor.jobs()
      []
    """
    addresses = [j for j in os.environ.get("DTENSOR_JOBS", "").split(",") if j]
    if addresses and all(j.startswith("/bns/") for j in addresses):
        tasks = [int(j.rsplit("/", 1)[1].split(":")[0]) for j in addresses]
        if tasks != sorted(tasks):
            raise InvalidValueError(
                f"Unexpected DTENSOR_JOBS: /bns/ names must be in the order of their tasks, got {addresses}."
            )
    return addresses


def client_id() -> int:
    """Return the id of this process among the clients.

    Example:
      >>> tf.experimental.dtensor.client_id()
      0
    """
    return int(os.environ.get("DTENSOR_CLIENT_ID", "0"))


def num_clients() -> int:
    """Return the number of clients.

    Example:
      >>> tf.experimental.dtensor.num_clients()
      1
    """
    return max(len(jobs()), 1)


def job_name() -> str:
    """Return the name of the job: "localhost", or "worker" with several clients.

    Example:
      >>> tf.experimental.dtensor.job_name()
      'localhost'
    """
    return os.environ.get("DTENSOR_JOB_NAME", "localhost" if num_clients() == 1 else "worker")


def full_job_name(task_id: int | None = None) -> str:
    """Return the name of the job with the task.

    Example:
      >>> tf.experimental.dtensor.full_job_name()
      'localhost/replica:0/task:0'
    """
    name = job_name()
    if name == "localhost" and num_clients() == 1:
        return "localhost/replica:0/task:0"
    return f"{name}/replica:0/task:{client_id() if task_id is None else task_id}"


def local_devices(device_type: str, for_client_id: int | None = None) -> list[DeviceSpec]:
    """Return the devices of a client.

    Example:
      >>> len(tf.experimental.dtensor.local_devices("CPU")) == len(tf.config.list_logical_devices("CPU"))
      True
    """
    count = num_local_devices(device_type)
    job = full_job_name(for_client_id)
    return [
        DeviceSpec.from_string(f"/job:{job}/device:{device_type.upper()}:{i}") for i in range(count)
    ]


def num_local_devices(device_type: str) -> int:
    """Return the number of devices of a type in this process.

    Example:
      >>> tf.experimental.dtensor.num_local_devices("CPU") == len(tf.config.list_logical_devices("CPU"))
      True
    """
    try:
        return len(_list_devices(device_type, local=True))
    except InvalidValueError:
        return 0


def num_global_devices(device_type: str) -> int:
    """Return the number of devices of a type in all processes.

    Example:
      >>> devices = tf.experimental.dtensor.num_local_devices("CPU") * tf.experimental.dtensor.num_clients()
      >>> tf.experimental.dtensor.num_global_devices("CPU") == devices
      True
    """
    try:
        return len(_list_devices(device_type, local=False))
    except InvalidValueError:
        return 0


_barrier_counts: dict[str, int] = {}


def barrier(mesh: Mesh, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Wait until all processes of the mesh have finished their work and have called `barrier`.

    Args:
      mesh: Mesh of the processes.
      barrier_name: Name for error messages.
      timeout_in_ms: Time limit in milliseconds; default one day.

    Raises:
      DeadlineExceededError: If a process does not call `barrier` in time.
    """
    jax.effects_barrier()
    for name in mesh.local_devices():
        jax.device_put(np.zeros((), np.int32), find_jax_device(name)).block_until_ready()
    if jax.process_count() == 1:
        return
    name = barrier_name or "(barrier)"
    count = _barrier_counts[name] = _barrier_counts.get(name, -1) + 1
    timeout = 24 * 60 * 60 * 1000 if timeout_in_ms is None else int(timeout_in_ms)
    try:
        # JAX has no public barrier with a time limit.
        distributed.global_state.client.wait_at_barrier(f"dtensor {name}:{count}", timeout)  # type: ignore[union-attr]
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise DeadlineExceededError(
            f"barrier {name}: not all of {jax.process_count()} processes came within {timeout / 1000:g} s."
        ) from error
