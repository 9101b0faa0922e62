"""Checkpoints that TensorFlow 1's `Saver` wrote: `saver_checkpoint.zip` is one of TensorFlow 2.21's `compat.v1`."""

import pathlib
import zipfile

import numpy as np
import pytest

import meshflow as tf
from meshflow.checkpoint.bundle_writer import write_bundle

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
KERNEL = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saver")
    with zipfile.ZipFile(REFERENCE / "saver_checkpoint.zip") as archive:
        archive.extractall(folder)
    return folder / "model-41"


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.zeros([3, 2]), name="dense/kernel")
        self.parts = [tf.Variable(tf.zeros([2]), name="dense/bias"), {}]
        self.parts[1]["step"] = tf.Variable(0, dtype=tf.int64, name="global_step")
        # It was written in two parts.
        self.table = tf.Variable(tf.zeros([4, 2]), name="table")


def test_variables_are_restored_by_name(path):
    module = Module()
    status = tf.train.Checkpoint(anything=module).restore(path)
    status.assert_consumed().assert_existing_objects_matched().assert_nontrivial_match()
    assert module.kernel.numpy().tolist() == KERNEL
    assert module.parts[0].numpy().tolist() == [7, 8] and int(module.parts[1]["step"]) == 41
    assert module.table.numpy().tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
    module.other = tf.Variable(1.0, name="other")
    status = tf.train.Checkpoint(module).read(path).expect_partial()
    for check in ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match"):
        with pytest.raises(AssertionError, match="other:0"):
            getattr(status, check)()
    assert float(module.other) == 1.0


def test_variables_that_are_made_later(path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, name="dense")])
    model.load_weights(path)
    model(tf.ones([1, 3]))
    assert model.layers[0].kernel.numpy().tolist() == KERNEL
    tf.train.Checkpoint(model=model).restore(path).assert_consumed()
    with pytest.raises(AssertionError, match="unmatched"):
        tf.keras.Sequential(
            [tf.keras.Input([2]), tf.keras.layers.Dense(1, name="other")]
        ).load_weights(path)


def test_error_names_mismatched_values(tmp_path, path):
    wrong = tf.Module()
    wrong.v = tf.Variable(tf.zeros([2, 3]), name="dense/kernel")
    with pytest.raises(ValueError, match="dense/kernel"):
        tf.train.Checkpoint(wrong).restore(path)
    write_bundle(tmp_path / "text", {"v": np.array(["a"], object)})
    wrong.v = tf.Variable(tf.zeros([1]), name="v")
    with pytest.raises(tf.errors.OpError, match="v:0 of dtype float32 cannot hold"):
        tf.train.Checkpoint(wrong).restore(tmp_path / "text")
