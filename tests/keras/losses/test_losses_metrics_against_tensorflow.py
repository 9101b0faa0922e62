"""Losses, metrics and their relatives against tf-keras (tests/reference/generate_keras_numbers.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

FOLDER = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(FOLDER))
from keras_expressions import expressions, values

sys.path.pop(0)
STORED = np.load(FOLDER / "keras_numbers.npz")
CASES = [(n, e) for n, e in enumerate(expressions()) if str(n) in STORED.files]


@pytest.mark.parametrize(("number", "expression"), CASES, ids=[e for _, e in CASES])
def test_number(number, expression):
    actual = np.asarray(eval(expression, dict(values(tf, tf.keras, np))).numpy())
    expected = STORED[f"{number}"]
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


def test_predictions_outside_of_0_to_1_are_clipped_by_even_thresholds():
    # Values of TensorFlow 2.15.1.
    labels, predictions = [0.0, 1.0, 1.0, 0.0], [0.2, 1.5, 0.7, 0.9]
    for metric, expected in (
        (tf.keras.metrics.AUC(num_thresholds=5), 0.625),
        (tf.keras.metrics.AUC(thresholds=[0.3, 0.4]), 0.875),
        (tf.keras.metrics.TruePositives(thresholds=[0.0, 0.5, 1.0]), [2.0, 2.0, 0.0]),
        (tf.keras.metrics.TruePositives(thresholds=[0.0, 1.0]), [2.0, 1.0]),
    ):
        metric.update_state(labels, predictions)
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
