"""Test dtypes of results, values and errors of ops with every dtype
(tests/reference/generate_dtypes.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from together import together

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from dtype_cases import BINARY, DTYPES, UNARY, arguments, described, function

sys.path.pop(0)
_file = np.load(FOLDER / "dtypes.npz")
_values = {"nan": np.nan, "inf": np.inf, "nanj": complex(0, np.nan), "infj": complex(0, np.inf)}
STORED = {}
for _name, _text in zip(_file["names"].tolist(), _file["values"].tolist(), strict=True):
    _op, _dtype, _result = _name.split(" ")
    STORED[_op, _dtype] = _result, eval(_text, dict(_values))
# TensorFlow has no kernel, or checks less, for these; Meshflow's result is the natural extension.
WIDER = {
    *("abs", "negative", "sign", "pow", "math.squared_difference", "math.conj", "math.real"),
    *("math.erf", "math.lgamma", "linalg.det", "math.l2_normalize", "nn.l2_loss", "norm"),
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}

# An op's operands are the first of these two, or both.
OPERANDS = {dtype: arguments(tf, np, BINARY[0], dtype) for dtype in DTYPES}


def compute(case, arrays):
    op, dtype = case
    operands = arrays[dtype][:1] if op in UNARY else arrays[dtype]
    return tf.convert_to_tensor(function(tf, op)(*operands))


RESULT = together(
    compute, [case for case, (result, _) in STORED.items() if result != "error"], OPERANDS, size=40
)


def evaluate(case):
    """Return the dtype and values of an op's result, or its error."""
    try:
        return described(RESULT(case), np)
    except Exception as error:
        return error


@pytest.mark.parametrize("op", UNARY + BINARY)
def test_dtypes(op):
    for dtype in DTYPES:
        result, expected = STORED[op, dtype]
        found = evaluate((op, dtype))
        if result == "error":
            if expected != "NotFoundError" and op not in WIDER:
                assert isinstance(found, (tf.errors.OpError, TypeError, ValueError)), dtype
            continue
        assert not isinstance(found, Exception), f"{dtype}: {found}"
        name, values = found
        assert name == result, dtype
        if name == "string":
            assert values.tolist() == expected
            continue
        tolerance = TOLERANCE.get(dtype, 1e-5)
        np.testing.assert_allclose(values, expected, tolerance, tolerance, err_msg=dtype)
