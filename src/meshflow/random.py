"""`tf.random`."""

from meshflow.ops.random_ops import *  # noqa: F403
from meshflow.ops.random_ops import __all__
