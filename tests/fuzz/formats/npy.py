"""NumPy's arrays, as checkpoints hold them."""

import functools
import io

import numpy as np

from fuzz.formats.files import written
from meshflow.files.arrays import load_array

# Seeds that are whole and hold what is not read: Python's objects.
REFUSED = 1


@functools.cache
def seeds():
    arrays = (np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros([]), np.array([b"ab", b"c"]))
    arrays += (np.array([{"a": 1}], object), np.zeros(2, [("x", "i4"), ("y", "f8")]))
    found = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def parse(data):
    path = written(data)
    load_array(path)
    load_array(path, "r")
