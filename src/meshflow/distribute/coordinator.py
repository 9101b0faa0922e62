"""`tf.distribute.coordinator`: scheduling of work for the workers of a `ParameterServerStrategy`."""

from meshflow.distribute.parameter_server.closures.remote_values import PerWorkerValues, RemoteValue
from meshflow.distribute.parameter_server.coordination.cluster_coordinator import (
    ClusterCoordinator,
    current_worker_index,
)

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "experimental_get_current_worker_index",
]


PerWorkerValue = PerWorkerValues
experimental_get_current_worker_index = current_worker_index
