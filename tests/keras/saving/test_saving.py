import json
import sys
import zipfile

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, combine
from meshflow.keras import layers, optimizers
from meshflow.keras.safe_mode import safe_mode_scope

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :1]


def functional():
    x = tf.keras.Input((3,), name="x")
    inner = tf.keras.Sequential(
        [layers.Dense(3, input_shape=(3,), name="p"), layers.BatchNormalization(name="q")],
        name="inner",
    )
    twice = inner(inner(x))
    joined = layers.Concatenate(name="s")([twice, layers.Dense(3, name="r")(x)])
    return tf.keras.Model(x, layers.Dense(1, name="out")(joined), name="functional")


def nested_layers():
    class Block(layers.Layer):
        def __init__(self, units=2, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.stages = [layers.Dense(units), layers.Dense(units)]
            self.named = {"norm": layers.LayerNormalization()}
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

        def call(self, x):
            for stage in self.stages:
                x = stage(x)
            return self.named["norm"](x) * self.scale

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    return Block, lambda: tf.keras.Sequential([tf.keras.Input((3,)), Block(), layers.Dense(1)])


def trained(model, optimizer, **compiled):
    model.compile(optimizer, compiled.pop("loss", "mse"), **compiled)
    model.fit(X, Y, verbose=0, shuffle=False)
    return model


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9),
        optimizers.Adam(0.01, amsgrad=True, clipnorm=1.0),
        optimizers.RMSprop(0.01, momentum=0.5, centered=True),
        optimizers.AdamW(0.01, use_ema=True),
        optimizers.Nadam(0.01),
        optimizers.Ftrl(0.01),
        optimizers.Adafactor(0.01),
    ],
    ids=lambda o: o.name,
)
def test_training_continues_after_loading(tmp_path, optimizer):
    model = trained(functional(), optimizers.deserialize(optimizers.serialize(optimizer)))
    expected, copies = model.predict(X, verbose=0), []
    for suffix in (".keras", ".h5", ""):
        path = tmp_path / f"model{suffix}"
        model.save(path)
        loaded = tf.keras.models.load_model(path)
        assert_close(loaded.predict(X, verbose=0), expected)
        for a, b in zip(loaded.optimizer.get_weights(), model.optimizer.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
        copies.append(loaded)
    for m in (model, *copies):
        m.fit(X, Y, verbose=0, shuffle=False)
    expected = model.predict(X, verbose=0)
    for loaded in copies:
        assert_close(loaded.predict(X, verbose=0), expected, 1e-5)


@pytest.mark.parametrize("name", ["w.h5", "w.hdf5", "w.weights.h5", "w"])
def test_weights_of_every_kind_of_model(tmp_path, name):
    _, nested = nested_layers()
    for make in (functional, nested):
        a, b = make(), make()
        a.save_weights(tmp_path / name)
        b.load_weights(tmp_path / name)
        for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
            np.testing.assert_array_equal(x, y)


def test_checkpoints_of_weights_are_tensorflows_kind(tmp_path):
    from meshflow import train

    model = functional()
    model.save_weights(tmp_path / "cp-1")
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "cp-1")
    assert (tmp_path / "cp-1.index").exists()
    other = functional()
    status = other.load_weights(train.latest_checkpoint(tmp_path))
    status.assert_consumed()
    assert_close(other(X), model(X).numpy())
    train.Checkpoint(other).read(tmp_path / "cp-1").expect_partial()

    class Late(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    early, late = Late(), Late()
    early(X)
    early.save_weights(tmp_path / "late")
    late.load_weights(tmp_path / "late")
    assert_close(late(X), early(X).numpy())


def test_by_name_and_mismatches(tmp_path):
    a = tf.keras.Sequential(
        [layers.Dense(2, input_shape=(3,), name="one"), layers.Dense(4, name="two")]
    )
    b = tf.keras.Sequential(
        [
            layers.Dense(2, input_shape=(3,), name="one"),
            layers.Dense(5, name="two"),
            layers.Dense(1, name="three"),
        ]
    )
    path = tmp_path / "w.h5"
    a.save_weights(path)
    with pytest.raises(ValueError, match="expected 3 layers, found 2"):
        b.load_weights(path)
    with pytest.raises(
        ValueError, match=r"named two.: weight .*two/kernel:0 has shape \(2, 5\), .*\(2, 4\)"
    ):
        b.load_weights(path, by_name=True)
    with pytest.warns(UserWarning, match="Skipping loading: Shape mismatch in layer #1"):
        b.load_weights(path, by_name=True, skip_mismatch=True)
    assert_close(b.layers[0].kernel, a.layers[0].kernel.numpy())
    with pytest.raises(ValueError, match="by_name is True"):
        b.load_weights(path, skip_mismatch=True)
    a.save_weights(tmp_path / "c")
    with pytest.raises(NotImplementedError, match="HDF5"):
        b.load_weights(tmp_path / "c", by_name=True)
    with pytest.raises(FileExistsError):
        a.save_weights(path, overwrite=False)
    with pytest.raises(FileNotFoundError, match=r"none\.h5"):
        a.load_weights(tmp_path / "none.h5")


def test_bad_files_and_models(tmp_path):
    model = trained(functional(), "sgd")
    model.save_weights(tmp_path / "w.h5")
    with pytest.raises(ValueError, match="No model config found"):
        tf.keras.models.load_model(tmp_path / "w.h5")
    (tmp_path / "bad.h5").write_bytes(b"nothing")
    with pytest.raises(OSError, match=r"bad\.h5"):
        tf.keras.models.load_model(tmp_path / "bad.h5")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="folder holds no model"):
        tf.keras.models.load_model(tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "bad.keras", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(ValueError, match=r"config\.json"):
        tf.keras.models.load_model(tmp_path / "bad.keras")

    class Custom(tf.keras.Model):
        def __init__(self, units):
            super().__init__()

        def call(self, x):
            return x

    with pytest.raises(ValueError, match="has not created its weights"):
        Custom(3).save_weights(tmp_path / "x.h5")
    Custom(3).save_weights(tmp_path / "x")
    with pytest.raises(NotImplementedError, match="get_config"):
        Custom(np.ones(3)).save(tmp_path / "x.keras")


def test_custom_layers_losses_and_scopes(tmp_path):
    Block, make = nested_layers()

    def my_loss(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

    model = trained(make(), "adam", loss=my_loss)
    model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="Block"):
        tf.keras.models.load_model(tmp_path / "m.keras")
    custom = {"Block": Block, "my_loss": my_loss}
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", custom_objects=custom)
    assert_close(loaded(X), model(X).numpy())
    with tf.keras.utils.custom_object_scope(custom):
        tf.keras.models.load_model(tmp_path / "m.keras")
    bare = tf.keras.models.load_model(tmp_path / "m.keras", custom_objects=custom, compile=False)
    assert bare.optimizer is None
    again = tf.keras.models.model_from_json(model.to_json(), custom_objects=custom)
    again.set_weights(model.get_weights())
    assert_close(again(X), model(X).numpy())


def test_saving_options(tmp_path):
    model = trained(functional(), "adam", metrics=["mae"], loss_weights=[2.0])
    model.save(tmp_path / "m.h5", include_optimizer=False)
    assert tf.keras.models.load_model(tmp_path / "m.h5").optimizer is None
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert set(archive.namelist()) == {"metadata.json", "config.json", "model.weights.h5"}
        config = json.loads(archive.read("config.json"))
    assert config["compile_config"]["optimizer"]["module"] == "keras.optimizers"


def test_long_name_lists_are_split_over_attributes(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((1,))])
    for i in range(40):
        model.add(layers.Dense(1, name=f"layer_{i}_" + "x" * 2000))
    model.save_weights(tmp_path / "w.h5")
    other = tf.keras.models.clone_model(model)
    other.load_weights(tmp_path / "w.h5")
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_missing_h5py_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match="pip install meshflow-tf"):
        functional().save_weights(tmp_path / "w.h5")
    functional().save_weights(tmp_path / "w")


