"""Test signatures of public classes, which `help` and editors show."""

import inspect

import pytest

import meshflow as tf

keras = tf.keras
NAMESPACES = {
    name: getattr(keras, name)
    for name in (
        *("layers", "metrics", "losses", "optimizers", "callbacks", "initializers"),
        *("regularizers", "constraints", "models"),
    )
}
# TensorFlow's signatures have no names either.
UNNAMED = {"Model"}


@pytest.mark.parametrize("space", NAMESPACES)
def test_classes_have_the_signature_of_their_constructor(space):
    classes = [getattr(NAMESPACES[space], name) for name in dir(NAMESPACES[space])]
    classes = [v for v in classes if isinstance(v, type)]
    assert len(classes) >= 3
    for cls in classes:
        if not cls.__module__.startswith("meshflow.keras") or cls.__name__ in UNNAMED:
            continue
        names = list(inspect.signature(cls).parameters)
        assert names != ["args", "kwargs"], cls
        if cls.__init__ is not object.__init__:
            assert names == list(inspect.signature(cls.__init__).parameters)[1:]


def test_subclasses_and_instances():
    class Mine(keras.layers.Layer):
        def __init__(self, units, rate=0.5):
            super().__init__()

        def call(self, x):
            return x

    class Other(Mine):
        pass

    assert str(inspect.signature(Other)) == "(units, rate=0.5)"
    assert list(inspect.signature(Mine(1)).parameters) == ["args", "kwargs"]
    assert next(iter(inspect.signature(tf.Variable).parameters)) == "initial_value"


def test_arguments_that_follow_by_position_are_in_the_signature():
    layers = keras.layers
    names = lambda cls: list(inspect.signature(cls).parameters)
    parameters = inspect.signature(layers.Conv2DTranspose).parameters
    order = ["data_format", "dilation_rate", "activation", "use_bias", "kernel_initializer"]
    assert list(parameters)[5:10] == order
    assert [parameters[name].default for name in order] == [
        None,
        (1, 1),
        None,
        True,
        "glorot_uniform",
    ]
    assert names(layers.DepthwiseConv1D) == names(layers.DepthwiseConv2D)
    assert names(layers.GroupNormalization)[5:8] == [
        "beta_initializer",
        "gamma_initializer",
        "beta_regularizer",
    ]
    layer = layers.DepthwiseConv2D(
        3, 1, "same", 1, None, 1, None, True, "ones", "zeros", "l1", "l2", None, "max_norm"
    )
    assert type(layer.bias_regularizer).__name__ == "L2"
    assert type(layer.depthwise_constraint).__name__ == "MaxNorm"
    attention = layers.MultiHeadAttention(
        1, 2, None, 0.0, True, None, None, "ones", "zeros", "l1", "l2"
    )
    assert attention.get_config()["bias_regularizer"]["class_name"] == "L2"
