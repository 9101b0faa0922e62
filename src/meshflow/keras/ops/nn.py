"""`keras.ops.nn`: activations, convolutions, normalizations, attention and losses."""

from meshflow.keras.ops.activations import *  # noqa: F403
from meshflow.keras.ops.activations import __all__ as _activations
from meshflow.keras.ops.attention import *  # noqa: F403
from meshflow.keras.ops.attention import __all__ as _attention
from meshflow.keras.ops.classes import *  # noqa: F403
from meshflow.keras.ops.classes import __all__ as _classes
from meshflow.keras.ops.conversions import polar
from meshflow.keras.ops.ctc import *  # noqa: F403
from meshflow.keras.ops.ctc import __all__ as _ctc
from meshflow.keras.ops.normalization import *  # noqa: F403
from meshflow.keras.ops.normalization import __all__ as _normalization
from meshflow.keras.ops.windows import *  # noqa: F403
from meshflow.keras.ops.windows import __all__ as _windows

__all__ = [*_activations, *_attention, *_classes, *_ctc, *_normalization, *_windows, "polar"]
