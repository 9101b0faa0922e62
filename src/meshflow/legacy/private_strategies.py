"""Functions of values of replicas: names of TensorFlow's modules `distribute_utils` and `values`."""

from __future__ import annotations

from meshflow.distribute.replicas.values import PerReplica, map_replicas
from meshflow.distribute.replicas.variables import (
    DistributedVariable,
    MirroredVariable,
    SyncOnReadVariable,
)
from meshflow.distribute.strategy import (
    Strategy,
    get_default_replica_context,
    get_default_strategy,
    get_strategy,
    in_cross_replica_context,
)
from meshflow.environment.types import PyTree

_get_default_strategy = get_default_strategy
_get_default_replica_context = get_default_replica_context


def get_cross_replica_context() -> Strategy | None:
    """Return the strategy of the current scope; None in a replica context."""
    return get_strategy() if in_cross_replica_context() else None


def is_distributed_variable(v: object) -> bool:
    """Return whether a variable has a value for each replica."""
    return isinstance(v, DistributedVariable)


def is_mirrored(val: object) -> bool:
    """Return whether a variable has equal copies on the devices of a strategy."""
    return isinstance(val, MirroredVariable)


def is_sync_on_read(val: object) -> bool:
    """Return whether a variable has a different value for each replica."""
    return isinstance(val, SyncOnReadVariable)


def select_replica(replica_id: int, structured: PyTree) -> PyTree:
    """Return a structure with the value of one replica for each per-replica value."""
    return map_replicas(
        lambda leaf: leaf.values[replica_id] if isinstance(leaf, PerReplica) else leaf, structured
    )


select_replica_mirrored = select_replica
