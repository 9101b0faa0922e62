"""`tf.experimental`: the NumPy front end and DTensor, as far as they exist."""

from meshflow.experimental import dtensor, numpy

__all__ = ["dtensor", "numpy"]
