"""`tf.autodiff`: gradient tapes."""

from meshflow.core.tape import GradientTape

__all__ = ["GradientTape"]
