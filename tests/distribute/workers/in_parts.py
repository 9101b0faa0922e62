"""Training on a mesh over several processes: `in_parts.py FOLDER KIND [KILL ...]`.

KIND is a key of CHOICES. In the n-th start, the workers of the n-th KILL, "MOMENT@WORKER,WORKER", kill themselves. The moment
is "STEP", "STEP+SECONDS" so long after the step's beginning, wherever the worker is then (step 0 begins before the model is
created, and step 1 includes the compilation), or "rename:N" or "open:N", before the N-th such call for a file of the backup.
"STOP/MOMENT" and "TERM/MOMENT" send another signal than SIGKILL.
Worker 0 writes the curve and the final weights to FOLDER/results.npz.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
EPOCHS = 3
CHOICES = {
    "zero": ({"data": 4}, "batch:data", {"zero": 3, "micro_batches": 2, "recompute": "layer"}),
    "files": (
        {"data": 4},
        "batch:data",
        {
            "zero": 3,
            "recompute": "layer",
            "offload": ("optimizer", "parameters", "activations"),
        },
    ),
    # Stages in different processes; parts of the states over the devices of each.
    "pipeline": (
        {"stage": 2, "data": 2},
        "batch:data",
        {"pipeline": "stage", "zero": 1, "micro_batches": 2},
    ),
    "residuals": (
        {"stage": 2, "data": 2},
        "batch:data",
        {
            "pipeline": tf.distribute.Pipeline("stage", "gpipe", keep="residuals"),
            "zero": 3,
            "micro_batches": 2,
        },
    ),
    "experts in stages": (
        {"stage": 2, "data": 2},
        "batch:data, experts:data",
        {"pipeline": "stage", "micro_batches": 2},
    ),
    "experts": ({"data": 4}, "batch:data, experts:data", {"zero": 1}),
    # Compression residuals belong to the devices that made them.
    "bits": ({"data": 4}, "batch:data", {"compress": "1bit"}),
    "gains": ({"data": 4}, "batch:data", {"compress": "int8", "zero": 1}),
}
OPTIMIZERS = {
    "bits": lambda: tf.keras.optimizers.OneBitAdam(1e-2, freeze_step=2),
    "gains": lambda: tf.keras.optimizers.AdaScale(tf.keras.optimizers.SGD(0.05, 0.9)),
}
# Kinds that send gradients in few bits: the large ones.
IN_FEW_BITS = ("bits", "gains")


class Kill(tf.keras.callbacks.Callback):
    """Kill this process at a moment of the training."""

    def __init__(self, moment):
        super().__init__()
        name, _, moment = moment.rpartition("/")
        self.signal = getattr(signal, f"SIG{name or 'KILL'}")
        event, _, number = moment.rpartition(":")
        step, _, seconds = number.partition("+")
        self.left, self.seconds = int(step), float(seconds or 0)
        if event:
            self.event = f"os.{event}" if event == "rename" else event
            sys.addaudithook(self.count_files)
        elif not self.left:
            self.kill()

    def kill(self):
        end = lambda: os.kill(os.getpid(), self.signal)
        threading.Timer(self.seconds, end).start() if self.seconds else end()

    def count(self):
        self.left -= 1
        if self.left == 0:
            self.kill()

    def count_files(self, event, arguments):
        if event == self.event and "backup" in str(arguments[0]):
            self.count()

    def on_train_batch_begin(self, batch, logs=None):
        if not hasattr(self, "event"):
            self.count()


def make_compiled_model(kind):
    """The model of a kind, with its optimizer."""
    wide = 64 if kind in IN_FEW_BITS else 16
    layers = [LAYERS.Dense(wide, "tanh"), LAYERS.Dense(wide, "relu"), LAYERS.Dense(16)]
    if kind.startswith("experts"):
        layers[1] = LAYERS.MixtureOfExperts(4, 16, groups=4)
    model = tf.keras.Sequential([tf.keras.Input([8]), *layers, LAYERS.Dense(8)])
    model.compile(OPTIMIZERS.get(kind, lambda: tf.keras.optimizers.Adam(1e-2))(), "mse")
    return model


def data():
    rng = np.random.default_rng(3)
    return tuple(rng.normal(size=(32, 8)).astype("float32") for _ in range(2))


def main(folder, kind, kills):
    dtensor.initialize_accelerator_system("CPU")
    sizes, rules, options = CHOICES[kind]
    mesh = dtensor.create_distributed_mesh(sizes, device_type="CPU")
    callbacks = [tf.keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1)]
    start = int(os.environ.get("MESHFLOW_RESTARTS", 0))
    if start < len(kills):
        moment, workers = kills[start].split("@")
        if str(dtensor.client_id()) in workers.split(","):
            callbacks.append(Kill(moment))
    tf.keras.utils.set_random_seed(1)
    if "offload" in options:
        options = {**options, "offload_to": folder}
    with tf.distribute.MeshStrategy(mesh, rules, **options).scope():
        model = make_compiled_model(kind)
    history = model.fit(
        *data(), batch_size=16, epochs=EPOCHS, verbose=0, callbacks=callbacks
    ).history
    weights = model.get_weights()
    if dtensor.client_id() == 0:
        np.savez(folder / "results.npz", np.array(history["loss"]), *weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
