"""Raw ops, compared with TensorFlow's results."""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

REFERENCE = Path(__file__).parent / "reference"
sys.path.insert(0, str(REFERENCE))
from raw_op_cases import CALLS, VALUES, run_update
from raw_op_values import flatten

STORED = json.loads((REFERENCE / "raw_ops.json").read_text())
UPDATES = [name for name in STORED if "(" not in name]


def assert_equal(found, expected):
    """Compare nested lists, with a tolerance for floats."""
    if isinstance(expected, list):
        assert isinstance(found, list), (found, expected)
        assert len(found) == len(expected), (found, expected)
        if expected and all(isinstance(x, float) for x in expected):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
        else:
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)
    else:
        assert found == expected


@pytest.mark.parametrize("call", [c for c in CALLS if c in STORED])
def test_values_are_those_of_tensorflow(call):
    names = {**VALUES, "tf": tf, call.partition("(")[0]: getattr(tf.raw_ops, call.partition("(")[0])}
    assert_equal(flatten(eval(call, names)), STORED[call])


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_variables(name):
    parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
    assert_equal(run_update(tf, name, parameters), STORED[name])
