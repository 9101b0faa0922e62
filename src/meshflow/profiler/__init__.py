"""`tf.profiler`: where the time of a program, or of a deployed model, goes."""

from meshflow.profiler import experimental
from meshflow.profiler.deployed import DeployedProfile, profile_model

__all__ = ["DeployedProfile", "experimental", "profile_model"]
