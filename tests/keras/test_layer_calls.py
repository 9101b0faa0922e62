"""What surrounds a layer's `call`: its arguments, names, eager models, weights given as values."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras import layers


class Halved(layers.Layer):
    def call(self, inputs, training):
        return inputs if training else inputs * 0.5


def test_a_training_argument_without_default_is_filled_in():
    x = tf.ones([1, 1])
    assert Halved()(x).numpy() == 0.5
    assert Halved()(x, training=True).numpy() == 1.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"trainable": 0}, "`trainable`"), ({"dynamic": 0}, "`dynamic`"), ({"name": 0}, "`name`")],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(TypeError, match=f"Expected {text} argument to be a"):
        layers.Layer(**arguments)


def test_dynamic_layers_make_the_model_run_eagerly():
    seen = []

    class Peek(layers.Layer):
        def call(self, inputs):
            seen.append(hasattr(inputs, "numpy") and float(tf.reduce_sum(inputs)))
            return inputs

    model = tf.keras.Sequential([Peek(dynamic=True), layers.Dense(1)])
    assert model.dynamic
    model.compile("sgd", "mse")
    assert model.run_eagerly
    model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0)
    assert seen[-1] == 6.0
    model.compile("sgd", "mse", run_eagerly=False)
    with pytest.raises(ValueError, match="only run eagerly"):
        model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0)


def test_names_of_op_layers():
    tf.keras.backend.clear_session()
    layers.Add(name="tf.__operators__.add")
    x = tf.keras.Input([2])
    outputs = [x + x, x**2, x[:, 0], tf.concat([x, x], 1), x == 1.0]
    assert [t._keras_history.layer.name for t in outputs] == [
        "tf.__operators__.add_1",
        "tf.math.pow",
        "tf.__operators__.getitem",
        "tf.concat",
        "tf.__operators__.eq",
    ]
    config = tf.keras.Model(x, outputs[0]).get_config()
    again = tf.keras.Model.from_config(config)
    assert again(tf.ones([1, 2])).numpy().tolist() == [[2.0, 2.0]]


def test_shapes_belong_to_symbolic_calls():
    layer = layers.Dense(3)
    layer(tf.ones([2, 4]))
    with pytest.raises(AttributeError, match="no defined input shape"):
        _ = layer.input_shape
    layer(tf.keras.Input([4]))
    assert layer.input_shape == (None, 4)
    with pytest.raises(ValueError, match="has only 1 inbound nodes"):
        layer.get_output_at(1)


def test_string_weights_and_getters():
    layer = layers.Layer()
    word = layer.add_weight("word", (2,), tf.string, initializer=lambda *_, **__: ["a", "b"])
    layer.set_weights([np.array([b"c", b"d"], object)])
    assert word.numpy().tolist() == [b"c", b"d"]
    own = tf.Variable(1.0)
    assert layer.add_weight("own", (), getter=lambda *_, **__: own) is own


def test_updates_that_are_functions_are_run():
    layer, count = layers.Layer(), tf.Variable(0.0)
    layer.add_update([count.assign_add(1.0), lambda: count.assign_add(1.0)])
    assert count.numpy() == 2.0
    assert layer.updates == []


def test_an_unnamed_parameter_needs_no_configuration():
    class Renamed(layers.Layer):
        def __init__(self, name="chosen", **others):
            super().__init__(name=name, **others)

    assert Renamed().get_config()["name"] == "chosen"
    assert isinstance(
        layers.Layer(activity_regularizer="l2").activity_regularizer, tf.keras.regularizers.L2
    )
