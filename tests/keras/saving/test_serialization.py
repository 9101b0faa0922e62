"""Serialized objects have tf-keras' form, and become the same objects again."""

import json
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.serialization import to_legacy_config

REFERENCE = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))
from serialization_cases import CASES, serialized

keras = tf.keras
STORED = json.loads((REFERENCE / "serialized.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_serialized_form(name):
    assert serialized(keras, name) == STORED[name]


@pytest.mark.parametrize(
    "name", ["shared", "nested", "by_name", "attention", "compiled", "built", "cells"]
)
def test_stored_forms_become_objects(name):
    made = keras.saving.deserialize_keras_object(STORED[name])
    CASES["read"] = lambda _: made
    try:
        assert serialized(keras, "read") == STORED[name]
    finally:
        del CASES["read"]


def test_values_round_trip():
    serialize, deserialize = (
        keras.saving.serialize_keras_object,
        keras.saving.deserialize_keras_object,
    )
    values = [np.array([1.0, 2.0], "float32"), b"text", None, 3, "relu", {"a": [1.5, True]}]
    again = deserialize(json.loads(json.dumps(serialize(values))))
    np.testing.assert_array_equal(again[0], values[0])
    assert again[0].dtype == "float32" and again[1:] == values[1:]
    assert to_legacy_config(serialize(values[0])) == [1.0, 2.0]
    constant = deserialize(serialize(tf.constant([1, 2], "int64")))
    assert constant.dtype == tf.int64 and constant.numpy().tolist() == [1, 2]
    assert deserialize(serialize(tf.TensorSpec([None, 2], "int32"))) == tf.TensorSpec(
        [None, 2], "int32"
    )
    assert serialize(np.float32(0.5)) == 0.5 and serialize(tf.TensorShape([None, 3])) == [None, 3]
    for wrong in (1j, {1, 2}, slice(2)):
        with pytest.raises(TypeError, match="get_config"):
            serialize(wrong)
    with pytest.raises(ValueError, match="damaged"):
        deserialize({"class_name": "__numpy__", "config": {}})


def test_code_of_lambdas_is_refused():
    with pytest.warns(UserWarning, match="safe_mode"):
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(lambda x: x + 1)))
    with pytest.raises(ValueError, match="safe_mode=False"):
        keras.saving.deserialize_keras_object(config)
    assert keras.saving.deserialize_keras_object(config, safe_mode=False)(2) == 3


def test_subclasses_are_configured_by_their_arguments():
    class Positional(keras.layers.Layer):
        def __init__(self, units, rate=0.5):
            super().__init__()
            self.units, self.rate = units, rate

    class Open(keras.layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)

    class OfLayer(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

    assert Positional(3).get_config() == {"units": 3}
    assert Positional.from_config(Positional(3, rate=0.1).get_config()).rate == 0.1
    own = {"name": "mine", "trainable": True, "dtype": "float32"}
    assert Open(3, name="mine").get_config() == {**own, "units": 3}
    with pytest.raises(NotImplementedError, match="Positional"):
        Positional(np.ones(2)).get_config()
    assert OfLayer(keras.layers.Dense(2)).get_config() == {}


@pytest.mark.parametrize("extension", [".keras", ".h5"])
@pytest.mark.parametrize("converts", [False, True])
def test_objects_of_other_kinds_in_configurations_of_layers(extension, converts, tmp_path):
    @keras.saving.register_keras_serializable("objects")
    class Holder(keras.layers.Layer):
        def __init__(self, start, sublayer, **kwargs):
            super().__init__(**kwargs)
            self.start, self.sublayer = start, sublayer

        def get_config(self):
            return super().get_config() | {"start": self.start, "sublayer": self.sublayer}

        @classmethod
        def from_config(cls, config):
            if converts:
                config["start"] = keras.initializers.deserialize(config["start"])
                config["sublayer"] = keras.saving.deserialize_keras_object(config["sublayer"])
            return cls(**config)

    layer = Holder(keras.initializers.Constant(3.0), keras.layers.ReLU())
    model = keras.Sequential([keras.Input((3,)), layer])
    model.save(tmp_path / f"model{extension}")
    loaded = keras.models.load_model(tmp_path / f"model{extension}")
    for copy in (loaded, keras.models.clone_model(model)):
        assert copy.layers[0].start.value == 3.0
        assert isinstance(copy.layers[0].sublayer, keras.layers.ReLU)


def test_build_and_compile_configurations():
    layer = keras.layers.Dense(2)
    assert layer.get_build_config() is None
    layer.build_from_config({"input_shape": [None, 3]})
    assert layer.kernel.shape == (3, 2) and layer.get_build_config() == {"input_shape": (None, 3)}
    model = keras.Sequential([layer])
    assert model.get_compile_config() is None
    model.compile(keras.optimizers.SGD(0.5), "mse", ["mae"])
    other = keras.Sequential([keras.layers.Dense(2)])
    other.compile_from_config(model.get_compile_config())
    assert other.get_compile_config() == model.get_compile_config()
    assert float(other.optimizer.learning_rate) == 0.5


def _changed(path, change):
    """Changes the configuration in a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "key, value, text",
    [
        ("kernel_regularizer", "nothing", "Unknown regularizer: 'nothing'"),
        ("units", [[3]], "units"),
        ("dtype", {"a": 1}, "damaged"),
        ("use_bias", False, "Weight count mismatch"),
    ],
)
def test_errors_of_damaged_files_name_file_and_layer(tmp_path, key, value, text):
    x = keras.Input((4,))
    path = tmp_path / "m.keras"
    keras.Model(x, keras.layers.Dense(3, name="wrong")(x)).save(path)
    _changed(path, lambda config: config["config"]["layers"][1]["config"].update({key: value}))
    with pytest.raises((ValueError, TypeError), match=re.escape(str(path))) as caught:
        keras.models.load_model(path)
    assert text in str(caught.value)
    if key != "use_bias":
        assert "Layer 'wrong'" in str(caught.value)


def test_untrained_optimizers_are_saved_unchanged(tmp_path):
    path = tmp_path / "m.keras"
    CASES["compiled"](keras).save(path)
    with zipfile.ZipFile(path) as archive:
        written = json.loads(archive.read("config.json"))["compile_config"]["optimizer"]
    # tf-keras refuses settings such as weight_decay for one of `optimizers.legacy`.
    assert written["module"] == "keras.optimizers" and "weight_decay" in written["config"]
    assert float(keras.models.load_model(path).optimizer.momentum) == 0.75
