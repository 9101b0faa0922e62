"""Test the environment of a layer's `call`: arguments, names, eager models, explicit weights."""

import copy

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
    tf.keras.backend.reset_uids()
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


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: layers.Dense(2, dtype="int32")(tf.ones([1, 2], "int32")),
            TypeError,
            "floating-point dtype",
        ),
        (lambda: layers.ZeroPadding2D(None), ValueError, "`padding` should be"),
        (lambda: layers.BatchNormalization(axis="foo"), TypeError, "'axis'"),
        (lambda: layers.LayerNormalization(axis="foo"), TypeError, "'axis'"),
        (
            lambda: layers.LayerNormalization(axis=9)(tf.ones([2, 3])),
            ValueError,
            "Invalid value for `axis`",
        ),
        (
            lambda: layers.LayerNormalization(axis=[1, -1])(tf.ones([2, 3])),
            ValueError,
            "Duplicate axis",
        ),
        (lambda: layers.ReLU(negative_slope=None), ValueError, "None"),
        (lambda: layers.ELU(None), ValueError, "cannot be None"),
        (
            lambda: layers.Attention()(tf.ones([2, 3, 4])),
            ValueError,
            "must be called on a list of inputs",
        ),
        (lambda: layers.Attention()([tf.ones([2, 3, 4])]), ValueError, "length 2 or 3"),
        (lambda: layers.TimeDistributed(3), ValueError, "Please initialize `TimeDistributed`"),
        (lambda: layers.TimeDistributed(layers.Dense(2))(tf.ones([4])), ValueError, "needs inputs"),
    ],
)
def test_layer_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_model_is_applied_to_every_timestep():
    layer = layers.TimeDistributed(tf.keras.Sequential([layers.Dense(3), layers.Dense(2)]))
    assert layer(tf.keras.Input([5, 4])).shape == [None, 5, 2]
    assert layer(tf.ones([2, 5, 4])).shape == [2, 5, 2]
    assert len(layer.trainable_weights) == 4


def test_objects_as_configurations():
    utils = tf.keras.utils
    for thing in (
        layers.Dense(3),
        tf.keras.losses.Huber(0.5),
        tf.keras.optimizers.schedules.CosineDecay(0.1, 3),
    ):
        again = utils.deserialize_keras_object(utils.serialize_keras_object(thing))
        assert type(again) is type(thing)
        assert again.get_config() == thing.get_config()
    relu, known = tf.keras.activations.relu, {"relu": tf.keras.activations.relu}
    assert utils.deserialize_keras_object("relu", module_objects=known) is relu
    # Without them a text is one.
    assert utils.deserialize_keras_object("relu") == "relu"
    with pytest.raises(ValueError, match="Unknown gadget"):
        utils.deserialize_keras_object(
            "nothing", module_objects=known, printable_module_name="gadget"
        )
    x, y = tf.keras.Input([2]), tf.keras.Input([2])
    assert [id(t) for t in utils.get_source_inputs(layers.Add()([x, x + y]))] == [id(x), id(y)]


def test_progress_is_logged(capsys, caplog):
    utils = tf.keras.utils
    model = tf.keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    utils.disable_interactive_logging()
    try:
        assert not utils.is_interactive_logging_enabled()
        with caplog.at_level("INFO", logger="meshflow"):
            model.fit(np.ones((2, 3)), np.ones((2, 1)), epochs=2)
    finally:
        utils.enable_interactive_logging()
    assert capsys.readouterr().out == ""
    assert "Epoch 1/2" in caplog.text
    assert "loss" in caplog.text


def test_copied_metrics_preserve_state():
    metric = tf.keras.metrics.Mean()
    metric.update_state([1.0, 3.0])
    copied = copy.deepcopy(metric)
    copied.update_state(5.0)
    assert (float(metric.result()), float(copied.result())) == (2.0, 3.0)


def test_a_batch_size_of_a_symbolic_tensor_makes_tensors():
    x = tf.keras.Input([3])
    batch = tf.shape(x)[0]
    noise = (
        tf.random.normal((batch, 2))
        + tf.random.uniform((batch, 2))
        + tf.random.truncated_normal((batch, 2))
    )
    outputs = tf.concat([x, tf.zeros([batch, 2]), tf.ones((batch, 1)), tf.fill([batch, 1], 5.0)], 1)
    model = tf.keras.Model(x, [outputs, noise])
    assert model.output_shape == [(None, 7), (None, 2)]
    values, first = model(np.zeros((2, 3), "float32"))
    assert values.numpy().tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 5.0]] * 2
    assert not np.allclose(first, model(np.zeros((2, 3), "float32"))[1])


def test_input_shape_of_a_layer_called_twice():
    layer = layers.Dense(2)
    layer(tf.keras.Input([3])), layer(tf.keras.Input([3]))
    assert layer.input_shape == (None, 3)
    layer(tf.keras.Input([5, 3]))
    with pytest.raises(AttributeError, match="different input shapes"):
        _ = layer.input_shape


