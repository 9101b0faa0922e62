"""Test that exhausted memory raises `ResourceExhaustedError` everywhere, and that old traces
release memory."""

import weakref

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.functions import retracing
from meshflow.environment.garbage_collection import collect_garbage

SIDE = 1 << 23
HUGE = np.broadcast_to(np.float32(1), (SIDE, SIDE))


@tf.function
def outer(x):
    return tf.linalg.matmul(x, x, transpose_b=True)


# JAX's checks for NaNs read results before they are awaited, which ends the process if memory is
# exhausted.
@pytest.mark.nan_expected
@pytest.mark.parametrize(
    ("work", "named"),
    [
        (lambda: tf.zeros([SIDE, SIDE]), "fill"),
        (lambda: tf.tile(tf.zeros([SIDE]), [SIDE]), "tile"),
        (lambda: tf.random.normal([SIDE, SIDE]), r"a tensor of shape \(8388608, 8388608\)"),
        (lambda: tf.one_hot([0], SIDE * SIDE), r"a tensor of shape \(1, 70368744177664\)"),
        (lambda: outer(tf.zeros([SIDE, 1])), "function outer"),
        (lambda: tf.constant(HUGE), r"a tensor of shape \(8388608, 8388608\)"),
        (lambda: tf.Variable(HUGE), r"a tensor of shape \(8388608, 8388608\)"),
        (lambda: tf.keras.layers.Dense(SIDE).build([None, SIDE]), "variable .*kernel"),
        (lambda: next(iter(tf.data.Dataset.range(1).map(lambda _: tf.zeros([SIDE, SIDE])))), "Map"),
    ],
)
def test_no_memory(work, named):
    with pytest.raises(tf.errors.ResourceExhaustedError, match=named) as caught:
        work()
    # The exception class that NumPy programs catch.
    assert isinstance(caught.value, MemoryError)
    assert caught.value.error_code == tf.errors.RESOURCE_EXHAUSTED


def test_other_errors_are_unchanged():
    def fails():
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tf.Variable(fails)


def test_least_recently_called_traces_are_evicted_with_their_programs(monkeypatch, compile_tier):
    monkeypatch.setattr(retracing, "MAX_TRACES", 3)
    calls = []

    @tf.function(reduce_retracing=True)
    def times(x, n):
        calls.append(n)
        return x * n

    x = tf.constant([1.0, 2.0])
    programs = []
    for number in range(6):
        times(x, number)
        times(x, 0)  # never the oldest
        newest = list(times._cache.values())[-1]
        programs.append(weakref.ref(newest._compiled.__wrapped__))
        del newest
    collect_garbage()
    assert calls == list(range(6))
    assert sum(program() is not None for program in programs) <= 3
    assert times(x, 1).numpy().tolist() == [1, 2]
    assert calls == [*range(6), 1]
    assert times.experimental_get_tracing_count() == 7


def test_objects_in_cache_keys_live_as_long_as_their_traces(monkeypatch):
    monkeypatch.setattr(retracing, "MAX_TRACES", 2)

    class Scale:
        __hash__ = None

        def __init__(self, by):
            self.by = by

    @tf.function(reduce_retracing=True)
    def scaled(x, scale):
        return x * scale.by

    found = []
    for number in range(8):
        scale = Scale(float(number))
        found.append(weakref.ref(scale))
        # An object with a reused id would return the result of another object.
        assert float(scaled(tf.constant(1.0), scale)) == number
    del scale
    collect_garbage()
    assert sum(one() is not None for one in found) == 2
