"""Values and gradients of ops against TensorFlow's (tests/reference/generate_expressions.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from together import together

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from expressions import expressions, gradient, values

sys.path.pop(0)
STORED = np.load(FOLDER / "expressions.npz")
CASES = [(n, e) for n, e in enumerate(expressions()) if str(n) in STORED.files]


def close(actual, expected, tolerance):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(
            actual,
            expected,
            rtol=tolerance,
            atol=tolerance * max(1.0, np.nanmax(np.abs(expected), initial=0)),
            equal_nan=True,
        )
    else:
        np.testing.assert_array_equal(actual, expected)


def compute(case, arrays):
    """The value of an expression, and its gradients where there are some."""
    number, expression = case
    names = {**arrays, "tf": tf}
    value = eval(expression, dict(names))
    return value, gradient(tf, expression, names) if f"{number}_0" in STORED.files else []


RESULT = together(compute, CASES, {n: v for n, v in values(tf, np).items() if n != "tf"})


@pytest.mark.parametrize(("number", "expression"), CASES, ids=[e for _, e in CASES])
def test_value_and_gradient(number, expression):
    value, gradients = RESULT((number, expression))
    close(np.asarray(value.numpy()), STORED[f"{number}"], 2e-4)
    for which, found in enumerate(gradients):
        close(tf.convert_to_tensor(found).numpy(), STORED[f"{number}_{which}"], 2e-3)
