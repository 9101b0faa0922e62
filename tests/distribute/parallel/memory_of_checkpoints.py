"""Measure the host memory used to write and restore checkpoints.

Run by test_memory_of_checkpoints.py. Arguments: names of CHOICES. Prints a line of JSON for each
measurement: the operation, the option, and the bytes by which memory rose during the operation.
"""

import contextlib
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import meshflow as tf
from meshflow.experimental import dtensor

# Larger than arrays whose memory is pooled.
WIDTH, LAYERS = 3072, 3
FOLDER = Path(tempfile.mkdtemp())
DATA = {"data": 4}
HELD = ("optimizer", "parameters")
CHOICES = {
    "zero=3": (DATA, "batch:data", {"zero": 3}),
    "host": (DATA, "batch:data", {"zero": 3, "offload": HELD}),
    "files": (DATA, "batch:data", {"zero": 3, "offload": HELD, "offload_to": FOLDER}),
    "stages": (
        {"stage": 2, "data": 2},
        "batch:data",
        {"zero": 3, "pipeline": "stage", "micro_batches": 2},
    ),
    "2D": ({"rows": 2, "cols": 2}, "batch:rows, in:rows, out:cols", {}),
}


def make_checkpoint(name):
    """Return a checkpoint of a model and its Adam, with arrays in resident memory."""
    sizes, rules, options = CHOICES[name]
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(4)])
    with tf.distribute.MeshStrategy(mesh, rules, **options).scope():
        return _checkpoint()


def _checkpoint():
    dense = lambda: tf.keras.layers.Dense(WIDTH, use_bias=False, kernel_initializer="ones")
    model = tf.keras.Sequential([tf.keras.Input([WIDTH]), *(dense() for _ in range(LAYERS))])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables:
        variable.assign(tf.fill(variable.shape, tf.cast(0.5, variable.dtype)))
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def status(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def growth(do):
    """By how much memory is higher at most while something is done than before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    do()
    return status("VmHWM") - before


def report(what, name, do):
    print(json.dumps([what, name, growth(do)]), flush=True)


def remove(path):
    for file in FOLDER.glob(f"{path}*"):
        file.unlink()


def main(names):
    # Written by a device that has all, and by devices that have parts.
    with tf.device("CPU:0"):
        _checkpoint().write(str(FOLDER / "whole"))
    make_checkpoint("zero=3").write(str(FOLDER / "parts"))
    gc.collect()
    for name in names:
        checkpoint = make_checkpoint(name)
        report("written", name, lambda c=checkpoint: c.write(str(FOLDER / "own")))
        remove("own")
        model = checkpoint.model
        path = str(FOLDER / "own.keras")
        report("saved", name, lambda m=model: m.save(path))
        remove("own")
        for kind in ("whole", "parts"):
            path = str(FOLDER / kind)
            report(
                f"restored from {kind}", name, lambda c=checkpoint: c.read(path).assert_consumed()
            )
        del checkpoint, model


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or CHOICES)
    finally:
        with contextlib.suppress(OSError):
            for left in FOLDER.iterdir():
                left.unlink()
            FOLDER.rmdir()
