"""`SidecarEvaluator` evaluates the checkpoints that a training writes."""

import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import meshflow as tf
from meshflow.io.protos import Event
from meshflow.io.records import read_records
from meshflow.keras.utils import sidecar_evaluator

X, Y = np.ones((4, 1), "f"), np.zeros((4, 1), "f")
DATA = tf.data.Dataset.from_tensors((X, Y))


def make(compiled=True):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
    if compiled:
        model.compile(tf.keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


class Report(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.batches = [], 0

    def on_test_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_test_end(self, logs=None):
        step = int(self.model.optimizer.iterations)
        self.seen.append((step, round(logs["loss"], 6), sorted(logs)))


def trained(folder, epochs=3):
    """Write checkpoints of some epochs; return the losses of their weights."""
    model, losses = make(), []
    manager = None
    for _ in range(epochs):
        model.fit(X, Y, batch_size=2, verbose=0)
        losses.append(round(model.evaluate(X, Y, verbose=0)[0], 6))
        if manager is None:
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=None)
        manager.save()
    return losses


def scalars(folder):
    """Steps by tag of the events below a folder."""
    found = {}
    for file in sorted(pathlib.Path(folder).rglob("*tfevents*")):
        for record in read_records(file):
            event = Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_the_latest_checkpoint_is_evaluated(tmp_path):
    losses, report = trained(tmp_path / "ckpt"), Report()
    evaluator = tf.keras.utils.SidecarEvaluator(
        make(), DATA, str(tmp_path / "ckpt"), max_evaluations=3, callbacks=[report]
    )
    evaluator.start()
    assert report.seen == [(6, losses[2], ["loss", "mae"])] and report.batches == 1


def test_each_new_checkpoint_is_evaluated_while_another_process_trains(tmp_path):
    program = """
import sys, time
import meshflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
save = tf.keras.callbacks.ModelCheckpoint(sys.argv[1] + "/ckpt-{epoch}", save_weights_only=True)
class Waits(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("saved", flush=True)
        sys.stdin.readline()
model.fit(tf.ones([4, 1]), tf.zeros([4, 1]), epochs=3, verbose=0, callbacks=[save, Waits()])
"""
    training = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    report = Report()

    class GoesOn(tf.keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            training.stdin.write("\n")
            training.stdin.flush()

    board = tf.keras.callbacks.TensorBoard(str(tmp_path / "board"), write_graph=False)
    limit = threading.Timer(120, training.kill)
    limit.start()
    try:
        tf.keras.experimental.SidecarEvaluator(
            make(), DATA, tmp_path, max_evaluations=3, callbacks=[report, board, GoesOn()]
        ).start()
        assert training.wait(60) == 0
    finally:
        limit.cancel()
        training.kill()
        training.communicate()
    assert [step for step, _, _ in report.seen] == [1, 2, 3]
    board.on_train_end()
    assert scalars(tmp_path / "board" / "validation")["evaluation_loss_vs_iterations"] == [
        *(1, 2, 3)
    ]


def test_checkpoints_that_do_not_fit(tmp_path):
    path = str(tmp_path / "other")
    tf.train.Checkpoint(a=tf.Variable(1.0)).save(path + "/ckpt")
    with pytest.raises(AssertionError, match="Nothing except the root object"):
        tf.keras.utils.SidecarEvaluator(make(), DATA, path, max_evaluations=1).start()
    model = make()
    model.fit(X, Y, verbose=0)
    path = str(tmp_path / "without")
    tf.train.Checkpoint(model=model).save(path + "/ckpt")
    with pytest.raises(RuntimeError, match=r"Variable `iterations` cannot be loaded"):
        tf.keras.utils.SidecarEvaluator(make(), DATA, path, max_evaluations=1).start()
    trained(tmp_path / "fits", 1)
    with pytest.raises(RuntimeError, match="must compile"):
        tf.keras.utils.SidecarEvaluator(
            make(False), DATA, tmp_path / "fits", max_evaluations=1
        ).start()
    with pytest.raises(ValueError, match="max_evaluations must be positive"):
        tf.keras.utils.SidecarEvaluator(make(), DATA, path, max_evaluations=0)


def test_deleted_checkpoint_is_skipped(tmp_path, monkeypatch, caplog):
    trained(tmp_path / "ckpt", 1)
    latest = tf.train.latest_checkpoint(str(tmp_path / "ckpt"))
    paths = [str(tmp_path / "ckpt" / "ckpt-0"), latest]
    monkeypatch.setattr(sidecar_evaluator, "checkpoints_iterator", lambda *_, **__: iter(paths))
    report = Report()
    with caplog.at_level("INFO", "meshflow"):
        tf.keras.utils.SidecarEvaluator(
            make(), DATA, tmp_path / "ckpt", steps=1, max_evaluations=1, callbacks=[report]
        ).start()
    assert len(report.seen) == 1 and "which cannot be read" in caplog.text


def test_evaluator_waits_for_a_first_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(sidecar_evaluator, "LOG_INTERVAL_SECONDS", 0.01)
    evaluator = tf.keras.utils.SidecarEvaluator(make(), DATA, tmp_path / "new", max_evaluations=1)
    thread = threading.Thread(target=evaluator.start)
    thread.start()
    trained(tmp_path / "new", 1)
    thread.join(60)
    assert not thread.is_alive() and int(evaluator.model.optimizer.iterations) == 2
