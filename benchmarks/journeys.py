"""What common journeys cost inside of Meshflow: programs compiled, attribute walks, Python calls.

    .venv/bin/python benchmarks/journeys.py

Counts depend on no machine. The CPU seconds of the first `fit` of a residual network, without a cache of
compiled programs, do; `--peer` measures them for TensorFlow instead, in an environment that has it and tf_keras.
"""

import argparse
import collections
import logging
import os
import resource
import sys

import models
import numpy as np


def cpu_seconds():
    """CPU seconds of this process so far, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Programs(logging.Handler):
    """Collect the names of the programs that JAX compiles."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.names = []
        log = logging.getLogger("jax._src.interpreters.pxla")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record):
        words = record.getMessage().split()
        if words[0] == "Compiling":
            self.names.append(words[1])


class Calls:
    """Count calls of Python functions of a package, by file."""

    def __init__(self, folder):
        self._folder = folder
        self.by_file = collections.Counter()

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(self._folder):
            self.by_file[frame.f_code.co_filename[len(self._folder) + 1 :]] += 1

    @property
    def total(self):
        """Calls in all files."""
        return self.by_file.total()


def first_fit(keras):
    """CPU seconds to build, compile and fit a residual network of 20 convolutions for two steps."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 32, 32, 3)).astype("float32"), rng.integers(0, 10, 64)
    start = cpu_seconds()
    model = models.residual(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, verbose=0).history
    return cpu_seconds() - start, history["loss"][0]


def warm_walks(tf):
    """Attribute walks of a `fit` of two steps on a model of 31 layers that was fitted before."""
    from meshflow.keras.engine.layer import tracking

    layers = [tf.keras.layers.Dense(8) for _ in range(31)]
    model = tf.keras.Sequential([tf.keras.Input((8,)), *layers])
    model.compile("sgd", "mse")
    x = np.zeros((8, 8), "float32")
    model.fit(x, x, batch_size=4, verbose=0)
    make, count = tracking.Tracker.__init__, 0

    def counted(tracker, owner):
        nonlocal count
        count += 1
        make(tracker, owner)

    tracking.Tracker.__init__ = counted
    try:
        model.fit(x, x, batch_size=4, verbose=0)
    finally:
        tracking.Tracker.__init__ = make
    return count


def cold_calls(tf):
    """Calls inside the package of the first `fit` of a multilayer perceptron in float32."""
    keras = tf.keras
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu")])
    model.add(keras.layers.Dense(10))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((64, 64), "float32"), np.zeros(64, "int32")
    with Calls(os.path.dirname(tf.__file__)) as calls:
        model.fit(x, y, batch_size=32, verbose=0)
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="TensorFlow's first fit instead")
    parser.add_argument("--files", action="store_true", help="calls by file")
    options = parser.parse_args()
    os.environ["MESHFLOW_CACHE_DIR"] = ""
    if options.peer:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow

        print(f"TensorFlow: first fit {first_fit(tensorflow.keras)[0]:.2f} CPU s")
        return
    import meshflow as tf

    programs = Programs()
    seconds, loss = first_fit(tf.keras)
    print(f"- first fit of a residual network: {seconds:.2f} CPU s, loss {loss!r}")
    print(f"- programs compiled for it: {len(programs.names)}: {', '.join(programs.names)}")
    print(f"- attribute walks of a warm fit, 31 layers, 2 steps: {warm_walks(tf)}")
    calls = cold_calls(tf)
    print(f"- calls of a cold fit of a multilayer perceptron: {calls.total:,}")
    if options.files:
        for name, count in calls.by_file.most_common(40):
            print(f"  {count:6,} {name}")


if __name__ == "__main__":
    main()
