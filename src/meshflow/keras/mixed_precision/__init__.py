"""`tf.keras.mixed_precision`: dtype policies and loss scaling."""

from meshflow.keras.mixed_precision import experimental
from meshflow.keras.mixed_precision.policy import (
    Policy,
    dtype_policy,
    global_policy,
    set_dtype_policy,
    set_global_policy,
)
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer

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
