"""Run one of two processes with two devices each, which train a partitioned model, on devices and
in files.

Run by test_two_processes.py. Arguments: number of this process, addresses of both, folder.
"""

import json
import os
import sys

number, addresses, folder = sys.argv[1:]
os.environ.update(
    DTENSOR_JOBS=addresses,
    DTENSOR_CLIENT_ID=number,
    DTENSOR_JOB_NAME="worker",
    NPROC="16",
    MESHFLOW_CACHE_DIR="",
    JAX_PLATFORMS="cpu",
)

import numpy as np
from training import in_few_bits

import meshflow as tf
from meshflow.experimental import dtensor

dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=2)
mesh = dtensor.create_distributed_mesh([("node", 2), ("data", 2)], device_type="CPU")
rng = np.random.default_rng(3)
x, y = rng.normal(size=(32, 16)).astype("float32"), rng.normal(size=(32, 8)).astype("float32")


def make_model(**more):
    """A strategy, and a model of it."""
    options = {"zero": 3, "zero_over": "data", "micro_batches": 2, "recompute": "layer", **more}
    strategy = tf.distribute.MeshStrategy(mesh, "batch:node+data", **options)
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(8)]
        model = tf.keras.Sequential([tf.keras.Input([16]), *layers])
        model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
    return strategy, model


def curve(model, epochs):
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    return history["loss"]


_, model = make_model()
losses = curve(model, 2)
tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{folder}/checkpoint")
losses += curve(model, 1)
# Everything in files, including activations, in a folder of this process.
own = f"{folder}/{number}"
os.mkdir(own)
offload = ("optimizer", "parameters", "activations")
strategy, filed = make_model(offload=offload, offload_to=own)
curve(filed, 1)
# Checkpoints from devices continue in files, and vice versa.
tf.train.Checkpoint(model=filed, optimizer=filed.optimizer).read(f"{folder}/checkpoint")
again = curve(filed, 1)
tf.train.Checkpoint(model=filed, optimizer=filed.optimizer).write(f"{folder}/of_files")
weights = [[w.tolist() for w in m.get_weights()] for m in (model, filed)]
moved = strategy.files["optimizer"]
numbers = moved.read_bytes, moved.written_bytes
print(json.dumps([losses, again, weights, *numbers, in_few_bits(mesh)]))
