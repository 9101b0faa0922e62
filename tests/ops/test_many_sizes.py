"""Ops that are called with many sizes, valid and invalid ones in turns, beside NumPy.

Calls with new sizes share traces with symbolic sizes, which must not be used for sizes that they do not fit.
"""

import itertools
import random

import numpy as np
import pytest

import meshflow as tf

SIZES = list(itertools.product([0, 1, 2, 3, 4, 6, 9], repeat=2))
CALLS = {
    "reshape": (lambda n, m: (tf.reshape, np.reshape, n, (m,))),
    "reshape_rows": (lambda n, m: (tf.reshape, np.reshape, 2 * n, (2, m))),
    "reshape_matrix": (lambda n, m: (tf.reshape, np.reshape, (n, 2), (2, m))),
    "reshape_rest": (lambda n, m: (tf.reshape, np.reshape, (n, 2), (-1, m))),
    "broadcast_to": (lambda n, m: (tf.broadcast_to, np.broadcast_to, (n, 1), (n, m))),
    "broadcast_rows": (lambda n, m: (tf.broadcast_to, np.broadcast_to, n, (2, m))),
}


def run(function, error_classes, *arguments):
    try:
        return np.asarray(function(*arguments)).tolist()
    except error_classes:
        return "refused"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CALLS)
def test_sizes_in_any_order(name, seed):
    order = random.Random(seed).sample(SIZES, len(SIZES))
    for n, m in order:
        function, reference, shape, sizes = CALLS[name](n, m)
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        if 0 in (n, m) and -1 in sizes:
            continue  # NumPy and TensorFlow choose different sizes.
        expected = run(reference, ValueError, x, sizes)
        assert run(function, tf.errors.InvalidArgumentError, tf.constant(x), sizes) == expected
