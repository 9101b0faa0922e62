"""Assertions and records shared by tests, and how long they try."""

import contextlib
import itertools
import json
import logging
import os

import jax
import numpy as np

import meshflow as tf

# `make test-all` repeats randomized tests longer than `make test`, and runs the tests marked
# `soak`.
SOAK = os.environ.get("MESHFLOW_SOAK", "0") not in ("", "0")


def rounds(default, soak):
    """Return the number of repetitions of a test: `default`, or `soak` in `make test-all`."""
    return soak if SOAK else default


def combine(*parameters):
    """Return combinations of the values of parameters: so few that every value occurs, all in `make test-all`."""
    if SOAK:
        return [*itertools.product(*parameters)]
    parameters = [[*values] for values in parameters]
    count = max(map(len, parameters))
    return [tuple(values[i % len(values)] for values in parameters) for i in range(count)]


def read_manifest(folder):
    """Return the manifest of a folder of arrays without its checksum, which old and foreign
    manifests may lack."""
    content = json.loads((folder / "manifest.json").read_text())
    content.pop("crc32", None)
    return content


class _CompiledPrograms(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.names = []

    def emit(self, record):
        words = record.getMessage().split()
        if words[0] == "Compiling":
            self.names.append(words[1])


@contextlib.contextmanager
def record_compilations():
    """Yield the names of the programs that JAX compiles inside, without those compiled before."""
    jax.clear_caches()
    log, handler = logging.getLogger("jax._src.interpreters.pxla"), _CompiledPrograms()
    saved = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield handler.names
    finally:
        log.removeHandler(handler)
        log.setLevel(saved[0])
        log.propagate = saved[1]


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Values (of tensors, variables, slices, arrays) are equal within tolerances."""
    actual = tf.convert_to_tensor(actual) if isinstance(actual, tf.IndexedSlices) else actual
    actual = actual.numpy() if hasattr(actual, "numpy") else actual
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol=rtol, atol=atol
    )


def numeric_gradient(fn, arrays, index, step=1e-6):
    """Central differences of the sum of `fn` with respect to one array, in float64."""
    result = np.zeros_like(arrays[index])
    for position in np.ndindex(*result.shape):
        values = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[index][position] += sign * step
            values.append(float(np.sum(np.asarray(fn(*[tf.constant(a) for a in moved]).numpy()))))
        result[position] = (values[0] - values[1]) / (2 * step)
    return result


def check_gradients(fn, *arrays, rtol=1e-5, atol=1e-7):
    """The tape's gradient, eagerly and in a function, equals finite differences."""
    arrays = [np.asarray(a, np.float64) for a in arrays]

    def gradient(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = tf.reduce_sum(fn(*tensors))
        return tape.gradient(y, tensors)

    tensors = [tf.constant(a) for a in arrays]
    eager = gradient(*tensors)
    compiled = tf.function(gradient, autograph=False)(*tensors)
    for i in range(len(arrays)):
        expected = numeric_gradient(fn, arrays, i)
        assert_close(eager[i], expected, rtol, atol)
        assert_close(compiled[i], expected, rtol, atol)
