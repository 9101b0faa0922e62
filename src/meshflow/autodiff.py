"""`tf.autodiff`: derivatives backwards, by tapes, and forwards."""

from meshflow.core.forward import ForwardAccumulator
from meshflow.core.tape import GradientTape

__all__ = ["ForwardAccumulator", "GradientTape"]
