"""`tf.tpu.experimental`: TPU systems, and the assignment of replicas to cores."""

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
