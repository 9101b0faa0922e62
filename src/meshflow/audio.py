"""`tf.audio`: audio ops."""

from meshflow.ops import audio as _audio
from meshflow.ops.audio import *  # noqa: F403

__all__ = sorted(_audio.__all__)
