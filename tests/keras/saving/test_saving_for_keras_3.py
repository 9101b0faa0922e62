"""Files that are written in the form of Keras 3 (`keras_version=3`); `tests/exchange` reads them in Keras 3 itself."""

import json
import zipfile

import h5py
import numpy as np
import pytest

import meshflow as tf

L, ops = tf.keras.layers, tf.keras.ops
X = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")


def made(function, path):
    tf.keras.backend.reset_uids()
    x = tf.keras.Input([6, 4], name="x")
    model = tf.keras.Model(x, function(x), name="m")
    model.save(path, keras_version=3)
    return model


def config_of(path):
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("metadata.json"))["keras_version"].startswith("3.")
        return json.loads(archive.read("config.json"))


def inside(layers, x):
    first = tf.keras.Input([6, 4])
    return tf.keras.Model(first, layers.Dense(3)(first), name="inner")(x)


CASES = {
    "attention": lambda x: L.MultiHeadAttention(2, 3)(x, x),
    "a model inside": lambda x: inside(L, x),
    "states": lambda x: L.LSTM(4)(x, initial_state=[x[:, 0], x[:, 1]]),
    "both directions": lambda x: L.Bidirectional(L.GRU(3))(x),
    "one activation": lambda x: L.Dense(3, activation=ops.hard_sigmoid)(x),
    "another": lambda x: L.Dense(3, activation="log_softmax")(x),
    "numbers": lambda x: 1 - x * np.float32([1, 2, 3, 4]),
    "ops": lambda x: tf.nn.gelu(tf.reshape(tf.concat([x, tf.cast(x > 0, "float32")], -1), [-1, 48])),
    "places": lambda x: tf.gather(x, [0, 1]) + tf.cumsum(x)[:2, ..., :1],
    "products": lambda x: tf.einsum("bij,bkj->bik", x, x),
    "keras.ops": lambda x: ops.softmax(ops.mean(ops.add(x, 1.0), axis=-1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_files_for_keras_3_are_readable(case, tmp_path):
    path = str(tmp_path / "model.keras")
    model = made(CASES[case], path)
    np.testing.assert_array_equal(tf.keras.models.load_model(path)(X), model(X))
    for entry in config_of(path)["config"]["layers"]:
        assert entry["module"].startswith("keras"), "Keras 3 looks classes up by their modules"


def test_calls_settings_and_ops_equal_keras_3(tmp_path):
    path = str(tmp_path / "model.keras")
    made(lambda x: tf.reduce_mean(CASES["attention"](x), axis=1), path)
    start, attention, mean = config_of(path)["config"]["layers"]
    assert start["config"]["batch_shape"] == [None, 6, 4]
    assert not {"query_shape", "key_shape", "value_shape"} & set(attention["config"])
    tensor = {"shape": [None, 6, 4], "dtype": "float32", "keras_history": ["x", 0, 0]}
    (call,) = attention["inbound_nodes"]
    assert call["args"] == [{"class_name": "__keras_tensor__", "config": tensor}]
    assert (mean["module"], mean["class_name"]) == ("keras.src.ops.numpy", "Mean")
    assert mean["config"] == {"name": "tf_math_reduce_mean", "axis": 1}


def compiled(optimizer, loss="mse"):
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input([4]), L.Dense(1)])
    model.compile(optimizer, loss, metrics=["mae"])
    model.train_on_batch(X[:, 0], X[:, 0, :1])
    return model


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "Lion", "Adadelta"])
def test_training_continues(name, tmp_path):
    path = str(tmp_path / "model.keras")
    model = compiled(getattr(tf.keras.optimizers, name)(0.1))
    model.save(path, keras_version=3)
    with (
        zipfile.ZipFile(path) as archive,
        archive.open("model.weights.h5") as inner,
        h5py.File(inner) as file,
    ):
        state = file["optimizer/vars"]
        assert (int(state["0"][()]), float(state["1"][()])) == (1, pytest.approx(0.1))
    config = config_of(path)["compile_config"]["optimizer"]
    assert config["module"] == "keras.optimizers" and "is_legacy_optimizer" not in config["config"]
    loaded = tf.keras.models.load_model(path)
    for each in (model, loaded):
        each.train_on_batch(X[:, 1], X[:, 1, :1])
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_h5_files_store_loss_classes_and_decay_as_a_schedule(tmp_path):
    path = str(tmp_path / "model.h5")
    model = compiled(tf.keras.optimizers.legacy.SGD(0.1, decay=0.01), tf.keras.losses.Huber())
    model.save(path, keras_version=3)
    with h5py.File(path) as file:
        training = json.loads(file.attrs["training_config"])
        assert "optimizer_weights" not in file
    assert training["loss"]["config"]["reduction"] == "sum_over_batch_size"
    assert training["metrics"][0]["class_name"] == "MeanAbsoluteError"
    rate = training["optimizer_config"]["config"]["learning_rate"]
    assert (rate["class_name"], rate["config"]["decay_rate"]) == ("InverseTimeDecay", 0.01)
    np.testing.assert_array_equal(tf.keras.models.load_model(path)(X[:, 0]), model(X[:, 0]))


