"""Asynchronous training: parameter servers, workers, and the coordinator that gives them work."""

from meshflow.distribute.parameter_server.coordinator import (
    ClusterCoordinator,
    current_worker_index,
)
from meshflow.distribute.parameter_server.hosting import HostedVariable
from meshflow.distribute.parameter_server.remote_values import (
    PerWorkerDataset,
    PerWorkerValues,
    RemoteValue,
)
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy

__all__ = [
    "ClusterCoordinator",
    "HostedVariable",
    "ParameterServerStrategy",
    "PerWorkerDataset",
    "PerWorkerValues",
    "RemoteValue",
    "current_worker_index",
]
