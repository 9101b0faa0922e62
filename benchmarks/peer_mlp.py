"""Run in the peers' environment: the same measurements with Keras 3 (on JAX or TensorFlow) and TensorFlow.

Prints one JSON object. `KERAS_BACKEND` chooses the backend.
"""

import json
import os
import sys
import time
import tracemalloc

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np

import keras


def micro(function, count):
    function()
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count * 1e6


def fit(steps):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(steps * 32, 64)).astype("float32"), rng.integers(0, 10, steps * 32)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)
    start = time.perf_counter()
    model.fit(x, y, verbose=0)
    return (time.perf_counter() - start) / steps * 1e3


def deep(layers):
    sys.setrecursionlimit(100_000)  # Keras 3 walks deep graphs by recursion
    tracemalloc.start()
    start = time.perf_counter()
    x = inputs = keras.Input((8,))
    for _ in range(layers):
        x = keras.layers.Activation("relu")(x)
    keras.Model(inputs, x)
    seconds = time.perf_counter() - start
    return seconds, tracemalloc.get_traced_memory()[1] / 1e6


def main():
    result = {"fit": fit(500)}
    result["build_s"], result["build_mb"] = deep(1000)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        t = tf.ones([100])

        def two_ops():
            with tf.GradientTape() as tape:
                tape.watch(t)
                z = tf.reduce_sum(t * t)
            return tape.gradient(z, t)

        result |= {
            "add": micro(lambda: t + t, 2000),
            "tape": micro(two_ops, 500),
            "version": tf.__version__,
        }
    result["keras"] = keras.__version__
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
