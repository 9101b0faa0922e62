"""`tf.debugging`: assertions and checks."""

from meshflow.ops import debugging as _debugging
from meshflow.ops.debugging import *  # noqa: F403

__all__ = sorted(_debugging.__all__)
