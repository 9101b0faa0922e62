"""Device names, physical and logical devices, and `tf.device`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.jax_internals import jex_backend, xla_bridge


class PhysicalDevice(NamedTuple):
    """A device of this machine: `name` such as `/physical_device:CPU:0`, and `device_type`.

    Example:
      >>> import meshflow as tf
      >>> tf.config.list_physical_devices("CPU")[0].name
      '/physical_device:CPU:0'
    """

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device that ops can be placed on: `name` such as `/device:CPU:0`, and `device_type`.

    Example:
      >>> import meshflow as tf
      >>> tf.config.list_logical_devices("CPU")[0].name
      '/device:CPU:0'
    """

    name: str
    device_type: str


class Placement:
    """How device names are taken, and what is known of the devices so far.

    Attributes:
      soft: whether what is asked of a device that is not there runs on another, as TensorFlow has it.
      listed: whether the backend was started to be looked at, and nobody was given a device since.
    """

    soft = True
    listed = False


_TYPES = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}


def emulated_tpus() -> int:
    """How many CPU devices, the last ones, stand for TPUs: `MESHFLOW_EMULATE_TPU`.

    Raises:
      ValueError: when the variable is not a whole number.
    """
    text = os.environ.get("MESHFLOW_EMULATE_TPU", "") or "0"
    if not text.isdigit():
        raise ValueError(f"MESHFLOW_EMULATE_TPU must be a number of devices, got {text!r}.")
    return int(text)


def type_of(device: Any) -> str:
    """TensorFlow's name of a JAX device's kind: CPU, GPU or TPU."""
    if device.platform == "cpu" and emulated_tpus():
        cpus = [d for d in jax.devices("cpu") if d.process_index == device.process_index]
        return "TPU" if device in cpus[-emulated_tpus() :] else "CPU"
    return _TYPES.get(device.platform, device.platform.upper())


def devices_of(kind: str, local: bool = True) -> list[Any]:
    """JAX devices of a kind, of this process or of all; none when the kind is not there."""
    Placement.listed = False
    return _devices_of(kind, local)


def count_of(kind: str) -> int:
    """How many devices of a kind this process has; asking leaves threads and virtual devices free to be set."""
    listed = Placement.listed or not backend_started()
    count = len(_devices_of(kind)) if kind in kinds() else 0
    Placement.listed = listed
    return count


def start_anew() -> bool:
    """Makes the backend start again with other settings, where nothing but listing has started it.

    Returns:
      False where arrays, programs or somebody who was given a device would be left behind.
    """
    if not backend_started():
        return True
    client = jax.local_devices()[0].client
    if not Placement.listed or jax.live_arrays() or client.live_executables():
        return False
    jex_backend.clear_backends()
    return True


def _devices_of(kind: str, local: bool = True) -> list[Any]:
    platform = "cpu" if kind == "TPU" and emulated_tpus() else kind.lower()
    try:
        found = jax.local_devices(backend=platform) if local else jax.devices(platform)
    except RuntimeError:
        return []
    return [d for d in found if type_of(d) == kind]


def main_kind() -> str:
    """The kind of device that programs run on unless they say otherwise."""
    return type_of(jax.local_devices()[0])


def kinds() -> list[str]:
    """The kinds of devices there are."""
    found = {"CPU", main_kind(), *(["TPU"] if emulated_tpus() else [])}
    return [kind for kind in ("CPU", "GPU", "TPU") if kind in found]


def full_name(kind: str, index: int) -> str:
    """TensorFlow's full name of a local device."""
    return f"/job:localhost/replica:0/task:0/device:{kind}:{index}"


def device_of(value: Any) -> str:
    """The full name of the device that holds an array; empty for a tracer."""
    if isinstance(value, jax.core.Tracer):
        return ""
    if isinstance(value, np.ndarray):
        return full_name("CPU", 0)
    device = min(value.sharding.addressable_devices, key=lambda d: d.id)
    return full_name(type_of(device), local_index(device))


def local_index(device: Any) -> int:
    """Position of a device among its process's devices of its kind."""
    same = devices_of(type_of(device), local=device.process_index == jax.process_index())
    return [d for d in same if d.process_index == device.process_index].index(device)


