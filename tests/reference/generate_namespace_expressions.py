"""Evaluates namespace_expressions.py in TensorFlow; run in the peers' environment."""

import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from namespace_expressions import DIFFERENTIABLE, evaluate, expressions, gradients


def main():
    stored = {}
    for number, expression in enumerate(expressions()):
        result = evaluate(expression, tf, np)
        if isinstance(result, Exception):
            print(type(result).__name__, "from", expression)
            stored[f"{number}_error"] = np.array(type(result).__name__)
            continue
        for part, array in enumerate(result):
            stored[f"{number}_{part}"] = array
        if expression in DIFFERENTIABLE.split("\n"):
            try:
                found = gradients(expression, tf, np)
            except Exception as error:
                print("no gradient", expression, type(error).__name__)
                continue
            for name, array in found.items():
                stored[f"{number}_gradient_{name}"] = array
    np.savez_compressed(
        Path(__file__).with_name("namespace_expressions.npz"),
        version=np.array(tf.__version__),
        expressions=np.array(expressions()),
        **stored,
    )


if __name__ == "__main__":
    main()
