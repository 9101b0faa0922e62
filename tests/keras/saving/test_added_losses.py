"""Losses and metrics of tensors between layers in files, configurations and clones, as in tf-keras."""

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras.saving.restored_model import RestoredModel

REFERENCE = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))
from added_losses_case import X, fill_weights, make_model

layers = tf.keras.layers
FILES = ["model.h5", "model.keras", "folder"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    with zipfile.ZipFile(REFERENCE / "added_losses.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def values(written):
    return json.loads((written / "values.json").read_text())


def train(model):
    return model.fit(X, X, epochs=3, shuffle=False, batch_size=8, verbose=0).history


def assert_as_stored(model, values):
    if not model._is_compiled:
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    logs = model.evaluate(X, X, verbose=0, return_dict=True)
    assert logs == pytest.approx(values["evaluate"], rel=1e-5)
    model(X)
    assert [float(loss) for loss in model.losses] == pytest.approx(values["losses"], rel=1e-5)
    history = train(model)
    assert history.keys() == values["history"].keys()
    for name, expected in values["history"].items():
        assert_close(history[name], expected, 1e-5)


def assert_same_logs(model, other):
    if not other._is_compiled:
        other.compile("sgd", "mse")
    expected = model.evaluate(X, X, verbose=0, return_dict=True)
    assert other.evaluate(X, X, verbose=0, return_dict=True) == pytest.approx(expected, rel=1e-5)


def test_layers_and_configuration_are_those_of_keras(values):
    model = make_model(tf)
    assert [layer.name for layer in model.layers] == ["input_1", *values["layers"][1:]]
    entries = model.get_config()["layers"]
    added = [e for e in entries if e["class_name"] in ("AddLoss", "AddMetric")]
    for entry, expected in zip(added, values["config"], strict=True):
        assert {key: entry[key] for key in ("class_name", "config", "name", "inbound_nodes")} == {
            key: expected[key] for key in ("class_name", "config", "name", "inbound_nodes")
        }
    assert model.metrics_names == ["largest"]
    assert_as_stored(model, values)


@pytest.mark.parametrize("name", FILES)
def test_files_of_keras(written, values, name):
    model = tf.keras.models.load_model(written / name)
    assert [layer.name for layer in model.layers] == values["layers"]
    assert_as_stored(model, values)


@pytest.mark.parametrize("name", FILES)
def test_files_of_subclassed_models(tmp_path, values, name):
    make_model(tf).save(tmp_path / name)
    assert_as_stored(tf.keras.models.load_model(tmp_path / name), values)


@pytest.mark.parametrize(
    "copy",
    [
        tf.keras.models.clone_model,
        lambda model: tf.keras.models.clone_model(model, tf.keras.Input((6,))),
        lambda model: tf.keras.models.clone_model(model, layers.ReLU()(tf.keras.Input((6,)))),
        lambda model: tf.keras.models.clone_model(
            model, clone_function=lambda layer: type(layer).from_config(layer.get_config())
        ),
        lambda model: tf.keras.Model.from_config(model.get_config()),
        lambda model: tf.keras.models.model_from_json(model.to_json()),
    ],
)
def test_clones_and_configurations(values, copy):
    model = make_model(tf)
    clone = copy(model)
    clone.set_weights(model.get_weights())
    assert_as_stored(clone, values)


@pytest.mark.parametrize("name", FILES)
def test_nested_models(tmp_path, values, name):
    inputs = tf.keras.Input((6,))
    model = tf.keras.Model(inputs, make_model(tf)(inputs))
    model.compile("sgd", "mse")
    logs = model.evaluate(X, X, verbose=0, return_dict=True)
    assert logs == pytest.approx(values["evaluate"], rel=1e-5)
    model.save(tmp_path / name)
    assert_same_logs(model, tf.keras.models.load_model(tmp_path / name))


def test_losses_are_listed_before_the_first_call():
    model = make_model(tf)
    assert len(model.losses) == len(tf.keras.models.clone_model(model).losses) == 3
    train(model)
    assert len(model.losses) == 3


class Sampling(layers.Layer):
    """Layer with random numbers that must be drawn once for output and loss."""

    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


def test_losses_see_the_values_of_the_outputs():
    inputs = tf.keras.Input((6,))
    outputs = Sampling()(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.add_loss(tf.reduce_mean(outputs))
    y = model(X)
    assert_close(model.losses[0], np.mean(y))


@pytest.mark.parametrize("name", FILES)
def test_sequential_models(tmp_path, name):
    model = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(6)])
    fill_weights(model)
    model.add_loss(tf.reduce_mean(model.output))
    model.add_metric(tf.reduce_max(model.output), name="largest")
    model.compile("sgd", "mse")
    # The value of tf-keras.
    assert model.evaluate(X, X, verbose=0)[0] == pytest.approx(0.38795989751815796, rel=1e-5)
    model.save(tmp_path / name)
    loaded = tf.keras.models.load_model(tmp_path / name)
    assert [layer.name for layer in loaded.layers] == [layer.name for layer in model.layers]
    assert_same_logs(model, loaded)
    clone = tf.keras.models.clone_model(model, tf.keras.Input((6,)))
    clone.set_weights(model.get_weights())
    assert_same_logs(model, clone)


def test_subclassed_models_without_get_config():
    class Own(tf.keras.Model):
        pass

    inputs = tf.keras.Input((6,))
    outputs = layers.Dense(2)(inputs)
    model = Own(inputs, outputs)
    model.add_loss(tf.reduce_mean(outputs))
    assert len(tf.keras.models.clone_model(model).losses) == 1


def test_targets_as_inputs_and_no_other_loss(tmp_path):
    inputs, targets = tf.keras.Input((6,)), tf.keras.Input((1,))
    outputs = layers.Dense(1)(inputs)
    model = tf.keras.Model([inputs, targets], outputs)
    model.add_loss(tf.reduce_mean((outputs - targets) ** 2))
    model.compile("sgd")
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    data = [X, X[:, :1]]
    assert loaded.evaluate(data, verbose=0) == pytest.approx(model.evaluate(data, verbose=0))
    losses = loaded.fit(data, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_tensors_of_other_models_are_rejected():
    inputs, other = tf.keras.Input((6,)), tf.keras.Input((6,))
    model = tf.keras.Model(inputs, layers.Dense(2)(inputs))
    with pytest.raises(ValueError, match="Graph disconnected"):
        model.add_loss(tf.reduce_mean(other))


def test_keras_3_has_no_such_layers(tmp_path):
    with pytest.raises(ValueError, match="Keras 3 has no layer AddLoss"):
        make_model(tf).save(tmp_path / "m.keras", keras_version=3)


class Doubled(layers.Layer):
    """Layer of a class that is unknown after loading, with a custom loss and metric."""

    def call(self, inputs):
        outputs = inputs * 2.0
        self.add_loss(0.01 * tf.reduce_sum(outputs**2))
        self.add_metric(tf.reduce_min(outputs), name="smallest")
        return outputs


@pytest.mark.parametrize("trains", [False, True])
def test_saved_models_without_their_classes(tmp_path, trains):
    inputs = tf.keras.Input((6,))
    hidden = Doubled()(layers.Dense(5)(inputs))
    outputs = layers.Dropout(0.5)(layers.Dense(6, kernel_regularizer="l2")(hidden))
    model = tf.keras.Model(inputs, outputs)
    model.add_loss(tf.reduce_mean(hidden**2))
    model.add_metric(tf.reduce_max(hidden), name="largest")
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    if trains:
        model.fit(X, X, verbose=0)
    model.save(tmp_path / "saved")
    loaded = tf.keras.models.load_model(tmp_path / "saved")
    assert type(loaded).__name__ == "RestoredModel"
    assert_same_logs(model, loaded)
    loaded(X)
    model(X)
    total = sum(float(loss) for loss in model.losses)
    assert sum(float(loss) for loss in loaded.losses) == pytest.approx(total, rel=1e-5)
    before = loaded.evaluate(X, X, verbose=0)[0]
    loaded.fit(X, X, epochs=3, verbose=0)
    assert loaded.evaluate(X, X, verbose=0)[0] < before


def test_saved_models_of_keras_without_their_classes(written, values):
    model = RestoredModel(tf.saved_model.load(written / "folder"))
    model(X)
    assert_close(sum(float(loss) for loss in model.losses), sum(values["losses"]), 1e-5)
