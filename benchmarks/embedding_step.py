"""A training step of a large embedding table, whose gradient is `tf.IndexedSlices`, against tf.keras (Keras 2).

    .venv/bin/python benchmarks/embedding_step.py --peers .venv-peers/bin/python

Each program runs in a process of its own; the rounds are interleaved, the numbers are medians.
Prints milliseconds per step of `fit` and appends them to RESULTS.md.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROWS, WIDTH, BATCH, STEPS = 1_000_000, 64, 4096, 20
OPTIMIZERS = ("SGD", "Adagrad", "Adam")


def step(library, name):
    """Print the median time between two batches of `fit` in this process."""
    os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import numpy as np

    if library == "meshflow":
        import meshflow as tf
    else:
        import tensorflow as tf
    keras = tf.keras
    rng = np.random.default_rng(0)
    x = rng.integers(0, ROWS, (BATCH * STEPS, 1)).astype("int32")
    y = rng.normal(size=(BATCH * STEPS, 1)).astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(ROWS, WIDTH, input_length=1), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(getattr(keras.optimizers.legacy, name)(0.01), "mse")
    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    model.fit(x[: 2 * BATCH], y[: 2 * BATCH], batch_size=BATCH, verbose=0)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[Clock()])
    print(json.dumps({"ms": float(np.median(np.diff(times)) * 1e3), "version": tf.__version__}))


def measure(python, library, name):
    """Milliseconds per step, and the version."""
    command = [python, __file__, "--step", library, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["ms"], found["version"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="Python with TensorFlow and tf_keras")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", nargs=2, metavar=("LIBRARY", "OPTIMIZER"), help="one measurement")
    arguments = parser.parse_args()
    if arguments.step:
        step(*arguments.step)
        return
    programs = {"meshflow": sys.executable}
    if arguments.peers:
        programs["tf.keras"] = arguments.peers
    times = {(name, library): [] for name in OPTIMIZERS for library in programs}
    versions = {}
    for _ in range(arguments.rounds):
        for (name, library), found in times.items():
            ms, versions[library] = measure(programs[library], library, name)
            found.append(ms)
    named = ", ".join(f"{library} {version}" for library, version in versions.items())
    lines = [
        f"## Embedding table of {ROWS:,} x {WIDTH}, {BATCH:,} numbers a step ({datetime.date.today()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, {named}, {arguments.rounds} rounds)",
        "",
        "| optimizer | program | ms/step |",
        "| --- | --- | --- |",
    ]
    for (name, library), found in times.items():
        lines.append(f"| {name} | {library} | {statistics.median(found):.1f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    with (Path(__file__).parent / "RESULTS.md").open("a") as results:
        results.write(f"\n{text}")


if __name__ == "__main__":
    main()
