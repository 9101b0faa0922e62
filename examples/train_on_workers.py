"""Train on several workers, and resume after one of them dies.

    meshflow launch --workers 2 --devices-per-worker 2 --max-restarts 3 examples/train_on_workers.py

Kill a worker while it runs (`kill -9`): the job starts again and ends with the same weights, bit for bit.
Run by itself (`python examples/train_on_workers.py`) it trains on this machine's devices.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib

import meshflow as tf
from meshflow.keras import layers


def build_model() -> tf.keras.Sequential:
    """A small network for images of digits."""
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )


class Slower(tf.keras.callbacks.Callback):
    """Leave time to kill something."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Waits."""
        time.sleep(self._seconds)


def main() -> None:
    """Trains, evaluates, and prints a checksum of the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument(
        "--backup", default="out/workers_backup", help="folder that all workers see"
    )
    options = parser.parse_args()

    # First of all: the workers find each other.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chief = strategy.extended.should_checkpoint
    tf.random.set_seed(0)
    (x, y), (x_test, y_test) = tf.keras.datasets.digits.load_data()
    x, x_test = (images[..., None].astype("float32") / images.max() for images in (x, x_test))

    with strategy.scope():
        model = build_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])

    callbacks = [tf.keras.callbacks.BackupAndRestore(options.backup, save_freq=5)]
    if options.pause:
        callbacks.append(Slower(options.pause))
    # Size of the global batch; each worker takes its rows.
    model.fit(
        x,
        y,
        batch_size=128,
        epochs=options.epochs,
        verbose=2 if chief else 0,
        callbacks=callbacks,
    )
    _, accuracy = model.evaluate(x_test, y_test, batch_size=128, verbose=0)
    checksum = 0
    for weight in model.get_weights():
        checksum = zlib.crc32(weight.tobytes(), checksum)
    if chief:
        restarts = os.environ.get("MESHFLOW_RESTARTS", "0")
        print(f"{strategy.num_replicas_in_sync} replicas, {restarts} restarts")
        print(f"test accuracy {accuracy:.3f}, checksum of the weights {checksum:08x}")


if __name__ == "__main__":
    main()
