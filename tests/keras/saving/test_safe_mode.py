"""Only `safe_mode=False` disables safe mode, at every entry point that reads a configuration."""

import json
import os

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras import safe_mode as modes

keras, layers = tf.keras, tf.keras.layers
UNSAFE = pytest.raises(ValueError, match="safe_mode=False")
# Values that other checks treat as false.
NOT_FALSE = [None, 0, 0.0, "", (), np.False_, np.bool_(0), True, 1, "False"]


def make_model():
    return keras.Sequential([keras.Input([2]), layers.Lambda(lambda x: x * 2.0)])


def make_layer_config():
    return json.loads(
        json.dumps(keras.saving.serialize_keras_object(layers.Lambda(lambda x: x * 2)))
    )


def make_layer_of_folder(folder):
    path = os.path.join(folder, "saved")
    tf.saved_model.save(tf.Module(), path)
    return {
        "filepath": path,
        "name": "t",
        "call_endpoint": "f",
        "trainable": True,
        "dtype": "float32",
    }


def save(name):
    def load(folder, **arguments):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            make_model().save(path)
        return keras.models.load_model(path, **arguments)

    return load


# Functions that read an unsafe configuration; their keyword arguments may contain `safe_mode`.
ENTRY_POINTS = {
    "load_model(.keras)": save("m.keras"),
    "load_model(.h5)": save("m.h5"),
    "load_model(folder)": save("folder"),
    "saving.load_model": lambda folder, **a: save("m.keras")(folder, **a),
    "model_from_json": lambda _, **a: keras.models.model_from_json(make_model().to_json(), **a),
    "deserialize_keras_object": lambda _, **a: keras.saving.deserialize_keras_object(
        make_layer_config(), **a
    ),
    "utils.deserialize_keras_object": lambda _, **a: keras.utils.deserialize_keras_object(
        make_layer_config(), **a
    ),
    "nested object": lambda _, **a: keras.saving.deserialize_keras_object(
        {"list": [make_layer_config()]}, **a
    ),
    "TFSMLayer.from_config": lambda folder, **a: layers.TFSMLayer.from_config(
        make_layer_of_folder(folder), **a
    ),
}
# Entry points without the argument, which use the mode of the current load.
WITHOUT_ARGUMENT = {
    "layers.deserialize": lambda: layers.deserialize(make_layer_config()),
    "Lambda.from_config": lambda: layers.Lambda.from_config(make_layer_config()["config"]),
    "Sequential.from_config": lambda: keras.Sequential.from_config(
        json.loads(json.dumps(make_model().get_config()))
    ),
    "model_from_config": lambda: keras.models.model_from_config(json.loads(make_model().to_json())),
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_only_false_disables_the_check(tmp_path, name):
    load = ENTRY_POINTS[name]
    with UNSAFE:
        load(str(tmp_path))
    for value in NOT_FALSE:
        with UNSAFE:
            load(str(tmp_path), safe_mode=value)
    if name.startswith("TFSMLayer"):
        with pytest.raises(ValueError, match="endpoint"):
            load(str(tmp_path), safe_mode=False)
    else:
        assert load(str(tmp_path), safe_mode=False) is not None


@pytest.mark.parametrize("name", WITHOUT_ARGUMENT)
def test_entry_points_without_the_argument_follow_the_scope(name):
    load = WITHOUT_ARGUMENT[name]
    for value in (None, 0, True):
        with UNSAFE, modes.safe_mode_scope(value):
            load()
    with UNSAFE:
        load()
    with modes.safe_mode_scope(False):
        assert load() is not None


def test_an_inner_default_does_not_end_the_mode_of_an_outer_load():
    with modes.safe_mode_scope(False):
        assert keras.saving.deserialize_keras_object(make_layer_config()) is not None
    with modes.safe_mode_scope(None), UNSAFE:
        keras.saving.deserialize_keras_object(make_layer_config(), safe_mode=None)
