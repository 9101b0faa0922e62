"""Test errors of training: labels, in calls and in `fit`, and arguments."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers, losses, metrics

P = np.random.default_rng(0).uniform(0.1, 0.9, (6, 3)).astype("float32")
NUMBERS = np.array([0, 2, 1, 1, 0, 2])


@pytest.mark.parametrize("shape", [(6, 1), (6, 2), (1, 3), (3,), ()])
@pytest.mark.parametrize("name", ["categorical_crossentropy", "categorical_focal_crossentropy"])
def test_one_hot_labels_have_the_shape_of_predictions(name, shape):
    labels = np.zeros(shape, "float32")
    for function in (getattr(losses, name), losses.get(name)):
        with pytest.raises(ValueError, match=r"Shapes .* and \(6, 3\) are incompatible"):
            function(labels, P)
    with pytest.raises(ValueError, match="are incompatible"):
        tf.function(getattr(losses, name))(tf.constant(labels), tf.constant(P))


def test_class_numbers_do_not_train_with_categorical_losses():
    model = tf.keras.Sequential([layers.Dense(3, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy")
    with pytest.raises(ValueError, match="Use sparse_categorical_crossentropy"):
        model.fit(P, NUMBERS, verbose=0)


@pytest.mark.parametrize(
    ("metric", "labels", "predictions", "error"),
    [
        ("Accuracy", (6, 1), (6, 3), ValueError),
        ("CategoricalCrossentropy", (6, 1), (6, 3), ValueError),
        ("CategoricalAccuracy", (6, 3), (6,), ValueError),
        ("SparseCategoricalAccuracy", (6, 3), (6, 3), ValueError),
        ("SparseCategoricalAccuracy", (6,), (6,), ValueError),
        ("TopKCategoricalAccuracy", (6,), (6,), tf.errors.InvalidArgumentError),
    ],
)
def test_metrics_check_shapes(metric, labels, predictions, error):
    with pytest.raises(error):
        getattr(metrics, metric)().update_state(np.zeros(labels), np.full(predictions, 0.5))


def test_ranks_of_top_k():
    with pytest.raises(tf.errors.InvalidArgumentError, match="predictions must be 2-dimensional"):
        tf.math.in_top_k([0], [0.5], 1)


def test_nan_is_no_class():
    labels = np.array([0, np.nan, 1, 1, 0, 2], "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"nan at position \[1\]"):
        losses.sparse_categorical_crossentropy(labels, P)
    with pytest.raises(tf.errors.InvalidArgumentError, match="nan at position"):
        metrics.MeanIoU(3).update_state(labels, NUMBERS)
    whole = metrics.SparseCategoricalAccuracy()
    right = np.argmax(P, -1).astype("float32")
    assert float(whole(np.where(np.isnan(labels), np.nan, right), P)) == pytest.approx(5 / 6)
    assert float(metrics.sparse_top_k_categorical_accuracy(labels, P, 3)[1]) == 0
    model = tf.keras.Sequential([layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    for y in (labels, tf.constant(labels)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="label value of nan"):
            model.fit(P, y, verbose=0)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "object"])
@pytest.mark.parametrize("subclassed", [True, False])
def test_labels_of_the_first_batch_are_checked_before_it_trains(loss, subclassed):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model = Model() if subclassed else tf.keras.Sequential([layers.Dense(3)])
    chosen = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", chosen if loss == "object" else loss)
    for labels in (NUMBERS + 1, NUMBERS - 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range of"):
            model.fit(P, labels, verbose=0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range of"):
            model.evaluate(P, labels, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    model.fit(P, NUMBERS, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range of"):
        model.train_on_batch(P, NUMBERS + 1)


@pytest.mark.parametrize("names", [("value", "label"), ("label", "value")])
def test_labels_and_losses_by_name_have_any_order(names):
    inputs = tf.keras.Input((3,))
    units = {"label": 3, "value": 1}
    outputs = [layers.Dense(units[name], name=name) for name in names]
    model = tf.keras.Model(inputs, [layer(inputs) for layer in outputs])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"value": "mse", "label": loss})
    targets = {"value": P[:, :1], "label": NUMBERS}
    model.fit(P, targets, verbose=0)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="'label': received a label value of 3"
    ):
        model.fit(P, targets | {"label": NUMBERS + 1}, verbose=0)


@pytest.mark.nan_expected
def test_nan_labels_raise_in_functions():
    labels = tf.constant([0, np.nan, 1, 1, 0, 2], tf.float32)
    compute = tf.function(losses.sparse_categorical_crossentropy)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received a label value of -922337"):
        np.asarray(compute(labels, tf.constant(P)))
    tf.debugging.disable_bounds_check()
    try:
        values = compute(labels, tf.constant(P)).numpy()
    finally:
        tf.debugging.reset_bounds_check()
    assert np.isnan(values).tolist() == [False, True, False, False, False, False]


def test_class_numbers_keep_their_values_beside_low_precision():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = tf.keras.Sequential([layers.Dense(300, input_shape=(1,))])
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    kernel = np.zeros((1, 300), "float32")
    kernel[0, 257] = 20
    model.set_weights([kernel, np.zeros(300)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["sparse_categorical_accuracy"])
    assert_close(model.evaluate(np.ones((1, 1)), np.array([257.0], "float32"), verbose=0), [0, 1])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_masks_of_merged_inputs_are_booleans(dtype):
    inputs = [tf.ones([2, 3, 4])] * 2
    masks = [tf.ones([2, 3], dtype), tf.cast([[1, 1, 0], [1, 0, 0]], dtype)]
    expected = [[True, True, False], [True, False, False]]
    for layer in (layers.Add(), layers.Concatenate()):
        assert layer.compute_mask(inputs, masks).numpy().tolist() == expected
        single = layer.compute_mask(inputs, [None, masks[1]])
        assert single.dtype == tf.bool and single.numpy().tolist() == expected
    joined = layers.Concatenate(axis=1).compute_mask(inputs, [None, masks[1]])
    assert joined.numpy().tolist() == [[True] * 3 + row for row in expected]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": "8"}, TypeError, "batch_size must be a positive integer, got '8'"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a positive integer, got 2.5"),
        ({"batch_size": 0}, ValueError, "batch_size must be a positive integer"),
        ({"epochs": "2"}, TypeError, "epochs must be a non-negative integer"),
        ({"validation_split": 2}, ValueError, "`validation_split` must be between 0 and 1"),
        ({"class_weight": [1, 2, 3]}, TypeError, "class_weight must be a dictionary"),
    ],
)
def test_arguments_of_fit(arguments, error, message):
    model = tf.keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(error, match=message):
        model.fit(P, P[:, :1], verbose=0, **arguments)
