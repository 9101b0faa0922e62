"""`tf.config.experimental`."""

from __future__ import annotations

import re
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
from meshflow.core.runtime.devices import PhysicalDevice, find_device
from meshflow.core.tracing import pass_pipeline
from meshflow.passes.full_precision import compute_in_full_float32

__all__ = [
    "ClusterDeviceFilters",
    "VirtualDeviceConfiguration",
    "disable_mlir_bridge",
    "enable_mlir_bridge",
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
    """Allow matrix products and convolutions on GPUs to round float32 inputs to TensorFloat-32.

    This is the default. Traced functions are compiled again after a change.

    Args:
      enabled: Whether rounding is allowed.
    """
    _state["tf32"] = bool(enabled)
    pass_pipeline.install_pass("full_float32", None if enabled else compute_in_full_float32)
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def tensor_float_32_execution_enabled() -> bool:
    """Check whether TensorFloat-32 is allowed, which is the default."""
    return _state["tf32"]


def enable_op_determinism() -> None:
    """Make every run return the same bits for the same seed, program and devices.

    Random ops without a seed raise an error afterwards. If a GPU is used, call this function before
    the first op. The environment variable TF_DETERMINISTIC_OPS=1 has the same effect.

    Raises:
      RuntimeError: If a GPU was already used.

    Example:
      >>> tf.keras.utils.set_random_seed(1)
      >>> tf.config.experimental.enable_op_determinism()  # doctest: +SKIP
    """
    determinism.enable()


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Allocate the memory of GPUs on demand instead of three quarters of it at once.

    The setting applies to all GPUs of the process. Call this before the first op; listing devices
    earlier is allowed.

    Args:
      device: A physical GPU.
      enable: Whether memory is allocated on demand.

    Raises:
      ValueError: For a CPU.
      RuntimeError: If GPUs are already in use.

    Example:
      >>> for gpu in tf.config.list_physical_devices("GPU"):
      ...     tf.config.experimental.set_memory_growth(gpu, True)
    """
    if device.device_type == "CPU":
        raise ValueError("Cannot set memory growth on non-GPU devices.")
    if device.device_type == "GPU" and bool(enable) is not get_memory_growth(device):
        gpu_memory.grow(bool(enable))
    _state["growth"][device.name] = bool(enable)


def get_memory_growth(device: PhysicalDevice) -> bool:
    """Return the value that `set_memory_growth` set."""
    return _state["growth"].get(device.name, False)


def _find_named_device(name: str) -> jax.Device:
    """Return the device of a name with a type and an index.

    Raises:
      ValueError: If the name lacks one of them, or there is no such device.
    """
    if not re.search(r"\w:\d+$", name):
        raise ValueError(
            f"Failed parsing device name: {name!r}. Use a type and an index, such as 'GPU:0'."
        )
    try:
        return find_device(name)
    except ValueError as error:
        raise ValueError(f"No matching devices found for {name!r}. {error}") from None


def get_memory_info(device: str) -> dict[str, int]:
    """Return the number of bytes in use on a device, as `current` and `peak`.

    Raises:
      ValueError: If the device does not report its memory, such as a CPU.
    """
    stats = _find_named_device(device).memory_stats()
    if not stats:
        raise ValueError(f"Allocator stats not available for device {device!r}.")
    return {
        "current": stats["bytes_in_use"],
        "peak": stats.get("peak_bytes_in_use", stats["bytes_in_use"]),
    }


def get_memory_usage(device: str) -> int:
    """Return the number of bytes in use on a device; see `get_memory_info`."""
    return get_memory_info(device)["current"]


def reset_memory_stats(device: str) -> None:
    """Raise an error: XLA counts the peak from the start of the program.

    Raises:
      ValueError: If there is no such device, or it does not report its memory, such as a CPU.
      NotImplementedError: For other devices.
    """
    if _find_named_device(device).memory_stats() is None:
        raise ValueError(
            f"Cannot reset memory stats: device {device!r} does not report its memory."
        )
    raise NotImplementedError(
        f"reset_memory_stats({device!r}) is not available: XLA's peak counts from the program's start."
    )


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """Return the properties of a physical device.

    The properties of a GPU are `device_name` and `compute_capability`; a CPU has none.

    Raises:
      ValueError: If the argument is no device of `tf.config.list_physical_devices`.
    """
    if not isinstance(device, PhysicalDevice):
        raise ValueError(f"device must be a tf.config.PhysicalDevice, got {device!r}.")
    if device not in list_physical_devices():
        raise ValueError(
            "The PhysicalDevice must be one obtained from calling `tf.config.list_physical_devices`, got "
            f"{device}."
        )
    if device.device_type == "CPU":
        return {}
    index = int(device.name.rsplit(":", 1)[1])
    jax_device = [d for d in jax.local_devices() if d.platform != "cpu"][index]
    details: dict[str, Any] = {"device_name": jax_device.device_kind}
    capability = getattr(jax_device, "compute_capability", None)
    if capability:
        details["compute_capability"] = tuple(int(v) for v in str(capability).split("."))
    return details


get_virtual_device_configuration = get_logical_device_configuration


def get_synchronous_execution() -> bool:
    """Return the value that `set_synchronous_execution` set, True by default."""
    return _state["synchronous"]


def set_synchronous_execution(enable: bool) -> None:
    """Store the setting, which has no effect.

    XLA runs ops asynchronously and waits when a value is needed.
    """
    _state["synchronous"] = bool(enable)


def get_device_policy() -> str:
    """Return 'silent': operands always move to the device of an op."""
    return "silent"


def set_device_policy(device_policy: str | None) -> None:
    """Do nothing: operands always move to the device of an op."""


def enable_mlir_bridge() -> None:
    """Do nothing: JAX always lowers programs by MLIR."""


def disable_mlir_bridge() -> None:
    """Do nothing: JAX always lowers programs by MLIR."""
