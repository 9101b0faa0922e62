"""`tf.distribute.experimental`: names that TensorFlow keeps apart."""

from __future__ import annotations

from typing import Any

from meshflow.distribute.input import ValueContext
from meshflow.distribute.options import CommunicationImplementation, CommunicationOptions
from meshflow.distribute.strategy import CentralStorageStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ValueContext",
]

CollectiveCommunication = CommunicationImplementation
CollectiveHints = CommunicationOptions


def __getattr__(name: str) -> Any:
    from meshflow import distribute

    if name in distribute.LATER:
        return getattr(distribute, name)
    raise AttributeError(f"module 'tf.distribute.experimental' has no attribute {name!r}")
