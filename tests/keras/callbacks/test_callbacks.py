import csv
import importlib
import os
import pathlib
import pickle

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import callbacks, layers


def model(rate=0.1):
    made = tf.keras.Sequential([layers.Dense(1, input_shape=(2,), kernel_initializer="zeros")])
    made.compile(tf.keras.optimizers.SGD(rate), "mse")
    return made


X, Y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)


def test_hooks_are_called_in_order():
    calls = []

    class Recorder(callbacks.Callback):
        def __getattribute__(self, name):
            if name.startswith("on_") and "batch" not in name:
                return lambda *a: calls.append(name)
            return super().__getattribute__(name)

    model().fit(X, Y, verbose=0, validation_data=(X, Y), callbacks=[Recorder()])
    assert calls == [
        "on_train_begin",
        "on_epoch_begin",
        "on_test_begin",
        "on_test_end",
        "on_epoch_end",
        "on_train_end",
    ]


def test_batch_logs_are_numbers():
    seen = []
    model().fit(
        X,
        Y,
        batch_size=4,
        verbose=0,
        callbacks=[
            callbacks.LambdaCallback(on_batch_end=lambda b, logs: seen.append((b, logs["loss"])))
        ],
    )
    assert [b for b, _ in seen] == [0, 1] and all(isinstance(v, float) for _, v in seen)


@pytest.mark.parametrize(("patience", "epochs", "stopped"), [(2, 4, 3), (5, 5, 0)])
def test_early_stopping_restores_the_best_weights(patience, epochs, stopped):
    values = iter([3.0, 1.0, 2.0, 2.0, 2.0])
    m = model()
    weights = []

    class Fake(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = next(values)
            weights.append(self.model.get_weights())

    stop = callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
    history = m.fit(X, Y, epochs=5, verbose=0, callbacks=[Fake(), stop])
    assert len(history.history["loss"]) == epochs and stop.stopped_epoch == stopped
    assert_close(m.get_weights()[0], weights[1][0])
    with pytest.warns(UserWarning, match="val_loss"):
        model().fit(X, Y, verbose=0, callbacks=[callbacks.EarlyStopping()])


def test_learning_rate_callbacks():
    m = model()
    history = m.fit(
        X,
        Y,
        epochs=2,
        verbose=0,
        callbacks=[callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5)],
    ).history
    assert_close(history["lr"], [0.05, 0.025])
    m = model(0.0)
    m.fit(
        X,
        Y,
        epochs=4,
        verbose=0,
        callbacks=[callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5)],
    )
    m = model(0.4)
    m.optimizer.learning_rate = 1e-9
    m.fit(
        X,
        Y,
        epochs=3,
        verbose=0,
        callbacks=[callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5)],
    )
    assert float(m.optimizer.learning_rate) < 1e-9


def test_checkpoints(tmp_path):
    m = model()
    path = os.path.join(tmp_path, "{epoch:02d}-{loss:.2f}.h5")
    m.fit(
        X,
        Y,
        epochs=2,
        verbose=0,
        callbacks=[callbacks.ModelCheckpoint(path, save_weights_only=True, monitor="loss")],
    )
    assert sorted({f[:2] for f in os.listdir(tmp_path)} - {"ch"}) == ["01", "02"]
    best = os.path.join(tmp_path, "best.keras")
    m.fit(
        X,
        Y,
        epochs=3,
        verbose=0,
        callbacks=[callbacks.ModelCheckpoint(best, save_best_only=True, monitor="loss")],
    )
    assert_close(tf.keras.models.load_model(best).get_weights()[0], m.get_weights()[0])
    steps = callbacks.ModelCheckpoint(
        os.path.join(tmp_path, "step"), save_weights_only=True, save_freq=2
    )
    m.fit(X, Y, batch_size=2, verbose=0, callbacks=[steps])
    assert os.path.exists(tmp_path / "step.index")


