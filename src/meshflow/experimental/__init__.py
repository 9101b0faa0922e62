"""`tf.experimental`: the NumPy front end, DTensor, optional values, and shared memory."""

from meshflow import numpy
from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor

__all__ = ["Optional", "dlpack", "dtensor", "numpy"]
