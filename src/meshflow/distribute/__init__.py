"""`tf.distribute`: strategies of one replica; more replicas are refused with a clear error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshflow.core.errors import NotAvailableError
from meshflow.distribute.strategy import (
    CentralStorageStrategy,
    InputContext,
    InputOptions,
    MirroredStrategy,
    OneDeviceStrategy,
    ReplicaContext,
    Strategy,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from meshflow.distribute.strategy import Extended as StrategyExtended
from meshflow.distribute.strategy import ValueContext as _ValueContext
from meshflow.distribute.values import DistributedValues, ReduceOp

__all__ = [
    "DistributedValues",
    "InputContext",
    "InputOptions",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


class _Named:
    """Accepted: XLA combines values of replicas itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = args, kwargs


class CrossDeviceOps(_Named):
    """Accepted: XLA combines values of replicas itself."""


class NcclAllReduce(CrossDeviceOps):
    """Accepted: XLA combines values of replicas itself."""


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Accepted: XLA combines values of replicas itself."""


class ReductionToOneDevice(CrossDeviceOps):
    """Accepted: XLA combines values of replicas itself."""


__all__ += ["CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReductionToOneDevice"]

experimental = SimpleNamespace(
    CentralStorageStrategy=CentralStorageStrategy, ValueContext=_ValueContext
)

_LATER = {
    "MultiWorkerMirroredStrategy": "several workers",
    "TPUStrategy": "TPUs",
    "cluster_resolver": "clusters",
    "coordinator": "parameter servers",
    "ParameterServerStrategy": "parameter servers",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        raise NotAvailableError(
            f"tf.distribute.{name}: training with {_LATER[name]} is not available yet."
        )
    raise AttributeError(f"module 'tf.distribute' has no attribute {name!r}")
