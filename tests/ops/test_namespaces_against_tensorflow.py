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


PARTS = {}
for _key, _value in STORED.items():
    _number, _, _part = _key.partition("_")
    PARTS.setdefault(_number, {})[_part] = _value


@pytest.mark.parametrize("expression", expressions())
def test_value_and_gradient(expression):
    stored = PARTS.get(str(NUMBERS[expression]), {})
    actual = evaluate(expression, tf, np)
    if "error" in stored:
        assert isinstance(actual, Exception)
        assert str(stored["error"]) in [c.__name__ for c in type(actual).__mro__]
        return
    if isinstance(actual, Exception):
        raise actual
    expected = [v for key, v in stored.items() if key.isdigit()]
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        close(one, other, 1e-4)
    mark = "gradient_"
    wanted = {k.removeprefix(mark): v for k, v in stored.items() if k.startswith(mark)}
    if wanted:
        found = gradients(expression, tf, np)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            close(found[name], value, 2e-3)
