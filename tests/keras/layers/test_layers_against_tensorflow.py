"""Outputs, gradients and updated weights of layers against tf-keras (tests/reference/generate_layers.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

FOLDER = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(FOLDER))
from layer_cases import CASES, run

sys.path.pop(0)
STORED = np.load(FOLDER / "layers.npz")


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]
)
def test_layer(number):
    for part, value in enumerate(run(tf, np, number)):
        expected = STORED[f"{number}_{part}"]
        assert value.shape == expected.shape
        assert_close(value, expected, 1e-3, 1e-3 * max(1.0, np.abs(expected).max()))
