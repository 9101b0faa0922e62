"""Test losses of users that reduce rows themselves, under options that split a batch."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import mesh
from helpers import SOAK

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
Y = X[:, :1] ** 2
OPTIONS = {
    "zero": (mesh(data=4), {"zero": 1, "micro_batches": 2}),
    "stages": (mesh(stage=2, data=2), {"pipeline": "stage", "micro_batches": 2}),
}


class Model(tf.keras.Model):
    """A model with a penalty on weights and an own loss."""

    def __init__(self, reduce):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(8, "tanh", kernel_regularizer="l2")
        self.output_layer = tf.keras.layers.Dense(1)
        self.reduce = reduce

    def call(self, x):
        return self.output_layer(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        if self.reduce is None:
            return super().compute_loss(x, y, y_pred, sample_weight)
        return self.reduce(self, y, y_pred)


def square(y, y_pred):
    return (y - y_pred) ** 2


LOSSES = {
    "sum of chosen rows": lambda model, y, p: tf.reduce_sum(
        tf.gather(square(y, p), tf.range(tf.shape(p)[0]))
    ),
    "sum with a margin": lambda model, y, p: tf.reduce_sum(tf.nn.relu(tf.abs(y - p) - 1.0)),
    "mean": lambda model, y, p: tf.reduce_mean(square(y, p)),
    "sum": lambda model, y, p: tf.reduce_sum(square(y, p)) / 8.0,
    "sum and penalty": lambda model, y, p: tf.reduce_sum(square(y, p)) + model.losses[0],
    "sum in compile": None,
    "sum in both": lambda model, y, p: (
        tf.keras.Model.compute_loss(model, None, y, p) + tf.reduce_sum(square(y, p))
    ),
}


def fit(reduce, options=None, rows=16):
    tf.keras.utils.set_random_seed(1)
    strategy = None
    if options is not None:
        strategy = tf.distribute.MeshStrategy(options[0], rules="batch:data", **options[1])
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = Model(reduce)
        model.compile(
            tf.keras.optimizers.SGD(1e-2), lambda y, y_pred: tf.reduce_sum(square(y, y_pred)) / 4.0
        )
    history = model.fit(X, Y, batch_size=rows, shuffle=False, verbose=0)
    return [*model.get_weights(), *history.history.get("loss", [])]


@pytest.mark.parametrize("name", LOSSES)
def test_sums_over_rows(name):
    expected = fit(LOSSES[name])
    # The same sums are found for stages: the losses are one of each kind.
    in_stages = SOAK or name in ("sum and penalty", "sum in both")
    for options in (OPTIONS["zero"], OPTIONS["stages"])[: 1 + in_stages]:
        for value, wanted in zip(fit(LOSSES[name], options), expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:MeshStrategy. a batch of 10 rows")
def test_sum_of_a_batch_that_is_not_divided():
    expected = fit(LOSSES["sum"], rows=10)
    for value, wanted in zip(fit(LOSSES["sum"], OPTIONS["zero"], rows=10), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


def test_other_losses_warn():
    def contrast(model, y, y_pred):
        return tf.reduce_mean(tf.reduce_logsumexp(y_pred @ tf.transpose(y_pred), -1))

    with pytest.warns(UserWarning, match="neither a mean nor a sum over the rows"):
        fit(contrast, OPTIONS["zero"])


def test_sum_with_effects(capfd):
    def print_and_add(model, y, y_pred):
        tf.print("rows", tf.shape(y)[0])
        return tf.reduce_sum(square(y, y_pred))

    expected = fit(print_and_add)
    capfd.readouterr()
    for value, wanted in zip(fit(print_and_add, OPTIONS["zero"]), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)
    # Trials of the loss print nothing.
    assert set(capfd.readouterr().err.splitlines()) == {"rows 2"}


def test_losses_that_raise_errors_for_invented_values_warn():
    def check(model, y, y_pred):
        if y.shape[0] == 6:
            raise ValueError
        return tf.reduce_mean(square(y, y_pred))

    with pytest.warns(UserWarning, match="raised an error for values on which it was tried"):
        fit(check, OPTIONS["zero"])


def test_sum_of_narrow_predictions():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        reduce = lambda model, y, p: tf.reduce_sum(square(tf.cast(y, p.dtype), p))
        weights = [fit(reduce, options)[0] for options in (None, OPTIONS["zero"])]
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(*weights, atol=5e-3)
