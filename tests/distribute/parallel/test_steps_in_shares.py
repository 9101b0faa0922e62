"""Test training steps that compute gradients themselves in shares of the batch."""

import warnings

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, data, mesh, sent, trained
from helpers import rounds
from meshflow.experimental import dtensor

STRATEGY = tf.distribute.MeshStrategy
HALVES = {"micro_batches": 2}


def layers(*more):
    return [tf.keras.Input([16]), LAYERS.Dense(32, "tanh"), *more, LAYERS.Dense(8)]


class Own(tf.keras.Sequential):
    """A step like that of the guides."""

    def compute_own_loss(self, x, y):
        return tf.reduce_mean((self(x, training=True) - y) ** 2)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_own_loss(x, y)
        gradients = self.change(tape.gradient(loss, self.trainable_variables), loss)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def change(self, gradients, loss):
        return gradients


class Clipped(Own):
    """A sum over the rows, and a norm of all gradients."""

    def compute_own_loss(self, x, y):
        return tf.reduce_sum((self(x, training=True) - y) ** 2)

    def change(self, gradients, loss):
        return tf.clip_by_global_norm(gradients, 0.5)[0]


class Counter(LAYERS.Layer):
    """A layer with a counter of its calls, and variables that only the step updates."""

    def __init__(self):
        super().__init__()
        state = lambda: self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.calls, self.rows, self.average = state(), state(), state()

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs


class Mixed(Own):
    """Random numbers without rows, decisions about the loss, and updates of variables of a layer."""

    def __init__(self, parts):
        super().__init__(parts)
        self.counter = Counter()

    def train_step(self, batch):
        x, y = batch
        x *= (
            1.0 + 0.1 * tf.random.normal([]) + 0.1 * tf.random.stateless_normal(tf.shape(x), [1, 2])
        )
        self.counter.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return super().train_step((self.counter(x), y)) | {"last": self.counter.average}

    def change(self, gradients, loss):
        self.counter.average.assign(0.9 * self.counter.average + 0.1 * loss)
        factor = 1.0
        if loss > 0.3:
            factor = 0.5
        noise = tf.random.normal(gradients[0].shape, stddev=0.01)
        rest = [tf.clip_by_value(g, -0.02, 0.02) * factor for g in gradients[1:]]
        return [gradients[0] + noise, *rest]


