"""Fuzz NumPy's arrays, as stored in checkpoints."""

import functools
import io

import numpy as np

from fuzz.formats.files import written
from meshflow.files.arrays import load_array

# Valid seeds with contents that are not read: Python objects.
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
