"""Evaluate dtype_cases.py in TensorFlow; run in the peers' environment."""

import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from dtype_cases import BINARY, DTYPES, UNARY, evaluate


def main():
    stored = {}
    for op in UNARY + BINARY:
        for dtype in DTYPES:
            result = evaluate(tf, np, op, dtype)
            key = f"{op} {dtype}"
            if isinstance(result, Exception):
                stored[f"{key} error"] = np.array(type(result).__name__)
            else:
                stored[f"{key} {result[0]}"] = result[1]
    # One array for all keeps the file small.
    names = np.array(list(stored))
    shapes = np.array([str(v.shape) for v in stored.values()])
    values = np.array([repr(v.tolist()) for v in stored.values()])
    np.savez_compressed(
        Path(__file__).with_name("dtypes.npz"),
        version=np.array(tf.__version__),
        names=names,
        shapes=shapes,
        values=values,
    )


if __name__ == "__main__":
    main()
