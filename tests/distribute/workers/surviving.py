"""Run training that `meshflow launch` restarts: `surviving.py FOLDER [KIND@STEP@WORKER ...]`.

In the n-th start, the worker of the n-th fault does KIND (kill, stop, sleep, raise) to itself at
STEP; never at step 0, for a fault from outside. Worker 0 writes the final weights to
FOLDER/weights.npz; every worker adds its process id to FOLDER/pids.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import meshflow as tf

LAYERS = tf.keras.layers


class Fault(tf.keras.callbacks.Callback):
    def __init__(self, kind, step):
        super().__init__()
        self.kind, self.left = kind, step

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            if self.kind == "raise":
                raise ValueError("a mistake in the script")
            if self.kind == "sleep":
                time.sleep(600)
            number = signal.SIGSTOP if self.kind == "stop" else signal.SIGKILL
            os.kill(os.getpid(), number)


def main(folder, faults):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    own = strategy.cluster_resolver.task_id
    with open(folder / "pids", "a") as file:
        file.write(f"{os.getpid()}\n")
    tf.random.set_seed(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    with strategy.scope():
        model = tf.keras.Sequential(
            [LAYERS.Dense(4, "relu", input_shape=(3,)), LAYERS.Dropout(0.5), LAYERS.Dense(1)]
        )
        model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    callbacks = [tf.keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1)]
    start = int(os.environ.get("MESHFLOW_RESTARTS", 0))
    if start < len(faults):
        kind, step, worker = faults[start].split("@")
        if own == int(worker):
            callbacks.append(Fault(kind, int(step)))
    epochs = int(os.environ.get("EPOCHS", 3))
    history = model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
    print("trained", history.epoch)
    if own == 0:
        np.savez(folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
