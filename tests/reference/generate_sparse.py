"""Write `sparse.json.xz`: results of the expressions in `sparse_cases.py`, evaluated with TensorFlow."""

import json
import lzma
from pathlib import Path

import tensorflow as tf
from ragged_cases import evaluate
from sparse_cases import expressions, is_traced

# Errors of functions without a kernel for a dtype, and of defects.
MISSING = ("NotFoundError", "RecursionError", "LookupError")
results, count = [], 0
for case in expressions():
    result = evaluate(tf, case)
    result.pop("bases", None)
    # Meshflow's functions are compared where TensorFlow's functions equal its eager results.
    if is_traced(case) and "error" not in result and evaluate(tf, case, True) == result:
        result["traced"], count = True, count + 1
    results.append(None if result.get("error") in MISSING else result)
path = Path(__file__).with_name("sparse.json.xz")
path.write_bytes(lzma.compress(json.dumps(results, separators=(",", ":")).encode()))
errors = sum(r is not None and "error" in r for r in results)
print(f"{len(results)} results, {errors} errors, {count} in functions, {path.stat().st_size} bytes")