class Jacobian(Own):
    """A penalty on the derivatives of each row, and a custom gradient that is proportional."""

    def compute_own_loss(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y_pred = self(x, training=True)
        penalty = tf.reduce_mean(tf.reduce_sum(tape.batch_jacobian(y_pred, x) ** 2, [1, 2]))
        reverse = tf.custom_gradient(lambda v: (v + 0.0, lambda g: tf.where(v > 0, -2.0 * g, 0.0)))
        return 0.01 * penalty + tf.reduce_mean(tf.abs(reverse(y_pred) - y))


class Centered(Own):
    """Predictions relative to their mean over the batch."""

    def compute_own_loss(self, x, y):
        y_pred = self(x, training=True)
        return tf.reduce_mean(tf.nn.softplus(y_pred - tf.reduce_mean(y_pred) - y))


class Divided(Own):
    """A mean over the rows, the number of which divides the rows."""

    def compute_own_loss(self, x, y):
        rows = tf.cast(tf.shape(x)[0], tf.float32)
        return tf.reduce_sum((self(x, training=True) - y) ** 2 / rows)


class Mirrored(Own):
    """Rows that are mixed with others, without sums over the rows."""

    def compute_own_loss(self, x, y):
        mix = lambda v: 0.3 * v + 0.7 * v[::-1]
        return tf.reduce_mean((self(mix(x), training=True) - mix(y)) ** 2)


class CenteredAndNormalized(Centered):
    """A layer with statistics of the rows, besides other sums over the rows."""

    def __init__(self, parts):
        super().__init__([*parts, LAYERS.BatchNormalization()])


class Limited(Own):
    """A custom gradient that depends on the number of rows, of which a mean has a smaller gradient."""

    def compute_own_loss(self, x, y):
        limit = tf.custom_gradient(
            lambda v: (v + 0.0, lambda g: tf.clip_by_value(g, -0.001, 0.001))
        )
        return tf.reduce_mean((limit(self(x, training=True)) - y) ** 2)


class LimitedByFunction(Own):
    """The same custom gradient in a function that is traced before the step."""

    def __init__(self, parts):
        super().__init__(parts)
        limit = lambda g: tf.clip_by_value(g, -0.001, 0.001)
        self.limit = tf.function(tf.custom_gradient(lambda v: (v + 0.0, limit)))

    def compute_own_loss(self, x, y):
        return tf.reduce_mean((self.limit(self(x, training=True)) - y) ** 2)


class Combined(Own):
    """A custom gradient that combines the rows."""

    def compute_own_loss(self, x, y):
        center = tf.custom_gradient(
            lambda v: (v + 0.0, lambda g: g - tf.reduce_mean(g, 0, keepdims=True))
        )
        return tf.reduce_mean((center(self(x, training=True)) - y) ** 2)


class CombinedAndNormalized(Combined):
    """The same below a layer with statistics of the rows."""

    def __init__(self, parts):
        super().__init__([*parts, LAYERS.BatchNormalization()])


class RootMeanSquare(Own):
    """A root, which hardly differs for shares with many similar rows."""

    def compute_own_loss(self, x, y):
        return tf.sqrt(super().compute_own_loss(x, y))


class Reported(Own):
    """A result and a variable that are the number of rows."""

    def __init__(self, parts):
        super().__init__(parts)
        self.rows = tf.Variable(0, trainable=False)

    def train_step(self, batch):
        self.rows.assign(tf.shape(batch[0])[0])
        return super().train_step(batch) | {"rows": tf.shape(batch[0])[0]}


class Largest(Own):
    """A maximum of integers."""

    def train_step(self, batch):
        labels = tf.cast(30.0 * batch[0][:, 0], tf.int32)
        return super().train_step(batch) | {"largest": tf.reduce_max(labels)}


class Counting(Own):
    """A moving average and a counter of the model itself."""

    def __init__(self, parts):
        super().__init__(parts)
        self.average = tf.Variable(0.5, trainable=False)
        self.rows = tf.Variable(0, trainable=False)

    def change(self, gradients, loss):
        self.average.assign(0.9 * self.average + 0.1 * loss)
        return gradients

    def train_step(self, batch):
        self.rows.assign_add(tf.shape(batch[0])[0])
        return super().train_step(batch) | {"average": self.average, "rows": self.rows}


class Metered(tf.keras.Sequential):
    """The losses, penalties and metrics of `compile`, with sample weights."""

    def train_step(self, batch):
        x, y, weight = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, weight, regularization_losses=self.losses)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(y, y_pred, weight)
        return {m.name: m.result() for m in self.metrics}


class Makers(tf.keras.Model):
    """A maker and a critic, with a penalty on the gradients of the critic."""

    def __init__(self):
        super().__init__()
        size = lambda units: [LAYERS.Dense(24, "tanh"), LAYERS.Dropout(0.2), LAYERS.Dense(units)]
        self.maker = tf.keras.Sequential([tf.keras.Input([8]), *size(16)])
        self.critic = tf.keras.Sequential([tf.keras.Input([16]), *size(1)])
        self.second = tf.keras.optimizers.Adam(1e-2)
        self.losses_seen = tf.keras.metrics.Mean(name="critic")

    @property
    def metrics(self):
        return [self.losses_seen]

    def penalize(self, real, made):
        share = tf.random.uniform([tf.shape(real)[0], 1])
        mixed = real + share * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            judged = self.critic(mixed, training=True)
        norms = tf.norm(tape.gradient(judged, mixed) + 1e-6, axis=1)
        return tf.reduce_mean((norms - 1.0) ** 2)

    def train_step(self, batch):
        real, _ = batch
        noise = lambda: tf.random.normal([tf.shape(real)[0], 8])
        for _ in range(rounds(1, 2)):
            made = self.maker(noise(), training=True)
            with tf.GradientTape() as tape:
                both = self.critic(tf.concat([real, made], 0), training=True)
                first, second = tf.split(both, 2)
                loss = tf.reduce_mean(second) - tf.reduce_mean(first) + self.penalize(real, made)
            weights = self.critic.trainable_variables
            self.second.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.losses_seen.update_state(loss)
        with tf.GradientTape(persistent=True) as tape:
            error = -tf.reduce_mean(self.critic(self.maker(noise(), training=True), training=True))
        weights = self.maker.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(error, weights), weights, strict=True))
        return {"critic": self.losses_seen.result(), "maker": error}


