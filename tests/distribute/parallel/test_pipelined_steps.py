"""Test pipelines of training steps that compute gradients themselves."""

import warnings

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, mesh, same_weights, trained
from meshflow.distribute.parallel.stage_buffers import get_storage

PIPELINE = tf.distribute.Pipeline


class Own(tf.keras.Model):
    """A step with a loss, metrics, clipped gradients and a moving average of its own."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.average = tf.Variable(0.5, trainable=False)
        # Float32 has no number between this one and the next but one.
        self.seen = tf.Variable(2**24 + 1, trainable=False, dtype=tf.int64)
        self.error = tf.keras.metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, inputs, training=None):
        return self.body(inputs, training=training)

    def compute_own_loss(self, x, y):
        y_pred = self(x, training=True)
        return tf.reduce_mean((y_pred - y) ** 2 * tf.stop_gradient(tf.abs(y_pred))), y_pred

    def update_weights(self, pairs):
        self.optimizer.apply_gradients(pairs)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss, y_pred = self.compute_own_loss(x, y)
        weights = self.trainable_variables
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)
        self.update_weights([*zip(gradients, weights, strict=True)])
        self.error.update_state(y, y_pred)
        self.average.assign(0.9 * self.average + 0.1 * loss)
        self.seen.assign_add(tf.reduce_sum(tf.cast(y > 0, tf.int64)))
        positive = tf.reduce_sum(tf.cast(y_pred > 0, tf.int32))
        return {"loss": loss, "norm": norm, "positive": positive, "error": self.error.result()}


class Summed(Own):
    """A sum over the rows."""

    def compute_own_loss(self, x, y):
        y_pred = self(x, training=True)
        return 0.1 * tf.reduce_sum(tf.nn.softplus(y_pred - y)), y_pred


class Twice(Own):
    """Two calls of the model."""

    def compute_own_loss(self, x, y):
        first, second = self(x, training=True), self(0.5 * x, training=True)
        return tf.reduce_mean((first - y) ** 2) + 0.1 * tf.reduce_mean((first - second) ** 2), first


class Penalized(Own):
    """A penalty on the gradients of rows."""

    def compute_own_loss(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y_pred = self(x, training=True)
        slopes = tape.gradient(y_pred, x)
        return tf.reduce_mean((y_pred - y) ** 2) + 0.1 * tf.reduce_mean(slopes**2), y_pred


class Scaled(Own):
    """A factor that depends on a weight, but is not recorded by the tape."""

    def train_step(self, batch):
        self.factor = tf.norm(self.trainable_variables[0])
        return super().train_step(batch)

    def compute_own_loss(self, x, y):
        y_pred = self(x, training=True)
        return tf.reduce_mean((y_pred - y) ** 2) * self.factor, y_pred


class Compiled(Own):
    """A function that is traced for the same shapes in a loop over shares, and in the pipeline.

    Three optimizers, moving averages of weights and slots of the step's own are in collections.
    """

    def __init__(self, body):
        super().__init__(body)
        train = tf.compat.v1.train
        self.others = [tf.keras.optimizers.SGD(0.05, momentum=0.9), train.AdamOptimizer(1e-2)]
        zeros = [tf.zeros_like(w) for w in body.trainable_variables]
        self.kept = {n: [tf.Variable(z, trainable=False) for z in zeros] for n in ("mean", "sum")}
        self.compute_squares = tf.function(lambda a, b: (a - b) ** 2)

    def compute_own_loss(self, x, y):
        y_pred = self(x, training=True)
        return tf.reduce_mean(self.compute_squares(y_pred, y)), y_pred

    def update_weights(self, pairs):
        self.optimizer.apply_gradients(pairs[:2])
        self.others[0].apply_gradients(pairs[2:4])
        self.others[1].apply_gradients(pairs[4:6])
        for i, (gradient, weight) in enumerate(pairs):
            mean, total = self.kept["mean"][i], self.kept["sum"][i]
            total.assign(0.9 * total + gradient)
            if i >= 6:
                weight.assign_sub(0.1 * total)
            mean.assign(0.5 * mean + 0.5 * weight)


class Seeded(Own):
    """Gradients of the predictions, from those of the loss, and a value that is read after it was assigned."""

    def train_step(self, batch):
        x, y = batch
        weights = self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            self.average.assign(tf.norm(weights[0]))
            seeds = 0.1 * (y_pred - y)
            target = y_pred * (1.0 + self.average)
            gradients = tape.gradient(target, weights, output_gradients=seeds)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": tf.reduce_mean(seeds**2)}


class Assigned(Own):
    """A weight that is changed before the predictions, as by spectral normalization."""

    def compute_own_loss(self, x, y):
        kernel = self.trainable_variables[0]
        kernel.assign(0.9 * kernel)
        return super().compute_own_loss(x, y)


class Alternating(Own):
    """A second update that depends on the first one."""

    def train_step(self, batch):
        return super().train_step(batch) | super().train_step(batch)


def dense(kind=Own):
    return kind(tf.keras.Sequential([tf.keras.Input([16]), *hidden(3), LAYERS.Dense(8)]))


def hidden(count):
    return [LAYERS.Dense(16, "tanh") for _ in range(count)]


def random():
    parts = [LAYERS.Dense(16, "gelu"), LAYERS.Dropout(0.3), LAYERS.Dense(16, "relu")]
    return Summed(tf.keras.Sequential([tf.keras.Input([16]), *parts, LAYERS.Dense(8)]))


def residual():
    inputs = x = tf.keras.Input([16])
    for layer in hidden(4):
        x += layer(LAYERS.LayerNormalization()(x))
    return Own(tf.keras.Model(inputs, LAYERS.Dense(8)(x)))


def compare(make, sizes, **options):
    """Compare with one device, and return the model, its strategy and the warnings."""
    plain, curves = trained(make)
    strategy = tf.distribute.MeshStrategy(
        mesh(**sizes), "batch:data" if "data" in sizes else {}, **options
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model, history = trained(make, strategy)
    for name, curve in curves.items():
        np.testing.assert_allclose(history[name], curve, rtol=2e-6)
    same_weights(model, plain, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(model.average.numpy(), plain.average.numpy(), rtol=1e-6)
    assert int(model.seen) == int(plain.seen)
    return model, strategy, [str(w.message) for w in found]


@pytest.mark.parametrize(
    ("make", "sizes", "options"),
    [
        (dense, {"stage": 2, "data": 2}, {"micro_batches": 2, "zero": 1}),
        (random, {"stage": 2}, {"micro_batches": 4}),
        (lambda: dense(Compiled), {"stage": 2, "data": 2}, {"micro_batches": 2}),
        (lambda: dense(Seeded), {"stage": 2}, {"micro_batches": 2}),
        pytest.param(residual, {"stage": 4}, {"micro_batches": 4}, marks=pytest.mark.soak),
        pytest.param(
            lambda: dense(Twice), {"stage": 2}, {"micro_batches": 2}, marks=pytest.mark.soak
        ),
    ],
)
def test_steps_equal_those_of_one_device(make, sizes, options):
    model, strategy, messages = compare(make, sizes, pipeline=PIPELINE("stage"), **options)
    assert messages == []
    report = strategy.pipelined.make_report()
    assert report.micro_batches == options["micro_batches"]
    layers = [set(stage.layers) for stage in report.stages]
    assert len(layers) == sizes["stage"] and not set.intersection(*layers)
    # Weights and slots are on the devices of their stages only.
    assert "0 bytes of weights gathered" in str(report)
    weights = model.trainable_variables
    optimizers = [model.optimizer, *getattr(model, "others", [])]
    slots = [v for optimizer in optimizers for v in optimizer.variables()]
    slots += tf.nest.flatten(getattr(model, "kept", {}))
    parts = [v for v in [*weights, *slots] if v.shape.rank]
    assert len(parts) > len(weights)
    assert {get_storage(v).layout.sharding_specs[0] for v in parts} == {"stage"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Penalized, "computes gradients of tensors"),
        (Alternating, "computes with rows after its first gradients of variables"),
        (Assigned, "assigns variables before it computes their gradients"),
        (Scaled, "computes a part of the target of its tape from variables outside of the tape"),
    ],
)
def test_other_steps_run_without_a_pipeline(kind, reason):
    _, strategy, (message,) = compare(
        lambda: dense(kind), {"stage": 2}, pipeline=PIPELINE("stage"), micro_batches=2
    )
    assert strategy.pipelined is None
    assert f"{kind.__name__}.train_step computes gradients itself and {reason}" in message
    assert "'pipeline': Pipeline(" in message and "micro_batches" not in message.split("so the")[1]
