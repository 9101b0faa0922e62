"""Compare names and numbers of weights with TensorFlow's Keras."""

import numpy as np
import pytest

import meshflow as tf

layers = tf.keras.layers


class Measured(tf.keras.Model):
    """A model with a metric between its layers."""

    def __init__(self):
        super().__init__(name="measured")
        self.first = layers.Dense(3, name="first")
        self.loss_metric = tf.keras.metrics.Mean(name="m")
        self.inner = tf.keras.Sequential([layers.Dense(2, name="second")], name="inner")

    def call(self, inputs):
        return self.inner(self.first(inputs))


def names(layer):
    return [w.name.removesuffix(":0") for w in layer.weights]


def test_a_call_puts_the_models_name_first_and_build_does_not():
    called, built = Measured(), Measured()
    called(np.zeros((2, 4)))
    built.build((None, 4))
    rest = ["total", "count", "second/kernel", "second/bias"]
    assert names(called) == ["measured/first/kernel", "measured/first/bias", *rest]
    assert names(built) == ["first/kernel", "first/bias", *rest]


def test_nested_graphs_have_separate_names():
    with tf.name_scope("outer"):
        stack = tf.keras.Sequential([layers.Dense(1, name="a")], name="stack")
        stack.build((None, 2))
        loose = layers.Dense(1, name="b")
        loose(np.zeros((1, 2)))
    assert names(stack) == ["a/kernel", "a/bias"]
    assert names(loose) == ["outer/b/kernel", "outer/b/bias"]


def test_metrics_of_a_model_are_weights_and_those_of_a_stack_or_layer_are_not():
    class Stack(tf.keras.Sequential):
        def __init__(self):
            super().__init__([layers.Dense(1)])
            self.tracker = tf.keras.metrics.Mean()

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense, self.tracker = layers.Dense(1), tf.keras.metrics.Mean()

        def call(self, inputs):
            return self.dense(inputs)

    model, stack, block = Measured(), Stack(), Block()
    for part in (model, stack, block):
        part(np.zeros((1, 4)))
    assert len(model.weights) == len(model.get_weights()) == 6
    assert [w.name for w in model.non_trainable_weights] == ["total:0", "count:0"]
    assert len(stack.weights) == len(block.weights) == 2


@pytest.mark.parametrize("end", ["/w", "/w.h5", "/w.weights.h5"])
def test_files_of_weights_leave_metrics_out(tmp_path, end):
    model, other = Measured(), Measured()
    for part in (model, other):
        part(np.zeros((1, 4)))
    model.loss_metric.update_state(5.0)
    model.save_weights(f"{tmp_path}{end}")
    other.load_weights(f"{tmp_path}{end}")
    np.testing.assert_array_equal(other.first.kernel, model.first.kernel)


def test_a_weight_that_is_replaced_is_no_weight_any_more():
    class Twice(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight("scale", shape=(1,), regularizer="l2")

        def call(self, inputs):
            return inputs * self.scale

    layer = Twice()
    layer.build((1, 1))
    layer(np.zeros((1, 1)))
    assert len(layer.weights) == 1 and layer.weights[0] is layer.scale
    assert len(layer.losses) == 1


def test_called_sequential_model_knows_its_batch_size_until_it_changes():
    stack = tf.keras.Sequential([layers.Dense(1)])
    stack(np.zeros((2, 3)))
    assert stack.output_shape == (2, 1)
    stack(np.zeros((5, 3)))
    assert stack.output_shape == (None, 1)
    fitted = tf.keras.Sequential([layers.Dense(1)])
    fitted.compile("sgd", "mse")
    fitted.fit(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)
    assert fitted.output_shape == (None, 1)


class Lazy(tf.keras.Model):
    """A model that makes its layers when it is built, and builds them at once."""

    def __init__(self):
        super().__init__(name="lazy")

    def build(self, input_shape):
        inputs = tf.keras.Input(input_shape[1:])
        self.stem = tf.keras.Model(inputs, tf.reshape(layers.Dense(4)(inputs), [-1, 2, 2]))
        self.top = layers.Dense(1)
        super().build(input_shape)

    def call(self, inputs):
        return self.top(self.stem(inputs))


def test_layers_created_in_a_traced_step_restart_numbering():
    tf.keras.backend.reset_uids()
    layers.Dense(1), layers.Dense(1)
    model = Lazy()
    model.compile("sgd", "mse")
    model.fit(np.zeros((2, 3)), np.zeros((2, 2, 1)), verbose=0)
    assert names(model) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    assert layers.Dense(1).name == "dense_2"


def test_layers_created_in_a_symbolic_call_restart_numbering():
    class Block(layers.Layer):
        def build(self, shape):
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    tf.keras.backend.reset_uids()
    layers.Dense(1)
    inputs = tf.keras.Input((3,))
    blocks = [Block(), Block()]
    for block in blocks:
        block(inputs)
    assert [block.dense.name for block in blocks] == ["dense", "dense"]
    assert names(blocks[1]) == ["block_1/dense/kernel", "block_1/dense/bias"]
    attention = layers.MultiHeadAttention(2, 3, name="mha")
    attention(tf.keras.Input((4, 3)), tf.keras.Input((4, 3)))
    assert names(attention)[0] == "mha/query/kernel"


def test_layers_of_ops_are_named_as_in_keras():
    inputs = tf.keras.Input((2, 4))
    outputs = tf.cast(tf.sigmoid(tf.transpose(inputs, [0, 2, 1])), "float16")
    model = tf.keras.Model(inputs, [outputs, tf.size(inputs)])
    found = [layer.name.rstrip("_0123456789") for layer in model.layers[1:]]
    assert found == ["tf.compat.v1.transpose", "tf.math.sigmoid", "tf.cast", "tf.compat.v1.size"]
    assert model(np.zeros((3, 2, 4)))[1] == 24
