"""`tf.train`: checkpoints, moving averages, and the messages of record files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshflow.checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointOptions,
    CheckpointState,
    PythonState,
    checkpoints_iterator,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
)
from meshflow.distribute.cluster_spec import ClusterSpec
from meshflow.ops.moving_averages import ExponentialMovingAverage

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointState",
    "ClusterSpec",
    "ExponentialMovingAverage",
    "checkpoints_iterator",
    "experimental",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]


class _Experimental(SimpleNamespace):
    """`tf.train.experimental`; what needs Keras is loaded when first used."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("able_mixed_precision_graph_rewrite"):
            from meshflow.keras.mixed_precision import graph_rewrite

            return getattr(graph_rewrite, name)
        if name in ("DynamicLossScale", "FixedLossScale", "LossScale"):
            from meshflow.keras.mixed_precision import loss_scale

            return getattr(loss_scale, name)
        raise AttributeError(f"module 'tf.train.experimental' has no attribute {name!r}")


experimental = _Experimental(PythonState=PythonState)

# Messages of record files, which need the package protobuf.
_MESSAGES = (
    *("BytesList", "Example", "Feature", "FeatureList", "FeatureLists", "Features", "FloatList"),
    *("Int64List", "SequenceExample"),
)


def __getattr__(name: str) -> Any:
    if name in _MESSAGES:
        from meshflow.io import protos

        return getattr(protos, name)
    raise AttributeError(f"module 'tf.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MESSAGES})