# The name under which TensorFlow places ops on meshes; here they run where their operands lie.
MESH_DEVICE = full_name("CUSTOM", 0)


def find_device(name: str) -> Any:
    """The JAX device that a TensorFlow device string names.

    Raises:
      InvalidArgumentError: when there is no such device, listing those there are; a ValueError, too.
    """
    found, devices = _named(name)
    if found is None:
        raise InvalidValueError(f"Could not find device {name!r}. Available: {sorted(devices)}.")
    return found


def device_for(name: str) -> Any:
    """The JAX device that ops asked onto a TensorFlow device run on: under soft placement there always is one.

    Raises:
      InvalidArgumentError: when there is no such device and `tf.config.set_soft_device_placement(False)` was
        called, and for a text that names no device; a ValueError, too.
    """
    found, devices = _named(name)
    if found is not None:
        return found
    if re.fullmatch(r"/job:\w+(/replica:\d+)?(/task:\d+)?", str(name)):
        name = (
            f"{name}/device:CPU:0"  # a task of a cluster, of which parameter servers have variables
        )
    kind = re.search(r"(?:^|[/:])(CPU|GPU|TPU|XLA_CPU|XLA_GPU)(?::\d+|:\*)?$", str(name).upper())
    if kind is None or not Placement.soft:
        raise InvalidValueError(
            f"Could not satisfy device specification {name!r}. Available: {sorted(devices)}."
        )
    return devices.get(f"{kind[1]}:0", devices["CPU:0"])


def _named(name: str) -> tuple[Any, dict[str, Any]]:
    """The device of a name, None when it is not there, and all devices by name."""
    tail = str(name).upper().replace("/DEVICE:", "/").strip("/").split("/")[-1]
    kind, _, index = tail.partition(":")
    devices = {
        f"{of_kind}:{i}": d for of_kind in kinds() for i, d in enumerate(devices_of(of_kind))
    }
    return devices.get(f"{kind}:{index or 0}"), devices


@contextlib.contextmanager
def device(device_name: Any) -> Iterator[None]:
    """Places ops and variables made inside on one device.

    Args:
      device_name: such as `"CPU:0"`, `"/GPU:1"`, `"/job:localhost/replica:0/task:0/device:CPU:0"`;
        None clears the placement, and so does `dtensor.device_name()`: ops run where their operands lie.
        What is asked of a device that is not there runs on another one of its kind, or on the CPU.

    Raises:
      InvalidArgumentError: when the device does not exist and `tf.config.set_soft_device_placement(False)` was
        called, and for a text that names no device; a ValueError, too.

    Example:
      >>> import meshflow as tf
      >>> with tf.device("CPU:0"):
      ...     tf.zeros([2]).device
      '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    if device_name == MESH_DEVICE:
        device_name = None
    saved, context.device = context.device, device_name
    try:
        if device_name is None or context.trace is not None:
            yield
        else:
            with jax.default_device(device_for(device_name)):
                yield
    finally:
        context.device = saved


def make_virtual_cpus(count: int) -> None:
    """Makes one process see `count` CPU devices; must run before the first op.

    XLA's CPU collectives deadlock when its thread pool is smaller than a few threads per device, and
    the pool is sized by the variable NPROC when the backend starts.

    Raises:
      RuntimeError: when the backend is running with another number of devices.
    """
    count += emulated_tpus()
    if backend_started():
        if len(jax.local_devices(backend="cpu")) != count:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        return
    jax.config.update("jax_num_cpu_devices", count)
    size_thread_pool()


def size_thread_pool() -> None:
    """Gives XLA enough threads for the CPU devices that JAX is told to make, unless NPROC is set."""
    # JAX defines its options at run time.
    count = max(jax.config.jax_num_cpu_devices, 1)  # type: ignore[attr-defined]
    flag = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if flag is not None:
        count = max(count, int(flag[1]))
    if count > 1:
        os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 4 * count)))


def backend_started() -> bool:
    """Whether JAX has been given its devices."""
    return xla_bridge.backends_are_initialized()
