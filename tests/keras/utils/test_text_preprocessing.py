"""Texts and sequences against Keras."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from reference.text_cases import CASES, run

FOUND = json.loads((Path(__file__).parents[2] / "reference" / "texts.json").read_text())


def close(own, wanted):
    if isinstance(wanted, dict):
        assert own.keys() == wanted.keys()
        for key in wanted:
            close(own[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(own) == len(wanted)
        for mine, theirs in zip(own, wanted, strict=True):
            close(mine, theirs)
    elif isinstance(wanted, float):
        np.testing.assert_allclose(own, wanted, rtol=1e-12)
    else:
        assert own == wanted


@pytest.mark.parametrize("text", CASES)
def test_case(text):
    own, wanted = run(tf, text), FOUND[text]
    if isinstance(wanted, dict) and "error" in wanted:
        assert set(own["error"]) & set(wanted["error"])
    else:
        close(json.loads(json.dumps(own)), wanted)


def test_fit_on_windows_of_a_series():
    series = np.sin(np.arange(100) / 5)[:, None]
    batches = tf.keras.preprocessing.sequence.TimeseriesGenerator(series, series, 5, batch_size=16)
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    history = model.fit(batches, epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0] / 5
