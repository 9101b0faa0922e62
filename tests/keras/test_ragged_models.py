"""Ragged tensors in layers, models, losses, metrics and datasets, compared with TensorFlow."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from reference import ragged_model_cases

RESULTS = json.loads((Path(__file__).parents[1] / "reference" / "ragged_models.json").read_text())


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return ragged_model_cases.define(tf, str(tmp_path_factory.mktemp("models")))


def _assert_equal(result, expected):
    if isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            _assert_equal(result[key], value)
    elif isinstance(expected, list):
        assert isinstance(result, list) and len(result) == len(expected), (result, expected)
        for value, other in zip(result, expected, strict=True):
            _assert_equal(value, other)
    elif isinstance(expected, float):
        np.testing.assert_allclose(result, expected, 2e-3, 1e-6)
    else:
        assert result == expected


@pytest.mark.parametrize("name", RESULTS)
def test_results_equal_those_of_tensorflow(cases, name):
    _assert_equal(cases[name](), RESULTS[name])
