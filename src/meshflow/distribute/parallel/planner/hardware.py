"""The machine that a model is planned for: how many devices, what each holds, and how fast it computes and sends."""

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

__all__ = ["Hardware", "bytes_of", "measured", "shown_bytes", "shown_seconds"]

_UNITS = {"": 1, "B": 1} | {
    letter + end: base**power
    for power, letter in enumerate("KMGTP", 1)
    for end, base in (("B", 1000), ("iB", 1024))
}


def bytes_of(text: Any) -> int:
    """A number of bytes from text.

    Args:
      text: such as "80GB" (80e9), "16GiB" (16 * 2**30), or a number of bytes.

    Raises:
      ValueError: for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    known = {unit.lower(): size for unit, size in _UNITS.items()}
    if match is None or match[2].lower() not in known or not float(match[1]):
        raise InvalidValueError(
            f"memory must be a number of bytes with one of the units {', '.join(u for u in _UNITS if u)}, such as 80GB, "
            f"got {text!r}."
        )
    return int(float(match[1]) * known[match[2].lower()])


def shown_bytes(number: float) -> str:
    """A number of bytes in three digits, such as "15.2 GB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 999.5 or unit == "TB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def shown_seconds(number: float) -> str:
    """A time in three digits, such as "13.5 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e-6:.3g} µs"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Equal devices that are linked alike.

    Args:
      devices: how many there are.
      memory: bytes that each has for weights, states and activations; text such as "80GB" in its place.
      products: multiplications and additions a second of each in matrix products; one of each counts as two.
      link: bytes a second that each sends to others.
      host: bytes a second between a device and its host's memory.
      wait: seconds that an exchange takes however little it sends.

    Raises:
      ValueError: for sizes that are not positive, a time below 0, and unknown units.

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
        object.__setattr__(self, "memory", bytes_of(self.memory))
        whole = isinstance(self.devices, int) and not isinstance(self.devices, bool)
        if not whole or self.devices < 1:
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


def measured(devices: int, memory: int | str) -> Hardware:
    """Hardware whose speeds are measured on this process's devices, in about a second.

    Args:
      devices: how many such devices there are to be.
      memory: what each has.
    """
    here = jax.local_devices()
    size = 1024
    one = jax.device_put(np.ones((size, size), np.float32), here[0])
    product = jax.jit(lambda a: a @ a)
    speed = 2.0 * size**3 / _seconds(lambda: product(one))
    known = Hardware(devices, memory, products=speed)
    host = one.nbytes / _seconds(lambda: jax.device_put(np.asarray(one), here[0]))
    if len(here) > 1:
        mesh = jax.sharding.Mesh(np.array(here), ("all",))
        rows = jax.device_put(
            np.ones((len(here), size * size), np.float32),
            NamedSharding(mesh, PartitionSpec("all")),
        )
        whole = jax.jit(lambda a: a * 1, out_shardings=NamedSharding(mesh, PartitionSpec()))
        sent = 4.0 * size * size * (len(here) - 1)
        return dataclasses.replace(known, host=host, link=sent / _seconds(lambda: whole(rows)))
    return dataclasses.replace(known, host=host)


def _seconds(run: Callable[[], Any]) -> float:
    """The least of a few times."""
    jax.block_until_ready(run())
    times = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)
