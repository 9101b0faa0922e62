"""Test keywords of layers: layouts for every weight, and errors for unknown keywords."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental.dtensor import Layout

layers = tf.keras.layers

# Layers, the shape of an input, and the weights that have a layout argument.
WITH_WEIGHTS = {
    "Dense": (lambda **k: layers.Dense(4, **k), (2, 4), ("kernel", "bias")),
    "EinsumDense": (
        lambda **k: layers.EinsumDense("ab,bc->ac", 4, bias_axes="c", **k),
        (2, 4),
        ("kernel", "bias"),
    ),
    "Embedding": (lambda **k: layers.Embedding(8, 4, **k), (2, 4), ("embeddings",)),
    "Conv1D": (lambda **k: layers.Conv1D(4, 2, **k), (2, 6, 4), ("kernel", "bias")),
    "Conv2D": (lambda **k: layers.Conv2D(4, 2, **k), (2, 6, 6, 4), ("kernel", "bias")),
    "Conv3D": (lambda **k: layers.Conv3D(4, 2, **k), (2, 4, 4, 4, 4), ("kernel", "bias")),
    "Conv1DTranspose": (
        lambda **k: layers.Conv1DTranspose(4, 2, **k),
        (2, 6, 4),
        ("kernel", "bias"),
    ),
    "Conv2DTranspose": (
        lambda **k: layers.Conv2DTranspose(4, 2, **k),
        (2, 6, 6, 4),
        ("kernel", "bias"),
    ),
    "Conv3DTranspose": (
        lambda **k: layers.Conv3DTranspose(4, 2, **k),
        (2, 4, 4, 4, 4),
        ("kernel", "bias"),
    ),
    "DepthwiseConv1D": (
        lambda **k: layers.DepthwiseConv1D(2, **k),
        (2, 6, 4),
        ("depthwise", "bias"),
    ),
    "DepthwiseConv2D": (
        lambda **k: layers.DepthwiseConv2D(2, **k),
        (2, 6, 6, 4),
        ("depthwise", "bias"),
    ),
    "SeparableConv1D": (
        lambda **k: layers.SeparableConv1D(4, 2, **k),
        (2, 6, 4),
        ("depthwise", "pointwise", "bias"),
    ),
    "SeparableConv2D": (
        lambda **k: layers.SeparableConv2D(4, 2, **k),
        (2, 6, 6, 4),
        ("depthwise", "pointwise", "bias"),
    ),
    "LocallyConnected1D": (
        lambda **k: layers.LocallyConnected1D(4, 2, **k),
        (2, 6, 4),
        ("kernel", "bias"),
    ),
    "LocallyConnected2D": (
        lambda **k: layers.LocallyConnected2D(4, 2, **k),
        (2, 6, 6, 4),
        ("kernel", "bias"),
    ),
    "BatchNormalization": (
        layers.BatchNormalization,
        (2, 4),
        ("gamma", "beta", "moving_mean", "moving_variance"),
    ),
    "LayerNormalization": (layers.LayerNormalization, (2, 4), ("gamma", "beta")),
    "GroupNormalization": (
        lambda **k: layers.GroupNormalization(2, **k),
        (2, 3, 4),
        ("gamma", "beta"),
    ),
    "PReLU": (layers.PReLU, (2, 4), ("alpha",)),
    "SimpleRNN": (
        lambda **k: layers.SimpleRNN(4, **k),
        (2, 3, 4),
        ("kernel", "recurrent", "bias"),
    ),
    "LSTM": (
        lambda **k: layers.LSTM(4, **k),
        (2, 3, 4),
        ("kernel", "recurrent", "bias"),
    ),
    "GRU": (
        lambda **k: layers.GRU(4, **k),
        (2, 3, 4),
        ("kernel", "recurrent", "bias"),
    ),
    "ConvLSTM1D": (
        lambda **k: layers.ConvLSTM1D(4, 2, **k),
        (2, 3, 6, 4),
        ("kernel", "recurrent", "bias"),
    ),
    "ConvLSTM2D": (
        lambda **k: layers.ConvLSTM2D(4, 2, **k),
        (2, 3, 6, 6, 4),
        ("kernel", "recurrent", "bias"),
    ),
}


def mesh():
    return tf.experimental.dtensor.create_mesh([("x", 4)])


@pytest.mark.parametrize(
    ("name", "weight"), [(n, w) for n, (_, _, weights) in WITH_WEIGHTS.items() for w in weights]
)
def test_a_layout_reaches_its_weight(name, weight):
    make, shape, _ = WITH_WEIGHTS[name]
    dtype = "int32" if name == "Embedding" else "float32"
    plain = make()
    plain(tf.zeros(shape, dtype))
    options = (weight, f"{weight}_kernel")
    (shape_of_weight,) = {
        tuple(v.shape) for v in plain.weights if v.name.split("/")[-1].split(":")[0] in options
    }
    split = max(axis for axis, size in enumerate(shape_of_weight) if size % 4 == 0)
    axes = range(len(shape_of_weight))
    wanted = Layout(["x" if axis == split else "unsharded" for axis in axes], mesh())
    layer = make(**{f"{weight}_layout": wanted})
    layer.build(shape)
    found = {
        v.name.split("/")[-1].split(":")[0]: v.layout for v in layer.weights if v.layout is not None
    }
    assert [found[o] for o in options if o in found] == [wanted]
    assert len(found) == 1


def test_layouts_of_attention_reach_all_its_projections():
    wanted = Layout(["unsharded", "unsharded", "x"], mesh())
    layer = layers.MultiHeadAttention(2, 4, kernel_layout=wanted)
    layer(tf.zeros([2, 2, 4]), tf.zeros([2, 2, 4]))
    kernels = [v for v in layer.weights if "kernel" in v.name]
    assert len(kernels) == 4
    assert all(v.layout == wanted for v in kernels)


def test_both_directions_have_the_layouts():
    wanted = Layout(["unsharded", "x"], mesh())
    layer = layers.Bidirectional(layers.LSTM(4, kernel_layout=wanted, recurrent_layout=wanted))
    layer.build((2, 3, 4))
    split = [v for v in layer.weights if getattr(v, "layout", None) == wanted]
    assert len(split) == 4


def test_split_lstm_equals_one_lstm():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    plain = layers.LSTM(4)
    expected = plain(x)
    split = layers.LSTM(4, kernel_layout=Layout(["unsharded", "x"], mesh()))
    split(x)
    split.set_weights(plain.get_weights())
    np.testing.assert_allclose(split(x).numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "near"),
    [
        (lambda: layers.Dense(3, kernel_layuot=None), "'kernel_layout'"),
        (lambda: layers.LSTM(3, kernal_layout=mesh()), "'kernel_layout'"),
        (lambda: layers.DepthwiseConv2D(3, pointwise_layout=mesh()), "'depthwise_layout'"),
        (lambda: layers.Conv2D(3, 3, filterss=2), "'filters'"),
        (lambda: layers.ReLU(max_valeu=2.0), "'max_value'"),
        (lambda: layers.Bidirectional(layers.GRU(2), merge_mod="sum"), "'merge_mode'"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(make, near):
    with pytest.raises(TypeError, match=rf"not understood by \w+: .*did you mean {near}"):
        make()


def test_every_layer_refuses_unknown_keywords():
    arguments = {
        "Bidirectional": lambda: (layers.GRU(2),),
        "TimeDistributed": lambda: (layers.Dense(2),),
        "Wrapper": lambda: (layers.Dense(2),),
        "SpectralNormalization": lambda: (layers.Dense(2),),
        "RNN": lambda: (layers.GRUCell(2),),
        "StackedRNNCells": lambda: ([layers.GRUCell(2)],),
        "Lambda": lambda: (abs,),
        "Activation": lambda: ("relu",),
        "EinsumDense": lambda: ("ab,bc->ac", 2),
        "Dot": lambda: (1,),
        "Reshape": lambda: ((2,),),
        "Permute": lambda: ((1,),),
        "DenseFeatures": lambda: ([tf.feature_column.numeric_column("a")],),
        "JaxLayer": lambda: (lambda params, inputs: inputs, None, 1.0),
    }
    accepted = []
    for name in sorted(dir(layers)):
        cls = getattr(layers, name)
        if not (isinstance(cls, type) and issubclass(cls, layers.Layer)) or name in (
            "InputLayer",
            "FlaxLayer",
        ):
            continue  # the first has the arguments of `Input`, the second needs a package
        for given in (arguments[name](),) if name in arguments else ((), (2,), (2, 2), (0.5,)):
            try:
                cls(*given, no_such_argument=1)
            except TypeError as error:
                if "no_such_argument" in str(error):
                    break
            except ValueError:
                continue
            else:
                accepted.append(name)
        else:
            accepted.append(name)
    assert not accepted


def test_a_layout_of_a_weight_that_a_users_layer_does_not_make():
    class Scale(layers.Layer):
        def build(self, input_shape):
            self.factor = self.add_weight("factor", input_shape[-1:])

        def call(self, inputs):
            return inputs * self.factor

    wanted = Layout(["x"], mesh())
    good = Scale(factor_layout=wanted)
    good(tf.ones([2, 4]))
    assert good.factor.layout == wanted
    with pytest.raises(TypeError, match=r"given \['facto_layout'\].*it has \['\w+/factor:0'\]"):
        Scale(facto_layout=wanted)(tf.ones([2, 4]))
