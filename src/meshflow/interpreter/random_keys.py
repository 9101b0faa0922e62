"""Rules of JAX's random keys: the Threefry generator.

A key is an array of uint32 with a last axis of two words.
"""

from __future__ import annotations

import numpy as np

from meshflow.interpreter.table import Compute, Equation, HostArray, rule

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def hash_words(
    first: HostArray, second: HostArray, x: HostArray, y: HostArray
) -> tuple[HostArray, HostArray]:
    """Apply the Threefry-2x32 hash to two arrays of words, with two words of a key."""
    keys = [first, second, first ^ second ^ np.uint32(0x1BD11BDA)]
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(i + 1) % 3]
        y = y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


@rule("threefry2x32", uses_shapes=False)
def _hash(equation: Equation) -> Compute:
    return lambda first, second, x, y: list(hash_words(first, second, x, y))
