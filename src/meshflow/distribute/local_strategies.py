"""Strategies over devices of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.devices import devices_of, main_kind
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.strategy import Strategy
from meshflow.placement.mesh import jax_device

__all__ = ["MirroredStrategy", "OneDeviceStrategy"]


class OneDeviceStrategy(Strategy):
    """Everything on one device.

    Args:
      device: its name, such as "CPU:0".

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
      >>> float(strategy.run(lambda x: x + 1.0, [tf.constant(2.0)]))
      3.0
    """

    def __init__(self, device: str) -> None:
        self._start([jax_device(device)])


class MirroredStrategy(Strategy):
    """A replica on each of several devices of this machine, with variables on all.

    Args:
      devices: device strings; default all GPUs or TPUs, or all CPUs there are.
      cross_device_ops: accepted; XLA chooses the collectives.

    Raises:
      ValueError: for a device that does not exist or is given twice.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.MirroredStrategy(["CPU:0"]).num_replicas_in_sync
      1
    """

    def __init__(self, devices: Sequence[Any] | None = None, cross_device_ops: Any = None) -> None:
        del cross_device_ops
        if isinstance(devices, str):
            devices = [devices]
        found = devices_of(main_kind()) if devices is None else [jax_device(d) for d in devices]
        if not found:
            raise InvalidValueError("MirroredStrategy: `devices` must have at least one device.")
        self._start(found)


class CentralStorageStrategy(MirroredStrategy):
    """Variables on one device, computation on several.

    Every device keeps a copy of the variables here: what is computed is the same, and nothing is
    fetched from one device at every use.

    Args:
      compute_devices: devices that compute; default all there are.
      parameter_device: the device of variables; accepted.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.experimental.CentralStorageStrategy(["CPU:0"]).num_replicas_in_sync
      1
    """

    no_loss_scaling = "Try using a different Strategy, e.g. a MirroredStrategy."

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        super().__init__(compute_devices)
        self._parameter_device = parameter_device
