"""Ops of all namespaces against TensorFlow's values, gradients and errors.

tests/reference/generate_namespace_expressions.py made the numbers.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from namespace_expressions import evaluate, expressions, gradients

sys.path.pop(0)
STORED = dict(np.load(FOLDER / "namespace_expressions.npz"))
NUMBERS = {expression: n for n, expression in enumerate(STORED["expressions"].tolist())}


def close(actual, expected, tolerance):
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype or expected.dtype.kind == "S"
    if expected.dtype.kind in "fc":
        scale = max(1.0, np.max(np.abs(expected[np.isfinite(expected)]), initial=0))
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(actual, expected)


def stored(number, kind=""):
    prefix = f"{number}_{kind}"
    return {key.removeprefix(prefix): v for key, v in STORED.items() if key.startswith(prefix)}


@pytest.mark.parametrize("expression", expressions())
def test_value_and_gradient(expression):
    number = NUMBERS[expression]
    actual = evaluate(expression, tf, np)
    if f"{number}_error" in STORED:
        assert isinstance(actual, Exception)
        assert str(STORED[f"{number}_error"]) in [c.__name__ for c in type(actual).__mro__]
        return
    if isinstance(actual, Exception):
        raise actual
    expected = [v for key, v in stored(number).items() if key.isdigit()]
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        close(one, other, 1e-4)
    wanted = stored(number, "gradient_")
    if wanted:
        found = gradients(expression, tf, np)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            close(found[name], value, 2e-3)
