"""`tf.tpu.experimental`: starting TPUs, and which cores replicas take."""

from meshflow.distribute.tpu.system import (
    DeviceAssignment,
    DeviceOrderMode,
    Topology,
    TPUSystemMetadata,
    initialize_tpu_system,
    shutdown_tpu_system,
)

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]
