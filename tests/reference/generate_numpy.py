"""Evaluate numpy_expressions.py in TensorFlow; run in the peers' environment."""

import json
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from numpy_expressions import evaluate, expressions


def main():
    tf.experimental.numpy.experimental_enable_numpy_behavior()
    stored = {"version": tf.__version__}
    for expression in expressions():
        try:
            stored[expression] = evaluate(expression, tf, np)
        except Exception as error:
            # Where TensorFlow raises, no value exists to compare.
            print(type(error).__name__, "from", expression, str(error)[:100])
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in stored.items())
    Path(__file__).with_name("numpy.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
