"""Device names, physical and logical devices, and `tf.device`."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.jax_internals import jex_backend, xla_bridge
from meshflow.environment.types import Array


class PhysicalDevice(NamedTuple):
    """A device of this machine, with a `name` such as `/physical_device:CPU:0` and a `device_type`.

    Example:
      >>> tf.config.list_physical_devices("CPU")[0].name
      '/physical_device:CPU:0'
    """

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device on which ops can be placed, with a `name` such as `/device:CPU:0` and a `device_type`.

    Example:
      >>> tf.config.list_logical_devices("CPU")[0].name
      '/device:CPU:0'
    """

    name: str
    device_type: str


class DeviceState:
    """Process-wide state of device placement.

    Attributes:
      soft_placement: Whether an op that is placed on a missing device runs on another device, like
        in TensorFlow.
      only_listed: Whether the backend was started only to list devices, and no device has been
        handed out since.
    """

    soft_placement = True
    only_listed = False


_TYPES = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}


def count_emulated_tpus() -> int:
    """Return the number of CPU devices that emulate TPUs, from `MESHFLOW_EMULATE_TPU`.

    The last CPU devices emulate TPUs.

    Raises:
      ValueError: If the variable is not a non-negative integer.
    """
    text = os.environ.get("MESHFLOW_EMULATE_TPU", "") or "0"
    if not text.isdigit():
        raise ValueError(f"MESHFLOW_EMULATE_TPU must be a number of devices, got {text!r}.")
    return int(text)


def get_device_type(device: jax.Device) -> str:
    """Return TensorFlow's type of a JAX device: CPU, GPU or TPU."""
    if device.platform == "cpu" and count_emulated_tpus():
        cpus = [d for d in jax.devices("cpu") if d.process_index == device.process_index]
        return "TPU" if device in cpus[-count_emulated_tpus() :] else "CPU"
    return _TYPES.get(device.platform, device.platform.upper())


def list_devices(device_type: str, local: bool = True) -> list[jax.Device]:
    """Return the JAX devices of a type, or an empty list if there are none.

    Args:
      device_type: 'CPU', 'GPU' or 'TPU'.
      local: Whether to return only the devices of this process.
    """
    DeviceState.only_listed = False
    return _list_devices(device_type, local)


def count_devices(device_type: str) -> int:
    """Return the number of devices of a type in this process.

    Unlike `list_devices`, this function does not hand out devices, so the numbers of threads and of
    virtual devices can still be changed afterwards.
    """
    was_only_listed = DeviceState.only_listed or not is_backend_started()
    count = len(_list_devices(device_type)) if device_type in list_device_types() else 0
    DeviceState.only_listed = was_only_listed
    return count


def restart_backend() -> bool:
    """Reset the backend, if it was only started to list devices.

    The backend then starts again with other settings.

    Returns:
      False if arrays, compiled programs or handed-out devices would become invalid.
    """
    if not is_backend_started():
        return True
    client = jax.local_devices()[0].client
    if not DeviceState.only_listed or jax.live_arrays() or client.live_executables():
        return False
    jex_backend.clear_backends()
    return True


def _list_devices(device_type: str, local: bool = True) -> list[jax.Device]:
    platform = "cpu" if device_type == "TPU" and count_emulated_tpus() else device_type.lower()
    try:
        devices = jax.local_devices(backend=platform) if local else jax.devices(platform)
    except RuntimeError:
        return []
    return [d for d in devices if get_device_type(d) == device_type]


def get_default_device_type() -> str:
    """Return the type of the device on which programs run by default."""
    return get_device_type(jax.local_devices()[0])


def get_default_device() -> jax.Device | str:
    """Return the device of new arrays, or its platform as a string if a program set that."""
    # JAX defines its options at run time.
    return jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]


def list_device_types() -> list[str]:
    """Return the types of the available devices."""
    available = {"CPU", get_default_device_type(), *(["TPU"] if count_emulated_tpus() else [])}
    return [kind for kind in ("CPU", "GPU", "TPU") if kind in available]


def format_device_name(device_type: str, index: int) -> str:
    """Return TensorFlow's full name of a local device."""
    return f"/job:localhost/replica:0/task:0/device:{device_type}:{index}"


def get_array_device(value: Array) -> str:
    """Return the full name of the device that holds an array; an empty string for a tracer, or a shape without values."""
    if isinstance(value, (jax.core.Tracer, jax.ShapeDtypeStruct)):
        return ""
    if isinstance(value, np.ndarray):
        return format_device_name("CPU", 0)
    device = min(value.sharding.addressable_devices, key=operator.attrgetter("id"))
    return format_device_name(get_device_type(device), get_local_index(device))