@pytest.mark.nan_expected
def test_csv_logger_and_nan(tmp_path, capsys):
    path = tmp_path / "log.csv"
    model().fit(X, Y, epochs=2, verbose=0, callbacks=[callbacks.CSVLogger(path)])
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [r["epoch"] for r in rows] == ["0", "1"] and float(rows[0]["loss"]) > 0
    bad = X.copy()
    bad[0, 0] = np.nan
    history = (
        model().fit(bad, Y, epochs=5, verbose=0, callbacks=[callbacks.TerminateOnNaN()]).history
    )
    assert len(history["loss"]) == 1 and "Invalid loss" in capsys.readouterr().out


def test_utilities(tmp_path):
    assert tf.keras.utils.to_categorical([1, 0], 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert tf.keras.utils.pad_sequences([[1], [1, 2, 3]], maxlen=2).tolist() == [[0, 1], [2, 3]]
    source = tmp_path / "data.txt"
    source.write_text("hello")
    path = tf.keras.utils.get_file(
        "x.txt",
        origin=source.as_uri(),
        cache_dir=tmp_path / "cache",
        md5_hash="5d41402abc4b2a76b9719d911017c592",
    )
    assert pathlib.Path(path).read_text() == "hello"
    with pytest.raises(ValueError, match="checksum"):
        tf.keras.utils.get_file(
            "y.txt", origin=source.as_uri(), cache_dir=tmp_path / "cache", md5_hash="0" * 32
        )
    with pytest.raises(OSError, match=r"(?s)127.0.0.1.*cache"):
        tf.keras.utils.get_file("z", origin="http://127.0.0.1:9/z", cache_dir=tmp_path / "cache")


def test_the_end_of_training_sees_the_last_epochs_logs():
    seen = {}
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    end = tf.keras.callbacks.LambdaCallback(on_train_end=seen.update)
    history = model.fit(x, y, epochs=2, validation_data=(x, y), verbose=0, callbacks=[end])
    assert seen == {name: values[-1] for name, values in history.history.items()}


def test_a_checkpoint_is_taken_up_again(tmp_path):
    path = tmp_path / "model.h5"
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    def train():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile(tf.keras.optimizers.SGD(0.0), "mse")
        save = tf.keras.callbacks.ModelCheckpoint(path, load_weights_on_restart=True)
        model.fit(x, y, verbose=0, callbacks=[save])
        return model.get_weights()

    for one, other in zip(train(), train(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_cooldown_of_a_reduced_rate():
    callback = tf.keras.callbacks.ReduceLROnPlateau(epsilon=1e-3)
    assert callback.min_delta == 1e-3
    assert not callback.in_cooldown()
    callback.cooldown_counter = 1
    assert callback.in_cooldown()


def test_monitoring_callbacks_are_pickled_and_warn_at_their_creation():
    for cls in (callbacks.EarlyStopping, callbacks.ReduceLROnPlateau):
        with pytest.warns(UserWarning, match="mode best is unknown") as warned:
            callback = pickle.loads(pickle.dumps(cls(mode="best")))
        assert warned[0].filename == __file__
        assert callback.monitor_op(1.0, 2.0) and not callback.monitor_op(2.0, 1.0)


def test_logs_are_always_dictionaries():
    kinds = set()

    class Recorder(tf.keras.callbacks.Callback):
        pass

    for name in [n for n in dir(tf.keras.callbacks.Callback) if n.startswith("on_")]:
        setattr(Recorder, name, lambda self, *args, logs=None: kinds.add(type((*args, logs)[-2])))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones([4, 2], np.float32)
    model.fit(x, x[:, :1], verbose=0, validation_split=0.5, callbacks=[Recorder()])
    model.evaluate(x, x[:, :1], verbose=0, callbacks=[Recorder()])
    model.predict(x, verbose=0, callbacks=[Recorder()])
    assert kinds == {dict}


def test_callback_list_accepts_keywords():
    seen = []

    class Record(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append((epoch, logs))

        def on_train_begin(self, logs=None):
            seen.append(logs)

    callbacks = tf.keras.callbacks.CallbackList([Record()])
    callbacks.on_epoch_begin(1, logs={"a": 1})
    callbacks.on_epoch_begin(epoch=2, logs={"a": 2})
    callbacks.on_epoch_begin(3, {"a": 3})
    callbacks.on_train_begin(logs={"b": 1})
    callbacks.on_train_begin()
    assert seen == [(1, {"a": 1}), (2, {"a": 2}), (3, {"a": 3}), {"b": 1}, {}]


def test_callbacks_decide_about_their_batch_hooks():
    class Counter(callbacks.Callback):
        def __init__(self, is_called):
            super().__init__()
            self.is_called, self.count = is_called, 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1

        def _implements_train_batch_hooks(self):
            return self.is_called

    counters = [Counter(True), Counter(False)]
    model().fit(X, Y, batch_size=4, verbose=0, callbacks=counters)
    assert [counter.count for counter in counters] == [2, 0]
    assert not callbacks.CallbackList(counters)._batch_hooks_support_tf_logs
    assert callbacks.CallbackList([callbacks.ProgbarLogger()])._batch_hooks_support_tf_logs


def test_assigned_functions_replace_the_steps():
    def run(iterator):
        features, *_ = next(iterator)
        return {"loss": tf.reduce_sum(features)}

    class Assign(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.train_function = self.model.test_function = run
            self.model.predict_function = lambda iterator: next(iterator) + 1

    made = model()
    history = made.fit(X, Y, epochs=2, verbose=0, callbacks=[Assign()])
    assert history.history["loss"] == [1.0, 16.0]
    assert made.evaluate(X, Y, verbose=0) == 16.0
    assert_close(made.predict(X, verbose=0), X + 1)
    assert made.train_on_batch(X, Y) == made.test_on_batch(X, Y) == 16.0
    assert_close(made.predict_on_batch(X), X + 1)
    made.compile("sgd", "mse")
    assert made.evaluate(X, Y, verbose=0) < 1.0


def test_arguments_of_checkpoints_and_former_names(tmp_path, caplog):
    path = tmp_path / "w_{epoch}.h5"
    path.with_name("w_3.h5").touch()
    unnamed = callbacks.ModelCheckpoint(None)
    found = unnamed._get_most_recently_modified_file_matching_pattern(str(path))
    assert found == str(tmp_path / "w_3.h5")
    options = tf.saved_model.SaveOptions()
    with pytest.raises(TypeError, match=r"tf\.train\.CheckpointOptions"):
        callbacks.ModelCheckpoint(path, save_weights_only=True, options=options)
    callbacks.experimental.BackupAndRestore(tmp_path)
    assert "endpoint is deprecated" in caplog.text


def test_slow_batch_hooks_are_named_once(monkeypatch, caplog):
    module = importlib.import_module("meshflow.keras.engine.training.callbacks")
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    class Waiting(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] += 3.0

    for own in ([Waiting()], [tf.keras.callbacks.ProgbarLogger()]):
        callbacks = tf.keras.callbacks.CallbackList(own, verbose=0)
        caplog.clear()
        for batch in range(12):
            callbacks.on_train_batch_begin(batch)
            now[0] += 100.0 if batch == 0 else 1.0  # the first step is compiled
            callbacks.on_train_batch_end(batch)
        messages = [r.getMessage() for r in caplog.records]
        assert len(messages) == isinstance(own[0], Waiting)
    callbacks = tf.keras.callbacks.CallbackList([Waiting()], verbose=0)
    for batch in range(6):
        callbacks.on_train_batch_begin(batch)
        now[0] += 1.0
        callbacks.on_train_batch_end(batch)
    assert (
        "method `on_train_batch_end` is slow compared to the batch time (batch time: 1.0000s vs"
        in caplog.text
    )


def test_verbose_2_calls_no_batch_hooks_and_counts_steps(capsys):
    made = model()
    for verbose in (1, 2):
        lists = tf.keras.callbacks.CallbackList(add_progbar=True, model=made, verbose=verbose)
        assert lists.has_batch_hooks("train") == lists.has_batch_hooks("test") == (verbose == 1)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3).filter(lambda x, y: True)
    made.fit(data, epochs=2, verbose=2, validation_data=data)
    made.evaluate(data, verbose=2)
    made.predict(data, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" - ")[0] for line in lines if line[0] != "E"] == ["3/3"] * 4
