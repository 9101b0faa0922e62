"""Losses of masked predictions, with the values of tf-keras."""

import numpy as np
import pytest

import meshflow as tf

ERRORS = np.array([[1.0, 5.0, 3.0], [2.0, 7.0, 9.0]], "float32")
MASK = np.array([[True, False, True], [True, False, False]])
WEIGHTS = np.array([[2.0, 1.0, 4.0], [1.0, 3.0, 1.0]], "float32")


def masked(mask=MASK):
    predictions = tf.constant(ERRORS[..., None])
    predictions._keras_mask = tf.constant(mask)
    return np.zeros((2, 3, 1), "float32"), predictions


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("weights", "values"),
    [
        (None, ERRORS * MASK),
        (WEIGHTS, ERRORS * MASK * WEIGHTS),
        (np.array([2.0, 3.0], "float32"), ERRORS * MASK * [[2.0], [3.0]]),
    ],
)
def test_means_are_over_the_unmasked_elements(weights, values, traced):
    def compute(reduction):
        loss = tf.keras.losses.MeanAbsoluteError(reduction)
        call = lambda: loss(*masked(), sample_weight=weights)
        return (tf.function(call) if traced else call)().numpy()

    assert compute("auto") == compute("sum_over_batch_size") == pytest.approx(values.sum() / 3)
    assert compute("sum") == pytest.approx(values.sum())
    np.testing.assert_allclose(compute("none"), values)


def test_a_fully_masked_batch_has_no_loss():
    loss = tf.keras.losses.MeanSquaredError()
    assert float(loss(*masked(np.zeros((2, 3), bool)))) == 0.0
    with tf.GradientTape() as tape:
        labels, predictions = masked(np.zeros((2, 3), bool))
        tape.watch(predictions)
        value = loss(labels, predictions)
    assert not np.any(tape.gradient(value, predictions))


def test_ignored_classes_of_masked_steps():
    labels = np.array([[1, 0, 2], [3, 0, 0]])
    logits = tf.random.normal([2, 3, 4], seed=1)
    each = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True).numpy()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    assert float(loss(labels, logits)) == pytest.approx((each[0, 0] + each[0, 2] + each[1, 0]) / 3)
    logits._keras_mask = tf.constant([[True, True, False], [True, True, True]])
    assert float(loss(labels, logits)) == pytest.approx((each[0, 0] + each[1, 0]) / 2)


def test_training_on_padded_sequences():
    """The padding changes neither the loss nor the weights after a step."""

    def train(length):
        inputs = tf.keras.Input((length, 1))
        hidden = tf.keras.layers.Masking()(inputs)
        outputs = [
            tf.keras.layers.Dense(1, kernel_initializer="ones", name=name)(hidden)
            for name in ("a", "b")
        ]
        model = tf.keras.Model(inputs, outputs)
        model.compile("sgd", {"a": "mae", "b": "mse"}, loss_weights={"a": 1.0, "b": 0.5})
        x = np.zeros((2, length, 1), "float32")
        x[:, :2, 0] = [[1.0, 2.0], [3.0, 4.0]]
        y = np.zeros((2, length, 1), "float32")
        evaluated = model.evaluate(x, [y, y], verbose=0)
        model.fit(x, [y, y], verbose=0)
        return evaluated, [w.numpy() for w in model.weights]

    (short, weights), (padded, same) = train(2), train(5)
    np.testing.assert_allclose(short, [2.5 + 0.5 * 7.5, 2.5, 7.5])
    np.testing.assert_allclose(padded, short, rtol=1e-6)
    for one, other in zip(weights, same, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
