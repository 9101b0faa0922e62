"""`tf.random`."""

from meshflow.ops import generator as _generator
from meshflow.ops import random_ops as _random_ops
from meshflow.ops.generator import *  # noqa: F403
from meshflow.ops.random_ops import *  # noqa: F403

__all__ = sorted([*_generator.__all__, *_random_ops.__all__])
