"""`tf.random`."""

from meshflow.ops import random_ops as _random_ops
from meshflow.ops.random_ops import *  # noqa: F403

__all__ = sorted(_random_ops.__all__)
