"""Values, gradients and error classes of ragged ops against TensorFlow's (tests/reference/generate_ragged.py)."""

import json
import lzma
import math
import sys
from pathlib import Path

import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from ragged_cases import evaluate, expressions

sys.path.pop(0)
STORED = json.loads(lzma.decompress((FOLDER / "ragged.json.xz").read_bytes()))
CASES = list(zip(expressions(), STORED, strict=True))
CHUNK = 50
# Cases in which Meshflow computes a result where TensorFlow raises an error, or prints other text.
EXCEPTIONS = json.loads((FOLDER / "ragged_exceptions.json").read_text())


def matches(found, expected, tolerance=1e-3):
    """Compare results; numbers within a tolerance, and error classes by inheritance."""
    if isinstance(expected, dict):
        if "error" in expected:
            return isinstance(found, dict) and expected["error"] in found.get("bases", ())
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(
                matches(found[k], expected[k], 5e-3 if k == "gradient" else tolerance)
                for k in expected
            )
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(f, e, tolerance) for f, e in zip(found, expected, strict=True))
        )
    if (
        isinstance(expected, float)
        and isinstance(found, int | float)
        and not isinstance(found, bool)
    ):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("first", range(0, len(CASES), CHUNK))
def test_results(first):
    wrong = []
    for case, expected in CASES[first : first + CHUNK]:
        found = evaluate(tf, case)
        if not matches(found, expected) and " | ".join(case) not in EXCEPTIONS:
            wrong.append(f"{' | '.join(case)}\n  found    {found}\n  expected {expected}")
    assert not wrong, "\n".join(wrong)
