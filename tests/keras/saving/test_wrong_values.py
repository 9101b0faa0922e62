"""Test files with another object in place of a weight."""

import json

import h5py
import numpy as np
import pytest

import meshflow as tf

REPLACEMENTS = {
    "group": lambda file, name, value: file.create_group(name).create_dataset("0", data=value),
    "reference": lambda file, name, value: file.create_dataset(
        name, data=np.array([file.ref], h5py.ref_dtype)
    ),
    "text": lambda file, name, value: file.create_dataset(name, data=np.full(value.shape, b"1.5")),
    "structure": lambda file, name, value: file.create_dataset(name, value.shape, [("a", "f4")]),
    "nothing": lambda file, name, value: file.create_dataset(name, data=h5py.Empty("f4")),
    "complex": lambda file, name, value: file.create_dataset(name, data=value + 2j),
}


def make_model():
    layer = tf.keras.layers.Dense(2, name="head")
    model = tf.keras.Sequential([tf.keras.Input([2]), layer])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 2)))
    return model


def list_datasets(path):
    names = []
    with h5py.File(path) as file:
        file.visititems(lambda n, item: names.append(n) if hasattr(item, "shape") else None)
    return [name for name in names if name.endswith(("kernel:0", "m:0", "vars/0", "vars/2"))]


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("name", ["weights.h5", "model.h5", "some.weights.h5"])
def test_another_object_in_place_of_a_weight(tmp_path, name, kind):
    model, path = make_model(), tmp_path / name
    save = model.save if name == "model.h5" else model.save_weights
    save(path)
    for dataset in list_datasets(path):
        save(path)
        with h5py.File(path, "a") as file:
            value, attributes = file[dataset][()], dict(file[dataset].attrs)
            del file[dataset]
            REPLACEMENTS[kind](file, dataset, value)
            file[dataset].attrs.update(attributes)
        with pytest.raises((ValueError, tf.errors.OpError)):
            if name == "model.h5":
                tf.keras.models.load_model(path)
            else:
                model.load_weights(path)


def test_complex_values_need_complex_variables(tmp_path):
    layer = tf.keras.layers.Dense(2)
    layer.build([2])
    with pytest.raises(ValueError, match="would lose the imaginary parts"):
        layer.set_weights([np.ones((2, 2), "complex64"), np.ones(2)])
    path = tf.train.Checkpoint(v=tf.Variable([1 + 2j])).save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="cannot hold the stored dtype complex"):
        tf.train.Checkpoint(v=tf.Variable([1.0])).restore(path)
    variable = tf.Variable([0j])
    tf.train.Checkpoint(v=variable).restore(path).assert_consumed()
    assert variable.numpy().tolist() == [1 + 2j]


@pytest.mark.parametrize(
    "layer, vocabulary",
    [
        (tf.keras.layers.StringLookup, {"a": 1}),
        (tf.keras.layers.TextVectorization, {"a": 1}),
        (tf.keras.layers.IntegerLookup, {1: 1}),
        (tf.keras.layers.StringLookup, 3),
    ],
)
def test_vocabularies_are_sequences(layer, vocabulary):
    with pytest.raises(TypeError, match="vocabulary must be a list"):
        layer(vocabulary=vocabulary)
    with pytest.raises(TypeError, match="vocabulary must be a list"):
        layer().set_vocabulary(vocabulary)
    config = layer(vocabulary=[1] if layer is tf.keras.layers.IntegerLookup else ["a"]).get_config()
    with pytest.raises((TypeError, ValueError), match="vocabulary must be a list"):
        layer.from_config(json.loads(json.dumps({**config, "vocabulary": vocabulary})))


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
@pytest.mark.parametrize("file", ["model.h5", "weights.h5"])
def test_names_invalid_in_hdf5(tmp_path, name, file):
    layer = tf.keras.layers.Dense(2, name=name)
    model = tf.keras.Sequential([tf.keras.Input([2]), layer])
    with pytest.raises(ValueError, match="which HDF5 cannot hold"):
        (model.save if file == "model.h5" else model.save_weights)(tmp_path / file)
    assert not (tmp_path / file).exists()
