"""Models with composite tensors, with the losses and predictions that TensorFlow 2.21 computes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("scipy.sparse")
FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from composite_model_cases import CASES

sys.path.pop(0)
STORED = json.loads((FOLDER / "composite_models.json").read_text())


def compare(found, expected):
    if isinstance(expected, list) and any(isinstance(item, list) for item in expected):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_predictions(name):
    compare(CASES[name](tf), STORED[name])


def test_rows_of_words_have_ragged_specs():
    keras = tf.keras
    words = keras.Input([None], dtype="string", ragged=True)
    ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    assert ids.type_spec == tf.RaggedTensorSpec([None, None], tf.int64)
    lengths = keras.layers.Lambda(lambda x: x.row_lengths())(ids)
    value = tf.ragged.constant([["a"], ["b", "c"]])
    assert keras.Model(words, lengths)(value).numpy().tolist() == [1, 2]
    numbers = keras.Input([None], dtype="int64", ragged=True)
    assert keras.layers.IntegerLookup(vocabulary=[1])(numbers).type_spec == ids.type_spec


def test_extension_types_with_rows_in_functional_models():
    class Rows(tf.experimental.BatchableExtensionType):
        """Rows with weights."""

        values: tf.RaggedTensor
        weights: tf.Tensor
        shape = property(lambda self: self.weights.shape)

        class Spec:
            shape = property(lambda self: self.weights.shape)

    spec = Rows.Spec(tf.RaggedTensorSpec([None, None]), tf.TensorSpec([None]))
    inputs = tf.keras.Input(type_spec=spec)
    pool = tf.keras.layers.Lambda(lambda x: tf.reduce_sum(x.values, 1) * x.weights)
    model = tf.keras.Model(inputs, pool(inputs))
    assert model.output_shape == (None,)
    rows = Rows(tf.ragged.constant([[1.0, 2.0], [], [4.0]]), [1.0, 2.0, 3.0])
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    assert model.predict(batches, verbose=0).tolist() == [3, 0, 12]
