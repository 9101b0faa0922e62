"""`tf.experimental`: the NumPy front end and DTensor, as far as they exist, optional values, and shared memory."""

from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor, numpy

__all__ = ["Optional", "dlpack", "dtensor", "numpy"]
