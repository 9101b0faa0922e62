"""`tf.autodiff`: reverse-mode differentiation with tapes, and forward-mode differentiation."""

from meshflow.core.gradients.forward import ForwardAccumulator
from meshflow.core.gradients.tape import GradientTape

__all__ = ["ForwardAccumulator", "GradientTape"]
