"""`tf.distribute`: strategies that train models on several devices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    ValueContext,
)
from meshflow.distribute.local_strategies import MirroredStrategy, OneDeviceStrategy
from meshflow.distribute.options import InputOptions, InputReplicationMode, RunOptions
from meshflow.distribute.replicas.collectives import ReduceOp
from meshflow.distribute.replicas.context import ReplicaContext
from meshflow.distribute.replicas.cross_device import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from meshflow.distribute.replicas.values import DistributedValues
from meshflow.distribute.strategy import (
    Strategy,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)

if TYPE_CHECKING:
    from meshflow.distribute import cluster_resolver, coordinator, experimental
    from meshflow.distribute.multi_worker.strategy import MultiWorkerMirroredStrategy
    from meshflow.distribute.parallel.public_names import (
        Hardware,
        MeshStrategy,
        ParallelOptions,
        Pipeline,
        Plan,
        from_deepspeed,
        from_mesh_tensorflow,
        plan,
    )
    from meshflow.distribute.parameter_server import ParameterServerStrategy
    from meshflow.distribute.parameter_server.processes.server_api import Server
    from meshflow.distribute.parameter_server.variables import partitioners
    from meshflow.distribute.tpu.strategy import TPUStrategy

__all__ = [
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "Hardware",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "MeshStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParallelOptions",
    "ParameterServerStrategy",
    "Pipeline",
    "Plan",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "ShardedVariable",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "ValueContext",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "experimental_set_strategy",
    "from_deepspeed",
    "from_mesh_tensorflow",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "partitioners",
    "plan",
    "shapes_only",
]

# These modules are imported on first use: Keras imports this package, and most programs use one
# machine.
_LAZY_MODULES = {
    **{n: f"meshflow.distribute.{n}" for n in ("cluster_resolver", "coordinator", "experimental")},
    "partitioners": "meshflow.distribute.parameter_server.variables.partitioners",
}
_LAZY_NAMES = {
    "MultiWorkerMirroredStrategy": "meshflow.distribute.multi_worker.strategy",
    "ParameterServerStrategy": "meshflow.distribute.parameter_server.strategy",
    "Server": "meshflow.distribute.parameter_server.processes.server_api",
    "TPUStrategy": "meshflow.distribute.tpu.strategy",
    **dict.fromkeys(
        ("Hardware", "MeshStrategy", "ParallelOptions", "Pipeline", "Plan")
        + ("from_deepspeed", "from_mesh_tensorflow", "plan"),
        "meshflow.distribute.parallel.public_names",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(_LAZY_MODULES[name])
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
