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
# Other tests train ragged models.
SLOW = {"text_classifier"}


def compare(found, expected):
    if isinstance(expected, list) and any(isinstance(item, list) for item in expected):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak) if n in SLOW else n for n in CASES]
)
def test_losses_and_predictions(name):
    compare(CASES[name](tf), STORED[name])
