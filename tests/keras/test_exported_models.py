"""`tf.keras.export`, `Model.export` and layers made of SavedModels."""

import numpy as np
import pytest

import meshflow as tf

X = np.float32([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0]])


@pytest.fixture(scope="module")
def model():
    return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)], name="m")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("exported"))
    model.export(path)
    return path


def test_served(model, folder):
    loaded = tf.saved_model.load(folder)
    np.testing.assert_allclose(loaded.serve(X), model(X), rtol=1e-6)
    assert set(loaded.signatures) == {"serve", "serving_default"}


def test_archives_track_whatever_checkpoints_hold(tmp_path):
    rows = tf.lookup.KeyValueTensorInitializer([3, 5], [30, 50])
    tables = [tf.lookup.StaticHashTable(rows, -1)]
    tables.append(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1))
    factor = tf.Variable(7.0)
    archive = tf.keras.export.ExportArchive()
    for resource in (*tables, factor, tf.train.Checkpoint(), tf.keras.optimizers.SGD()):
        archive.track(resource)
    archive.add_endpoint("scale", lambda x: x * factor, [tf.TensorSpec([None])])
    archive.write_out(str(tmp_path / "a"))
    loaded = tf.saved_model.load(str(tmp_path / "a"))
    assert loaded.scale(tf.constant([5.0, 4.0])).numpy().tolist() == [35, 28]


def test_archive(model, tmp_path):
    archive = tf.keras.export.ExportArchive()
    with pytest.raises(ValueError, match="No endpoints have been set yet"):
        archive.write_out(str(tmp_path / "a"))
    with pytest.raises(ValueError, match="Invalid resource type"):
        archive.track(3)
    with pytest.raises(ValueError, match="must be built before it is tracked"):
        archive.track(tf.keras.layers.Dense(2))
    with pytest.raises(ValueError, match="Invalid resource type"):
        archive.track([model])
    archive.track(model)
    assert len(archive.trainable_variables) == 2 and not archive.non_trainable_variables
    spec = tf.TensorSpec([None, 3], "float32")
    archive.add_endpoint("call", model.__call__, [spec])
    with pytest.raises(ValueError, match="'call' is already taken"):
        archive.add_endpoint("call", model.__call__, [spec])
    with pytest.raises(ValueError, match="must provide an `input_signature`"):
        archive.add_endpoint("twice", lambda x: 2 * x)
    with pytest.raises(ValueError, match="has never been called"):
        archive.add_endpoint("twice", tf.function(lambda x: 2 * x))
    twice = tf.function(lambda x: 2.0 * model(x), input_signature=[spec])
    archive.add_endpoint("twice", twice)
    with pytest.raises(ValueError, match="to be a list/tuple/set"):
        archive.add_variable_collection("own", 3)
    archive.add_variable_collection("own", model.variables)
    archive.write_out(str(tmp_path / "a"))
    loaded = tf.saved_model.load(str(tmp_path / "a"))
    np.testing.assert_allclose(loaded.twice(X), 2 * model(X), rtol=1e-6)
    assert set(loaded.signatures) == {"call", "twice", "serving_default"}
    np.testing.assert_allclose(
        loaded.signatures["call"](tf.constant(X))["output_0"], model(X), rtol=1e-6
    )
    assert len(loaded.own) == len(loaded.variables) == 2


def test_layers_of_saved_models(model, folder):
    layer = tf.keras.layers.TFSMLayer(folder)
    np.testing.assert_allclose(layer(X), model(X), rtol=1e-6)
    assert len(layer.trainable_weights) == 2 and not layer.non_trainable_weights
    signature = tf.keras.layers.TFSMLayer(folder, call_endpoint="serving_default")
    (given,) = signature(tf.constant(X)).values()
    np.testing.assert_allclose(given, model(X), rtol=1e-6)
    with pytest.raises(ValueError, match=r"no endpoint 'other'.*'serve'"):
        tf.keras.layers.TFSMLayer(folder, call_endpoint="other")
    config = layer.get_config()
    with pytest.raises(ValueError, match="read that folder"):
        tf.keras.layers.TFSMLayer.from_config(config)
    with tf.keras.saving.custom_object_scope({}):
        assert config["filepath"] == folder

    trained = tf.keras.Sequential([tf.keras.Input([3]), layer, tf.keras.layers.Dense(1)])
    trained.compile("sgd", "mse")
    before = layer.trainable_weights[0].numpy()
    trained.fit(X, np.ones([2, 1]), verbose=0)
    assert not np.array_equal(before, layer.trainable_weights[0].numpy())
