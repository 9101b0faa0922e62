"""`if` and `while` on tensors, and accumulated gradients, in overridden steps of a model."""

import numpy as np
import pytest

import meshflow as tf
from helpers import combine

X = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
Y = 2 * X.sum(1, keepdims=True)


class Base(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, input_shape=(2,), kernel_initializer="ones")
        self.dense.build((None, 2))
        self.count = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.dense.weights]

    def call(self, x):
        return self.dense(x)

    def compute(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
        return loss, tape.gradient(loss, self.dense.weights)


class Accumulation(Base):
    def train_step(self, data):
        loss, gradients = self.compute(data)
        self.count.assign_add(1)
        for total, gradient in zip(self.sums, gradients):
            total.assign_add(gradient)
        if self.count % 2 == 0:
            self.optimizer.apply_gradients(zip(self.sums, self.dense.weights))
            for total in self.sums:
                total.assign(tf.zeros_like(total))
        return {"loss": loss}


class SkippedUpdate(Base):
    # The slots of the optimizer are created inside of the branch.
    def train_step(self, data):
        loss, gradients = self.compute(data)
        if loss > 0.05:
            self.optimizer.apply_gradients(zip(gradients, self.dense.weights))
            return {"loss": loss, "skipped": 0.0}
        return {"loss": loss, "skipped": 1.0}


class RepeatedUpdate(Base):
    def train_step(self, data):
        loss, gradients = self.compute(data)
        count = 0
        while loss > 0.1 and count < 3:
            self.optimizer.apply_gradients(zip(gradients, self.dense.weights))
            loss, gradients = self.compute(data)
            count += 1
        return {"loss": loss, "count": count}


def fit(cls, strategy=None, **kwargs):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = cls()
        model.compile(tf.keras.optimizers.Adam(0.5), **kwargs)
    history = model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    return model, {name: np.float32(values) for name, values in history.history.items()}


@pytest.mark.parametrize(
    ("cls", "mode"),
    combine(
        [Accumulation, SkippedUpdate, RepeatedUpdate],
        ["mirrored", "compiled", "steps_per_execution"],
    ),
)
def test_steps_equal_eager_steps(cls, mode):
    expected, expected_history = fit(cls, run_eagerly=True)
    options = {"steps_per_execution": 4} if mode == "steps_per_execution" else {}
    strategy = tf.distribute.MirroredStrategy() if mode == "mirrored" else None
    model, history = fit(cls, strategy, **options)
    assert history.keys() == expected_history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, expected_history[name], rtol=1e-3, err_msg=name)
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
    if cls is Accumulation:
        assert int(model.optimizer.iterations) == 4
        # TensorFlow 2.21 with `tf.cond`, because its `train_step` does not convert `if`.
        np.testing.assert_allclose(history["loss"], [1.7077838, 0.0136528], rtol=1e-3)


def test_condition_in_test_step():
    class Model(Base):
        def test_step(self, data):
            if tf.reduce_mean(data[0]) > 0:
                self.count.assign_add(1)
            return {"count": self.count}

    model = Model()
    model.compile("sgd")
    assert model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True) == {"count": 1}
