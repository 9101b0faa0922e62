"""Device names, physical and logical devices, and `tf.device`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.context import context


class PhysicalDevice(NamedTuple):
    """A device of this machine: `name` such as `/physical_device:CPU:0`, and `device_type`."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device that ops can be placed on: `name` such as `/device:CPU:0`, and `device_type`."""

    name: str
    device_type: str


_TYPES = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}


def type_of(device: Any) -> str:
    """TensorFlow's name of a JAX device's kind: CPU, GPU or TPU."""
    return _TYPES.get(device.platform, device.platform.upper())


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
    """Position of a device among this process's devices of its platform."""
    return jax.local_devices(backend=device.platform).index(device)


def find_device(name: str) -> Any:
    """The JAX device that a TensorFlow device string names.

    Raises:
      ValueError: when there is no such device, listing those there are.
    """
    tail = str(name).upper().replace("/DEVICE:", "/").strip("/").split("/")[-1]
    kind, _, index = tail.partition(":")
    devices = {
        f"{type_of(d)}:{i}": d
        for platform in _platforms()
        for i, d in enumerate(jax.local_devices(backend=platform))
    }
    found = devices.get(f"{kind}:{index or 0}")
    if found is None:
        raise ValueError(f"Could not find device {name!r}. Available: {sorted(devices)}.")
    return found


def _platforms() -> list[str]:
    platforms = [jax.default_backend()]
    return platforms if "cpu" in platforms else [*platforms, "cpu"]


@contextlib.contextmanager
def device(device_name: Any) -> Iterator[None]:
    """Places ops and variables made inside on one device.

    Args:
      device_name: such as `"CPU:0"`, `"/GPU:1"`, `"/job:localhost/replica:0/task:0/device:CPU:0"`;
        None clears the placement.

    Raises:
      ValueError: when the device does not exist.

    Example:
      >>> import meshflow as tf
      >>> with tf.device("CPU:0"):
      ...     tf.zeros([2]).device
      '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    saved, context.device = context.device, device_name
    try:
        if device_name is None or context.trace is not None:
            yield
        else:
            with jax.default_device(find_device(device_name)):
                yield
    finally:
        context.device = saved


def make_virtual_cpus(count: int) -> None:
    """Makes one process see `count` CPU devices; must run before the first op.

    XLA's CPU collectives deadlock when its thread pool is smaller than a few threads per
    device, and the pool is sized by the variable NPROC when the backend starts.

    Raises:
      RuntimeError: when the backend is running with another number of devices.
    """
    from jax.extend import backend

    del backend
    if _backend_started():
        if len(jax.local_devices(backend="cpu")) != count:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        return
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 4 * count)))
    jax.config.update("jax_num_cpu_devices", count)


def _backend_started() -> bool:
    from jax._src import xla_bridge  # no public way to ask without starting it

    return xla_bridge.backends_are_initialized()
