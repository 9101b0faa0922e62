"""`tf.distribute`: strategies that train on several devices."""

from meshflow.distribute import cluster_resolver
from meshflow.distribute.input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    ValueContext,
)
from meshflow.distribute.replica import ReduceOp, ReplicaContext
from meshflow.distribute.strategy import (
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    StrategyExtended,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from meshflow.distribute.values import DistributedValues

__all__ = [
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "InputContext",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "ValueContext",
    "cluster_resolver",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
