"""Test steps that read the strings of a batch, in models with layers of strings before the compiled rest."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.values.withheld_text import (
    WithheldTextError,
    check_text,
    find_text_source,
    make_withheld_text,
)

LAYERS = tf.keras.layers
WORDS = np.array([["a b"], ["c"], ["b e a"], ["d d"], ["e"], ["c a"], ["b"], ["a c e"]])
TARGETS = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
LABELS = np.array(list("abcabcab"))


def update(model, loss, tape):
    model.optimizer.minimize(loss, model.trainable_variables, tape=tape)
    return {"loss": loss}


class Labels(tf.keras.Model):
    """Look up labels."""

    batch = WORDS, LABELS

    def train_step(self, data):
        x, y = data
        ids = LAYERS.StringLookup(vocabulary=["a", "b"])(y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(x, training=True)[:, 0] - tf.cast(ids, "float32")) ** 2)
        return update(self, loss, tape)


class Pairs(tf.keras.Model):
    """Call the model on both parts of a batch."""

    batch = WORDS, WORDS[::-1]

    def train_step(self, data):
        first, second = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(first) - self(second)) ** 2)
        return update(self, loss, tape)


class Reversed(tf.keras.Model):
    """Call the model on the strings in another order, which reads none of them."""

    batch = WORDS, TARGETS

    def train_step(self, data):
        x, y = data
        return super().train_step((tf.reverse(x, [0]), y))


class Weighted(tf.keras.Model):
    """Weight losses by the length of strings."""

    batch = WORDS, TARGETS

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        lengths = tf.cast(tf.strings.length(x), "float32")[:, 0]
        return super().compute_loss(x, y, y_pred, lengths)


class Parts(tf.keras.Model):
    """Call a model of one input on two parts of the inputs."""

    batch = (WORDS, WORDS[::-1]), TARGETS

    def train_step(self, data):
        (first, second), y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(first) - self(second) - y) ** 2)
        return update(self, loss, tape)


def fit(kind, **compiled):
    tf.keras.utils.set_random_seed(1)
    text = tf.keras.Input([1], dtype="string")
    ids = LAYERS.TextVectorization(vocabulary=list("abcd"), output_sequence_length=3)(text)
    model = kind(text, LAYERS.Dense(2)(LAYERS.Flatten()(LAYERS.Embedding(8, 2)(ids))))
    model.compile("sgd", "mse", **compiled)
    return model.fit(*kind.batch, batch_size=4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.filterwarnings("ignore:The train_step of")
@pytest.mark.parametrize("kind", [Labels, Pairs, Reversed, Weighted, Parts])
def test_steps_that_read_strings(kind):
    np.testing.assert_allclose(fit(kind), fit(kind, run_eagerly=True), rtol=1e-5)


def test_steps_that_read_strings_are_warned_of():
    with pytest.warns(UserWarning, match="uses strings of its batch itself, so it runs as plain"):
        fit(Weighted)


@pytest.mark.filterwarnings("ignore:The predict_step of", "ignore:The train_step of")
def test_strings_that_are_returned():
    text = tf.keras.Input([1], dtype="string")
    ids = LAYERS.StringLookup(vocabulary=["c", "e"])(text)
    model = tf.keras.Model(text, [LAYERS.Rescaling(2.0)(ids), text])
    ids, words = model.predict(WORDS, verbose=0)
    assert ids[:, 0].tolist() == [0, 2, 0, 0, 4, 0, 0, 0]
    assert words.tolist() == [[w.encode()] for w in WORDS[:, 0]]


def test_withheld_strings():
    text = make_withheld_text((2, 3))
    source = find_text_source(text)
    assert find_text_source(text.reshape(3, 2, 1)) is source
    for other in (text[::-1], text[:1], np.concatenate([text, text]), make_withheld_text((2, 3))):
        assert find_text_source(other) is not source
    for read in (hash, len, str, bytes, iter, lambda v: v == b"", lambda v: v.decode()):
        with pytest.raises(WithheldTextError):
            read(text[0, 0])
    with pytest.raises(WithheldTextError):
        check_text(text)
    check_text(np.array([b"a"], object))
    assert find_text_source(3) == 3


@pytest.mark.parametrize("method", ["fit", "predict"])
def test_missing_numbers_are_refused(method):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.array([[1.0], [None]], object)
    with pytest.raises(ValueError, match=r"holds objects \(\[1.0, None\]"):
        getattr(model, method)(*[rows, np.ones((2, 1))][: 2 if method == "fit" else 1])
