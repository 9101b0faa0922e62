"""Compile a training step for more devices than there are; run by test_proofs.py with their number.

Prints a line of JSON for each choice: its name, seconds of the processor until the step is explained, and bytes sent by kind.
"""

import json
import os
import sys
import time

COUNT = int(sys.argv[1])
os.environ["NPROC"] = "4"
os.environ["MESHFLOW_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={COUNT}"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
P, M, ROWS, WIDTH = 8, 16, 2, 8
CHOICES = {
    "1f1b": ({"stage": P, "data": COUNT // P}, {"pipeline": "stage", "micro_batches": M}),
    "zero=3": ({"data": COUNT}, {"zero": 3}),
}

for name, (sizes, options) in CHOICES.items():
    began = time.process_time()
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(COUNT)])
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", **options)
    # With `zero`, there are as many rows as devices.
    width = WIDTH if "stage" in sizes else COUNT
    with strategy.scope():
        layers = [
            LAYERS.Dense(width, "tanh", use_bias=False) for _ in range(P if width == WIDTH else 2)
        ]
        model = tf.keras.Sequential([tf.keras.Input([width]), *layers])
        model.compile("sgd", "mse")
    x = np.ones([ROWS * options.get("micro_batches", 1) * sizes["data"], width], "float32")
    step = strategy.explain(model, x, x).step
    kinds = ("collective-permute", "all-gather", "reduce-scatter", "all-reduce", "all-to-all")
    seconds = round(time.process_time() - began, 1)
    print(json.dumps([name, seconds, {kind: step.sent(kind) for kind in kinds}]), flush=True)
