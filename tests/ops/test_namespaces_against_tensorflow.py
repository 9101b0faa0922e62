"""Ops of all namespaces against TensorFlow's values, gradients and errors.

tests/reference/generate_namespace_expressions.py made the numbers.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
import more_expressions
import namespace_expressions
from namespace_expressions import evaluate, gradients

sys.path.pop(0)
MODULES = {m.__name__: m for m in (namespace_expressions, more_expressions)}


def close(actual, expected, tolerance):
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype or expected.dtype.kind == "S"
    if expected.dtype.kind in "fc":
        scale = max(1.0, np.max(np.abs(expected[np.isfinite(expected)]), initial=0))
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(actual, expected)


@functools.cache
def stored_of(name):
    """What each expression of a module gave: its parts and gradients by name."""
    stored = dict(np.load(FOLDER / f"{name}.npz"))
    found = {expression: {} for expression in stored["expressions"].tolist()}
    order = list(found)
    for key, value in stored.items():
        number, _, part = key.partition("_")
        if number.isdigit():
            found[order[int(number)]][part] = value
    return found


@pytest.mark.parametrize(
    "name, expression", [(n, e) for n, m in MODULES.items() for e in m.expressions()]
)
def test_value_and_gradient(name, expression):
    stored = stored_of(name)[expression]
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
