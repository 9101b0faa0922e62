"""Values, gradients and error classes of ragged ops against TensorFlow's (tests/reference/generate_ragged.py)."""

import collections
import json
import lzma
import sys
from pathlib import Path

import pytest

import meshflow as tf
from helpers import SOAK

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from ragged_cases import evaluate, expressions, matches

sys.path.pop(0)
STORED = json.loads(lzma.decompress((FOLDER / "ragged.json.xz").read_bytes()))
CASES = list(zip(expressions(), STORED, strict=True))
CHUNK = 50
# Cases in which Meshflow computes a result where TensorFlow raises an error, or prints other text.
EXCEPTIONS = json.loads((FOLDER / "ragged_exceptions.json").read_text())

if not SOAK:
    # Every expression, with half of its structures and dtypes.
    by_text = collections.defaultdict(list)
    for case in CASES:
        by_text[case[0][0]].append(case)
    CASES = [
        case
        for number, cases in enumerate(by_text.values())
        for case in (cases[number % 2 :: 2] or cases)
    ]


@pytest.mark.parametrize("first", range(0, len(CASES), CHUNK))
def test_results(first):
    wrong = []
    for case, expected in CASES[first : first + CHUNK]:
        found = evaluate(tf, case)
        if not matches(found, expected) and " | ".join(case) not in EXCEPTIONS:
            wrong.append(f"{' | '.join(case)}\n  found    {found}\n  expected {expected}")
    assert not wrong, "\n".join(wrong)
