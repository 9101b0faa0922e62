"""Evaluate keras_expressions.py in tf-keras; run in the peers' environment."""

import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tf_keras
from keras_expressions import expressions, values


def main():
    names = values(tf, tf_keras, np)
    stored = {}
    for number, expression in enumerate(expressions()):
        try:
            stored[f"{number}"] = eval(expression, dict(names)).numpy()
        except Exception as error:
            print("skipped", expression, str(error)[:100])
    version = np.array(f"tf-keras {tf_keras.__version__}, TensorFlow {tf.__version__}")
    path = Path(__file__).with_name("keras_numbers.npz")
    np.savez_compressed(path, version=version, **stored)


if __name__ == "__main__":
    main()
