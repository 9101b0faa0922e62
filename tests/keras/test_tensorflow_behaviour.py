"""Behaviour that TensorFlow's own tests check; expected values are those of TensorFlow 2.21 with tf-keras."""

import pickle

import numpy as np
import pytest

import meshflow as tf

keras, layers, callbacks, initializers = (
    tf.keras,
    tf.keras.layers,
    tf.keras.callbacks,
    tf.keras.initializers,
)
X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


def compile_model(loss="mse", **options):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(2)(inputs))
    model.compile("adam", loss, **options)
    return model


def test_losses_beyond_the_outputs_are_not_used(caplog):
    losses = ["mse", keras.losses.mean_squared_error, keras.losses.MeanSquaredError()]
    model = compile_model(losses)
    assert model.compiled_loss._losses == losses
    model.fit(X, Y, verbose=0)
    assert "got 3 loss" in caplog.text
    assert type(model.compiled_loss._total_loss_mean) is keras.metrics.Mean


def test_trained_models_can_be_pickled():
    model = compile_model()
    model.fit(X, Y, verbose=0)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X, verbose=0), model.predict(X, verbose=0))


def test_slots_have_the_order_of_the_variables():
    first, second = tf.Variable(1.0, name="first"), tf.Variable(1.0, name="second")
    optimizer = keras.optimizers.Adam()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply_gradients([(None, first), (tf.constant(1.0), second)])
    names = [v.name.partition("/")[2] for v in optimizer.variables]
    assert names[1:3] == ["m/first:0", "v/first:0"]


@keras.utils.register_keras_serializable("behaviour")
class CustomCompile(keras.Sequential):
    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)


@keras.utils.register_keras_serializable("behaviour")
class CustomCompileConfig(CustomCompile):
    def compile_from_config(self, config):
        self.compile("sgd", config["loss"])


def test_models_with_a_custom_compile(tmp_path, caplog):
    path = tmp_path / "model.keras"
    for cls in (CustomCompile, CustomCompileConfig):
        model = cls([layers.Dense(1)])
        model.compile("adam", "mse")
        model.save(path)
        loaded = keras.models.load_model(path)
        assert not loaded.built
        if cls is CustomCompile:
            assert "`compile()` was not called as part of model loading" in caplog.text
            assert getattr(loaded, "optimizer", None) is None
        else:
            assert isinstance(loaded.optimizer, keras.optimizers.SGD)


def test_errors_of_files(tmp_path):
    path = tmp_path / "model.keras"
    model = compile_model()
    model.save(path)
    for error in (EOFError, FileExistsError):
        with pytest.raises(error):
            model.save(path, overwrite=False)

    class Unregistered(layers.Layer):
        pass

    keras.Sequential([keras.Input((3,)), Unregistered()]).save(path)
    with pytest.raises(TypeError, match="Could not locate class 'Unregistered'"):
        keras.models.load_model(path)


def test_callbacks():
    model = compile_model()
    chosen = callbacks.CallbackList(
        None, add_history=True, add_progbar=True, model=model, verbose=1
    )
    assert [type(c).__name__ for c in chosen.callbacks] == ["History", "ProgbarLogger"]
    schedule = callbacks.LearningRateScheduler(lambda epoch, rate: tf.constant(1))
    with pytest.raises(ValueError, match="The dtype of `lr` Tensor should be float"):
        model.fit(X, Y, callbacks=[schedule], verbose=0)

    class Model:
        optimizer = type("Optimizer", (), {"lr": tf.Variable(1.0)})

    plateau = callbacks.ReduceLROnPlateau(monitor="val_loss", patience=2)
    plateau.model = Model()
    plateau.on_train_begin()
    rates = []
    for epoch, loss in enumerate([0.1, 0.11, 0.12, 0.13, 0.14]):
        plateau.on_epoch_end(epoch, logs={"val_loss": loss})
        rates.append(float(plateau.model.optimizer.lr))
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01], rtol=1e-6)


class TwoOutputs(layers.Layer):
    def call(self, x):
        return x, x


def test_sequential_models():
    for first in (layers.Dense(2, input_shape=(3,)), layers.Dense(2)):
        with pytest.raises(ValueError, match="should have a single output tensor"):
            keras.Sequential([first, TwoOutputs()])(X)
    model = keras.Sequential([layers.Dense(2, input_dim=3, dtype="float64")])
    assert model.inputs[0].dtype == tf.float64


@pytest.mark.parametrize("name", ["Zeros", "RandomNormal", "HeUniform"])
def test_partitions(name):
    initializer = getattr(initializers, name)(**({} if name == "Zeros" else {"seed": 1}))
    part = initializer((4, 2), partition_shape=(2, 2), partition_offset=(2, 0))
    np.testing.assert_array_equal(part, initializer((4, 2))[2:])
    with pytest.raises(TypeError, match=r"Unknown keyword arguments: \['foo'\]"):
        initializer((1,), foo=1)
    with pytest.raises(ValueError, match="doesn't support partition-related"):
        initializers.Orthogonal()((4, 2), partition_shape=(2, 2))
