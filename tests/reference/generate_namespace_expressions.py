"""Evaluate namespace_expressions.py and more_expressions.py in TensorFlow; run in the peers' environment."""

import os
from pathlib import Path
from types import ModuleType

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import more_expressions
import namespace_expressions
import numpy as np
import tensorflow as tf
from namespace_expressions import evaluate, gradients


def store(module: ModuleType) -> None:
    """Write the results of the expressions of a module next to it."""
    stored, expressions = {}, module.expressions()
    for number, expression in enumerate(expressions):
        result = evaluate(expression, tf, np)
        if isinstance(result, Exception):
            print(type(result).__name__, "from", expression)
            stored[f"{number}_error"] = np.array(type(result).__name__)
            continue
        for part, array in enumerate(result):
            stored[f"{number}_{part}"] = array
        if expression in module.DIFFERENTIABLE.split("\n"):
            try:
                found = gradients(expression, tf, np)
            except Exception as error:
                print("no gradient", expression, type(error).__name__)
                continue
            for name, array in found.items():
                stored[f"{number}_gradient_{name}"] = array
    np.savez_compressed(
        Path(__file__).with_name(f"{module.__name__}.npz"),
        version=np.array(tf.__version__),
        expressions=np.array(expressions),
        **stored,
    )


if __name__ == "__main__":
    import sys

    for module in (namespace_expressions, more_expressions):
        if len(sys.argv) == 1 or module.__name__ in sys.argv:
            store(module)