def test_masks_reach_layers_while_a_model_is_made():
    class Softmax(tf.keras.layers.Layer):
        def call(self, x, mask=None):
            kept = tf.exp(x) * tf.cast(mask, x.dtype)[..., None]
            return kept / tf.reduce_sum(kept, axis=1, keepdims=True)

    inputs = tf.keras.Input([None], dtype="int32")
    x = tf.keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
    assert x._keras_mask.dtype is tf.bool and x._keras_mask.shape.as_list() == [None, None]
    model = tf.keras.Model(inputs, Softmax()(tf.keras.layers.Dense(1)(x)))
    found = model(tf.constant([[3, 5, 0], [7, 0, 0]])).numpy()[..., 0]
    assert found[0, 2] == 0 and found[1].tolist() == [1, 0, 0]
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    "layer, shape",
    [
        (tf.keras.layers.Dense(2, "softmax"), [1, 3]),
        (tf.keras.layers.Conv1D(2, 2, activation="relu"), [1, 3, 2]),
        (tf.keras.layers.EinsumDense("ab,bc->ac", [2], activation="relu"), [1, 3]),
    ],
)
def test_activation_may_be_taken_off(layer, shape):
    x = tf.random.normal(shape)
    activated = layer(x)
    activation, layer.activation = layer.activation, None
    np.testing.assert_allclose(activation(layer(x)), activated, rtol=1e-6)


def test_borders_that_are_no_pairs_or_too_wide():
    with pytest.raises(ValueError, match="pairs"):
        layers.ZeroPadding2D(((1,), 2))
    with pytest.raises(ValueError, match="smaller than the corresponding spatial dimension"):
        layers.Cropping2D(((1, 2), 0))(tf.ones([1, 3, 3, 1]))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_arithmetic_layers_cast_integers(dtype):
    numbers = np.arange(6).reshape(3, 2) % 2
    x, as_float = tf.cast(numbers, dtype), tf.cast(numbers, "float32")
    for layer in (
        layers.Dense(2),
        layers.LayerNormalization(),
        layers.GroupNormalization(1),
        layers.UnitNormalization(),
    ):
        np.testing.assert_array_equal(layer(x), layer(as_float))
    norms = layers.BatchNormalization(), layers.BatchNormalization()
    outputs = norms[0](x, training=True)
    np.testing.assert_array_equal(outputs, norms[1](as_float, training=True))
    np.testing.assert_array_equal(norms[0].moving_mean, norms[1].moving_mean)


def test_weights_made_in_a_name_scope_have_the_layers_name_once():
    class Embeddings(tf.keras.layers.Layer):
        def build(self, input_shape):
            with tf.name_scope("words"):
                self.weight = self.add_weight(name="weight", shape=[2, 2])
            self.bias = self.add_weight(name="bias", shape=[2])

        def call(self, inputs):
            return inputs @ self.weight + self.bias

    class Outer(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = Embeddings(name="inner")

        def call(self, inputs):
            return self.inner(inputs)

    layer = Outer()
    layer(tf.ones([1, 2]))
    assert [w.name for w in layer.weights] == ["outer/inner/words/weight:0", "outer/inner/bias:0"]


def test_input_and_output_after_several_calls_belong_to_the_first_call():
    # As in tf-keras 2.21: only the shapes must be equal in all calls.
    layer = layers.Dense(6)
    x = tf.keras.Input((6,))
    y = layer(x)
    layer(y)
    assert layer.input is x and layer.output is y
    assert layer.input_shape == layer.output_shape == (None, 6)
    layer(tf.keras.Input((3, 6)))
    assert layer.input is x and layer.output is y
    with pytest.raises(AttributeError, match="multiple inbound nodes"):
        _ = layer.output_shape
    assert layer.get_output_at(2).shape == (None, 3, 6)


def test_features_of_a_model_that_was_called_again():
    inputs = tf.keras.Input((4, 4, 1))
    hidden = layers.Conv2D(2, 3, name="hidden")(inputs)
    model = tf.keras.Model(inputs, layers.GlobalAveragePooling2D()(hidden))
    other = tf.keras.Input((8, 8, 1))
    tf.keras.Sequential([other, model.get_layer("hidden")])
    model(tf.keras.Input((4, 4, 1)))
    features = tf.keras.Model(model.input, [model.get_layer("hidden").output, model.output])
    images = tf.ones([1, 4, 4, 1])
    maps, outputs = features(images)
    np.testing.assert_allclose(tf.reduce_mean(maps, [1, 2]), outputs, rtol=1e-6)
    np.testing.assert_allclose(outputs, model(images), rtol=1e-6)


def test_masks_after_several_calls_belong_to_the_first_call():
    layer = layers.Masking()
    first, second = layer(tf.keras.Input((3, 1))), layer(tf.keras.Input((5, 1)))
    assert layer.output_mask is first._keras_mask
    assert layer.get_output_mask_at(1) is second._keras_mask


def test_unknown_sizes_of_several_inputs_follow_from_the_same_image():
    class Pyramid(tf.keras.layers.Layer):
        def call(self, maps):
            enlarged = tf.repeat(tf.repeat(maps["small"], 2, 1), 2, 2)
            return maps["large"] + enlarged, tf.shape(maps["small"])[1]

    image = tf.keras.Input([None, None, 3])
    large = tf.keras.layers.AveragePooling2D()(image)
    maps = {"large": large, "small": tf.keras.layers.AveragePooling2D()(large)}
    combined, height = Pyramid()(maps)
    assert combined.shape.as_list() == [None, None, None, 3] and height.shape.rank == 0
    model = tf.keras.Model(image, combined)
    assert model(tf.ones([1, 8, 16, 3])).shape == [1, 4, 8, 3]
    # Sizes that never fit are still an error.
    with pytest.raises(ValueError, match="ncompatible shapes"):
        Pyramid()({"large": image, "small": maps["small"]})
