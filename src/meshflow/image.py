"""`tf.image`: image processing and codecs."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import image as _image
from meshflow.ops.image import *  # noqa: F403

__all__ = sorted(_image.__all__)

_hide_frames(globals())

__getattr__ = _explain_names("tf.image")
