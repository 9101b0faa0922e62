"""Test that checkpoints of earlier versions, folders of arrays, are read and then replaced by
bundles."""

import os
import pathlib
import sys
import zipfile

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow import train

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"


@pytest.fixture(scope="module")
def cases():
    sys.path.insert(0, str(REFERENCE))
    import checkpoint_cases

    sys.path.remove(str(REFERENCE))
    return checkpoint_cases


def objects(cases):
    values = {k: tf.Variable(tf.zeros_like(tf.constant(v, k))) for k, v in cases.values().items()}
    return train.Checkpoint(
        model=cases.compiled(tf.keras, "new", "Adam"),
        table=tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1),
        iterator=iter(tf.data.Dataset.range(10)),
        values=values,
        state=cases.noting(train.experimental.PythonState),
        parts=[tf.Variable(0), {"a/b": tf.Variable(0)}],
    )


def test_an_older_checkpoint(cases, tmp_path):
    with zipfile.ZipFile(REFERENCE / "folder_checkpoint.zip") as archive:
        archive.extractall(tmp_path)
    path = str(tmp_path / "older-1")
    assert train.latest_checkpoint(tmp_path) == path
    checkpoint = objects(cases)
    status = checkpoint.restore(path)
    with np.load(tmp_path / "after.npz") as file:
        arrays = [file[name] for name in file.files]
    model = checkpoint.model
    saved, after = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), saved, strict=True))
    cases.train(model)
    for now, then in zip(model.get_weights(), after, strict=True):
        assert_close(now, then, 1e-6)
    status.assert_existing_objects_matched()
    for name, value in cases.values().items():
        assert np.array_equal(checkpoint.values[name].numpy(), tf.constant(value, name).numpy())
    assert checkpoint.table[tf.constant(["a", "b", "c"])].numpy().tolist() == [1, 2, -1]
    assert checkpoint.state.value == b"text" and int(next(checkpoint.iterator)) == 2
    assert (int(checkpoint.parts[0]), int(checkpoint.save_counter)) == (2, 1)
    assert train.load_variable(path, "parts/1/a.Sb") == 3
    # The bundle replaces the folder completely.
    checkpoint.write(path)
    names = {"after.npz", "checkpoint", "older-1.index", "older-1.data-00000-of-00001"}
    assert set(os.listdir(tmp_path)) == names
    assert int(train.load_variable(path, "parts/0")) == 2
