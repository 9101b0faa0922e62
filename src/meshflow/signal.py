"""`tf.signal`: Fourier and cosine transforms, windows, framing, spectra."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.ops import signal as _signal
from meshflow.ops.signal import *  # noqa: F403

__all__ = sorted(_signal.__all__)

_hide_frames(globals())
