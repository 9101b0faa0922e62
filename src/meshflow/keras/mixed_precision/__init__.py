"""`tf.keras.mixed_precision`: dtype policies."""

from meshflow.keras.mixed_precision.policy import Policy, global_policy, set_global_policy

__all__ = ["Policy", "global_policy", "set_global_policy"]
