"""Test that compiled functions cache packed weights until the weights change."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.functions.prepacked_weights import PrepackedWeights
from meshflow.environment.garbage_collection import collect_garbage

pytestmark = pytest.mark.usefixtures("compile_tier")


def keeper(function, *args):
    return function.get_concrete_function(*args)._prepacked_weights


def dense(weights):
    return tf.function(lambda x: tf.cast(x, "bfloat16") @ tf.cast(weights, "bfloat16"))


def weights(seed=0):
    return tf.Variable(tf.random.stateless_normal([256, 256], [seed, 0]))


def runs(monkeypatch):
    """Return a list that grows by one element whenever weights are packed."""
    made = []
    call = PrepackedWeights.__call__

    def counted(self, captured):
        before = self._last
        found = call(self, captured)
        if self._last is not before:
            made.append(self)
        return found

    monkeypatch.setattr(PrepackedWeights, "__call__", counted)
    return made


def test_weights_are_packed_once_while_unchanged(monkeypatch):
    made, w, x = runs(monkeypatch), weights(), tf.ones([2, 256])
    f = dense(w)
    first = f(x)
    np.testing.assert_array_equal(f(x), first)
    assert len(made) == 1


def test_made_again_when_weights_change(monkeypatch):
    made, w, x = runs(monkeypatch), weights(), tf.ones([2, 256])
    f = dense(w)
    first = f(x).numpy()
    w.assign(2 * w)
    np.testing.assert_array_equal(f(x).numpy(), 2 * first)
    w.assign_add(w)
    np.testing.assert_array_equal(f(x).numpy(), 4 * first)
    assert len(made) == 3


def test_written_weights_are_not_prepacked():
    w = weights()

    @tf.function
    def step(x):
        y = tf.cast(x, "bfloat16") @ tf.cast(w, "bfloat16")
        w.assign_sub(0.5 * w)
        return y

    x = tf.ones([2, 256])
    first, second = step(x).numpy(), step(x).numpy()
    np.testing.assert_array_equal(first, 2 * second)
    assert keeper(step, x) is None


def test_old_weights_are_released():
    import weakref

    w = weights()
    f = dense(w)
    f(tf.ones([2, 256]))
    old = weakref.ref(w._value)
    w.assign(tf.zeros([256, 256]))
    collect_garbage()
    assert old() is None


def test_frozen_layers_of_a_model_that_trains(monkeypatch):
    made = runs(monkeypatch)
    tf.keras.utils.set_random_seed(0)
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    base = tf.keras.layers.Dense(256, dtype=policy, trainable=False)
    model = tf.keras.Sequential([tf.keras.Input([256]), base, tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones([8, 256], "float32"), np.ones([8, 1], "float32")
    model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    assert len(made) == 1


def test_predictions_follow_training():
    tf.keras.utils.set_random_seed(0)
    with_policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    model = tf.keras.Sequential(
        [tf.keras.Input([8, 8, 64]), tf.keras.layers.Conv2D(64, 3, dtype=with_policy)]
    )
    model.compile(tf.keras.optimizers.SGD(0.5), "mse")
    x = np.ones([4, 8, 8, 64], "float32")
    before = model.predict(x, verbose=0)
    model.fit(x, np.ones([4, 6, 6, 64], "float32"), verbose=0)
    after = model.predict(x, verbose=0)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, np.asarray(model(x)), rtol=2e-2, atol=2e-2)


def test_several_batches_in_one_call():
    """Weights that a loop of batches only reads are prepared in front of it."""
    tf.keras.utils.set_random_seed(0)
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    model = tf.keras.Sequential(
        [tf.keras.Input([8, 8, 64]), tf.keras.layers.Conv2D(64, 3, dtype=policy)]
    )
    x = np.random.default_rng(0).random([12, 8, 8, 64], np.float32)
    model.compile(loss="mse")
    single = model.predict(x, batch_size=2, verbose=0)
    model.compile(loss="mse", steps_per_execution=3)
    np.testing.assert_array_equal(model.predict(x, batch_size=2, verbose=0), single)
