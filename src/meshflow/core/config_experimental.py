"""`tf.config.experimental`."""

from __future__ import annotations

from typing import Any

import jax

from meshflow.core.config import (
    LogicalDeviceConfiguration,
    get_visible_devices,
    list_logical_devices,
    list_physical_devices,
    set_logical_device_configuration,
    set_visible_devices,
)

__all__ = [
    "VirtualDeviceConfiguration",
    "enable_op_determinism",
    "enable_tensor_float_32_execution",
    "get_memory_growth",
    "get_memory_info",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "set_memory_growth",
    "set_virtual_device_configuration",
    "set_visible_devices",
    "tensor_float_32_execution_enabled",
]

VirtualDeviceConfiguration = LogicalDeviceConfiguration
set_virtual_device_configuration = set_logical_device_configuration
_state: dict[str, Any] = {"tf32": True, "deterministic": False, "growth": {}}


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Lets matrix products on GPUs round float32 inputs to TensorFloat-32.

    Args:
      enabled: whether they may.
    """
    _state["tf32"] = bool(enabled)
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def tensor_float_32_execution_enabled() -> bool:
    """Whether TensorFloat-32 is allowed; True unless changed."""
    return _state["tf32"]


def enable_op_determinism() -> None:
    """Asks for bitwise equal results in every run; XLA programs on CPU always are."""
    _state["deterministic"] = True


def set_memory_growth(device: Any, enable: bool) -> None:
    """Accepted: how XLA takes device memory is set by the variable XLA_PYTHON_CLIENT_PREALLOCATE."""
    _state["growth"][device.name] = bool(enable)


def get_memory_growth(device: Any) -> bool:
    """What `set_memory_growth` set."""
    return _state["growth"].get(device.name, False)


def get_memory_info(device: str) -> dict[str, int]:
    """Bytes in use on a device, `current` and `peak`.

    Raises:
      ValueError: for a device that does not report memory, such as a CPU.
    """
    from meshflow.core.devices import find_device

    stats = find_device(device).memory_stats()
    if not stats:
        raise ValueError(f"{device} does not report its memory.")
    return {
        "current": stats["bytes_in_use"],
        "peak": stats.get("peak_bytes_in_use", stats["bytes_in_use"]),
    }
