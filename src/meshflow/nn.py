"""`tf.nn`."""

from meshflow.ops import nn as _nn
from meshflow.ops.array import depth_to_space, space_to_batch, space_to_depth
from meshflow.ops.nn import *  # noqa: F403

__all__ = sorted([*_nn.__all__, "depth_to_space", "space_to_batch", "space_to_depth"])

_ = depth_to_space, space_to_batch, space_to_depth
