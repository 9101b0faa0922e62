"""Test that writing and restoring checkpoints of a mesh needs less host memory than one device's
part and one array."""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from distribute.launching import SOURCE
from distribute.parallel.training import mesh, mlp
from meshflow.placement.file_store import FileArray

PROGRAM = Path(__file__).with_name("memory_of_checkpoints.py")
# Three weights with two slots each, over four devices.
ARRAY = 3072 * 3072 * 4
PART = 9 * ARRAY / 4


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_while_checkpoints_are_written_and_restored():
    # Freed memory is returned to the system immediately.
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {(what, name): size for what, name, size in map(json.loads, done.stdout.splitlines())}
    assert len(found) == 4 * 5
    assert not {k: v / ARRAY for k, v in found.items() if v >= PART + ARRAY}


def test_arrays_in_files_are_written_sequentially(tmp_path, monkeypatch):
    made, alive = [], []
    bring = FileArray.to_memory

    def counted(self, memory):
        alive.append(sum(one() is not None for one in made))
        value = bring(self, memory)
        made.append(weakref.ref(value))
        return value

    options = {"zero": 3, "offload": ("optimizer", "parameters"), "offload_to": tmp_path}
    strategy = tf.distribute.MeshStrategy(mesh(data=4), "batch:data", **options)
    with strategy.scope():
        model = mlp()
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    weights = model.get_weights()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    monkeypatch.setattr(FileArray, "to_memory", counted)
    path = checkpoint.write(str(tmp_path / "now"))
    assert len(alive) == 3 * len(weights)
    assert not any(alive)
    # A thread writes the values at its start.
    later = tf.train.CheckpointOptions(enable_async=True)
    then = checkpoint.write(str(tmp_path / "then"), later)
    for variable in model.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    checkpoint.sync()
    for written in (path, then):
        checkpoint.read(written).assert_consumed()
        for found, wanted in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(found, wanted)
