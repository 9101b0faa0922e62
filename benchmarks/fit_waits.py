"""How long `fit` waits for input: the CIFAR-10 network on map, shuffle and batch(32).

    .venv/bin/python benchmarks/fit_waits.py

Prints the share of an epoch that is spent waiting for the pipeline, and appends it to RESULTS.md.
"""

import datetime
import os
import platform
import time
from pathlib import Path

import models
import numpy as np

import meshflow as tf
from meshflow.data import epoch

STEPS, BATCH = 8, 32


class Waits:
    """Add up the time spent waiting for elements that a thread prefetches."""

    def __init__(self):
        self.seconds = 0.0
        self._ahead = epoch.prefetch

    def __call__(self, elements, size):
        made = self._ahead(elements, size)
        try:
            while True:
                start = time.perf_counter()
                item = next(made, None)
                self.seconds += time.perf_counter() - start
                if item is None:
                    return
                yield item
        finally:
            made.close()


def main():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (STEPS * BATCH, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, STEPS * BATCH)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y)).shuffle(256).batch(BATCH)
    model = models.cnn(tf.keras)
    model.compile("sgd", "sparse_categorical_crossentropy")
    waits = epoch.prefetch = Waits()
    model.fit(data, epochs=1, verbose=0)
    waits.seconds, start = 0.0, time.perf_counter()
    model.fit(data, epochs=2, verbose=0)
    seconds = time.perf_counter() - start
    line = (
        f"- fit of the CNN, batch {BATCH}: {seconds / 2 / STEPS * 1e3:,.0f} ms/step, of which "
        f"{waits.seconds / 2 / STEPS * 1e3:.2f} ms waiting for input ({waits.seconds / seconds:.2%})"
    )
    print(line)
    stamp = f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores"
    with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
        file.write(f"\n## Waiting for input ({stamp})\n\n{line}\n")


if __name__ == "__main__":
    main()
