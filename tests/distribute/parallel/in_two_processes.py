"""One of two processes with two devices each, which train a model in parts. Run by test_two_processes.py.

Arguments: number of this process, addresses of both, folder.
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

import meshflow as tf
from meshflow.experimental import dtensor

dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=2)
mesh = dtensor.create_distributed_mesh([("node", 2), ("data", 2)], device_type="CPU")
rng = np.random.default_rng(3)
x, y = rng.normal(size=(32, 16)).astype("float32"), rng.normal(size=(32, 8)).astype("float32")
options = {"zero": 3, "zero_over": "data", "micro_batches": 2, "recompute": "layer"}
strategy = tf.distribute.MeshStrategy(mesh, "batch:node+data", **options)
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    layers = [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(8)]
    model = tf.keras.Sequential([tf.keras.Input([16]), *layers])
    model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
curve = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{folder}/checkpoint")
curve += model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0).history["loss"]
print(json.dumps(curve))
