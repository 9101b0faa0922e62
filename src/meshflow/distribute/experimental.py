"""`tf.distribute.experimental`: names that TensorFlow keeps in this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.distribute import coordinator
from meshflow.distribute.input import ValueContext
from meshflow.distribute.local_strategies import CentralStorageStrategy
from meshflow.distribute.multi_worker.checkpointing import (
    PreemptionCheckpointHandler,
    TerminationConfig,
)
from meshflow.distribute.multi_worker.strategy import MultiWorkerMirroredStrategy as _MultiWorker
from meshflow.distribute.options import CommunicationImplementation, CommunicationOptions
from meshflow.distribute.parameter_server import ParameterServerStrategy
from meshflow.distribute.parameter_server.variables import partitioners
from meshflow.distribute.tpu.strategy import TPUStrategy as _TPUStrategy

if TYPE_CHECKING:
    from meshflow.distribute.cluster.resolvers import ClusterResolver
    from meshflow.distribute.tpu.resolver import TPUClusterResolver
    from meshflow.distribute.tpu.system import DeviceAssignment

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


CollectiveCommunication = CommunicationImplementation


class CollectiveHints(CommunicationOptions):
    """Predecessor of `CommunicationOptions`.

    Args:
      bytes_per_pack: Ignored.
      timeout_seconds: Ignored.
    """

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)


class MultiWorkerMirroredStrategy(_MultiWorker):
    """`tf.distribute.MultiWorkerMirroredStrategy` with the arguments of TensorFlow 2.0 to 2.3.

    Args:
      communication: Ignored; a `CollectiveCommunication`.
      cluster_resolver: Resolver of the workers and of this process; default `TF_CONFIG`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))


class TPUStrategy(_TPUStrategy):
    """`tf.distribute.TPUStrategy` with the arguments of its first release.

    Args:
      tpu_cluster_resolver: A `TPUClusterResolver`.
      device_assignment: A `tf.tpu.experimental.DeviceAssignment`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)


__getattr__ = _explain_names("tf.distribute.experimental")
