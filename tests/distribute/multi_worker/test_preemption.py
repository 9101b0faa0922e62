"""Test that custom loops save when they are terminated, and resume later."""

import os
import signal

import pytest

import meshflow as tf

Handler = tf.distribute.experimental.PreemptionCheckpointHandler
Config = tf.distribute.experimental.TerminationConfig


@pytest.fixture(autouse=True)
def _sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def loop(folder, told_at=None, config=None, manager=False):
    total = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(total=total)
    kept = tf.train.CheckpointManager(checkpoint, folder, 2) if manager else checkpoint
    handler = Handler(None, kept, None if manager else folder, config)
    add = tf.function(lambda: total.assign_add(1.0))
    for step in range(handler.total_run_calls, 6):
        if step == told_at:
            os.kill(os.getpid(), signal.SIGTERM)
        handler.run(add)
    return handler.total_run_calls, float(total)


@pytest.mark.parametrize("manager", [False, True], ids=["checkpoint", "manager"])
def test_sigterm_saves_after_the_step(tmp_path, manager):
    with pytest.raises(SystemExit, match="143"):
        loop(tmp_path, told_at=2, manager=manager)
    seen = []
    checkpoint = tf.train.Checkpoint(total=tf.Variable(0.0))
    seen.append(Handler(None, checkpoint, tmp_path).total_run_calls)
    assert seen == [3] and float(checkpoint.total) == 3.0
    assert loop(tmp_path, manager=manager) == (6, 6.0)


def test_custom_watcher_exit_and_saving(tmp_path):
    done = []
    config = Config(
        termination_watcher_fn=lambda: True,
        exit_fn=lambda: done.append("left"),
        save_fn=lambda: done.append("saved"),
    )
    handler = Handler(None, tf.train.Checkpoint(v=tf.Variable(1)), tmp_path, config)
    handler._preempted.wait(5)
    with handler.watch_preemption_scope():
        assert done == []
    assert done == ["saved", "left"]


def test_training_continues_during_the_grace_period(tmp_path):
    done = []
    config = Config(exit_fn=lambda: done.append(1), grace_period=3600)
    assert loop(tmp_path, told_at=1, config=config) == (6, 6.0) and done == []


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="a checkpoint_dir must be passed"):
        Handler(None, tf.train.Checkpoint())
    with pytest.raises(ValueError, match=r"must be a tf\.train\.Checkpoint"):
        Handler(None, {}, tmp_path)
