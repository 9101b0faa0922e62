"""`tf.train.experimental`; names that need Keras are loaded on first use."""

from __future__ import annotations

from typing import Any

from meshflow.checkpoint import (
    MaxShardSizePolicy,
    PythonState,
    ShardableTensor,
    ShardByTaskPolicy,
    ShardingCallback,
)

__all__ = [
    "MaxShardSizePolicy",
    "PythonState",
    "ShardByTaskPolicy",
    "ShardableTensor",
    "ShardingCallback",
]

_REWRITES = (
    "disable_mixed_precision_graph_rewrite",
    "enable_mixed_precision_graph_rewrite",
)
_LOSS_SCALES = ("DynamicLossScale", "FixedLossScale", "LossScale")


def __getattr__(name: str) -> Any:
    if name in _REWRITES:
        from meshflow.keras.mixed_precision import graph_rewrite  # noqa: PLC0415 - loaded on first use

        return getattr(graph_rewrite, name)
    if name in _LOSS_SCALES:
        from meshflow.keras.optimizers import loss_scale  # noqa: PLC0415 - loaded on first use

        return getattr(loss_scale, name)
    raise AttributeError(f"module 'tf.train.experimental' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_REWRITES, *_LOSS_SCALES})
