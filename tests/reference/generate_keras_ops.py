"""Evaluate keras_ops_cases.py in Keras 3 on TensorFlow; run in the peers' environment."""

import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
from keras_ops_cases import evaluate, expressions

import keras


def main():
    stored = {}
    for number, expression in enumerate(expressions()):
        result = evaluate(expression, keras.ops, np)
        if isinstance(result, Exception):
            print(type(result).__name__, "from", expression, str(result)[:100])
            stored[f"{number}_error"] = np.array(type(result).__name__)
            continue
        for part, array in enumerate(result):
            stored[f"{number}_{part}"] = array
    path = Path(__file__).with_name("keras_ops.npz")
    np.savez_compressed(path, version=np.array(keras.__version__), **stored)


if __name__ == "__main__":
    main()
