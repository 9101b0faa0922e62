"""Devices in `tf.config`, and process-wide switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshflow.core.functions.concrete_function import FunctionSettings
from meshflow.core.runtime import gpu_memory
from meshflow.core.runtime.devices import (
    DeviceState,
    LogicalDevice,
    PhysicalDevice,
    count_devices,
    create_virtual_cpus,
    list_device_types,
    list_devices,
)


class LogicalDeviceConfiguration(NamedTuple):
    """Configuration of one logical device of a physical one.

    `memory_limit` (in MB) limits the memory of a GPU; `experimental_priority` and
    `experimental_device_ordinal` are accepted and have no effect.
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


class ConfigState:
    """Settings made through `tf.config`."""

    logical_cpus: list[LogicalDeviceConfiguration] | None = None
    logical_gpus: dict[str, list[LogicalDeviceConfiguration]] = {}
    visible_devices: dict[str, list[PhysicalDevice]] = {}


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Return the devices of this machine. All virtual CPUs are one physical CPU.

    Args:
      device_type: 'CPU', 'GPU' or 'TPU'; by default all types.

    Returns:
      A list of `PhysicalDevice`.

    Example:
      >>> tf.config.list_physical_devices("CPU")
      [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    devices = (
        [PhysicalDevice("/physical_device:CPU:0", "CPU")] if device_type in (None, "CPU") else []
    )
    if device_type == "CPU":
        return devices
    for kind in ("GPU", "TPU"):
        if device_type in (None, kind):
            devices += [
                PhysicalDevice(f"/physical_device:{kind}:{i}", kind)
                for i in range(count_devices(kind))
            ]
    return devices


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Return the devices on which ops can be placed.

    Args:
      device_type: 'CPU', 'GPU' or 'TPU'; by default all types.

    Example:
      >>> [device.device_type for device in tf.config.list_logical_devices("CPU")][0]
      'CPU'
    """
    result = []
    for kind in list_device_types():
        if device_type in (None, kind):
            result += [
                LogicalDevice(f"/device:{kind}:{i}", kind) for i in range(len(list_devices(kind)))
            ]
    return result


def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Split a physical CPU into several logical ones, or limit a GPU's memory; call this before the first op.

    Args:
      device: A physical device.
      logical_devices: A `LogicalDeviceConfiguration` for each logical device. A GPU takes a single
        one, whose `memory_limit` applies to all GPUs of the process.

    Raises:
      RuntimeError: If devices are already in use.
      ValueError: For several logical devices of a GPU or TPU.
    """
    if device.device_type != "CPU":
        if len(logical_devices) != 1:
            raise ValueError(
                f"Only CPUs can be split into logical devices, got {len(logical_devices)} for {device.name}. To try out "
                "several devices, split the CPU (JAX_PLATFORMS=cpu)."
            )
        if device.device_type == "GPU" and logical_devices[0].memory_limit is not None:
            gpu_memory.limit(logical_devices[0].memory_limit)
        ConfigState.logical_gpus[device.name] = list(logical_devices)
        return
    create_virtual_cpus(len(logical_devices))
    ConfigState.logical_cpus = list(logical_devices)


def get_logical_device_configuration(
    device: PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """Return the configuration that `set_logical_device_configuration` set, or None."""
    if device.device_type == "CPU":
        return ConfigState.logical_cpus
    return ConfigState.logical_gpus.get(device.name)


def set_visible_devices(devices: Sequence[PhysicalDevice], device_type: str | None = None) -> None:
    """Set the devices that the program may use. This is not enforced.

    Args:
      devices: Physical devices.
      device_type: The type to which the list applies; by default all types.
    """
    for kind in [device_type] if device_type else ["CPU", "GPU", "TPU"]:
        ConfigState.visible_devices[kind] = [d for d in devices if d.device_type == kind]


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Return the devices that the program may use.

    Example:
      >>> tf.config.get_visible_devices("CPU")[0].device_type
      'CPU'
    """
    device_types = [device_type] if device_type else ["CPU", "GPU", "TPU"]
    return [
        d
        for k in device_types
        for d in ConfigState.visible_devices.get(k, list_physical_devices(k))
    ]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Make every `tf.function` run as plain Python, for debugging.

    Args:
      run_eagerly: Whether functions run as plain Python.

    Example:
      >>> tf.config.run_functions_eagerly(True)
      >>> tf.function(lambda x: print("seen:", x.numpy().item()))(tf.constant(3))
      seen: 3
      >>> tf.config.run_functions_eagerly(False)
    """
    FunctionSettings.run_eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Check whether every `tf.function` runs as plain Python.

    Example:
      >>> tf.config.functions_run_eagerly()
      False
    """
    return FunctionSettings.run_eagerly


def set_soft_device_placement(enabled: bool) -> None:
    """Set whether ops that are placed on a missing device run on another one, which is the default.

    Args:
      enabled: False to raise an error instead.

    Example:
      >>> with tf.device("/GPU:99"):
      ...     tf.zeros([2]).numpy()
      array([0., 0.], dtype=float32)
    """
    DeviceState.soft_placement = bool(enabled)


def get_soft_device_placement() -> bool:
    """Return the value that `set_soft_device_placement` set.

    Example:
      >>> tf.config.get_soft_device_placement() in (True, False)
      True
    """
    return DeviceState.soft_placement


experimental_run_functions_eagerly = run_functions_eagerly
experimental_functions_run_eagerly = functions_run_eagerly
