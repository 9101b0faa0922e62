"""Test `tf.keras.export`, `Model.export` and layers of SavedModels."""

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


def test_archives_track_all_trackable_objects(tmp_path):
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


def test_endpoints_of_other_endpoints_and_calls_by_name(tmp_path, capsys):
    words = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0])
    table = tf.lookup.StaticHashTable(words, -1.0)
    layer = tf.keras.layers.MultiHeadAttention(2, 2)
    x, y = (tf.constant(np.arange(12.0).reshape(2, 3, 2) + k, tf.float32) / 9 for k in (0, 5))
    expected = layer(x, y)
    archive = tf.keras.export.ExportArchive()
    spec = tf.keras.layers.InputSpec(shape=(None, 3, 2), dtype="float32")
    attend = archive.track_and_add_endpoint("attend", layer, [spec, spec], jax2tf_kwargs={})
    archive.track(table)
    with pytest.raises(TypeError, match=r"unknown arguments \['shape'\] for endpoint 'other'"):
        archive.add_endpoint("other", layer.call, [spec, spec], shape=3)

    def named(text):
        values = tf.reshape(table.lookup(text), [-1, 3, 2])
        return attend(values, values)

    archive.add_endpoint("named", named, [tf.TensorSpec([None, 6], tf.string)])
    archive.write_out(tmp_path / "a")
    assert "endpoints are available: 'attend', 'named'" in capsys.readouterr().out
    loaded = tf.saved_model.load(tmp_path / "a")
    np.testing.assert_allclose(loaded.attend(query=x, value=y), expected, atol=1e-6)
    letters = tf.constant([["a", "b", "a", "c", "b", "a"]])
    numbers = tf.constant([[[1.0, 2.0], [1.0, -1.0], [2.0, 1.0]]])
    np.testing.assert_allclose(loaded.named(letters), layer(numbers, numbers), atol=1e-6)


class TwoInputs(tf.keras.Model):
    """Model of two positional tensors and one by keyword; its `build` receives the shapes
    of the first two."""

    def build(self, y_shape, x_shape):
        self.weight = self.add_weight("w", [y_shape[-1], x_shape[-1]], initializer="ones")

    def call(self, x, y, *, scale=None, training=False):
        value = x + tf.matmul(y, self.weight) + (1.0 if training else 0.0)
        return value if scale is None else value * scale


def test_specs_that_a_subclass_sets_precede_those_of_its_calls():
    class Encoder(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self._set_save_spec({"ids": tf.TensorSpec([None, None], tf.int32)})

        def build(self, input_shape=None):
            self.built = True

        def call(self, inputs):
            return tf.cast(inputs["ids"], tf.float32) * 2

    model = Encoder()
    model({"ids": tf.constant([[1, 2]])})
    (spec,), named = model.save_spec()
    assert spec == {"ids": tf.TensorSpec([None, None], tf.int32, name="ids")} and not named


def test_models_of_several_arguments(tmp_path):
    model, y, scale = TwoInputs(), X[:, :2], tf.constant(3.0)
    assert model.save_spec() is None
    expected = model(X, y, scale=scale)
    specs, named = model.save_spec()
    assert [s.shape.as_list() for s in specs] == [[None, 3], [None, 2]]
    assert list(named) == ["scale"] and specs[0].name == "input_1"
    assert [s.shape.as_list() for s in model.save_spec(dynamic_batch=False)[0]] == [[2, 3], [2, 2]]
    model.save(tmp_path / "saved", save_format="tf")
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded(X, y, scale=scale), expected, rtol=1e-6)
    trained = loaded(X[:1], y[:1], scale=scale, training=True)
    np.testing.assert_allclose(trained, expected[:1] + 3, rtol=1e-6)
    served = loaded.signatures["serving_default"](input_1=X, y=y, scale=scale)
    np.testing.assert_allclose(served["output_1"], expected, rtol=1e-6)
    restored = tf.keras.models.load_model(tmp_path / "saved")
    np.testing.assert_allclose(restored(X, y, scale=scale), expected, rtol=1e-6)


def test_saved_calls_accept_inputs_after_the_cast():
    class Line(tf.keras.Model):
        def call(self, x):
            return x

    model = Line()
    model(tf.ones([2, 3], tf.float64))
    assert model.save_spec()[0][0].dtype == tf.float32


