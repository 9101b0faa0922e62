"""Test that interrupted training that resumes in a new process ends with the same bits."""

import os
import signal

import numpy as np
import pytest

import meshflow as tf

LAYERS = tf.keras.layers


class Killed(Exception):
    """Simulate the death of the process."""


class Kill(tf.keras.callbacks.Callback):
    """End training after some batches, counted over all epochs."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


def fresh_process():
    """Random state and names as in a new process that runs the same program."""
    from meshflow.core.variables import random_streams

    random_streams.global_seed.__init__()
    random_streams._streams.clear()
    random_streams._stream_ids = iter(range(10**9))
    tf.keras.backend.reset_uids()
    tf.random.set_seed(7)
    np.random.seed(7)


def make_model(built=True, large=False, **arguments):
    inputs = {"input_shape": (3,)} if built else {}
    model = tf.keras.Sequential([LAYERS.Dense(4, "relu", **inputs), LAYERS.Dropout(0.5)])
    optimizer = tf.keras.optimizers.SGD(0.001, momentum=0.9)
    if large:
        model.add(LAYERS.BatchNormalization())
        schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9)
        optimizer = tf.keras.optimizers.Adam(schedule)
    model.add(LAYERS.Dense(1))
    model.compile(optimizer, "mse", **arguments)
    return model


def arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")


def noisy(x, y):
    return x + tf.random.normal([3]), y


def from_arrays():
    x, y = arrays()
    return {"x": x, "y": y, "batch_size": 4}


def from_dataset():
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(24)
    return {"x": dataset.map(noisy).batch(4).prefetch(2)}


def from_endless_dataset():
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(10).repeat().batch(4)
    return {"x": dataset, "steps_per_epoch": 4}


def from_generator():
    class Batches(tf.keras.utils.Sequence):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            x, y = arrays()
            return x[index * 4 : index * 4 + 4], y[index * 4 : index * 4 + 4]

    return {"x": Batches()}


SOURCES = {f.__name__: f for f in (from_arrays, from_dataset, from_endless_dataset, from_generator)}


def run(folder, kill=None, source=from_arrays, save_freq=1, **arguments):
    """Run one process: return weights and history, or None if it was killed."""
    fresh_process()
    model = make_model(**arguments)
    callbacks = [tf.keras.callbacks.BackupAndRestore(folder, save_freq=save_freq)]
    if kill:
        callbacks.append(Kill(kill))
    try:
        history = model.fit(**source(), epochs=3, verbose=0, callbacks=callbacks)
    except Killed:
        return None
    values = [v.numpy() for v in model.variables + list(model.optimizer.variables)]
    return values, history


def assert_same_bits(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("kills", [[2, 7]], ids=str)
def test_resumed_training_is_that_without_a_break(tmp_path, source, kills):
    expected, history = run(tmp_path / "a", source=source)
    for kill in kills:
        assert run(tmp_path / "b", kill, source) is None
    found, resumed = run(tmp_path / "b", source=source)
    assert_same_bits(found, expected)
    # Epoch metrics cover the complete epoch, including the steps of the earlier process.
    for name, values in resumed.history.items():
        assert values == history.history[name][-len(values) :]
    assert not (tmp_path / "b" / "backup").exists()


def test_last_step_of_an_epoch(tmp_path):
    expected, history = run(tmp_path / "a")
    assert run(tmp_path / "b", 6) is None
    found, resumed = run(tmp_path / "b")
    assert_same_bits(found, expected)
    assert resumed.epoch == [0, 1, 2]
    np.testing.assert_allclose(resumed.history["loss"], history.history["loss"])


@pytest.mark.parametrize("save_freq", ["epoch", 4])
def test_steps_since_the_backup_are_done_again(tmp_path, save_freq):
    expected, _ = run(tmp_path / "a", save_freq=save_freq)
    assert run(tmp_path / "b", 9, save_freq=save_freq) is None
    found, resumed = run(tmp_path / "b", save_freq=save_freq)
    assert_same_bits(found, expected)
    assert resumed.epoch == [1, 2]


@pytest.mark.parametrize(
    "arguments", [{"built": False, "large": True}, {"steps_per_execution": 2}], ids=str
)
def test_kinds_of_models(tmp_path, arguments):
    expected, _ = run(tmp_path / "a", **arguments)
    assert run(tmp_path / "b", 3, **arguments) is None
    assert_same_bits(run(tmp_path / "b", **arguments)[0], expected)


def test_in_the_scope_of_a_strategy(tmp_path):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        expected, _ = run(tmp_path / "a")
        assert run(tmp_path / "b", 3) is None
        assert_same_bits(run(tmp_path / "b")[0], expected)


def test_preserved_backup_and_finished_training(tmp_path):
    fresh_process()
    model = make_model()
    backup = tf.keras.callbacks.experimental.BackupAndRestore(tmp_path, delete_checkpoint=False)
    model.fit(**from_arrays(), epochs=2, verbose=0, callbacks=[backup])
    assert (tmp_path / "backup.index").exists()
    again = model.fit(**from_arrays(), epochs=2, verbose=0, callbacks=[backup])
    assert again.epoch == []
    keys = [key for key, _ in tf.train.list_variables(str(tmp_path / "backup"))]
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in keys


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="Empty `backup_dir`"):
        tf.keras.callbacks.BackupAndRestore("")
    for wrong in ("batch", 0, 1.5, None):
        with pytest.raises(ValueError, match="save_freq"):
            tf.keras.callbacks.BackupAndRestore(tmp_path, save_freq=wrong)
    with pytest.raises(ValueError, match="save_before_preemption"):
        tf.keras.callbacks.BackupAndRestore(tmp_path, save_freq=False)


def test_terminated_process_saves_first(tmp_path):
    class Tell(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    expected, _ = run(tmp_path / "a")
    fresh_process()
    backup = tf.keras.callbacks.BackupAndRestore(
        tmp_path / "b", save_freq=False, save_before_preemption=True
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="143"):
            make_model().fit(**from_arrays(), epochs=3, verbose=0, callbacks=[backup, Tell()])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert_same_bits(run(tmp_path / "b")[0], expected)
