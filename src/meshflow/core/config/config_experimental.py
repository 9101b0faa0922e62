"""`tf.config.experimental`."""

from __future__ import annotations

from typing import Any

import jax

from meshflow.core.config.config import (
    LogicalDeviceConfiguration,
    get_logical_device_configuration,
    get_visible_devices,
    list_logical_devices,
    list_physical_devices,
    set_logical_device_configuration,
    set_visible_devices,
)
from meshflow.core.config.config_clusters import ClusterDeviceFilters
from meshflow.core.runtime import determinism, gpu_memory
from meshflow.core.runtime.devices import find_device
from meshflow.core.tracing import pass_pipeline
from meshflow.passes.full_precision import compute_in_full_float32

__all__ = [
    "ClusterDeviceFilters",
    "VirtualDeviceConfiguration",
    "enable_op_determinism",
    "enable_tensor_float_32_execution",
    "get_device_details",
    "get_device_policy",
    "get_memory_growth",
    "get_memory_info",
    "get_memory_usage",
    "get_synchronous_execution",
    "get_virtual_device_configuration",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "reset_memory_stats",
    "set_device_policy",
    "set_memory_growth",
    "set_synchronous_execution",
    "set_virtual_device_configuration",
    "set_visible_devices",
    "tensor_float_32_execution_enabled",
]

VirtualDeviceConfiguration = LogicalDeviceConfiguration
set_virtual_device_configuration = set_logical_device_configuration
_state: dict[str, Any] = {"synchronous": True, "tf32": True, "growth": {}}


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Let products and convolutions on GPUs round float32 inputs to TensorFloat-32, as they do unless told otherwise.

    Functions that were traced before are compiled again when this is turned off.

    Args:
      enabled: whether they may.
    """
    _state["tf32"] = bool(enabled)
    pass_pipeline.install("full_float32", None if enabled else compute_in_full_float32)
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def tensor_float_32_execution_enabled() -> bool:
    """Whether TensorFloat-32 is allowed; True unless changed."""
    return _state["tf32"]


def enable_op_determinism() -> None:
    """Makes every run give the same bits, for the same seed, program and devices.

    Random ops without a seed are refused from then on. On a GPU it has to be called before the
    first op. The environment variable TF_DETERMINISTIC_OPS=1 does the same.

    Raises:
      RuntimeError: when a GPU was used before.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.set_random_seed(1)
      >>> tf.config.experimental.enable_op_determinism()  # doctest: +SKIP
    """
    determinism.enable()


def set_memory_growth(device: Any, enable: bool) -> None:
    """Has the memory of GPUs be taken as it is needed, rather than three quarters of it at once.

    It holds for all GPUs of the process, and must be set before the first op; devices may have been listed.

    Args:
      device: a physical GPU.
      enable: whether memory is taken as it is needed.

    Raises:
      ValueError: for a CPU.
      RuntimeError: when GPUs are in use already.

    Example:
      >>> import meshflow as tf
      >>> for gpu in tf.config.list_physical_devices("GPU"):
      ...     tf.config.experimental.set_memory_growth(gpu, True)
    """
    if device.device_type == "CPU":
        raise ValueError("Cannot set memory growth on non-GPU devices.")
    if device.device_type == "GPU" and bool(enable) is not get_memory_growth(device):
        gpu_memory.grow(bool(enable))
    _state["growth"][device.name] = bool(enable)


def get_memory_growth(device: Any) -> bool:
    """What `set_memory_growth` set."""
    return _state["growth"].get(device.name, False)


def get_memory_info(device: str) -> dict[str, int]:
    """Bytes in use on a device, `current` and `peak`.

    Raises:
      ValueError: for a device that does not report memory, such as a CPU.
    """
    stats = find_device(device).memory_stats()
    if not stats:
        raise ValueError(f"{device} does not report its memory.")
    return {
        "current": stats["bytes_in_use"],
        "peak": stats.get("peak_bytes_in_use", stats["bytes_in_use"]),
    }


def get_memory_usage(device: str) -> int:
    """Bytes in use on a device; see `get_memory_info`."""
    return get_memory_info(device)["current"]


def reset_memory_stats(device: str) -> None:
    """Not available: XLA counts the peak from the start of the program.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        f"reset_memory_stats({device!r}) is not available: XLA's peak counts from the program's start."
    )


def get_device_details(device: Any) -> dict[str, Any]:
    """What is known about a physical device: `device_name` for a GPU, nothing for a CPU."""
    if device.device_type == "CPU":
        return {}
    index = int(device.name.rsplit(":", 1)[1])
    found = [d for d in jax.local_devices() if d.platform != "cpu"][index]
    details: dict[str, Any] = {"device_name": found.device_kind}
    capability = getattr(found, "compute_capability", None)
    if capability:
        details["compute_capability"] = tuple(int(v) for v in str(capability).split("."))
    return details


get_virtual_device_configuration = get_logical_device_configuration


def get_synchronous_execution() -> bool:
    """Whether ops finish before the next starts; what `set_synchronous_execution` set."""
    return _state["synchronous"]


def set_synchronous_execution(enable: bool) -> None:
    """Accepted: XLA runs ahead and waits where a value is needed."""
    _state["synchronous"] = bool(enable)


def get_device_policy() -> str:
    """Always 'silent': operands move to where an op runs."""
    return "silent"


def set_device_policy(device_policy: str | None) -> None:
    """Accepted: operands always move to where an op runs."""