@tf.keras.utils.register_keras_serializable("exported")
class GraphWithConstructor(tf.keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_graphs_of_classes_with_a_constructor(tmp_path):
    inputs = tf.keras.Input([3])
    model = GraphWithConstructor(inputs, tf.keras.layers.Dense(2)(inputs))
    model.save(tmp_path / "saved")
    loaded = tf.keras.models.load_model(tmp_path / "saved")
    assert type(loaded) is GraphWithConstructor
    np.testing.assert_array_equal(loaded(X), model(X))


def test_requested_signatures(model, tmp_path):
    fixed = [tf.keras.layers.InputSpec(shape=(2, 3), dtype="float32", name="pixels")]
    model.export(tmp_path / "fixed", input_signature=fixed, verbose=False)
    loaded = tf.saved_model.load(tmp_path / "fixed")
    (spec,) = loaded.signatures["serve"].structured_input_signature[1].values()
    assert spec.shape.as_list() == [2, 3] and spec.name == "pixels"
    np.testing.assert_allclose(loaded.serve(X), model(X), rtol=1e-6)
    for given in (tf.keras.Input([3]), tf.constant(X)):
        model.export(tmp_path / "other", input_signature=[given], verbose=False)
        np.testing.assert_allclose(tf.saved_model.load(tmp_path / "other").serve(X), model(X))
    with pytest.raises(TypeError, match=r"Unsupported x=123 \(of type int\)"):
        model.export(tmp_path / "none", input_signature=(123,))
    with pytest.raises(ValueError, match="needs a shape"):
        model.export(tmp_path / "none", input_signature=[tf.keras.layers.InputSpec(ndim=2)])
    with pytest.raises(TypeError, match="unknown arguments for a SavedModel: other"):
        model.export(tmp_path / "none", other=1)
    with pytest.raises(ValueError, match="It must be built"):
        tf.keras.Sequential([tf.keras.layers.Dense(2)]).export(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_litert(model, tmp_path):
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "m.tflite"
    model.export(path, format="litert", optimizations=[], target_spec={"supported_types": []})
    run = tf.lite.Interpreter(str(path)).get_signature_runner()
    (name,) = run.get_input_details()
    (found,) = run(**{name: X}).values()
    np.testing.assert_allclose(found, model(X), rtol=1e-6)
    with pytest.raises(ValueError, match=r"ends with '\.tflite', got '.*m\.txt'"):
        model.export(tmp_path / "m.txt", format="litert")
    for wrong, name in (
        ({"shape": 3}, "converter attribute 'shape'"),
        ({"target_spec": {"x": 1}}, "target_spec attribute 'x'"),
    ):
        with pytest.raises(ValueError, match=f"unknown {name}"):
            model.export(tmp_path / "n.tflite", format="litert", **wrong)
    assert not (tmp_path / "n.tflite").exists()


def test_layers_of_saved_models(model, folder):
    layer = tf.keras.layers.TFSMLayer(folder)
    np.testing.assert_allclose(layer(X), model(X), rtol=1e-6)
    assert len(layer.trainable_weights) == 2 and not layer.non_trainable_weights
    signature = tf.keras.layers.TFSMLayer(folder, call_endpoint="serving_default")
    (given,) = signature(tf.constant(X)).values()
    np.testing.assert_allclose(given, model(X), rtol=1e-6)
    with pytest.raises(ValueError, match=r"The endpoint 'other' is not in.*'serve'"):
        tf.keras.layers.TFSMLayer(folder, call_endpoint="other")
    config = layer.get_config()
    with pytest.raises(ValueError, match="read that folder"):
        tf.keras.layers.TFSMLayer.from_config(config)
    again = tf.keras.layers.TFSMLayer.from_config(config, safe_mode=False)
    np.testing.assert_allclose(again(X), model(X), rtol=1e-6)

    trained = tf.keras.Sequential([tf.keras.Input([3]), layer, tf.keras.layers.Dense(1)])
    trained.compile("sgd", "mse")
    before = layer.trainable_weights[0].numpy()
    trained.fit(X, np.ones([2, 1]), verbose=0)
    assert not np.array_equal(before, layer.trainable_weights[0].numpy())
