"""`tf.keras.mixed_precision`: dtype policies and loss scaling."""

from __future__ import annotations

from typing import Any

from meshflow.keras.mixed_precision.policy import (
    Policy,
    dtype_policy,
    global_policy,
    set_dtype_policy,
    set_global_policy,
)

__all__ = [
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "experimental",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
    "set_policy",
]

set_policy = set_global_policy


def __getattr__(name: str) -> Any:
    # Layers need policies, and optimizers come after layers.
    if name == "LossScaleOptimizer":
        from meshflow.keras.mixed_precision.loss_scale_optimizer import LossScaleOptimizer

        return LossScaleOptimizer
    if name == "experimental":
        import importlib

        return importlib.import_module("meshflow.keras.mixed_precision.experimental")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
