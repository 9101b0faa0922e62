"""`tf.train`: checkpoints, moving averages, and messages of record files."""

from __future__ import annotations

from typing import Any

from meshflow.checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointOptions,
    CheckpointState,
    CheckpointView,
    TrackableView,
    checkpoints_iterator,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
)
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.distribute.cluster import protos as cluster_protos
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.processes.server_api import ServerDef
from meshflow.io import protos
from meshflow.ops.moving_averages import ExponentialMovingAverage
from meshflow.train import experimental as experimental
from meshflow.train.coordinator import Coordinator

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointState",
    "CheckpointView",
    "ClusterSpec",
    "Coordinator",
    "ExponentialMovingAverage",
    "ServerDef",
    "TrackableView",
    "checkpoints_iterator",
    "experimental",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]


# Messages of record files and of clusters, loaded on first use because they need the package
# protobuf.
_MESSAGES = {
    **dict.fromkeys(
        ("BytesList", "Example", "Feature", "FeatureList", "FeatureLists", "Features", "FloatList"),
        protos,
    ),
    **dict.fromkeys(("Int64List", "SequenceExample"), protos),
    **dict.fromkeys(("ClusterDef", "JobDef"), cluster_protos),
}


def __getattr__(name: str) -> Any:
    if name in _MESSAGES:
        return getattr(_MESSAGES[name], name)
    raise_if_unavailable(name, "tf.compat.v1.train")
    raise AttributeError(f"module 'tf.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MESSAGES})


_hide_frames(globals())
