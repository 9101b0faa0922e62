"""`tf.quantization`: quantization ops."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import quantization as _quantization
from meshflow.ops.quantization import *  # noqa: F403

__all__ = sorted(_quantization.__all__)

_hide_frames(globals())

__getattr__ = _explain_names("tf.quantization")
