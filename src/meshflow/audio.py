"""`tf.audio`: audio ops."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.ops import audio as _audio
from meshflow.ops.audio import *  # noqa: F403

__all__ = sorted(_audio.__all__)

_hide_frames(globals())
