"""Test tf-keras' additional ways to call functions that save and load models."""

import h5py
import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers


class WithOwnStep(tf.keras.Model):
    """A functional model in all but its class."""

    def answer(self):
        return 42


class Factor:
    """Layer with a configuration that cannot be constructed from it."""

    def __call__(self, x):
        return 2.0 * x

    def get_config(self):
        return {}


def small():
    return tf.keras.Sequential([tf.keras.Input([3]), layers.Dense(2)])


def test_saving_to_open_files():
    model = small()
    model.compile("adam", "mse")
    model.train_on_batch(tf.ones([4, 3]), tf.zeros([4, 2]))
    with h5py.File("none", "w", driver="core", backing_store=False) as file:
        tf.keras.models.save_model(model, file)
        loaded = tf.keras.models.load_model(file)
        assert file["model_weights"] is not None  # still open
    assert_close(loaded(tf.ones([1, 3])), model(tf.ones([1, 3])))
    assert int(loaded.optimizer.iterations) == 1


def test_open_files_are_checked_as_others(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        tf.keras.models.save_model(small(), file)
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
        with pytest.raises(ValueError, match="link to another file"):
            tf.keras.models.load_model(file)


def test_keras_v3_is_the_archive(tmp_path):
    model = small()
    model.save(tmp_path / "m.keras", save_format="keras_v3")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert_close(loaded(tf.ones([1, 3])), model(tf.ones([1, 3])))
    with pytest.raises(ValueError, match=r"Invalid `filepath` argument.*notkeras"):
        model.save(tmp_path / "m.notkeras", save_format="keras_v3")
    with pytest.raises(ValueError, match=r"not supported with .* format: \['signatures'\]"):
        model.save(tmp_path / "m.keras", signatures={})


def test_weights_folders_exclude_the_optimizer(tmp_path):
    model = small()
    model.compile("adam", "mse")
    model.train_on_batch(tf.ones([4, 3]), tf.zeros([4, 2]))
    optimizer = model.optimizer
    model.save(tmp_path / "folder", include_optimizer=False)
    assert model.optimizer is optimizer
    names = dict(tf.train.list_variables(str(tmp_path / "folder" / "variables" / "variables")))
    assert names and not [name for name in names if "optimizer" in name]
    other = small()
    other.load_weights(tmp_path / "folder")
    np.testing.assert_array_equal(other.layers[0].kernel, model.layers[0].kernel)
    np.testing.assert_array_equal(other.layers[0].bias, model.layers[0].bias)


def test_subclassed_functional_models(tmp_path):
    x = tf.keras.Input([3])
    model = WithOwnStep(x, layers.Dense(2)(x))
    model.save(tmp_path / "m.h5")
    loaded = tf.keras.models.load_model(
        tmp_path / "m.h5", custom_objects={"WithOwnStep": WithOwnStep}
    )
    assert loaded.answer() == 42
    assert_close(loaded(tf.ones([1, 3])), model(tf.ones([1, 3])))


def test_groups_inside_groups_of_other_layers(tmp_path):
    x = tf.keras.Input([3])
    y = layers.Activation("relu", name="first")(layers.Dense(2, name="first/dense")(x))
    model = tf.keras.Model(x, y)
    model.save_weights(tmp_path / "w.h5")
    before = model.get_weights()
    model.set_weights([0.0 * w for w in before])
    model.load_weights(tmp_path / "w.h5")
    for value, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("written", ["plain", "keras 2"])
def test_arrays_are_arguments_of_lambda_layers(written):
    mean = np.arange(6.0).reshape(2, 3)
    layer = layers.Lambda(lambda x, mean: x - mean, arguments={"mean": mean})
    config = layer.get_config()
    if written == "keras 2":
        config["arguments"] = {"mean": {"type": "ndarray", "value": mean.tolist()}}
    else:
        config["arguments"] = tf.keras.saving.serialize_keras_object(config["arguments"])
    loaded = layers.Lambda.from_config(config)
    np.testing.assert_array_equal(loaded.arguments["mean"], mean)
    # A function from a file has no module, and can be written again.
    stored = {**config, "function": list(config["function"])}
    again = tf.keras.saving.deserialize_keras_object(
        {"class_name": "Lambda", "config": stored}, safe_mode=False
    )
    assert again.get_config()["function_type"] == "lambda"
    assert_close(again(tf.ones([1, 2, 3])), 1.0 - mean[None])


def test_classes_without_from_config_are_named():
    config = {"class_name": "Factor", "config": {}}
    with pytest.raises(
        TypeError, match=r"Unable to reconstruct an instance of Factor.*from_config"
    ):
        tf.keras.saving.deserialize_keras_object(config, custom_objects={"Factor": Factor})


def test_configurations_of_old():
    legacy = tf.keras.utils.legacy
    for thing in (
        layers.Dense(2, kernel_regularizer="l2"),
        tf.keras.initializers.VarianceScaling(2.0),
        layers.Bidirectional(layers.LSTM(2)),
    ):
        old = legacy.serialize_keras_object(thing)
        assert set(old) == {"class_name", "config"} and "registered_name" not in str(old)
        again = legacy.deserialize_keras_object(old)
        new = tf.keras.saving.serialize_keras_object
        assert new(again) == new(thing)
    assert legacy.serialize_keras_object(tf.keras.activations.relu) == "relu"
    assert legacy.serialize_keras_object(None) is None
    # The second argument is `module_objects`, the third `custom_objects`.
    config, classes = {"class_name": "Flat", "config": {"name": "a"}}, {"Flat": layers.Flatten}
    for arguments in (classes, None), (None, classes):
        assert legacy.deserialize_keras_object(config, *arguments).name == "a"
    with pytest.raises(ValueError, match="no `get_config"):
        legacy.serialize_keras_object(3)


def test_modes_of_sample_weights_are_accepted():
    model = small()
    model.compile("sgd", "mse", sample_weight_mode="temporal")
    with pytest.raises(TypeError, match="Invalid keyword argument"):
        model.compile("sgd", "mse", sample_weight_modes="temporal")


@pytest.mark.parametrize("include", [True, False])
def test_keras_files_always_include_the_optimizer(tmp_path, include):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    path = tmp_path / "model.keras"
    with pytest.raises(
        ValueError, match=r"not supported with .*native Keras format: \['include_op"
    ):
        model.save(path, include_optimizer=include)
    assert not path.exists()


def test_closed_and_read_only_files_are_refused(tmp_path):
    path = tmp_path / "m.h5"
    small().save(path)
    with h5py.File(path, "r") as file, pytest.raises(ValueError, match=r"m\.h5 is open for read"):
        small().save(file)
    for use in (small().save, tf.keras.models.load_model):
        with pytest.raises(ValueError, match=r"Closed HDF5 file.*cannot be used: open"):
            use(file)
    assert tf.keras.models.load_model(path).count_params() == 8


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.keras", "m.safetensors"])
def test_errors_of_loaded_weights_name_the_file(tmp_path, name):
    path = tmp_path / name
    (tf.keras.Model.save if name == "m.keras" else tf.keras.Model.save_weights)(small(), path)
    other = tf.keras.Sequential([tf.keras.Input([3]), layers.Dense(5)])
    with pytest.raises(ValueError, match=name):
        other.load_weights(path)
    if name == "m.keras":
        path.write_bytes(path.read_bytes()[:500])
        with pytest.raises(OSError, match="no Keras archive or HDF5 file, or it is damaged or inc"):
            tf.keras.models.load_model(path)
