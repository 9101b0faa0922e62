"""Test invalid arguments of optimizers, `fit` and `predict`: the error names the argument and the
accepted values."""

import numpy as np
import pytest

import meshflow as tf

O = tf.keras.optimizers


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: O.SGD("a"), "learning_rate"),
        (lambda: O.SGD(0.1, momentum="a"), "momentum"),
        (lambda: O.Adam("a"), "learning_rate"),
        (lambda: O.Adam(beta_1="a"), "beta_1"),
        (lambda: O.Adam(epsilon="a"), "epsilon"),
        (lambda: O.Adam(weight_decay="a"), "weight_decay"),
        (lambda: O.Adam(use_ema=True, ema_momentum="a"), "ema_momentum"),
        (lambda: O.SGD(clipnorm="a"), "clipnorm"),
        (lambda: O.RMSprop(rho=[[0.1], [0.2, 0.3]]), "rho"),
        (lambda: O.Adagrad(initial_accumulator_value="a"), "initial_accumulator_value"),
        (lambda: O.legacy.SGD("a"), "learning_rate"),
    ],
)
def test_hyperparameters_are_numbers(make, name):
    with pytest.raises(TypeError, match=f"`{name}` must be a number.*, got "):
        make()


def test_a_hyperparameter_set_later_is_checked_too():
    optimizer = O.SGD(0.1)
    with pytest.raises(TypeError, match="`learning_rate` must be a number"):
        optimizer.learning_rate = "b"
    with pytest.raises(ValueError, match=r"`learning_rate`.* got None"):
        O.SGD(None)
    assert float(O.SGD(np.float64(0.5)).learning_rate) == 0.5


X, Y = np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")


@pytest.fixture(scope="module")
def model():
    made = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda m: m.predict("abc", verbose=0), "x"),
        (lambda m: m.predict(b"abc", verbose=0), "x"),
        (lambda m: m.predict({"a"}, verbose=0), "x"),
        (lambda m: m.fit(X, "abc", verbose=0), "y"),
        (lambda m: m.fit(X, Y, sample_weight="abc", verbose=0), "sample_weight"),
        (lambda m: m.train_on_batch("abc"), "x"),
    ],
)
def test_texts_are_no_data(model, call, name):
    with pytest.raises(ValueError, match=f"Failed to find data adapter.*`{name}` is of"):
        call(model)


@pytest.mark.parametrize("given", ["x", ["x"], 5, [None], [tf.keras.callbacks.History]])
def test_callbacks_are_callbacks(model, given):
    for error in (TypeError, AttributeError):
        with pytest.raises(error, match=r"`callbacks` must hold tf.keras.callbacks.Callback"):
            model.fit(X, Y, callbacks=given, verbose=0)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_lists_of_other_lengths_are_used_as_in_tensorflow():
    inputs = tf.keras.Input((3,))
    model = tf.keras.Model(inputs, [tf.keras.layers.Dense(1, name=n)(inputs) for n in "ab"])
    x, y = np.ones((4, 3)), [np.ones((4, 1))] * 2
    for losses, names in [(["mse"], ["a_loss"]), (["mse"] * 3, ["a_loss", "b_loss"])]:
        model.compile("sgd", losses, loss_weights=[1.0, 2.0, 3.0])
        assert list(model.fit(x, y, verbose=0).history) == ["loss", *names]
    model.compile("sgd", "mse", loss_weights=[0.5])
    history = model.fit(x, y, verbose=0).history
    assert history["loss"] == [0.5 * history["a_loss"][0]]
    assert history["b_loss"] == [0.0]
    model.compile("sgd", "mse", metrics=[["mae"]] * 3)
    with pytest.raises(ValueError, match="got 3 metrics"):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="3 arrays were given as targets"):
        model.fit(x, [*y, y[0]], verbose=0)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.fit(x, y, epochs=-1, verbose=0).history == {}
    assert list(model.fit(x, y, verbose=0).history) == ["loss"]
