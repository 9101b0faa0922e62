"""State that users' layers and models write to `.keras` files by their own methods."""

import os
import zipfile

import numpy as np
import pytest

import meshflow as tf

keras = tf.keras
X = np.ones((2, 3), "float32")


@keras.utils.register_keras_serializable("UserState")
class Tokens(keras.layers.Layer):
    """Layer with an asset, an array that is no weight, and its own way of building."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.text, self.table, self.tag = "", np.zeros(2), None

    def build(self, input_shape):
        self.scale = self.add_weight("scale", input_shape[1:], initializer="ones")
        super().build(input_shape)

    def call(self, inputs):
        return inputs * self.scale

    def get_build_config(self):
        return {"input_shape": (None, 3), "tag": 7}

    def build_from_config(self, config):
        self.tag = config["tag"]
        self.build(config["input_shape"])

    def save_assets(self, dir_path):
        os.makedirs(os.path.join(dir_path, "parts"))
        with open(os.path.join(dir_path, "parts", "text.txt"), "w") as file:
            file.write(self.text)

    def load_assets(self, dir_path):
        with open(os.path.join(dir_path, "parts", "text.txt")) as file:
            self.text = file.read()

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["table"] = self.table

    def load_own_variables(self, store):
        self.table = store["table"]
        super().load_own_variables({key: store[key] for key in store if key != "table"})


@keras.utils.register_keras_serializable("UserState")
class Owner(keras.Model):
    """Model with its own arguments of `compile`."""

    extra = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = [Tokens(name="tokens"), keras.layers.Dense(1)]

    def call(self, inputs):
        return self.parts[1](self.parts[0](inputs))

    def compile(self, optimizer, loss, extra=None):
        super().compile(optimizer, loss)
        self.extra = extra

    def get_compile_config(self):
        return {"optimizer": "sgd", "loss": "mse", "extra": self.extra}

    def compile_from_config(self, config):
        self.compile(**config)


def make_sequential():
    return keras.Sequential([keras.Input((3,)), Tokens(name="tokens"), keras.layers.Dense(1)])


def find_tokens(model):
    return next(layer for layer in model._flatten_layers() if isinstance(layer, Tokens))


@pytest.mark.parametrize("make", [make_sequential, Owner])
def test_layers_write_their_own_state(tmp_path, make):
    model = make()
    model(X)
    tokens = find_tokens(model)
    tokens.text, tokens.table = "hello", np.arange(4.0)
    tokens.scale.assign([1.0, 2.0, 3.0])
    path = str(tmp_path / "model.keras")
    model.save(path)
    restored = keras.models.load_model(path, compile=False)
    np.testing.assert_allclose(restored(X), model(X))
    found = find_tokens(restored)
    assert found.text == "hello"
    np.testing.assert_array_equal(found.table, tokens.table)
    assert found.tag == (7 if make is make_sequential else None)
    assets = [n for n in zipfile.ZipFile(path).namelist() if n.startswith("assets/")]
    assert len(assets) == 1
    assert assets[0].endswith("tokens/parts/text.txt")


@keras.utils.register_keras_serializable("UserState")
class Preset(Tokens):
    """Layer that sets its weights when it reads its assets."""

    def load_assets(self, dir_path):
        super().load_assets(dir_path)
        self.scale.assign([7.0, 7.0, 7.0])


def test_assets_are_read_after_the_weights(tmp_path):
    model = keras.Sequential([keras.Input((3,)), Preset()])
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(restored.get_weights()[0], [7.0, 7.0, 7.0])


def test_state_of_another_shape_is_skipped(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    keras.Sequential([keras.Input((3,)), Tokens()]).save_weights(path)
    model = keras.Sequential([keras.Input((2,)), Tokens()])
    with pytest.raises(ValueError, match="hape"):
        model.load_weights(path)
    with pytest.warns(UserWarning, match="load_own_variables"):
        model.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(model.get_weights()[0], [1.0, 1.0])


def test_models_write_their_own_arguments_of_compile(tmp_path):
    model = Owner()
    model.compile("sgd", "mse", extra=5)
    model.fit(X, np.ones((2, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert restored.extra == 5
    np.testing.assert_allclose(restored(X), model(X))


def test_subclassed_models_are_refused_in_hdf5_files(tmp_path):
    model = Owner()
    model(X)
    with pytest.raises(NotImplementedError, match="Functional model or a Sequential model"):
        model.save(tmp_path / "model.h5")
    adder = type("Adder", (Owner,), {"add": lambda self, layer: None})()
    with pytest.raises(NotImplementedError, match="Functional model or a Sequential model"):
        adder.save(tmp_path / "model.h5")
    model.save_weights(tmp_path / "weights.h5")
    other = Owner()
    other(X)
    other.load_weights(tmp_path / "weights.h5")
    np.testing.assert_allclose(other(X), model(X))


def test_names_of_keras_files_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"ends in `\.keras`"):
        make_sequential().save(tmp_path / "model", save_format="keras")
