"""`tf.signal`: Fourier and cosine transforms, windows, framing, spectra."""

from meshflow.ops import signal as _signal
from meshflow.ops.signal import *  # noqa: F403

__all__ = sorted(_signal.__all__)
