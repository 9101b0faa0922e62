"""`tf.experimental.numpy` against TensorFlow (tests/reference/generate_numpy.py) and against NumPy."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
import numpy_beyond_expressions
from numpy_expressions import described, evaluate, expressions, values

sys.path.pop(0)
STORED = json.loads((FOLDER / "numpy.json").read_text())
# Results of TensorFlow that accidentally differ from NumPy.
AS_NUMPY = """
tnp.isinf(i)|tnp.isneginf(i)|tnp.isposinf(i)|tnp.angle(i)|tnp.log2(p)|tnp.log10(p)|tnp.hypot(a, 2)
tnp.logaddexp2(a, b)|tnp.logaddexp2(k, a[0])|tnp.logaddexp2(a, 2)|tnp.linspace(0, 1, 3, dtype=tnp.float32)
tnp.average(a, 0, weights=[1, 3])|tnp.clip(a, b, 1.0)|tnp.trace(k + tnp.zeros([3, 3], tnp.int8))
tnp.polyval([1, 2, 3], a)|tnp.around(i, -1)
"""


def list_expressions(text):
    return [e for line in text.strip().split("\n") for e in line.split("|")]


def assert_same(actual, expected, expression):
    assert len(actual) == len(expected)
    for (own_name, own_shape, own), (name, shape, elements) in zip(actual, expected, strict=True):
        assert (own_name, own_shape) == (name, shape)
        if name == "str":
            assert own == elements
            continue
        loose = name in ("float32", "complex64")
        tolerance = 1e-2 if name in ("float16", "bfloat16") else 2e-5 if loose else 1e-6
        np.testing.assert_allclose(own, elements, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("numpy_behavior")
@pytest.mark.parametrize(
    "expression", [e for e in expressions() if e in STORED and e not in list_expressions(AS_NUMPY)]
)
def test_tensorflow(expression):
    assert_same(evaluate(expression, tf, np), STORED[expression], expression)


@pytest.mark.usefixtures("numpy_behavior")
@pytest.mark.parametrize(
    "expression", [*list_expressions(AS_NUMPY), *numpy_beyond_expressions.expressions()]
)
def test_numpy(expression):
    arrays = {name: tensor.numpy() for name, tensor in values(tf, np).items()}
    expected = eval(expression, {"tnp": np, **arrays})
    leaves = expected if isinstance(expected, (tuple, list)) else [expected]
    assert_same(
        evaluate(expression, tf, np), [described(leaf, tf, np) for leaf in leaves], expression
    )