def compare(make, options, batch, wanted=None, sizes=None, **compiled):
    """Compare the losses and weights with those of one device, and return the warnings."""
    plain, curves = trained(make, wanted, batch, 4, **compiled)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        strategy = STRATEGY(mesh(**(sizes or {"data": 2})), "batch:data", **options)
        model, history = trained(make, strategy, batch, 4, **compiled)
    for name, curve in curves.items():
        np.testing.assert_allclose(history[name], curve, rtol=1e-6, atol=1e-6)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    return [str(w.message) for w in found]


def metered():
    penalized = LAYERS.Dense(24, "gelu", kernel_regularizer="l2", activity_regularizer="l2")
    return Metered(layers(penalized))


SGD = {"optimizer": lambda: tf.keras.optimizers.SGD(0.1, 0.9)}


@pytest.mark.parametrize(
    ("make", "options", "compiled"),
    [
        (lambda: Clipped(layers(LAYERS.Dropout(0.3))), HALVES, {}),
        (lambda: Counting(layers()), HALVES, SGD),
        (lambda: Mixed(layers()), HALVES, SGD),
        (lambda: Jacobian(layers()), HALVES, SGD),
        (metered, HALVES | {"zero": 1}, SGD | {"weighted_metrics": ["mae"]}),
        (Makers, HALVES, {}),
        pytest.param(
            Makers, HALVES | {"zero": 3, "recompute": "layer"}, {}, marks=pytest.mark.soak
        ),
        pytest.param(
            lambda: Own(layers()),
            {"micro_batches": 4, "zero": 2},
            {"optimizer": lambda: tf.keras.optimizers.Adam(1e-2, clipnorm=0.1)},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_steps_equal_those_of_one_device(make, options, compiled):
    # The last batch has four rows.
    batch = (*data(36), np.linspace(0.5, 2, 36)) if make is metered else data(36)
    assert compare(make, options, batch, **compiled) == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Centered, "computes with rows and with values of all rows of the batch"),
        (Mirrored, "computes with rows and with values of all rows of the batch"),
        (Limited, "has a custom gradient that is not proportional"),
        (Combined, "computes gradients of rows from values of all rows of the batch"),
        (Largest, "has one of its results that is neither a mean nor a sum"),
        (Reported, "has a result, or a new value of a variable, that depends only on the number"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                (CenteredAndNormalized, "computes with rows and with values of all rows"),
                (CombinedAndNormalized, "computes gradients of rows from values of all rows"),
                (Divided, "computes with rows and with values"),
            ]
        ),
    ],
)
def test_other_steps_warn(make, reason):
    (message,) = compare(lambda: make(layers()), HALVES, data(36), **SGD)
    assert f"{make.__name__}.train_step computes gradients itself and {reason}" in message
    assert f"the options {HALVES} have no effect" in message