def test_hard_sigmoid_of_keras_3_is_not_that_of_keras_2(tmp_path):
    path = str(tmp_path / "model.keras")
    made(CASES["one activation"], path)
    assert config_of(path)["config"]["layers"][1]["config"]["activation"] == "hard_sigmoid"
    layer = tf.keras.models.load_model(path).layers[1]
    assert float(layer.activation(tf.constant(1.0))) == pytest.approx(4 / 6)
    assert float(tf.keras.activations.hard_sigmoid(tf.constant(1.0))) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: L.LocallyConnected1D(3, 2)(x), "Keras 3 has no layer LocallyConnected1D"),
        (lambda x: L.Dense(3, "hard_sigmoid", name="d")(x), "'d': hard_sigmoid is another"),
        (lambda x: tf.linalg.band_part(x, 1, 1), "tf.linalg.band_part"),
        (lambda x: tf.split(x, [1, 3], -1)[0], "tf.split"),
    ],
)
def test_objects_missing_in_keras_3_are_named_before_writing(function, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        made(function, str(tmp_path / "model.keras"))
    assert not list(tmp_path.iterdir())


def test_versions_and_folders_are_checked(tmp_path):
    model = compiled("sgd")
    for path, version in (("m.keras", 4), ("folder", 3)):
        with pytest.raises(ValueError, match="keras_version is 2 or 3"):
            model.save(str(tmp_path / path), keras_version=version)


FUNCTIONS = {
    "Flip": lambda x: ops.flip(x, axis=1),
    "Roll": lambda x: ops.roll(x, 2, axis=1),
    "Triu": lambda x: ops.triu(x, 1),
    "Norm": lambda x: ops.norm(x, axis=-1, keepdims=True),
    "Einsum": lambda x: ops.einsum("bij,bkj->bik", x, x),
    "Quantile": lambda x: ops.quantile(x, [0.25, 0.5], axis=1),
    "Digitize": lambda x: ops.digitize(x, [0.0, 1.0]),
    "Pad": lambda x: ops.pad(x, [[0, 0], [1, 2], [0, 0]], constant_values=3.0),
    "Average": lambda x: ops.average(x, axis=1, weights=x),
    "TopK": lambda x: ops.top_k(x, 2)[0],
    "RFFT": lambda x: ops.rfft(x)[1],
    "LayerNorm": lambda x: ops.layer_normalization(x, epsilon=0.01),
    "BatchNorm": lambda x: ops.batch_normalization(x, ops.zeros(4), ops.ones(4), -1),
    "MaxPool": lambda x: ops.max_pool(x, 2, padding="same"),
    "Conv": lambda x: ops.conv(x, ops.ones([2, 4, 3]), strides=2),
    "Resize": lambda x: ops.image.resize(ops.expand_dims(x, -1), (3, 2)),
    "ScatterUpdate": lambda x: ops.scatter_update(ops.reshape(x, [-1, 4]), [[0, 1]], [5.0]),
    "DotProductAttention": lambda x: ops.dot_product_attention(x[:, None], x[:, None], x[:, None]),
}


def test_functions_of_keras_ops_are_one_layer_in_both_formats(tmp_path):
    x = tf.keras.Input([6, 4], name="x")
    model = tf.keras.Model(x, [function(x) for function in FUNCTIONS.values()])
    named = {layer["config"].get("function") for layer in model.get_config()["layers"]}
    assert {"keras.ops.flip", "keras.ops.image.resize", "keras.ops.batch_normalization"} <= named
    expected = model(X)
    for version in (2, 3):
        path = tmp_path / f"{version}.keras"
        model.save(path, keras_version=version)
        for found, known in zip(tf.keras.models.load_model(path)(X), expected, strict=True):
            np.testing.assert_allclose(found, known, atol=1e-6)
    written = {layer["class_name"]: layer for layer in config_of(path)["config"]["layers"]}
    assert set(FUNCTIONS) <= set(written)
    assert (
        written["Flip"]["module"] == "keras.src.ops.numpy"
        and written["Flip"]["config"]["axis"] == 1
    )
    assert written["Average"]["inbound_nodes"][0]["kwargs"].keys() == {"weights"}
    assert written["Digitize"]["inbound_nodes"][0]["args"][1]["config"]["value"] == [0.0, 1.0]
    assert written["MaxPool"]["config"]["strides"] == 2


@pytest.mark.parametrize("named", [True, False])
def test_bfloat16_as_bytes(named, tmp_path):
    model = tf.keras.Sequential([tf.keras.Input([4]), L.Dense(3, dtype="bfloat16")])
    path = tmp_path / "m.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "a") as file:
        group = file["layers/dense/vars"]
        value = np.asarray(tf.cast(np.arange(12.0).reshape(4, 3) / 8, "bfloat16"))
        del group["0"]
        dataset = group.create_dataset("0", data=value.view("V2"))
        if named:
            dataset.attrs["dtype"] = "bfloat16"
    model.load_weights(path)
    np.testing.assert_array_equal(
        model.weights[0].numpy().astype("float32"), np.arange(12.0).reshape(4, 3) / 8
    )
    with h5py.File(path, "a") as file:
        file["layers/dense/vars/0"].attrs["dtype"] = "float8_e5m2"
    with pytest.raises(
        ValueError, match="has 2 bytes per element, but declares dtype 'float8_e5m2'"
    ):
        model.load_weights(path)
