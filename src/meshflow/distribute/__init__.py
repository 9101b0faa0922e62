"""`tf.distribute`: strategies that train on several devices."""

from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute import cluster_resolver, coordinator, experimental
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    ValueContext,
)
from meshflow.distribute.local_strategies import (
    MirroredStrategy,
    OneDeviceStrategy,
)
from meshflow.distribute.multi_worker.strategy import MultiWorkerMirroredStrategy
from meshflow.distribute.options import InputOptions, InputReplicationMode, RunOptions
from meshflow.distribute.parallel import MeshStrategy, ParallelOptions, Pipeline
from meshflow.distribute.parallel.adapters import from_deepspeed, from_mesh_tensorflow
from meshflow.distribute.parallel.planner import Hardware, Plan, plan
from meshflow.distribute.parameter_server import ParameterServerStrategy, partitioners
from meshflow.distribute.parameter_server.task import Server
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


def __dir__() -> list[str]:
    return __all__
