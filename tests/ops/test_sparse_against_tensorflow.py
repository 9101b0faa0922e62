"""Values, gradients and error classes of sparse ops against TensorFlow's (tests/reference/generate_sparse.py)."""

import json
import lzma
import sys
from pathlib import Path

import pytest

import meshflow as tf

FOLDER = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(FOLDER))
from ragged_cases import evaluate, matches
from sparse_cases import expressions

sys.path.pop(0)

STORED = json.loads(lzma.decompress((FOLDER / "sparse.json.xz").read_bytes()))
CASES = list(zip(expressions(), STORED, strict=True))
# The cases of each test: every 15th case by default, and the others in long runs.
STRIDE = 15
# Cases in which Meshflow computes a result where TensorFlow raises an error, and results for
# unordered indices.
EXCEPTIONS = frozenset(json.loads((FOLDER / "sparse_exceptions.json").read_text()))


def find_differences(cases, is_traced):
    wrong = []
    for case, stored in cases:
        if stored is None or (is_traced and not stored.get("traced")):
            continue
        # Meshflow has gradients of more functions.
        expected = {
            k: v for k, v in stored.items() if k != "traced" and (k != "gradient" or v is not None)
        }
        found = evaluate(tf, case, is_traced)
        if "gradient" not in expected:
            found.pop("gradient", None)
        if not matches(found, expected) and " | ".join(case) not in EXCEPTIONS:
            wrong.append(f"{' | '.join(case)}\n  found    {found}\n  expected {expected}")
    return wrong


@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.soak) for k in range(1, STRIDE))]
)
def test_results(first, is_traced):
    wrong = find_differences(CASES[first::STRIDE], is_traced)
    assert not wrong, "\n".join(wrong)
