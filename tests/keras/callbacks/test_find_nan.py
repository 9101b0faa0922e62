"""`FindNaN` and `fit(debug="nan")`: the step, layer, op, line and rows of the first NaN."""

import numpy as np
import pytest

import meshflow as tf
from helpers import combine

pytestmark = pytest.mark.nan_expected

RNG = np.random.default_rng(0)
X = RNG.uniform(0.1, 1.0, (80, 4)).astype("float32")
Y = X[:, :1]
Dense = tf.keras.layers.Dense


class Norm(tf.keras.layers.Layer):
    def call(self, x):
        difference = x - x[5:6]
        return tf.sqrt(tf.reduce_sum(difference**2, -1, keepdims=True))  # line of the norm


class Cell(tf.keras.layers.Layer):
    state_size = output_size = 4

    def call(self, x, states):
        state = x * x + states[0]  # line of the cell
        return state, [state]


class OwnStep(tf.keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = (self(x) - y) ** 2
            loss = tf.reduce_mean(error * tf.math.log(x[:, :1] - 0.05))  # line of the step
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"error": loss}


def replace(row, value, x=X):
    x = x.copy()
    x[row] = value
    return x


def log_loss(y, prediction):
    return tf.reduce_mean(prediction * tf.math.log(y), -1)


def norm_model():
    return [Dense(3, name="first"), Norm(name="norm"), Dense(1)]


def divide():
    return [tf.keras.layers.Lambda(lambda t: 1.0 / (t - 0.05), name="ratio"), Dense(1)]  # lambda


CASES = {
    # name: layers, x, loss, (step, layer, op, is_gradient, text of the line, rows)
    "gradient": (norm_model, X, "mse", (0, "norm", "sqrt", True, "line of the norm", [5])),
    "forward": (divide, replace(41, 0.05), "mse", (5, "ratio", "truediv", False, "lambda", [1])),
    "data": (
        lambda: [Dense(1)],
        replace(79, np.nan),
        "mse",
        (9, None, None, False, None, [7]),
    ),
    "loop": (
        lambda: [tf.keras.layers.RNN(Cell(name="cell"), name="rnn"), Dense(1)],
        replace((33, 2), 1e30, np.repeat(X[:, None], 5, 1)),
        "mse",
        (4, "cell", "multiply", False, "line of the cell", [1]),
    ),
    "built-in layer": (
        lambda: [Dense(1, name="head", kernel_initializer="ones")],
        replace(17, 3e38),
        "mse",
        (2, "head", "matmul", False, "math.matmul(inputs, kernel)", [1]),
    ),
    "own step": (
        lambda: OwnStep([Dense(1)]),
        replace(64, 0.05),
        None,
        (8, None, "log", False, "line of the step", [0]),
    ),
}


def make_model(layers, loss, **kwargs):
    tf.keras.utils.set_random_seed(0)
    model = layers if isinstance(layers, tf.keras.Model) else tf.keras.Sequential(layers)
    model.compile("sgd", loss, **kwargs)
    return model


def summarize(report):
    text = None if report.source is None else report.source.text
    return report.step, report.layer, report.op, report.is_gradient, text, report.rows


def check(report, expected):
    *values, text, rows = summarize(report)
    assert (*values, rows) == (*expected[:4], expected[5])
    assert text is None if expected[4] is None else expected[4] in text


MODES = ["plain", "eager", "steps_per_execution", "mirrored", "dataset"]


@pytest.mark.parametrize(("name", "mode"), combine(CASES, MODES))
def test_report(name, mode, caplog):
    layers, x, loss, expected = CASES[name]
    strategy = tf.distribute.MirroredStrategy() if mode == "mirrored" else None
    with (strategy or tf.distribute.get_strategy()).scope():
        options = {"steps_per_execution": 4} if mode == "steps_per_execution" else {}
        options |= {"run_eagerly": True} if mode == "eager" else {}
        model = make_model(layers(), loss, **options)
    finder = tf.keras.callbacks.FindNaN()
    settings = {"shuffle": False, "verbose": 0, "callbacks": [finder], "epochs": 3}
    if mode == "dataset":
        model.fit(tf.data.Dataset.from_tensor_slices((x, Y)).batch(8), **settings)
    else:
        model.fit(x, Y, batch_size=8, **settings)
    check(finder.report, expected)
    # The weights are those before the step, and the training stopped.
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert model.optimizer.iterations == finder.report.step
    assert len(model.history.epoch) == 1
    assert str(finder.report) in caplog.text
    assert f"at step {expected[0]} (epoch 0, batch {expected[0]} of the epoch" in caplog.text


