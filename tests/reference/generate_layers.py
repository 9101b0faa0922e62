"""Run layer_cases.py in tf-keras; run in the peers' environment."""

import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from layer_cases import CASES, run


def main():
    stored = {}
    for number in range(len(CASES)):
        for part, value in enumerate(run(tf, np, number)):
            stored[f"{number}_{part}"] = value
    np.savez_compressed(
        Path(__file__).with_name("layers.npz"), version=np.array(tf.__version__), **stored
    )


if __name__ == "__main__":
    main()
