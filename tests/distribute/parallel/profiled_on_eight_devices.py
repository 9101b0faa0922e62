"""Profile steps of a `MeshStrategy` on eight devices: compare bytes with theory.

Run by planner/test_theory.py with a folder and names. Prints a line of JSON for each choice: its
name, and for each row of the profile its purpose, theoretical bytes and measured bytes.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("NPROC", "32")

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np

import meshflow as tf
from meshflow.distribute.parallel.stage_buffers import get_storage
from meshflow.experimental import dtensor
from meshflow.profiler import folders

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS, ROWS = 16, 8, 32, 16
STAGES = {"stage": 2, "data": 4}
TENSORS = "batch:rows, heads:cols, hidden:cols, vocab:cols"
CUBE = {"depth": 2, "rows": 2, "cols": 2}
THIRD = "in_2:cols+depth, out_2:rows"
# Name: mesh, rules, options. The mesh's dimensions may have any names.
CHOICES = {
    "copies": ({"data": 8}, "batch:data", {}),
    "zero=2": ({"data": 8}, "batch:data", {"zero": 2, "micro_batches": 2}),
    "zero=3": ({"node": 2, "data": 4}, "batch:node+data", {"zero": 3}),
    "pipeline": (STAGES, "batch:data", {"pipeline": "stage", "micro_batches": 4}),
    "experts": ({"data": 8}, "batch:data, experts:data", {"zero": 1}),
    "tensors": ({"rows": 4, "cols": 2}, TENSORS, {}),
    "ring": ({"data": 2, "seq": 4}, "batch:data, sequence:seq", {"sequence": "ring"}),
    "ulysses": ({"data": 4, "seq": 2}, "batch:data, sequence:seq", {"sequence": "ulysses"}),
    "compress": ({"data": 8}, "batch:data", {"compress": "int8"}),
    "late": ({"data": 8}, "batch:data", {"zero": 1}),
    "2.5d": (CUBE, "batch:depth+rows, in:rows, out:cols", {}),
    "3d": (CUBE, f"batch:depth+cols, in:rows+depth, out:cols, {THIRD}", {}),
}


def language_model(experts=False):
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    x = x + LAYERS.MultiHeadAttention(4, WIDTH // 4)(x, x, use_causal_mask=True)
    if experts:
        x = x + LAYERS.MixtureOfExperts(8, WIDTH, groups=8)(x)
    else:
        x = x + LAYERS.Dense(WIDTH)(LAYERS.Dense(4 * WIDTH, "relu")(x))
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS, dims="out:vocab")(x))


def products(dims):
    """Two products, of numbers; the second may call its axes otherwise."""
    numbers = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Dense(4 * WIDTH, "tanh")(tf.cast(numbers, "float32"))
    return tf.keras.Model(numbers, LAYERS.Dense(TOKENS, dims=dims)(x))


def make_compiled_model(name):
    """The model of a choice."""
    if name.endswith("d"):
        model = products("in:in_2, out:out_2" if name == "3d" else None)
        model.compile("adam", "mse")
        return model
    # Gradients of fewer than 4,096 values are not sent in few bits.
    model = language_model(name == "experts") if name != "compress" else wide_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, gradient_accumulation_steps=3 if name == "late" else None)
    return model


def wide_model():
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, 4 * WIDTH)(tokens)
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS)(LAYERS.Dense(8 * WIDTH)(x)))


def wait(model):
    """Wait for all devices, some of which finish after the loss is available.

    Reading a resident weight of a stage would send it to all devices.
    """
    jax.block_until_ready([get_storage(v)._value for v in model.trainable_variables])


def profile_steps(name, folder):
    """The profile of three steps."""
    sizes, rules, options = CHOICES[name]
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(8)])
    with tf.distribute.MeshStrategy(mesh, rules, **options).scope():
        model = make_compiled_model(name)
    tokens = np.random.default_rng(0).integers(0, WORDS, (3 * ROWS, TOKENS)).astype("int32")
    model.fit(tokens, tokens, batch_size=ROWS, verbose=0)
    wait(model)
    with tf.profiler.experimental.Profile(str(folder)):
        model.fit(tokens, tokens, batch_size=ROWS, verbose=0)
        wait(model)
    return folders.load_report(folders.find_profiles(str(folder))[0])


def main(root, names):
    for name in names or CHOICES:
        report = profile_steps(name, Path(root, name))
        rows = [[row.purpose, row.expected, row.counted] for row in report.compare_theory()]
        print(json.dumps([name, rows, report.workers[0].no_theory]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
