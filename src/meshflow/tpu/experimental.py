"""`tf.tpu.experimental`: TPU systems, and the assignment of replicas to cores."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.distribute.tpu.system import (
    DeviceAssignment,
    DeviceOrderMode,
    Topology,
    TPUSystemMetadata,
    initialize_tpu_system,
    shutdown_tpu_system,
)

if TYPE_CHECKING:
    from meshflow.tpu import embedding

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "HardwareFeature",
    "TPUSystemMetadata",
    "Topology",
    "embedding",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]


class HardwareFeature:
    """Features of TPUs.

    Args:
      tpu_hardware_feature_proto: Ignored.
    """

    class EmbeddingFeature(enum.Enum):
        """Versions of embedding hardware."""

        UNSUPPORTED = "UNSUPPORTED"
        V1 = "V1"
        V2 = "V2"

    def __init__(self, tpu_hardware_feature_proto: object = None) -> None:
        self.tpu_hardware_feature_proto = tpu_hardware_feature_proto

    @property
    def embedding_feature(self) -> EmbeddingFeature:
        """Return UNSUPPORTED: XLA computes lookups of tables."""
        return HardwareFeature.EmbeddingFeature.UNSUPPORTED


__getattr__ = _explain_names("tf.tpu.experimental", {"embedding": "meshflow.tpu.embedding"})
