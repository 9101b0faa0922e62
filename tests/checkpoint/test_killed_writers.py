"""Test programs that are killed while they save: the previous or the new checkpoint is found, and
no other file remains."""

import os

import pytest

import meshflow as tf
from killing import check_kills
from meshflow import train
from meshflow.checkpoint.bundle import BundleReader, count_shards

pytestmark = pytest.mark.timeout(900)

CHECKPOINT = """
    def write(path, number):
        v, w = tf.Variable(0), tf.Variable(tf.zeros([1000], "int32"))
        checkpoint = tf.train.Checkpoint(v=v, w=w)
        checkpoint.restore(tf.train.latest_checkpoint(path))
        v.assign(number)
        w.assign(w * 0 + number)
        begin()
        checkpoint.save(path + "/ckpt")
    """
MANAGER = """
    def write(path, number):
        v, w = tf.Variable(0), tf.Variable(tf.zeros([1000], "int32"))
        checkpoint = tf.train.Checkpoint(v=v, w=w)
        manager = tf.train.CheckpointManager(checkpoint, path, 2)
        manager.restore_or_initialize()
        v.assign(number)
        w.assign(w * 0 + number)
        begin()
        manager.save()
    """
SAME = """
    def write(path, number):
        v, w = tf.Variable(number), tf.Variable(tf.fill([1000], number))
        begin()
        tf.train.Checkpoint(v=v, w=w).write(path + "/ckpt")
    """
SAVED_MODEL = """
    def write(path, number):
        module = tf.Module()
        module.v, module.w = tf.Variable(number), tf.Variable(tf.fill([1000], number))
        begin()
        tf.saved_model.save(module, path)
    """


def get_common_value(values):
    numbers = {int(n) for value in values for n in value.reshape(-1)}
    assert len(numbers) == 1, f"of two moments: {numbers}"
    return numbers.pop()


def read_latest(path):
    latest = train.latest_checkpoint(path)
    return get_common_value([train.load_variable(latest, name) for name in "vw"])


@pytest.mark.parametrize("program", [CHECKPOINT, MANAGER], ids=["Checkpoint", "CheckpointManager"])
def test_checkpoints(program, tmp_path):
    found = check_kills(program, tmp_path, read_latest)
    assert found[False]
    folder = tmp_path / "target"
    names = {n.partition(".")[0] for n in os.listdir(folder)} - {"checkpoint"}
    assert all(BundleReader(folder / name).entries for name in names)
    # Each checkpoint consists of an index and its data files.
    assert len(os.listdir(folder)) == 1 + sum(1 + count_shards(folder / name) for name in names)
    if program is MANAGER:
        state = train.get_checkpoint_state(folder)
        assert names == {os.path.basename(p) for p in state.all_model_checkpoint_paths}
        assert len(names) == 2


def test_a_checkpoint_in_the_place_of_another(tmp_path):
    read = lambda path: get_common_value(
        [train.load_variable(f"{path}/ckpt", name) for name in "vw"]
    )
    assert check_kills(SAME, tmp_path, read)[False]
    assert len(os.listdir(tmp_path / "target")) == 1 + count_shards(tmp_path / "target" / "ckpt")


def test_saved_models(tmp_path):
    def read(path):
        loaded = tf.saved_model.load(path)
        return get_common_value([loaded.v.numpy(), loaded.w.numpy()])

    assert check_kills(SAVED_MODEL, tmp_path, read)[False]
