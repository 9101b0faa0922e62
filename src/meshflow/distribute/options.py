"""Options of strategies for compatibility with TensorFlow; XLA chooses the collectives."""

from __future__ import annotations

import enum
from typing import NamedTuple


class InputReplicationMode(enum.Enum):
    """Number of input pipelines: one for each worker, or one for each replica."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class InputOptions(NamedTuple):
    """Options of distributed input, without effect: batches always go directly to the devices.

    Args:
      experimental_fetch_to_device: Ignored.
      experimental_replication_mode: `InputReplicationMode.PER_WORKER`.
      experimental_place_dataset_on_device: Ignored.
      experimental_per_replica_buffer_size: Ignored.

    Example:
      >>> options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=2)
      >>> options.experimental_per_replica_buffer_size
      2
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1


class RunOptions:
    """Options of `Strategy.run`; they have no effect, because shapes are always static.

    Args:
      experimental_enable_dynamic_batch_size: Ignored.
      experimental_bucketizing_dynamic_shape: Ignored.
      experimental_xla_options: Ignored.

    Example:
      >>> tf.distribute.RunOptions().experimental_enable_dynamic_batch_size
      True
    """

    def __init__(
        self,
        experimental_enable_dynamic_batch_size: bool = True,
        experimental_bucketizing_dynamic_shape: bool = False,
        experimental_xla_options: object = None,
    ) -> None:
        self.experimental_enable_dynamic_batch_size = experimental_enable_dynamic_batch_size
        self.experimental_bucketizing_dynamic_shape = experimental_bucketizing_dynamic_shape
        self.experimental_xla_options = experimental_xla_options


class CommunicationImplementation(enum.Enum):
    """Library of collectives; the option has no effect, because XLA chooses."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


class CommunicationOptions:
    """Options of collectives; they have no effect, because XLA chooses.

    Args:
      bytes_per_pack: Ignored.
      timeout_seconds: Ignored.
      implementation: Ignored; a `CommunicationImplementation` or its name.

    Raises:
      ValueError: If the implementation is unknown or `bytes_per_pack` is negative.

    Example:
      >>> implementation = tf.distribute.experimental.CommunicationImplementation.RING
      >>> options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
      >>> options.implementation.name
      'RING'
    """

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation = CommunicationImplementation.AUTO,
    ) -> None:
        if bytes_per_pack < 0:
            raise ValueError(
                f"CommunicationOptions: bytes_per_pack must be >= 0, got {bytes_per_pack}."
            )
        self.bytes_per_pack = bytes_per_pack
        self.timeout_seconds = timeout_seconds
        self.implementation = CommunicationImplementation(implementation)
