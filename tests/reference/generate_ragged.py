"""Write `ragged.json.xz`: results of the expressions in `ragged_cases.py`, evaluated with TensorFlow."""

import json
import lzma
from pathlib import Path

import tensorflow as tf
from ragged_cases import evaluate, expressions

results = [evaluate(tf, case) for case in expressions()]
for result in results:
    result.pop("bases", None)
path = Path(__file__).with_name("ragged.json.xz")
path.write_bytes(lzma.compress(json.dumps(results, separators=(",", ":")).encode()))
print(
    len(results),
    "results,",
    sum("error" in r for r in results),
    "errors,",
    path.stat().st_size,
    "bytes",
)
