"""`tf.distribute.experimental`: names that TensorFlow keeps apart."""

from __future__ import annotations

from typing import Any

from meshflow.distribute import coordinator
from meshflow.distribute.input import ValueContext
from meshflow.distribute.local_strategies import CentralStorageStrategy
from meshflow.distribute.multi_worker.saving import PreemptionCheckpointHandler, TerminationConfig
from meshflow.distribute.multi_worker.strategy import MultiWorkerMirroredStrategy as _MultiWorker
from meshflow.distribute.options import CommunicationImplementation, CommunicationOptions
from meshflow.distribute.parameter_server import ParameterServerStrategy, partitioners
from meshflow.distribute.tpu.strategy import TPUStrategy as _TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
]


def __dir__() -> list[str]:
    return __all__


CollectiveCommunication = CommunicationImplementation


class CollectiveHints(CommunicationOptions):
    """The older form of `CommunicationOptions`.

    Args:
      bytes_per_pack: accepted.
      timeout_seconds: accepted.
    """

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)


class MultiWorkerMirroredStrategy(_MultiWorker):
    """`tf.distribute.MultiWorkerMirroredStrategy` with the arguments of TensorFlow 2.0-2.3.

    Args:
      communication: accepted, a `CollectiveCommunication`.
      cluster_resolver: says which workers there are and which this is; default `TF_CONFIG`.
    """

    def __init__(
        self,
        communication: Any = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))


class TPUStrategy(_TPUStrategy):
    """`tf.distribute.TPUStrategy` with the arguments of its first release.

    Args:
      tpu_cluster_resolver: a `TPUClusterResolver`.
      device_assignment: a `tf.tpu.experimental.DeviceAssignment`.
    """

    def __init__(self, tpu_cluster_resolver: Any = None, device_assignment: Any = None) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)
