"""Test ops of all namespaces against TensorFlow's values, gradients and errors.
tests/reference/generate_namespace_expressions.py computed the numbers."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from together import together

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
import more_expressions
import namespace_expressions
from namespace_expressions import differentiate, evaluate, flat, values

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
def load_results(name):
    """Return the stored result of each expression of a module: its parts and gradients by name."""
    stored = dict(np.load(FOLDER / f"{name}.npz"))
    found = {expression: {} for expression in stored["expressions"].tolist()}
    order = list(found)
    for key, value in stored.items():
        number, _, part = key.partition("_")
        if number.isdigit():
            found[order[int(number)]][part] = value
    return found


CASES = [(n, e) for n, m in MODULES.items() for e in m.expressions()]
NAMES = values(tf, np)


def get_stored_gradients(case):
    """The stored gradients of an expression by operand."""
    mark = "gradient_"
    found = load_results(case[0])[case[1]]
    return {k.removeprefix(mark): v for k, v in found.items() if k.startswith(mark)}


def compute(case, arrays):
    """The value of an expression, and its gradients where some are stored."""
    names = {**NAMES, **arrays}
    value = eval(case[1], dict(names))
    return value, differentiate(case[1], tf, names) if get_stored_gradients(case) else {}


RESULT = together(
    compute,
    [case for case in CASES if "error" not in load_results(case[0])[case[1]]],
    {n: v for n, v in NAMES.items() if isinstance(v, tf.Tensor) and v.dtype != tf.string},
)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_value_and_gradient(case):
    name, expression = case
    stored = load_results(name)[expression]
    if "error" in stored:
        actual = evaluate(expression, tf, np)
        assert isinstance(actual, Exception)
        assert str(stored["error"]) in [c.__name__ for c in type(actual).__mro__]
        return
    value, gradients = RESULT(case)
    actual = flat(value, np)
    expected = [v for key, v in stored.items() if key.isdigit()]
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        close(one, other, 1e-4)
    wanted = get_stored_gradients(case)
    assert gradients.keys() == wanted.keys()
    for name, value in wanted.items():
        close(gradients[name].numpy(), value, 2e-3)
