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

# Rows and columns of the matrices that are multiplied and copied in a measurement.
_MEASURED_SIZE = 1024
# Elements that each device exchanges: many for the bandwidth, and few for the latency.
_LARGE_EXCHANGE, _SMALL_EXCHANGE = 1 << 20, 1 << 5
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


def parse_fraction(value: object) -> float:
    """Parse a fraction of a device's memory.

    Args:
      value: Text such as "10%" or "0.1", or a number.

    Returns:
      The fraction.

    Raises:
      ValueError: If the value cannot be parsed, or if it is not in the range from 0 to less than 1.
    """
    match = re.fullmatch(r"\s*(\d*\.?\d+(?:[eE]-?\d+)?)\s*(%?)\s*", str(value))
    fraction = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= fraction < 1:
        raise InvalidValueError(
            f"margin must be a part of the memory, such as 10% or 0.1 and less than 1, got {value!r}."
        )
    return fraction


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


_H100: dict[str, Any] = {
    "memory": "80GB",
    "products": 495e12,
    "bfloat16_products": 989e12,
    "link": 50e9,
    "host": 64e9,
    "node": 8,
    "node_link": 450e9,
}
# Peak values of vendors, without sparsity, by type of device. Products of float32 use TF32 or, on TPUs, bfloat16. H100 and H200
# have nodes of eight with NVLink, and one link of 400 Gbit/s of each device to other nodes; v5p has a torus, and the links in one
# dimension send 90 GB/s in each direction.
_KINDS: dict[str, dict[str, Any]] = {
    "h100": _H100,
    "h200": {**_H100, "memory": "141GB"},
    "v5p": {
        "memory": "95GB",
        "products": 459e12,
        "bfloat16_products": 459e12,
        "link": 180e9,
        "host": 16e9,
    },
}


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
      wait: Latency of an exchange, and of a pass of a layer, in seconds.
      margin: Part of the memory that a plan leaves free, such as "10%" or 0.1, for fragmentation
        and for the error of the estimate.
      bfloat16_products: Speed of matrix products of bfloat16 values. Default: `products`.
      node: Number of devices of a node, between which links are faster. Default: all.
      node_link: Bytes per second that each device sends to devices of its node. Default: `link`.

    Raises:
      ValueError: If a size or speed is not positive, if the latency is negative, if the margin is
        not less than 1, or if a unit is unknown.

    Example:
      >>> tf.distribute.Hardware(8, "16GB").memory
      16000000000
      >>> tf.distribute.Hardware(8, "16GB", margin="25%").usable_memory
      12000000000
    """

    devices: int
    memory: int | str
    products: float = 100e12
    link: float = 50e9
    host: float = 20e9
    wait: float = 1e-5
    margin: float | str = 0.1
    bfloat16_products: float | None = None
    node: int | None = None
    node_link: float | None = None

    @classmethod
    def from_kind(cls, kind: str, devices: int, **values: Any) -> Hardware:
        """Create the description of a known type of device from its vendor's peak values.

        Args:
          kind: "h100", "h200" or "v5p".
          devices: Number of devices.
          **values: Fields that differ.

        Returns:
          The hardware.

        Raises:
          ValueError: If the type is unknown.

        Example:
          >>> tf.distribute.Hardware.from_kind("h200", 64).memory
          141000000000
        """
        if kind.lower() not in _KINDS:
            raise InvalidValueError(
                f"Hardware: kind must be one of {', '.join(_KINDS)}, got {kind!r}. For other devices, pass memory, products "
                "and link."
            )
        return cls(devices, **{**_KINDS[kind.lower()], **values})

    def get_link(self, span: int, inner: int | None = 1) -> float:
        """Return the bytes per second that each device sends in an exchange.

        Args:
          span: Number of consecutive devices among which an exchange takes place.
          inner: Number of consecutive devices of which only one takes part in a ring; the other
            devices of a node share its links to other nodes. None if each device sends on its own.

        Returns:
          The speed.
        """
        if self.node is None or self.node_link is None:
            return self.link
        if span <= self.node:
            return self.node_link
        rings = 1 if inner is None else max(self.node // inner, 1)
        return min(self.node_link, rings * self.link)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", parse_bytes(self.memory))
        object.__setattr__(self, "margin", parse_fraction(self.margin))
        if self.bfloat16_products is None:
            object.__setattr__(self, "bfloat16_products", self.products)
        is_integer = isinstance(self.devices, int) and not isinstance(self.devices, bool)
        if not is_integer or self.devices < 1:
            raise InvalidValueError(
                f"Hardware: devices must be an integer of at least 1, got {self.devices!r}."
            )
        if (self.node is None) != (self.node_link is None):
            raise InvalidValueError(
                f"Hardware: pass node and node_link together, got {self.node!r} and {self.node_link!r}."
            )
        for name in ("products", "link", "host", "bfloat16_products", "node", "node_link"):
            speed = getattr(self, name)
            if name.startswith("node") and speed is None:
                continue
            if not (isinstance(speed, (int, float)) and speed > 0):
                raise InvalidValueError(
                    f"Hardware: {name} must be a positive number a second, got {speed!r}."
                )
        if not (isinstance(self.wait, (int, float)) and self.wait >= 0):
            raise InvalidValueError(
                f"Hardware: wait must be a number of seconds, 0 or more, got {self.wait!r}."
            )

    @property
    def usable_memory(self) -> int:
        """Return the bytes of each device without the margin."""
        return round(int(self.memory) * (1 - float(self.margin)))


def measure_hardware(devices: int, memory: int | str, margin: float | str = 0.1) -> Hardware:
    """Measure the speeds of this process's devices and of the links between them.

    Bandwidth and latency of a link are those of all-reduces and all-gathers of two sizes. A process
    with one device has no link; the defaults of `Hardware` are used.

    Args:
      devices: Number of devices to plan for.
      memory: Memory of each device.
      margin: As in `Hardware`.

    Returns:
      The hardware.
    """
    local_devices = jax.local_devices()
    matrix = jax.device_put(np.ones([_MEASURED_SIZE] * 2, np.float32), local_devices[0])
    products = jax.jit(lambda a: a @ a)
    flops = 2.0 * _MEASURED_SIZE**3
    speeds = [flops / _time_call(products, matrix.astype(t)) for t in ("float32", "bfloat16")]
    seconds = _time_call(lambda a: jax.device_put(np.asarray(a), local_devices[0]), matrix)
    hardware = Hardware(
        devices,
        memory,
        products=speeds[0],
        host=matrix.nbytes / seconds,
        margin=margin,
        bfloat16_products=speeds[1],
    )
    if len(local_devices) == 1:
        return hardware
    link, wait = _measure_links(local_devices)
    return dataclasses.replace(hardware, link=link, wait=wait)


def _measure_links(devices: list[jax.Device]) -> tuple[float, float]:
    """Return the bytes per second that each device sends, and the seconds of the smallest exchange."""
    count = len(devices)
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    split, full = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["all"], []))
    # The second values are the bytes that a device sends for each element of a row.
    sent = 4.0 * (count - 1)
    collectives = [
        (jax.jit(lambda a: a * 1, out_shardings=full), sent),
        (jax.jit(lambda a: a.sum(0), out_shardings=full), 2 * sent / count),
    ]
    times = []
    for length in (_LARGE_EXCHANGE, _SMALL_EXCHANGE):
        rows = jax.device_put(np.ones((count, length), np.float32), split)
        times.append([_time_call(run, rows) for run, _ in collectives])
    large, small = map(sum, times)
    num_bytes = sum(n for _, n in collectives) * (_LARGE_EXCHANGE - _SMALL_EXCHANGE)
    return num_bytes / max(large - small, 1e-9), small / len(collectives)


def _time_call(run: Callable[..., Any], *operands: Any) -> float:
    """Return the shortest of five times of a call, in seconds."""
    jax.block_until_ready(run(*operands))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run(*operands))
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
