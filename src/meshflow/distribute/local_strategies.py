"""Strategies for the devices of this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshflow.core.runtime.devices import (
    DeviceState,
    create_virtual_cpus,
    get_default_device_type,
    is_backend_started,
    list_device_types,
    list_devices,
)
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.strategy import Strategy
from meshflow.placement.mesh import find_jax_device, to_device_string

if TYPE_CHECKING:
    import jax

    from meshflow.distribute.replicas.cross_device import CrossDeviceOps

_log = logging.getLogger("meshflow")


class OneDeviceStrategy(Strategy):
    """Strategy that uses one device.

    Args:
      device: Name of the device, such as "CPU:0".

    Example:
      >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
      >>> float(strategy.run(lambda x: x + 1.0, [tf.constant(2.0)]))
      3.0
    """

    def __init__(self, device: str) -> None:
        self._initialize(_find_devices([device]))


def _find_devices(names: Sequence[object]) -> list[jax.Device]:
    """Find the devices with some names; CPUs replace GPUs and CPUs that do not exist, with a warning.

    Raises:
      ValueError: If a device does not exist, and there is no CPU to replace it.
    """
    texts = [to_device_string(name) for name in names]
    replaceable = re.compile(r"(?:^|[/:])([cg]pu)(?::\d+)?$")
    kinds = [m[1] for m in map(replaceable.search, map(str.lower, texts)) if m]
    if not texts or len(kinds) < len(texts) or not DeviceState.soft_placement:
        return [find_jax_device(name) for name in names]
    if not is_backend_started() and not importlib.metadata.entry_points(group="jax_plugins"):
        # Without plugins, JAX finds no GPU when it starts.
        create_virtual_cpus(len(texts))
    found: dict[str, jax.Device] = {}
    for name, text in zip(names, texts, strict=True):
        with contextlib.suppress(InvalidValueError):
            found[text] = find_jax_device(name)
    missing = [text for text in texts if text not in found]
    if missing and "GPU" in list_device_types() and "gpu" in kinds:
        return [find_jax_device(name) for name in names]
    free = iter([d for d in list_devices("CPU") if d not in found.values()])
    devices = [found.get(text) or next(free, None) for text in texts]
    chosen = [device for device in devices if device is not None]
    if missing:
        _log.warning(
            "Some requested devices in `tf.distribute.Strategy` are not visible: %s. The strategy uses %d CPU devices.",
            ", ".join(missing),
            len(chosen),
        )
    return chosen


class MirroredStrategy(Strategy):
    """Strategy with a replica, and a copy of the variables, on each of several local devices.

    Args:
      devices: Device strings; default all GPUs or TPUs, or all CPU devices if there are none. CPU devices replace GPUs
        on a machine without them, and CPUs that do not exist: as many as exist if the program has already used devices.
      cross_device_ops: Ignored; XLA chooses the collectives.

    Raises:
      ValueError: If a device does not exist or is repeated.

    Example:
      >>> tf.distribute.MirroredStrategy(["CPU:0"]).num_replicas_in_sync
      1
    """

    def __init__(
        self,
        devices: str | Sequence[object] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        del cross_device_ops
        if isinstance(devices, str):
            devices = [devices]
        jax_devices = (
            list_devices(get_default_device_type()) if devices is None else _find_devices(devices)
        )
        if not jax_devices:
            raise InvalidValueError("MirroredStrategy: `devices` must have at least one device.")
        self._initialize(jax_devices)


class CentralStorageStrategy(MirroredStrategy):
    """Strategy with variables on one device and computation on several.

    In Meshflow, every device has a copy of the variables: the results are the same, and no device
    has to fetch the variables from another one.

    Args:
      compute_devices: Devices that compute; default all devices.
      parameter_device: Ignored; device of the variables.

    Example:
      >>> tf.distribute.experimental.CentralStorageStrategy(["CPU:0"]).num_replicas_in_sync
      1
    """

    no_loss_scaling = "Try using a different Strategy, e.g. a MirroredStrategy."

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        super().__init__(compute_devices)
        self._parameter_device = parameter_device
