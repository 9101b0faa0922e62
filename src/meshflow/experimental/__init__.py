"""`tf.experimental`: the NumPy front end, DTensor and optionals, as far as they exist."""

from meshflow.data.optional import Optional
from meshflow.experimental import dtensor, numpy

__all__ = ["Optional", "dtensor", "numpy"]
