"""`tf.distribute.experimental`: names that TensorFlow keeps apart."""

from __future__ import annotations

from typing import Any

from meshflow.distribute.input import ValueContext
from meshflow.distribute.options import CommunicationImplementation, CommunicationOptions
from meshflow.distribute.strategy import CentralStorageStrategy
from meshflow.distribute.tpu import TPUStrategy as _TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "TPUStrategy",
    "ValueContext",
]

CollectiveCommunication = CommunicationImplementation
CollectiveHints = CommunicationOptions


class TPUStrategy(_TPUStrategy):
    """`tf.distribute.TPUStrategy` with the arguments of its first release.

    Args:
      tpu_cluster_resolver: a `TPUClusterResolver`.
      device_assignment: a `tf.tpu.experimental.DeviceAssignment`.
    """

    def __init__(self, tpu_cluster_resolver: Any = None, device_assignment: Any = None) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)


def __getattr__(name: str) -> Any:
    from meshflow import distribute

    if name in distribute.LATER:
        return getattr(distribute, name)
    raise AttributeError(f"module 'tf.distribute.experimental' has no attribute {name!r}")
