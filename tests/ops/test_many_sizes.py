"""Ops that are called with many sizes, valid and invalid ones in turns, beside NumPy.

Calls with new sizes share traces with symbolic sizes, which must not be used for sizes that they do not fit.
"""

import itertools
import random

import numpy as np
import pytest

import meshflow as tf
from helpers import combine

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


@pytest.mark.parametrize(("name", "seed"), combine(CALLS, range(3)))
def test_sizes_in_any_order(name, seed):
    order = random.Random(seed).sample(SIZES, len(SIZES))
    for n, m in order:
        function, reference, shape, sizes = CALLS[name](n, m)
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        if 0 in (n, m) and -1 in sizes:
            continue  # NumPy and TensorFlow choose different sizes.
        expected = run(reference, ValueError, x, sizes)
        assert run(function, tf.errors.InvalidArgumentError, tf.constant(x), sizes) == expected


@pytest.mark.parametrize("function", [
    lambda x, y: tf.slice(x, [1, 0], [3, 1]),
    lambda x, y: tf.slice(x, [4, 0], [-1, 1]),
    lambda x, y: tf.slice(x, [0, 0], [tf.shape(y)[0], 1]),
    lambda x, y: tf.slice(tf.boolean_mask(x, x > 1), [1], [2]),
    lambda x, y: tf.einsum("ij,ik->jk", x, y),
    lambda x, y: tf.einsum("iji->ij", x[:, :, None] + y[:, 0]),
    lambda x, y: tf.reverse_sequence(x, tf.zeros(tf.shape(y)[0], tf.int32)),
])  # fmt: skip
def test_functions_with_unknown_sizes_refuse_the_sizes_that_eager_ops_refuse(function):
    spec = tf.TensorSpec([None, 2])
    compiled = tf.function(function, input_signature=[spec, spec])
    for n, m in random.Random(0).sample(list(itertools.product([1, 2, 4, 5, 7], repeat=2)), 12):
        x, y = (tf.reshape(tf.range(2.0 * size), [size, 2]) for size in (n, m))
        expected = run(function, tf.errors.InvalidArgumentError, x, y)
        assert run(compiled, tf.errors.InvalidArgumentError, x, y) == expected


def test_labels_of_einsum_have_one_size():
    for equation, shapes in (("ij,jk->ik", [(2, 1), (3, 2)]), ("ii->i", [(2, 3)])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="label"):
            tf.einsum(equation, *map(tf.zeros, shapes))
    assert tf.einsum("...ij,j...->i...", tf.zeros([4, 2, 3]), tf.zeros([3, 4])).shape == [2, 4]
