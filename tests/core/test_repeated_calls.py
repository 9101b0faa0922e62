"""Equations of equal calls in a trace, which are copied instead of being traced again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch.dispatch import apply, op
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.repeated_calls import RepeatedCalls
from meshflow.core.tracing.trace import trace
from meshflow.core.values.tensor import Tensor, TensorLike

SPEC = tf.TensorSpec([2, 3], tf.float32)
RUNS = []


@pytest.fixture
def no_copies(monkeypatch):
    """Return a function that makes traces run every call."""
    run = lambda self, function, key, *operands, pullback=None: function()
    return lambda: monkeypatch.setattr(RepeatedCalls, "run", run)


@op
def counted(x: TensorLike, factor: float, y: TensorLike | None = None) -> tf.Tensor:
    RUNS.append(x.shape)
    return x * factor if y is None else x * factor + y


@pytest.fixture
def runs():
    """The shapes with which the array function of `counted` runs during the test."""
    RUNS.clear()
    return RUNS


def list_primitives(traced):
    return [e.primitive.name for e in traced.closed_jaxpr.jaxpr.eqns]


def test_equal_calls_run_once(runs):
    traced = trace(lambda x, y: [counted(x, 2.0), counted(y, 2.0), counted(x, 3.0)], (SPEC, SPEC))
    assert len(runs) == 2 and list_primitives(traced) == ["mul"] * 3
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    results = traced.run_on_arrays((x, y), ())
    assert [np.asarray(r)[0, 0] for r in results] == [2, 10, 3]


def test_other_types_and_other_equal_operands_run_again(runs):
    other = tf.TensorSpec([3, 2], tf.float32), tf.TensorSpec([2, 3], tf.float16)
    function = lambda x, y, a, b: [
        *(counted(v, 2.0) for v in (x, a, b)),
        *(counted(v, 2.0, w) for v, w in ((x, y), (x, x), (y, y), (y, x))),
    ]
    trace(function, (SPEC, SPEC, *other))
    assert len(runs) == 5


def test_functions_that_jax_traces_have_their_own_calls():
    weights = np.arange(3, dtype=np.float32) * 100
    scale = Op("scale", lambda o, _: o[0] * jnp.asarray(weights))

    def function(x):
        inner = jax.jit(lambda a: apply(scale, [tf.tanh(Tensor(a))]).array)
        return [apply(scale, [tf.tanh(x)]), Tensor(inner(x.array)), apply(scale, [tf.tanh(x)])]

    x = np.full((2, 3), 0.5, np.float32)
    results = trace(function, (SPEC,)).run_on_arrays((x,), ())
    for result in results:
        np.testing.assert_allclose(result, np.tanh(x) * weights, rtol=1e-6)


def test_constants_are_distinguished_by_value():
    first, second = tf.constant([1, 2, 3]), tf.constant([4, 5, 6])
    spec = tf.TensorSpec([3], tf.int32)
    traced = trace(lambda x: [counted(x, 2, c) for c in (first, second, first)], (spec,))
    results = traced.run_on_arrays((np.zeros(3, np.int32),), ())
    assert [np.asarray(r).tolist() for r in results] == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]


def test_results_that_are_operands_or_constants():
    keep = Op("keep", lambda o, _: [o[0], o[0] + 1, np.arange(2)])

    def function(x, y):
        first, second = (apply(keep, [v]) for v in (x, y))
        assert isinstance(second[2].array, np.ndarray)
        return first + second

    traced = trace(function, (SPEC, SPEC))
    x, y = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    results = [np.asarray(r) for r in traced.run_on_arrays((x, y), ())]
    assert [r.flat[-1] for r in results] == [0, 1, 1, 1, 2, 1]


def make_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((8,))])
    for _ in range(3):
        model.add(layers.Dense(8, activation="relu"))
        model.add(layers.BatchNormalization())
        model.add(layers.Dropout(0.25))
    model.add(layers.LayerNormalization())
    model.add(layers.Dense(2))
    return model


def train(rows):
    tf.keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(
        "adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]
    )
    x = np.random.default_rng(0).random((rows, 8), np.float32)
    losses = model.fit(x, np.arange(rows) % 2, batch_size=4, epochs=2, verbose=0).history["loss"]
    return losses, model.get_weights()


@pytest.mark.parametrize(
    "rows", [8, 10]
)  # the second has a smaller last batch, and a symbol for its size
def test_trainings_are_equal_bit_by_bit(no_copies, rows):
    losses, weights = train(rows)
    no_copies()
    expected_losses, expected = train(rows)
    assert losses == expected_losses
    for w, e in zip(weights, expected, strict=True):
        assert w.tobytes() == e.tobytes()


def trace_gradients(model):
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return trace(step, (tf.TensorSpec([4, 8], tf.float32),))


def test_copies_have_the_scopes_of_their_own_layers(no_copies):
    model = make_model()
    copied = trace_gradients(model)
    no_copies()
    expected = trace_gradients(model)

    def list_scopes(traced):
        equations = traced.closed_jaxpr.jaxpr.eqns
        return [(e.primitive.name, str(e.source_info.name_stack)) for e in equations]

    assert list_scopes(copied) == list_scopes(expected)
    assert any("dense_1" in scope for _, scope in list_scopes(copied))


def test_calls_that_create_sizes_are_not_copied():
    @tf.function
    def select(x, y):
        return tf.boolean_mask(x, x > 0), tf.boolean_mask(y, y > 0)

    first, second = select(tf.constant([1.0, -1.0, 2.0]), tf.constant([-1.0, -2.0, 3.0]))
    assert first.numpy().tolist() == [1, 2] and second.numpy().tolist() == [3]


def test_random_ops_differ():
    draw = tf.function(lambda: [tf.random.uniform([4]) for _ in range(3)])
    draws = {tuple(d.numpy().tolist()) for d in draw()}
    assert len(draws) == 3


def test_bodies_of_loops_and_branches_have_their_own_calls():
    @tf.function
    def run(x):
        for _ in tf.range(3):
            x = tf.tanh(x) if tf.reduce_sum(x) > 0 else tf.tanh(x + 1)
        return tf.tanh(tf.tanh(x))

    x = np.float32([0.5, -0.25])
    expected = x
    for _ in range(3):
        expected = np.tanh(expected) if expected.sum() > 0 else np.tanh(expected + 1)
    np.testing.assert_allclose(run(tf.constant(x)), np.tanh(np.tanh(expected)), rtol=1e-6)


def test_calls_inside_transformations_of_jax_run_again():
    function = lambda x: [tf.vectorized_map(lambda r: counted(r, 2.0), x), counted(x, 2.0)]
    results = trace(function, (SPEC,)).run_on_arrays((np.ones((2, 3), np.float32),), ())
    assert all(np.asarray(r).tolist() == [[2.0] * 3] * 2 for r in results)
