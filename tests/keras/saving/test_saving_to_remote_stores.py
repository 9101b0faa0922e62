"""Models, weights, backups, logs and caches in stores: the memory's, and a server that speaks S3."""

import numpy as np
import pytest

import meshflow as tf
import stores
from meshflow.files import gfile

LAYERS = tf.keras.layers


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server of this machine."""
    with stores.s3() as address:
        yield address


@pytest.fixture(params=["memory", "s3"])
def place(request, bucket, tmp_path):
    """A folder in a store."""
    return stores.memory() if request.param == "memory" else f"{bucket}/{tmp_path.name}"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A folder in the memory's store; the working folder stays empty."""
    monkeypatch.chdir(tmp_path)
    yield stores.memory()
    assert not list(tmp_path.iterdir())


def make_model(scale=1.0):
    model = tf.keras.Sequential([LAYERS.Dense(3, "relu", input_shape=(2,)), LAYERS.Dense(1)])
    model.compile("adam", "mse")
    model.set_weights([np.full(w.shape, scale, "float32") for w in model.get_weights()])
    return model


X = np.ones([4, 2], "float32")


@pytest.mark.parametrize("name", ["new/model.keras", "model.h5", "model"])
def test_models(memory, name):
    path = f"{memory}/{name}"
    for scale in (1.0, 2.0):
        model = make_model(scale)
        model.save(path)
        loaded = tf.keras.models.load_model(path)
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
        assert loaded.optimizer is not None
    with pytest.raises(FileExistsError):
        model.save(path, overwrite=False)
    with pytest.raises(OSError, match="nowhere"):
        tf.keras.models.load_model(f"{memory}/nowhere.keras")
    tf.io.write_file(f"{memory}/bad.h5", "tea")
    with pytest.raises(OSError, match=rf"{memory}/bad\.h5 is no HDF5 file"):
        tf.keras.models.load_model(f"{memory}/bad.h5")


@pytest.mark.parametrize("name", ["a.weights.h5", "a.h5", "a", "new/folder/a"])
def test_weights(memory, name):
    for scale in (1.0, 2.0):
        make_model(scale).save_weights(f"{memory}/{name}")
        loaded = make_model(0.0)
        loaded.load_weights(f"{memory}/{name}")
        assert all((w == scale).all() for w in loaded.get_weights())
    with pytest.raises((FileNotFoundError, tf.errors.NotFoundError), match="nowhere"):
        loaded.load_weights(f"{memory}/nowhere.h5")


def test_a_model_on_a_server(place):
    make_model(3.0).save(f"{place}/model.keras")
    loaded = tf.keras.models.load_model(f"{place}/model.keras")
    assert all((w == 3).all() for w in loaded.get_weights())
    assert gfile.listdir(place) == ["model.keras"]


class Stop(tf.keras.callbacks.Callback):
    """Simulate the death of the process."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_backups(place):
    seen = []
    backup = lambda: tf.keras.callbacks.BackupAndRestore(f"{place}/backup")
    note = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: seen.append(epoch))
    with pytest.raises(KeyboardInterrupt):
        make_model().fit(X, X[:, 0], epochs=4, verbose=0, callbacks=[backup(), note, Stop()])
    assert gfile.exists(f"{place}/backup/backup.index")
    model = make_model()
    model.fit(X, X[:, 0], epochs=4, verbose=0, callbacks=[backup(), note])
    assert seen == [0, 1, 2, 2, 3]
    assert not gfile.exists(f"{place}/backup/backup.index")
    whole = make_model()
    whole.fit(X, X[:, 0], epochs=4, verbose=0)
    for mine, theirs in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_datasets(place):
    tf.data.Dataset.range(5).save(f"{place}/data")
    tf.data.Dataset.range(7).save(f"{place}/data")
    assert [int(x) for x in tf.data.Dataset.load(f"{place}/data")] == list(range(7))
    cached = tf.data.Dataset.range(3).cache(f"{place}/cache/a")
    assert [int(x) for _ in range(2) for x in cached] == [0, 1, 2, 0, 1, 2]


def test_callbacks(memory):
    kept = tf.keras.callbacks.ModelCheckpoint
    again = kept(f"{memory}/w", save_weights_only=True, load_weights_on_restart=True)
    callbacks = [
        kept(f"{memory}/models/{{epoch}}.keras"),
        again,
        tf.keras.callbacks.CSVLogger(f"{memory}/logs/a.csv"),
        tf.keras.callbacks.TensorBoard(f"{memory}/board"),
    ]
    make_model().fit(X, X[:, 0], epochs=2, verbose=0, callbacks=callbacks)
    assert sorted(gfile.listdir(f"{memory}/models")) == ["1.keras", "2.keras"]
    with gfile.GFile(f"{memory}/logs/a.csv") as file:
        assert len(file.readlines()) == 3
    (events,) = gfile.glob(f"{memory}/board/train/events*")
    assert len(list(tf.data.TFRecordDataset(events))) > 3
    trained = make_model(0.0)
    again.set_model(trained)
    again.on_train_begin()
    assert any(w.any() for w in trained.get_weights())


def test_profiles(memory):
    with tf.profiler.experimental.Profile(memory):
        tf.reduce_sum(tf.ones([8])).numpy()
    assert len(gfile.glob(f"{memory}/plugins/profile/*/*.xplane.pb")) == 1


def test_downloads_are_stored_on_disk(memory):
    with pytest.raises(ValueError, match=r"cache_dir='memory://.* is in a store"):
        tf.keras.utils.get_file("a.txt", "https://example.org/a.txt", cache_dir=memory)
