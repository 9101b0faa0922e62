"""Names of weights, and what counts as one, are those of TensorFlow's Keras."""

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


def test_graphs_of_layers_have_names_of_their_own():
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


def test_a_stack_that_was_called_knows_the_size_of_its_batch_until_another_comes():
    stack = tf.keras.Sequential([layers.Dense(1)])
    stack(np.zeros((2, 3)))
    assert stack.output_shape == (2, 1)
    stack(np.zeros((5, 3)))
    assert stack.output_shape == (None, 1)
    fitted = tf.keras.Sequential([layers.Dense(1)])
    fitted.compile("sgd", "mse")
    fitted.fit(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)
    assert fitted.output_shape == (None, 1)