def test_subclasses_are_saved_with_their_arguments(tmp_path):
    class Custom(tf.keras.Model):
        def __init__(self, units, bias=True, **kwargs):
            super().__init__(**kwargs)
            self.dense = tf.keras.layers.Dense(units, use_bias=bias)

        def call(self, x):
            return self.dense(x)

    model = Custom(3, bias=False, name="mine")
    x = tf.ones([2, 4])
    expected = model(x)
    given = {"units": 3, "bias": False, "name": "mine"}
    assert model.get_config() == {**given, "trainable": True, "dtype": "float32"}
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", custom_objects={"Custom": Custom})
    assert loaded.name == "mine" and loaded.dense.use_bias is False
    assert_close(loaded(x), expected)


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "folder"])
def test_code_of_lambda_layers(tmp_path, name):
    factor = 3.0
    layer = tf.keras.layers.Lambda(lambda x, power=2: tf.pow(x, power) * factor)
    model = tf.keras.Sequential([tf.keras.Input([2]), layer])
    model.save(tmp_path / name)
    with pytest.raises(ValueError, match="safe_mode=False"):
        tf.keras.models.load_model(tmp_path / name)
    loaded = tf.keras.models.load_model(tmp_path / name, safe_mode=False)
    assert_close(loaded(tf.constant([[2.0, 3.0]])), [[12, 27]])
    config = layer.get_config()
    with safe_mode_scope(False), pytest.raises(ValueError, match="another version of Python"):
        tf.keras.layers.Lambda.from_config({**config, "function": ["eA==", None, None]})


