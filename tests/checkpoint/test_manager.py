import os

import pytest

import meshflow as tf
from meshflow import train
from meshflow.checkpoint import manager as module


def make(tmp_path, max_to_keep=2, **kwargs):
    v = tf.Variable(0.0)
    checkpoint = train.Checkpoint(v=v)
    return v, train.CheckpointManager(checkpoint, tmp_path, max_to_keep, **kwargs)


def names(manager):
    return [os.path.basename(p) for p in manager.checkpoints]


def test_old_checkpoints_are_deleted(tmp_path):
    v, manager = make(tmp_path)
    assert manager.latest_checkpoint is None and manager.restore_or_initialize() is None
    for i in range(4):
        v.assign(float(i))
        assert manager.save() == os.path.join(tmp_path, f"ckpt-{i + 1}")
    assert names(manager) == ["ckpt-3", "ckpt-4"]
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        "ckpt-3.data-00000-of-00001",
        "ckpt-3.index",
        "ckpt-4.data-00000-of-00001",
        "ckpt-4.index",
    ]
    assert train.latest_checkpoint(tmp_path) == manager.latest_checkpoint
    state = train.get_checkpoint_state(tmp_path)
    assert state.all_model_checkpoint_paths == manager.checkpoints
    v.assign(9.0)
    assert manager.restore_or_initialize() == manager.latest_checkpoint and float(v) == 3


def test_new_manager_continues_the_old_list(tmp_path):
    _, manager = make(tmp_path)
    for _ in range(3):
        manager.save()
    _, later = make(tmp_path)
    assert later.checkpoints == manager.checkpoints
    later.restore_or_initialize()
    assert os.path.basename(later.save()) == "ckpt-4" and names(later) == ["ckpt-3", "ckpt-4"]


def test_numbers_names_and_intervals(tmp_path):
    step = tf.Variable(0)
    _, manager = make(
        tmp_path, None, checkpoint_name="m", step_counter=step, checkpoint_interval=10
    )
    saved = []
    for i in range(25):
        step.assign(i)
        saved.append(manager.save(checkpoint_number=step))
    assert names(manager) == ["m-0", "m-10", "m-20"] and saved[1] is None
    assert manager.save(check_interval=False) is not None and manager.checkpoint_interval == 10


def test_keep_checkpoint_every_n_hours(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    _, manager = make(tmp_path, 1, keep_checkpoint_every_n_hours=2)
    for _ in range(5):
        now[0] += 3600
        manager.save()
    left = {f.partition(".")[0] for f in os.listdir(tmp_path)} - {"checkpoint"}
    assert left == {"ckpt-2", "ckpt-4", "ckpt-5"} and names(manager) == ["ckpt-5"]


def test_errors_and_empty_folders(tmp_path):
    with pytest.raises(ValueError, match="positive integer"):
        make(tmp_path, 0)
    with pytest.raises(ValueError, match="step_counter"):
        make(tmp_path, checkpoint_interval=3)
    assert train.latest_checkpoint(tmp_path / "nowhere") is None
    assert train.get_checkpoint_state(tmp_path) is None
    called = []
    make(tmp_path, init_fn=lambda: called.append(1))[1].restore_or_initialize()
    assert called
    with pytest.raises(ValueError, match="'checkpoint' file"):
        train.list_variables(tmp_path)


def test_iterating_over_checkpoints(tmp_path):
    _, manager = make(tmp_path)
    first = manager.save()
    seen = []
    for path in train.checkpoints_iterator(tmp_path, timeout=0.01):
        seen.append(path)
        if len(seen) == 1:
            manager.save()
    assert seen == [first, manager.latest_checkpoint]


def test_a_step_is_saved_once(tmp_path):
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(step=step)
    manager = tf.train.CheckpointManager(
        checkpoint, str(tmp_path), None, step_counter=step, checkpoint_interval=5
    )
    saved = []
    for value, check in ((0, True), (3, True), (3, False), (3, False), (8, True), (8, False)):
        step.assign(value)
        saved.append(manager.save(value, check_interval=check) is not None)
    # Values of TensorFlow 2.15.1.
    assert saved == [True, False, True, False, True, False]
    assert manager.latest_checkpoint == f"{manager._checkpoint_prefix}-8"
