"""`tf.autodiff`: derivatives backwards, by tapes, and forwards."""

from meshflow.core.gradients.forward import ForwardAccumulator
from meshflow.core.gradients.tape import GradientTape

__all__ = ["ForwardAccumulator", "GradientTape"]