@pytest.mark.soak
def test_losses_of_many_rows_are_distinguished_from_means():
    fit = {"batch_size": 4096}
    _, history = trained(lambda: RootMeanSquare(layers()), None, data(4096), 2, fit, **SGD)
    strategy = STRATEGY(mesh(data=2), "batch:data", **HALVES)
    with pytest.warns(UserWarning, match="a target of a tape that is neither a mean nor a sum"):
        _, curves = trained(lambda: RootMeanSquare(layers()), strategy, data(4096), 2, fit, **SGD)
    np.testing.assert_allclose(curves["loss"], history["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:MeshStrategy. the batch normalization")
def test_batch_normalization_of_micro_batches():
    """The statistics and updates are those of a step of Keras with the same options."""

    class Delegating(Own):
        def train_step(self, batch):
            return tf.keras.Sequential.train_step(self, batch)

    def make(kind):
        model = kind(layers(LAYERS.BatchNormalization(), LAYERS.ReLU()))
        generator = np.random.default_rng(0)
        model.set_weights([generator.uniform(0.1, 0.5, w.shape) for w in model.get_weights()])
        return model

    strategy = lambda: STRATEGY(mesh(data=2), "batch:data", micro_batches=2)
    # The step of Keras reports the mean over the batches of an epoch.
    wanted, curves = trained(lambda: make(Delegating), strategy(), data(16), 4, **SGD)
    model, history = trained(lambda: make(Own), strategy(), data(16), 4, **SGD)
    np.testing.assert_allclose(history["loss"], curves["loss"], rtol=1e-6)
    for a, b in zip(model.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_memory_and_bytes_of_micro_batches():
    make = lambda: Own(layers(*[LAYERS.Dense(64, "gelu") for _ in range(4)]))
    batch = data(2048)
    found = {}
    for count in (1, 8):
        strategy = STRATEGY(mesh(data=2), "batch:data", micro_batches=count)
        model, _ = trained(make, strategy, batch, 2, {"batch_size": 2048})
        found[count] = sent(model, *batch)
    temporaries = [found[count][1].memory["temporaries"] for count in (1, 8)]
    # The rows of eight layers, or an eighth of them.
    assert temporaries[1] < temporaries[0] / 3
    assert found[8][0]["all-reduce"] <= found[1][0]["all-reduce"] + 8


def test_compressed_gradients_of_two_optimizers():
    class Pair(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first = tf.keras.Sequential([tf.keras.Input([64]), LAYERS.Dense(128)])
            self.last = tf.keras.Sequential([tf.keras.Input([128]), LAYERS.Dense(64)])
            self.second = tf.keras.optimizers.SGD(0.05)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.last(self.first(x)) - y) ** 2)
            parts = self.first.trainable_variables, self.last.trainable_variables
            for optimizer, weights, gradients in zip(
                (self.optimizer, self.second), parts, tape.gradient(loss, parts), strict=True
            ):
                optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss}

    batch = data(64, 64, 64)
    sgd = {"optimizer": lambda: tf.keras.optimizers.SGD(0.05)}
    _, curves = trained(Pair, None, batch, 8, **sgd)
    strategy = STRATEGY(mesh(data=2), "batch:data", compress="int8", micro_batches=2)
    model, history = trained(Pair, strategy, batch, 8, **sgd)
    np.testing.assert_allclose(history["loss"], curves["loss"], rtol=1e-3)
    for optimizer, part in ((model.optimizer, model.first), (model.second, model.last)):
        slot = optimizer.get_slot(part.trainable_variables[0], "sent_error")
        assert np.any(slot.numpy()), "The rounding errors are kept by the optimizer of the weight."
    assert dtensor.explain(model, *batch).sent("all-to-all") > 0


def test_bfloat16_gradients_are_summed_in_float32():
    """The gradients of shares, rounded to bfloat16, are as close to those of float32 as on one device."""

    class Cast(Own):
        def compute_own_loss(self, x, y):
            return tf.reduce_mean((tf.cast(self(x, training=True), tf.float32) - y) ** 2)

    def update(policy, strategy=None):
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            sgd = {"optimizer": lambda: tf.keras.optimizers.SGD(1.0)}
            fit = {"batch_size": 64, "epochs": 1}
            trained_model, _ = trained(lambda: Cast(layers()), strategy, data(64), 2, fit, **sgd)
            start, _ = trained(lambda: Cast(layers()), None, data(64), 2, {"epochs": 0}, **sgd)
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
        pairs = zip(trained_model.get_weights(), start.get_weights(), strict=True)
        return [a - b for a, b in pairs]

    wanted = update("float32")
    strategy = STRATEGY(mesh(data=2), "batch:data", micro_batches=2)
    updates = update("mixed_bfloat16"), update("mixed_bfloat16", strategy)
    errors = [
        max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(update, wanted, strict=True))
        for update in updates
    ]
    # A value rounded to bfloat16 has a relative error of 2**-9 at most.
    assert errors[0] < 2**-6 and errors[1] < 1.1 * errors[0]


def test_functions_of_a_new_step_are_traced_again():
    def train(strategy=None):
        model, _ = trained(lambda: LimitedByFunction(layers()), strategy)
        model.make_train_function(force=True)
        model.fit(*data(), batch_size=16, epochs=3, shuffle=False, verbose=0)
        return model.get_weights()

    with pytest.warns(UserWarning, match="custom gradient that is not proportional"):
        weights = train(STRATEGY(mesh(data=2), "batch:data", **HALVES))
    for found, expected in zip(weights, train(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