def test_loss_function_and_fit_argument(caplog):
    x = replace(slice(None), 1.0)
    y = replace(13, 0.0, np.ones((80, 1), "float32"))
    model = make_model([Dense(1, use_bias=False, kernel_initializer="zeros")], log_loss)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, debug="nan")
    assert model.stop_training
    for text in ("First infinity at step 1", "layer: loss", "op: log", "in log_loss", "batch: 5"):
        assert text in caplog.text


def test_later_epochs_and_learning_rates():
    model = make_model([Dense(1, name="head")], "mse")
    finder = tf.keras.callbacks.FindNaN()
    rates = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 if epoch < 2 else 1e25)
    model.fit(X, Y, batch_size=8, epochs=5, verbose=0, callbacks=[finder, rates])
    assert (finder.report.step, finder.report.epoch, finder.report.batch) == (21, 2, 1)


def test_many_steps_and_random_layers():
    # The step is searched among those since the last check, with the same random numbers.
    x = np.tile(X, (30, 1))
    x[2000] = 1e25
    layers = [tf.keras.layers.Dropout(0.5, name="dropout"), Dense(1, name="head")]
    model = make_model(layers, "mse")
    finder = tf.keras.callbacks.FindNaN()
    model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0, callbacks=[finder])
    assert finder.report.step == 500 and finder.report.rows == [0]


class RawLoss(tf.keras.Sequential):
    def train_step(self, data):
        super().train_step(data)
        return {"loss": tf.reduce_mean(tf.math.log(data[1]))}


@pytest.mark.parametrize(
    ("bad_step", "model_class"), combine([3, 290, 599], [tf.keras.Sequential, RawLoss])
)
def test_losses_that_do_not_reach_the_weights(model_class, bad_step):
    model = model_class([Dense(1)])
    loss = lambda y, p: tf.reduce_mean(0.1 * p + tf.math.log(y), -1)
    model.compile("sgd", loss if model_class is tf.keras.Sequential else "mse")
    x, y = np.ones((600, 1), "float32"), np.ones((600, 1), "float32")
    y[bad_step] = -1.0
    finder = tf.keras.callbacks.FindNaN()
    model.fit(x, y, batch_size=1, epochs=2, shuffle=False, verbose=0, callbacks=[finder])
    assert (finder.report.step, finder.report.op) == (bad_step, "log")
    assert (finder.report.epoch, finder.report.batch) == (0, bad_step)


def test_training_without_nan_is_unchanged():
    histories = []
    for debug in (None, "nan"):
        layers = [
            Dense(4),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dropout(0.5),
            Dense(1),
        ]
        model = make_model(layers, "mse")
        history = model.fit(X, Y, batch_size=8, epochs=3, verbose=0, debug=debug)
        histories.append([*history.history["loss"], *model.get_weights()])
    for first, second in zip(*histories, strict=True):
        np.testing.assert_array_equal(first, second)


def test_masked_values_and_metrics_are_not_reported():
    class Masked(tf.keras.layers.Layer):
        def call(self, x):
            return tf.where(x < 9.0, x, tf.stop_gradient(tf.math.log(x - 9.0)))

    model = make_model(
        [Dense(3), Masked(), Dense(1)], "mse", metrics=[lambda a, b: b * float("nan")]
    )
    finder = tf.keras.callbacks.FindNaN()
    model.fit(X, Y, verbose=0, callbacks=[finder])
    assert finder.report is None


def test_invalid_arguments():
    model = make_model([Dense(1)], "mse")
    with pytest.raises(ValueError, match="debug must be None or 'nan', got 'inf'"):
        model.fit(X, Y, debug="inf")
