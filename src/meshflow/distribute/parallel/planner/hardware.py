"""Description of the machine that a model is planned for: number, memory and speeds of devices."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.core.runtime.errors import InvalidValueError

__all__ = ["Hardware", "format_bytes", "format_seconds", "measure_hardware", "parse_bytes"]

_UNITS = {"": 1, "B": 1} | {
    letter + end: base**power
    for power, letter in enumerate("KMGTP", 1)
    for end, base in (("B", 1000), ("iB", 1024))
}


def parse_bytes(text: object) -> int:
    """Parse a number of bytes.

    Args:
      text: Text such as "80GB" (80e9) or "16GiB" (16 * 2**30), or a number of bytes.

    Returns:
      The number of bytes.

    Raises:
      ValueError: If the text cannot be parsed or the number is zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if match is None or match[2].lower() not in units or not float(match[1]):
        raise InvalidValueError(
            f"memory must be a number of bytes with one of the units {', '.join(u for u in _UNITS if u)}, such as 80GB, "
            f"got {text!r}."
        )
    return int(float(match[1]) * units[match[2].lower()])


def format_bytes(count: float) -> str:
    """Format a number of bytes with three digits, such as "15.2 GB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Format a time with three digits, such as "13.5 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Equal devices with equal links.

    Args:
      devices: Number of devices.
      memory: Bytes of each device for weights, states and activations, or text such as "80GB".
      products: Speed of matrix products on each device, in multiplications plus additions per
        second.
      link: Bytes per second that each device sends to other devices.
      host: Bytes per second between a device and its host's memory.
      wait: Latency of an exchange in seconds.

    Raises:
      ValueError: If a size or speed is not positive, if the latency is negative, or if a unit is
        unknown.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.Hardware(8, "16GB").memory
      16000000000
    """

    devices: int
    memory: int | str
    products: float = 100e12
    link: float = 50e9
    host: float = 20e9
    wait: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", parse_bytes(self.memory))
        is_integer = isinstance(self.devices, int) and not isinstance(self.devices, bool)
        if not is_integer or self.devices < 1:
            raise InvalidValueError(
                f"Hardware: devices must be an integer of at least 1, got {self.devices!r}."
            )
        for name in ("products", "link", "host"):
            speed = getattr(self, name)
            if not (isinstance(speed, (int, float)) and speed > 0):
                raise InvalidValueError(
                    f"Hardware: {name} must be a positive number a second, got {speed!r}."
                )
        if not (isinstance(self.wait, (int, float)) and self.wait >= 0):
            raise InvalidValueError(
                f"Hardware: wait must be a number of seconds, 0 or more, got {self.wait!r}."
            )


def measure_hardware(devices: int, memory: int | str) -> Hardware:
    """Measure the speeds of this process's devices, in about a second.

    Args:
      devices: Number of devices to plan for.
      memory: Memory of each device.

    Returns:
      The hardware.
    """
    local_devices = jax.local_devices()
    size = 1024
    matrix = jax.device_put(np.ones((size, size), np.float32), local_devices[0])
    product = jax.jit(lambda a: a @ a)
    speed = 2.0 * size**3 / _time_call(lambda: product(matrix))
    hardware = Hardware(devices, memory, products=speed)
    host = matrix.nbytes / _time_call(lambda: jax.device_put(np.asarray(matrix), local_devices[0]))
    count = len(local_devices)
    if count > 1:
        mesh = jax.sharding.Mesh(np.array(local_devices), ("all",))
        rows = jax.device_put(
            np.ones((count, size * size), np.float32), NamedSharding(mesh, PartitionSpec("all"))
        )
        gather = jax.jit(lambda a: a * 1, out_shardings=NamedSharding(mesh, PartitionSpec()))
        sent = 4.0 * size * size * (count - 1)
        link = sent / _time_call(lambda: gather(rows))
        return dataclasses.replace(hardware, host=host, link=link)
    return dataclasses.replace(hardware, host=host)


def _time_call(run: Callable[[], Any]) -> float:
    """Return the shortest of three times of a call, in seconds."""
    jax.block_until_ready(run())
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
