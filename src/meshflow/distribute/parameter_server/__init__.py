"""Asynchronous training with parameter servers and workers.

`strategy` is the public strategy. The other modules are grouped by layer, from the bottom:
`transport` moves messages and arrays between processes; `variables` defines hosted variables;
`closures` pickles the work; `server` and `worker` implement the two types of tasks; `cluster`
starts and monitors them; `processes` and `coordination` use the strategy, the former in servers and
workers, the latter in the coordinator.
"""

from meshflow.distribute.parameter_server.closures.remote_values import (
    PerWorkerDataset,
    PerWorkerValues,
    RemoteValue,
)
from meshflow.distribute.parameter_server.coordination.cluster_coordinator import (
    ClusterCoordinator,
    current_worker_index,
)
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.variables.hosted_variable import HostedVariable
