"""`tf.nn`."""

from meshflow.ops import nn as _nn
from meshflow.ops.nn import *  # noqa: F403

__all__ = sorted(_nn.__all__)
