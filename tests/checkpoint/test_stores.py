"""Checkpoints and saved models in stores: the memory's, and a server that speaks S3."""

import jax
import pytest

import meshflow as tf
import stores
from meshflow import train
from meshflow.checkpoint import array_folder, bundle_writer
from meshflow.checkpoint.bundle import BundleReader
from meshflow.checkpoint.formats import is_checkpoint
from meshflow.files import gfile


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server of this machine."""
    with stores.s3() as address:
        yield address


@pytest.fixture(params=["memory", "s3"])
def place(request, bucket, tmp_path, monkeypatch):
    """A folder in a store; the working folder stays empty."""
    monkeypatch.chdir(tmp_path)
    yield stores.memory() if request.param == "memory" else f"{bucket}/{tmp_path.name}"
    assert not list(tmp_path.iterdir())


def test_manager_keeps_the_latest_checkpoints(place):
    v = tf.Variable(0.0)
    checkpoint = train.Checkpoint(v=v)
    manager = train.CheckpointManager(checkpoint, place, 2)
    for i in range(3):
        v.assign(float(i))
        manager.save()
    assert manager.checkpoints == [f"{place}/ckpt-2", f"{place}/ckpt-3"]
    assert sorted(gfile.listdir(place)) == [
        "checkpoint",
        *(n + e for n in ("ckpt-2", "ckpt-3") for e in (".data-00000-of-00001", ".index")),
    ]
    assert train.latest_checkpoint(place) == f"{place}/ckpt-3"
    assert next(train.checkpoints_iterator(place)) == f"{place}/ckpt-3"
    v.assign(9.0)
    later = train.CheckpointManager(checkpoint, place, 2)
    assert later.restore_or_initialize() == f"{place}/ckpt-3" and float(v) == 2
    v.assign(5.0)
    checkpoint.write(f"{place}/ckpt-3")
    assert train.load_variable(f"{place}/ckpt-3", "v") == 5
    assert ("v/.ATTRIBUTES/VARIABLE_VALUE", []) in train.list_variables(place)


def test_interrupted_write_preserves_the_previous_checkpoint(monkeypatch):
    place = stores.memory()
    v = tf.Variable(1.0)
    checkpoint = train.Checkpoint(v=v, more=tf.Variable(2.0))
    manager = train.CheckpointManager(checkpoint, place, 1)
    manager.save()
    real, left = bundle_writer._DataFileWriter.write, [2]

    def dying(*arguments):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(bundle_writer._DataFileWriter, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        manager.save()
    monkeypatch.undo()
    assert train.latest_checkpoint(place) == f"{place}/ckpt-1"
    assert not is_checkpoint(f"{place}/ckpt-2")


def test_arrays_split_over_devices(monkeypatch):
    place = stores.memory()
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x")
    )
    for dtype in ("float32", "bfloat16"):
        value = jax.device_put(jax.numpy.arange(8, dtype=dtype), sharding)
        array_folder.write_folder(f"{place}/a", {"00000": ("a", value)})
        bundle_writer.write_bundle(f"{place}/c", {"a": value})
        for stored in (array_folder.ArrayFolder(f"{place}/a"), BundleReader(f"{place}/c")):
            found = stored.open("a")
            assert found.dtype == value.dtype and found[:].tolist() == list(range(8))
    monkeypatch.setattr(type(value), "is_fully_addressable", property(lambda _: False))
    for write in (
        lambda: array_folder.write_folder(f"{place}/b", {"00000": ("a", value)}),
        lambda: bundle_writer.write_bundle(f"{place}/b", {"a": value}),
    ):
        with pytest.raises(tf.errors.UnimplementedError, match="folder that all processes share"):
            write()


def test_saved_models():
    place = stores.memory()
    module = tf.Module()
    module.v = tf.Variable([1.0, 2.0])
    module.double = tf.function(
        lambda x: 2 * x * module.v, input_signature=[tf.TensorSpec([2], "float32")]
    )
    tf.io.write_file(f"{place}/model/notes.txt", "tea")
    for value in (1.0, 3.0):
        module.v.assign([value, value])
        tf.saved_model.save(module, f"{place}/model")
        assert tf.saved_model.contains_saved_model(f"{place}/model")
        loaded = tf.saved_model.load(f"{place}/model")
        assert loaded.double([1.0, 1.0]).numpy().tolist() == [2 * value] * 2
    assert gfile.listdir(place) == ["model"]
    assert tf.io.read_file(f"{place}/model/notes.txt").numpy() == b"tea"


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcs"), ("hdfs", "remote")])
def test_a_missing_driver_is_named(scheme, extra, monkeypatch, tmp_path):
    import fsspec

    monkeypatch.chdir(tmp_path)

    def absent(*_, **__):
        raise ImportError("no driver")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    path = f"{scheme}://bucket/a"
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    attempts = (
        lambda: train.Checkpoint(v=tf.Variable(1.0)).save(path),
        lambda: train.latest_checkpoint(path),
        lambda: tf.saved_model.save(tf.Module(), path),
        lambda: model.save(f"{path}.keras"),
        lambda: model.save(f"{path}.h5"),
        lambda: model.save_weights(path),
        lambda: model.load_weights(f"{path}.weights.h5"),
        lambda: tf.keras.models.load_model(path),
        lambda: tf.summary.create_file_writer(path),
        lambda: tf.profiler.experimental.start(path),
        lambda: model.fit(
            *([[1.0]], [[1.0]]),
            callbacks=[tf.keras.callbacks.BackupAndRestore(path)],
        ),
    )
    model.compile("sgd", "mse")
    for attempt in attempts:
        with pytest.raises(tf.errors.UnimplementedError, match=rf"meshflow-tf\[{extra}\]"):
            attempt()
    assert not list(tmp_path.iterdir())
