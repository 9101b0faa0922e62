"""`tf.signal`: Fourier and cosine transforms, windows, framing and spectra."""

from meshflow.ops.signal.cosine import *
from meshflow.ops.signal.cosine import __all__ as _cosine
from meshflow.ops.signal.fourier import *
from meshflow.ops.signal.fourier import __all__ as _fourier
from meshflow.ops.signal.many_axes import *
from meshflow.ops.signal.many_axes import __all__ as _many_axes
from meshflow.ops.signal.mel import *
from meshflow.ops.signal.mel import __all__ as _mel
from meshflow.ops.signal.spectral import *
from meshflow.ops.signal.spectral import __all__ as _spectral
from meshflow.ops.signal.windows import *
from meshflow.ops.signal.windows import __all__ as _windows

__all__ = [*_cosine, *_fourier, *_many_axes, *_mel, *_spectral, *_windows]
