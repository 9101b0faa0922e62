"""Classes of the errors of wrong calls: those that TensorFlow 2.21 and tf-keras raise.

A program that catches TensorFlow's `ValueError`, `TypeError` or `InvalidArgumentError` must catch ours. Where TensorFlow
raises an accidental error, such as an `AttributeError`, ours may have another class.
"""

import json
from pathlib import Path

import pytest

import meshflow as tf
from reference.wrong_calls import CALLS, MODES, call

STORED = json.loads((Path(__file__).parents[1] / "reference" / "wrong_calls.json").read_text())
REQUIRED = {"ValueError", "TypeError", "InvalidArgumentError"}
NUM_PARTS = 4
# TensorFlow accepts these calls in one mode or the other, or refuses them because of its own
# restrictions.
DIFFERENT = {
    "K.initializers.Constant('x')((2,))",
    "K.metrics.AUC()(O(2), tf.constant([2.0, 3.0]))",
    "K.metrics.Mean()('x')",
    "K.metrics.TopKCategoricalAccuracy(9)(O(2, 3), O(2, 3))",
    "K.optimizers.SGD().apply_gradients([])",
    "K.optimizers.SGD(clipnorm=1, clipvalue=1)",
    "L.BatchNormalization()(tf.constant([1, 2]))",
    "L.Dense(0)(O(2, 3))",
    "L.Dense(2)(O(2, 0))",
    "L.Dense(2.5)(O(2, 3))",
    "L.Dropout(0.5, noise_shape=(3, 3))(O(2, 2), training=True)",
    "L.Embedding(4, 2)(tf.constant('x'))",
    "L.HashedCrossing(2)(O(2))",
    "L.Input(shape=3)",
    "L.MultiHeadAttention(2, 2)(O(2, 3, 4))",
    "L.RandomRotation('x')",
    "L.Softmax(axis=5)(O(2, 3))",
    "L.UpSampling2D(interpolation='x')",
    "model().compile(metrics=['x'], loss='mse') or model().fit(O(4, 3), O(4, 2))",
    "tf.GradientTape().gradient(O(2), O(2))",
    "tf.argmax('x')",
    "tf.custom_gradient(3)(O(2))",
    "tf.data.Dataset.range(3).reduce(0, lambda a, x: 'x')",
    "tf.debugging.assert_shapes([(O(2), (3,))])",
    "tf.fill([2], [1.0])",
    "tf.image.adjust_hue(O(2, 2, 3), 2.0)",
    "tf.linalg.inv(tf.zeros([2, 2]))",
    "tf.nn.lrn(O(1, 2, 2, 2), depth_radius='x')",
    "tf.nn.softmax(O(2), axis=3)",
    "tf.one_hot('x', 3)",
    "tf.reduce_mean(O(2), 'x')",
    "tf.reshape(O(2), 'x')",
    "tf.reshape(O(2), [2.5])",
    "tf.signal.stft(O(2), 'x', 1)",
    "tf.sparse.sparse_dense_matmul(tf.SparseTensor([[0, 0]], [1.0], [2, 2]), O(3, 1))",
    "tf.switch_case(0, [])",
}


def check(text, mode, classes):
    """Return a description of a difference, or None."""
    if classes is None or text in DIFFERENT:
        return None
    found = call(tf, text, mode)
    required = REQUIRED & set(classes)
    if found is not None and required <= set(found):
        return None
    return f"{text} ({mode}): {found}, in TensorFlow {classes}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_classes_of_errors(part):
    differences = [
        check(text, mode, classes)
        for text in CALLS[part::NUM_PARTS]
        for mode, classes in zip(MODES, STORED[text], strict=False)
    ]
    assert [d for d in differences if d] == []


def test_the_table_is_complete():
    assert set(CALLS) == set(STORED) and set(CALLS) >= DIFFERENT
    assert sum(classes is not None for stored in STORED.values() for classes in stored) > 1400
