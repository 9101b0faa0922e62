"""Files written by tf-keras load, predict the same, and train on the same way."""

import json
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

STORED = np.load(Path(__file__).parents[2] / "reference" / "saving.npz")
X = STORED["x"]
CASES = [f"{name}_{kind}" for name in ("sequential", "functional") for kind in ("legacy", "new")]


def unpack(tmp_path, key):
    path = tmp_path / key
    path.write_bytes(STORED[key].tobytes())
    return path


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_complete_models(tmp_path, case, suffix):
    model = tf.keras.models.load_model(unpack(tmp_path, case + suffix))
    assert_close(model.predict(X, verbose=0), STORED[f"{case}_predictions"], 1e-5)
    assert type(model.optimizer).__name__ == "Adam"
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    if case.endswith("legacy") and suffix == ".keras":
        return  # tf-keras leaves the state of its old optimizers out of these files
    classes = STORED[f"{case}_predictions"].shape[1] == 2
    y = np.eye(2, dtype="float32")[np.arange(8) % 2] if classes else np.abs(X[:, :1])
    history = model.fit(X, y, shuffle=False, verbose=0).history
    assert set(history) == {"loss", "mae"}
    assert_close(model.predict(X, verbose=0), STORED[f"{case}_trained"], 1e-4, 1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("suffix", ["_w.h5", "_w.weights.h5"])
def test_weights_and_architecture(tmp_path, case, suffix):
    model = tf.keras.models.model_from_json(str(STORED[f"{case}_json"]))
    model.load_weights(unpack(tmp_path, case + suffix))
    assert_close(model(X), STORED[f"{case}_predictions"], 1e-5)


def test_weights_of_a_complete_model(tmp_path):
    for suffix in (".h5", ".keras"):
        model = tf.keras.models.model_from_json(str(STORED["functional_new_json"]))
        model.load_weights(unpack(tmp_path, "functional_new" + suffix))
        assert_close(model(X), STORED["functional_new_predictions"], 1e-5)


def test_learnt_vocabularies_beside_the_configuration(tmp_path):
    model = tf.keras.models.load_model(unpack(tmp_path, "words.keras"))
    words = tf.constant([["a b c"], ["b, c! d"], ["b"], [""]])
    assert_close(model(words), STORED["words_predictions"], 1e-6)
    text, lookup = model.layers[1:3]
    assert lookup.get_vocabulary() == ["[UNK]", "[UNK]", "a", "c", "b"]
    assert text.get_vocabulary()[:2] == ["[UNK]", "a"] and text.vocabulary_size() == 6
    # They are the layers' own now, and saved with them.
    model.save(tmp_path / "again.keras")
    again = tf.keras.models.load_model(tmp_path / "again.keras")
    assert_close(again(words), STORED["words_predictions"], 1e-6)


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".tar.xz"])
def test_empty_and_unnamed_weights(tmp_path, suffix):
    path = unpack(tmp_path, "learnt" + suffix)
    if suffix == ".tar.xz":
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
        path = tmp_path / "learnt"
    model = tf.keras.models.load_model(path)
    table, ranges = model.get_layer("string_lookup"), model.get_layer("discretization")
    assert ranges.bin_boundaries == STORED["learnt_ends"].tolist()
    assert table.get_vocabulary() == ["[UNK]", "[UNK]", "b", "a c"]
    assert table.get_weights()[0].tolist() == [1.25, 1.25, 0.5, 2.0]
    inputs = [tf.constant([["b, c! d"], ["b"], [""]]), tf.constant(X[:3])]
    assert_close(model(inputs), STORED["learnt_predictions"], 1e-6)
    assert ranges.summary.shape.as_list() == [2, None]
    again = tmp_path / ("again" + (suffix if suffix != ".tar.xz" else ""))
    model.save(again)
    assert_close(tf.keras.models.load_model(again)(inputs), STORED["learnt_predictions"], 1e-6)


def test_metrics_of_a_loaded_model_are_no_weights(tmp_path):
    model = tf.keras.models.load_model(unpack(tmp_path, "functional_new.h5"))
    assert [m.name for m in model.metrics] == ["mae"]
    assert len(model.weights) == len(model.get_weights()) == 6


def test_subclassed_model_is_stored_by_its_registered_name(tmp_path):
    class Own(tf.keras.Model):
        def call(self, x):
            return x * 2.0

        def get_config(self):
            return {}

    model = Own()
    model(tf.ones([1, 2]))
    model.save(tmp_path / "own.keras")
    with zipfile.ZipFile(tmp_path / "own.keras") as archive:
        config = json.loads(archive.read("config.json"))
    assert (config["module"], config["registered_name"]) == (__name__, "Own")
    again = tf.keras.models.load_model(tmp_path / "own.keras", custom_objects={"Own": Own})
    assert type(again) is Own


def test_state_of_newer_optimizers_has_the_layout_of_keras_2(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, name="d")])
    model.compile(tf.keras.optimizers.experimental.Adam(0.01), "mse")
    x, y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")
    model.train_on_batch(x, y)
    path = str(tmp_path / "model.h5")
    model.save(path)
    with h5py.File(path) as file:
        names = [name.decode() for name in file["optimizer_weights"].attrs["weight_names"]]
    # One variable after another, where older optimizers have all means first.
    assert names[0] == "iteration:0"
    assert ["kernel" in name for name in names[-4:]] == [True, True, False, False]
    loaded = tf.keras.models.load_model(path)
    for each in (model, loaded):
        each.train_on_batch(x, y)
    assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0), 1e-6)


@tf.keras.utils.register_keras_serializable("functions_in_files")
def squared_distance(y_true, y_pred):
    return tf.reduce_sum((y_true - y_pred) ** 2, axis=-1)


def test_functions_and_names_in_compile_stay_apart(tmp_path):
    losses, path = tf.keras.losses, str(tmp_path / "m.keras")
    inputs = tf.keras.Input([2])
    dense = tf.keras.layers.Dense
    model = tf.keras.Model(inputs, [dense(1, name=name)(inputs) for name in "abc"])
    model.compile(
        "sgd",
        loss={"a": losses.mean_squared_error, "b": "mse", "c": squared_distance},
        metrics={"a": ["mae", tf.keras.metrics.mean_absolute_error]},
        jit_compile=False,
    )
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))["compile_config"]
    # The entry that TensorFlow 2.15.1 writes.
    assert config["loss"]["a"] == {
        "module": "builtins",
        "class_name": "function",
        "config": "mean_squared_error",
        "registered_name": "function",
    }
    assert config["jit_compile"] is False
    loaded = tf.keras.models.load_model(path)
    assert loaded.loss == model.loss and loaded.jit_compile is False
    found = loaded._compile_arguments["metrics"]["a"]
    assert found == ["mae", tf.keras.metrics.mean_absolute_error]