def get_local_index(device: jax.Device) -> int:
    """Return the index of a device among the devices of its process with the same type."""
    same = list_devices(get_device_type(device), local=device.process_index == jax.process_index())
    return [d for d in same if d.process_index == device.process_index].index(device)


# The name that TensorFlow uses to place ops on meshes. Here, ops run on the devices of their
# operands.
MESH_DEVICE = format_device_name("CUSTOM", 0)


def find_device(name: str) -> jax.Device:
    """Return the JAX device with a TensorFlow device name.

    Raises:
      InvalidArgumentError: If there is no such device; the message lists the available devices. The
        error is a `ValueError`, too.
    """
    device, devices = _look_up_device(name)
    if device is None:
        raise InvalidValueError(f"Could not find device {name!r}. Available: {sorted(devices)}.")
    return device


def resolve_device(name: str) -> jax.Device:
    """Return the JAX device that runs the ops placed on a TensorFlow device.

    With soft placement, a missing device is replaced by the first one of its type, or by the first
    CPU.

    Raises:
      InvalidArgumentError: If the name is malformed, or if the device is missing and
        `tf.config.set_soft_device_placement(False)` was called. The error is a `ValueError`, too.
    """
    device, devices = _look_up_device(name)
    if device is not None:
        return device
    if re.fullmatch(r"/job:\w+(/replica:\d+)?(/task:\d+)?", str(name)):
        # A task of a cluster, such as the server that holds a variable, has no device of this process.
        name = f"{name}/device:CPU:0"
    kind = re.search(r"(?:^|[/:])(CPU|GPU|TPU|XLA_CPU|XLA_GPU)(?::\d+|:\*)?$", str(name).upper())
    if kind is None or not DeviceState.soft_placement:
        raise InvalidValueError(
            f"Could not satisfy device specification {name!r}. Available: {sorted(devices)}."
        )
    return devices.get(f"{kind[1]}:0", devices["CPU:0"])


def _look_up_device(name: str) -> tuple[jax.Device | None, dict[str, jax.Device]]:
    """Return the device with a name, or None, and all devices by short name."""
    tail = str(name).upper().replace("/DEVICE:", "/").strip("/").split("/")[-1]
    kind, _, index = tail.partition(":")
    devices = {f"{t}:{i}": d for t in list_device_types() for i, d in enumerate(list_devices(t))}
    return devices.get(f"{kind}:{index or 0}"), devices


@contextlib.contextmanager
def device(device_name: object) -> Iterator[None]:
    """Place the ops and variables created inside on one device.

    Args:
      device_name: A `LogicalDevice`, a `tf.DeviceSpec`, or a name such as `"CPU:0"`, `"/GPU:1"` or
        `"/job:localhost/replica:0/task:0/device:CPU:0"`. None removes the placement, as does
        `dtensor.device_name()`: ops then run on the devices of their operands. An empty name keeps the
        placement of an outer block. A missing device is replaced by the first one of its type, or by the CPU.

    Raises:
      InvalidArgumentError: If the name is malformed, or if the device is missing and
        `tf.config.set_soft_device_placement(False)` was called. The error is a `ValueError`, too.

    Example:
      >>> with tf.device("CPU:0"):
      ...     tf.zeros([2]).device
      '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    if isinstance(device_name, LogicalDevice):
        device_name = device_name.name
    elif isinstance(device_name, DeviceSpec):
        device_name = device_name.to_string()
    if device_name == "":
        # An empty specification keeps the placement of an outer block.
        yield
        return
    if device_name == MESH_DEVICE:
        device_name = None
    saved, context.device = context.device, device_name
    try:
        if device_name is None or context.trace is not None:
            yield
        else:
            with jax.default_device(resolve_device(str(device_name))):
                yield
    finally:
        context.device = saved


def create_virtual_cpus(count: int) -> None:
    """Split the CPU into `count` JAX devices; call this before the first op.

    XLA's CPU collectives deadlock if its thread pool has fewer than a few threads per device. The
    environment variable NPROC sets the size of the pool when the backend starts.

    Raises:
      RuntimeError: If devices are already in use, and their number differs.
    """
    count += count_emulated_tpus()
    if is_backend_started():
        if len(jax.local_devices(backend="cpu")) == count:
            return
        if not restart_backend():
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
    jax.config.update("jax_num_cpu_devices", count)
    set_thread_pool_size()


def set_thread_pool_size() -> None:
    """Give XLA enough threads for the CPU devices that JAX will create, unless NPROC is set."""
    # JAX defines its options at run time, so mypy does not know them.
    count = max(jax.config.jax_num_cpu_devices, 1)  # type: ignore[attr-defined]
    flag = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if flag is not None:
        count = max(count, int(flag[1]))
    if count > 1:
        os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 4 * count)))


def is_backend_started() -> bool:
    """Check whether JAX has initialized its devices."""
    return xla_bridge.backends_are_initialized()
