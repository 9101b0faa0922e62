"""Tours of ragged tensors and extension types, with the results of TensorFlow 2.15."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from guide_cases import CASES

sys.path.pop(0)
STORED = json.loads((FOLDER / "guides.json").read_text())


def compare(found, expected, place=()):
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), (place, found, expected)
        for i, pair in enumerate(zip(found, expected, strict=True)):
            compare(*pair, (*place, i))
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(place))
    else:
        assert found == expected, (place, found, expected)


@pytest.mark.parametrize("name", CASES)
def test_results(name):
    compare(CASES[name](tf), STORED[name])
