"""`tf.experimental`: the NumPy front end and DTensor, as far as they exist, and optional values."""

from meshflow.data.optional import Optional
from meshflow.experimental import dtensor, numpy

__all__ = ["Optional", "dtensor", "numpy"]
