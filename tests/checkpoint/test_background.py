"""Test checkpoints that a thread writes while the program continues."""

import os
import threading

import pytest

import meshflow as tf
from meshflow import train
from meshflow.checkpoint import bundle_writer

ASYNC = [{"enable_async": True}, {"experimental_enable_async_checkpoint": True}]


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until it is opened."""
    made = threading.Event()
    real = bundle_writer._write_data

    def waiting(*arguments):
        assert made.wait(60)
        return real(*arguments)

    monkeypatch.setattr(bundle_writer, "_write_data", waiting)
    yield made
    made.set()


@pytest.mark.parametrize("wanted", ASYNC, ids=lambda w: next(iter(w)))
def test_training_continues_during_a_background_save(wanted, gate, tmp_path):
    v, written = tf.Variable(tf.range(1000.0)), []
    step = tf.function(lambda: v.assign_add(tf.ones([1000])))
    step()
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))
    checkpoint = train.Checkpoint(v=v, table=table)
    options = train.CheckpointOptions(**wanted, experimental_write_callbacks=[written.append])
    path = checkpoint.save(tmp_path / "ckpt", options)
    for _ in range(3):
        step()
    table.insert(tf.constant([1], tf.int64), tf.constant([3], tf.int64))
    assert os.listdir(tmp_path) == [] and written == []
    assert train.latest_checkpoint(tmp_path) is None
    gate.set()
    checkpoint.sync()
    assert written == [path] and train.latest_checkpoint(tmp_path) == path
    assert train.load_variable(path, "v").tolist() == [float(i + 1) for i in range(1000)]
    assert float(v[0]) == 4
    checkpoint.restore(path).assert_consumed()
    assert float(v[0]) == 1 and int(table[tf.constant(1, tf.int64)]) == 2


def test_the_next_save_and_restoring_wait(gate, tmp_path):
    v = tf.Variable(1.0)
    checkpoint = train.Checkpoint(v=v)
    path = checkpoint.write(tmp_path / "ckpt", train.CheckpointOptions(enable_async=True))
    v.assign(2.0)
    threading.Timer(0.05, gate.set).start()
    checkpoint.read(path).assert_consumed()
    assert float(v) == 1
    v.assign(3.0)
    checkpoint.write(path)
    assert train.load_variable(path, "v") == 3


def test_manager_counts_only_complete_checkpoints(gate, tmp_path):
    v = tf.Variable(0.0)
    manager = train.CheckpointManager(train.Checkpoint(v=v), tmp_path, 2)
    options = train.CheckpointOptions(enable_async=True)
    first = manager.save(options=options)
    assert first == str(tmp_path / "ckpt-1")
    assert manager.latest_checkpoint is None and manager.checkpoints == []
    gate.set()
    for i in range(3):
        v.assign(float(i))
        last = manager.save(options=options)
    manager.sync()
    assert manager.latest_checkpoint == last == train.latest_checkpoint(tmp_path)
    assert [os.path.basename(p) for p in manager.checkpoints] == ["ckpt-3", "ckpt-4"]
    assert train.load_variable(last, "v") == 2


def test_background_errors_are_raised_by_the_next_call(tmp_path, monkeypatch):
    v = tf.Variable(1.0)
    checkpoint = train.Checkpoint(v=v)
    options = train.CheckpointOptions(enable_async=True)
    path = checkpoint.write(tmp_path / "ckpt", options)
    checkpoint.sync()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        v.assign(2.0)
        checkpoint.write(path, options)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
            checkpoint.sync()
    checkpoint.sync()
    assert train.load_variable(path, "v") == 1
    checkpoint.write(path, options)
    checkpoint.sync()
    assert train.load_variable(path, "v") == 2
