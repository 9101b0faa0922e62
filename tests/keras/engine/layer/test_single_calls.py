"""Layers are called once while a model is built, with None for unknown sizes."""

import numpy as np
import pytest

import meshflow as tf

layers = tf.keras.layers


class Recorder(layers.Layer):
    """Layer that records the shapes of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function, self.shapes = function, []

    def call(self, x):
        self.shapes.append(x.shape.as_list())
        return self.function(x)


@pytest.mark.parametrize(
    ("shape", "function", "expected"),
    [
        ([4], lambda x: 2 * x, [None, 4]),
        ([4], lambda x: tf.reshape(x, [tf.shape(x)[0], 2, 2]), [None, 2, 2]),
        ([3, 2], lambda x: tf.reshape(x, [-1, x.shape[1] * x.shape[2]]), [None, 6]),
        ([4], lambda x: x if x.shape[0] is None else x[:1], [None, 4]),
        ([None, 3], lambda x: tf.concat([x, x], 1), [None, None, 3]),
        ([None, 3], lambda x: tf.reduce_mean(x, 1), [None, 3]),
        ([4], lambda x: x + tf.random.normal([tf.shape(x)[0], 4]), [None, 4]),
    ],
)
def test_a_layer_is_called_once(shape, function, expected):
    # Programs for a size of 1 are in caches of JAX, and do not change how the layer is called.
    tf.random.normal([1, 4]).numpy()
    layer = Recorder(function)
    inputs = tf.keras.Input(shape)
    outputs = layer(inputs)
    assert layer.shapes == [[None, *shape]] and outputs.shape.as_list() == expected
    sizes = [2, *(5 if n is None else n for n in shape)]
    result = tf.keras.Model(inputs, outputs)(np.ones(sizes, np.float32))
    assert all(e in (None, n) for e, n in zip(expected, result.shape, strict=True))


def test_weights_losses_and_masks_of_a_single_call():
    class Masked(layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking, self.dense = True, layers.Dense(2)

        def call(self, x, mask=None):
            assert mask is not None
            self.add_loss(tf.reduce_sum(x))
            return self.dense(x)

    layer = Masked()
    inputs = tf.keras.Input([None], dtype="int32")
    outputs = layer(layers.Embedding(5, 3, mask_zero=True)(inputs))
    assert outputs._keras_mask.shape.as_list() == [None, None]
    assert len(layer.weights) == 2 and len(layer.losses) == 1
    model = tf.keras.Model(inputs, layers.LSTM(2)(outputs))
    assert model(np.ones((2, 4), np.int32)).shape == (2, 2) and len(model.losses) == 1


def test_a_nested_model_combines_inputs_with_related_unknown_sizes():
    small, large = tf.keras.Input([None, None, 2]), tf.keras.Input([None, None, 2])
    merged = layers.Concatenate()([layers.UpSampling2D(2)(small), large])
    inner = tf.keras.Model([small, large], merged)
    inputs = tf.keras.Input([None, None, 2])
    pooled = layers.MaxPool2D(2, 2, "same")(inputs)
    outer = tf.keras.Model(inputs, inner([pooled, inputs]))
    assert outer.output_shape == (None, None, None, 4)
    assert outer(np.ones((1, 4, 6, 2), np.float32)).shape == (1, 4, 6, 4)


def test_an_unknown_size_that_is_squeezed_is_1():
    def select(inputs):
        boxes, scores = tf.reshape(inputs[0], [-1, 4]), tf.squeeze(inputs[1], axis=0)
        indices = tf.image.non_max_suppression(boxes, tf.reduce_max(scores, 1), 3)
        return tf.gather(boxes, indices)

    boxes, scores = tf.keras.Input([None, 4]), tf.keras.Input([None, 2])
    model = tf.keras.Model([boxes, scores], layers.Lambda(select)([boxes, scores]))
    found = model([np.eye(4, dtype=np.float32)[None], np.ones((1, 4, 2), np.float32)])
    assert found.shape[1] == 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="squeeze"):
        model([np.ones((2, 4, 4), np.float32), np.ones((2, 4, 2), np.float32)])


def test_a_layer_is_stored_under_the_names_of_methods_of_sequential_models(tmp_path):
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.add, self.pop = layers.Add(), layers.Dense(2)

        def call(self, x):
            return self.add([x, self.pop(x)])

    block = Block()
    module = tf.Module()
    module.block = block
    x = np.ones((1, 2), np.float32)
    expected = block(x).numpy()
    path = tf.train.Checkpoint(module=module).save(str(tmp_path / "c"))
    other = Block()
    other(x)
    restored = tf.Module()
    restored.block = other
    tf.train.Checkpoint(module=restored).restore(path).assert_consumed()
    np.testing.assert_allclose(other(x), expected)
    model = tf.keras.Sequential([block])
    model(x)
    model.save_weights(str(tmp_path / "w.weights.h5"))


def test_a_layer_inside_of_another_one_is_built_with_none_for_unknown_sizes(tmp_path):
    outer = Recorder(layers.Dense(2))
    model = tf.keras.Sequential([tf.keras.Input([3]), outer])
    assert outer.function.get_build_config()["input_shape"] == (None, 3)
    model.save_weights(str(tmp_path / "w.weights.h5"))
