"""`tf.autodiff`: reverse-mode differentiation with tapes, and forward-mode differentiation."""

from meshflow.core.gradients.forward_accumulator import ForwardAccumulator
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames

__all__ = ["ForwardAccumulator", "GradientTape"]

_hide_frames(globals())
