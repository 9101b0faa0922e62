"""Names of TensorFlow 1, queues and utilities, compared with TensorFlow's results."""

import json
import sys
from pathlib import Path

import pytest

import meshflow as tf
from test_raw_ops import assert_equal

REFERENCE = Path(__file__).parent / "reference"
sys.path.insert(0, str(REFERENCE))
from api_cases import CASES
from raw_op_values import flatten

STORED = json.loads((REFERENCE / "api_values.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_tensorflow(name):
    found, expected = json.loads(json.dumps(flatten(CASES[name](tf)))), STORED[name]
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_equal(a, b)
        except AssertionError as error:
            raise AssertionError(f"value {index}: {error}") from None