@pytest.mark.parametrize("name", ["model.h5", "model.keras", "folder"])
def test_custom_losses_and_metrics_are_available_after_loading(tmp_path, name):
    def own(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

    model = tf.keras.Sequential([layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", own, metrics=[own, "mse"])
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / name)
    again = tf.keras.models.load_model(tmp_path / name, custom_objects={"own": own})
    assert_close(again.evaluate(X, Y, verbose=0), model.evaluate(X, Y, verbose=0))
    assert set(again.fit(X, Y, verbose=0).history) == {"loss", "own", "mse"}


class OwnBuild(tf.keras.Model):
    """Create layers in `build` without calling the base class's `build`."""

    def build(self, input_shape):
        self.table = layers.Embedding(10, 3)
        self.dense = layers.Dense(1)
        self.scale = self.add_weight("scale", [input_shape["few"][-1]])

    def call(self, inputs):
        found = tf.reduce_mean(self.table(inputs["numbers"]), axis=1)
        return self.dense(found) * self.scale + inputs["few"]


class MakesLayersInCalls(tf.keras.Model):
    """Has no layers before it is called."""

    def __init__(self):
        super().__init__()
        self.dense = None

    def call(self, inputs):
        if self.dense is None:
            self.dense = layers.Dense(1)
        return self.dense(inputs["few"])


@pytest.mark.parametrize(
    ("name", "made"),
    combine(
        ["m.keras", "folder", "m.weights.h5", "w.h5", "weights"], [OwnBuild, MakesLayersInCalls]
    ),
)
def test_models_with_lazily_created_layers_are_restored_from_checkpoints(tmp_path, made, name):
    x = {"numbers": np.arange(12).reshape(4, 3) % 10, "few": np.ones((4, 1), "float32")}
    model = made()
    model.compile("adam", "mse")
    only = name in ("m.weights.h5", "w.h5", "weights")
    path = str(tmp_path / name)
    callback = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=only)
    model.fit(x, np.ones((4, 1)), verbose=0, callbacks=[callback])
    expected = model(x)
    if only:
        again = made()
        if name != "weights":
            again({key: tf.constant(value) for key, value in x.items()})
        again.load_weights(path)
    else:
        again = tf.keras.models.load_model(path, custom_objects={made.__name__: made})
        assert type(again) is made and len(again.weights) == len(model.weights)
        assert len(again.optimizer.get_weights()) == len(model.optimizer.get_weights()) > 0
    assert_close(again.predict(x, verbose=0), expected)


def test_models_that_were_never_called_have_no_weights_to_save(tmp_path):
    class Holder(layers.Layer):
        def __init__(self):
            super().__init__()
            self.used = layers.Dense(2)
            self.unused = tf.keras.Sequential([layers.Dense(2)])

        def call(self, x):
            return self.used(x)

    first, second = (tf.keras.Sequential([tf.keras.Input((3,)), Holder()]) for _ in range(2))
    first.save_weights(tmp_path / "w.weights.h5")
    second.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(second.predict(X, verbose=0), first.predict(X, verbose=0))


def test_unknown_formats_are_refused_before_writing(tmp_path):
    model = functional()
    with pytest.raises(ValueError, match="Unknown `save_format`"):
        model.save(tmp_path / "m", save_format="zip")
    with pytest.raises(ValueError, match="Unknown format"):
        model.save_weights(tmp_path / "w", save_format="zip")
    assert not list(tmp_path.iterdir())
    model.save_weights(tmp_path / "w", save_format="tensorflow")
    assert (tmp_path / "w.index").exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_layers_are_described_in_either_format(legacy):
    layer = layers.Dense(3, activation="relu", name="d")
    config = layers.serialize(layer, use_legacy_format=legacy)
    again = layers.deserialize(config, use_legacy_format=legacy)
    assert again.get_config() == layer.get_config()


def test_weight_paths():
    class Nested(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first = tf.keras.layers.Dense(1)
            self.rest = [tf.keras.layers.Dense(2, use_bias=False)]

        def call(self, inputs):
            return self.rest[0](self.first(inputs))

    model = Nested()
    model(tf.zeros([1, 1]))
    paths = model.get_weight_paths()
    assert sorted(paths) == ["first.bias", "first.kernel", "rest.0.kernel"]
    assert paths["first.kernel"] is model.first.kernel
    inputs = tf.keras.Input((3,))
    outputs = tf.keras.layers.Dense(2, name="d1")(inputs)
    assert sorted(tf.keras.Model(inputs, outputs).get_weight_paths()) == ["d1.bias", "d1.kernel"]
