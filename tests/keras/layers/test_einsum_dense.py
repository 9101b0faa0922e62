"""`EinsumDense`: shapes and errors are those of Keras 2 under TensorFlow 2.21."""

import numpy as np
import pytest

import meshflow as tf

EinsumDense = tf.keras.layers.EinsumDense

# equation, output_shape, bias_axes, input -> kernel, bias, output
SHAPES = [
    ("ab,bc->ac", 64, None, (None, 32), (32, 64), None, (None, 64)),
    ("abc,cd->abd", (None, 64), "d", (None, 32, 128), (128, 64), (64,), (None, None, 64)),
    ("...x,xy->...y", 64, "y", (None, 32, 128), (128, 64), (64,), (None, 32, 64)),
    ("btd,dnh->btnh", (None, 2, 3), "nh", (None, 5, 8), (8, 2, 3), (2, 3), (None, None, 2, 3)),
    ("...bca,cd->...bda", (2, 3, 4), None, (None, 2, 8, 4), (8, 3), None, (None, 2, 3, 4)),
    ("aBC,CD->aBD", (32, 64), "D", (None, 32, 16), (16, 64), (64,), (None, 32, 64)),
    ("ab...,bc->ac...", (64,), "c", (None, 4, 7), (4, 64), (64, 1), (None, 64, 7)),
]


@pytest.mark.parametrize("equation,output,axes,inputs,kernel,bias,full", SHAPES)
def test_shapes_and_values(rng, equation, output, axes, inputs, kernel, bias, full):
    layer = EinsumDense(equation, output, bias_axes=axes, bias_initializer="random_normal")
    layer.build(inputs)
    assert tuple(layer.kernel.shape) == kernel
    assert (layer.bias is None) if bias is None else tuple(layer.bias.shape) == bias
    assert tuple(layer.compute_output_shape(inputs).as_list()) == full
    x = rng.normal(size=(2, *inputs[1:])).astype("f4")
    wanted = np.einsum(equation, x, layer.kernel.numpy())
    wanted = wanted if bias is None else wanted + layer.bias.numpy()
    np.testing.assert_allclose(layer(x), wanted, rtol=1e-4, atol=1e-5)
    copy = EinsumDense.from_config(layer.get_config())
    assert copy(x).shape == layer(x).shape


@pytest.mark.parametrize(
    "equation,output,axes,inputs,message",
    [
        ("ab,bc,cd->a", 3, None, (None, 4), "Invalid einsum equation 'ab,bc,cd->a'"),
        ("ab,bc", 3, None, (None, 4), "Equations must be in the form"),
        ("a...b,bc->a...c", 3, None, (None, 3, 4), "Invalid einsum equation"),
        ("...ab...,bc->...ac...", (3,), None, (None, 3, 4), "Invalid einsum equation"),
        ("abc,cd->abd", (None, 64), "z", (None, 3, 4), "Bias dimension 'z' was requested"),
        ("abc,cd->abd", (5, 64), None, (None, 3, 4), "do not match at shared dimension 'b'"),
        (
            "abc,ce->abd",
            (3, 64),
            None,
            (None, 3, 4),
            "no corresponding dim in the input spec 'abc'",
        ),
        ("abc,cde->abd", (3, 64), None, (None, 3, 4), "Weight dimension 'e' did not have a match"),
        ("abc,cd->abd", (3,), None, (None, 3, 4), "has too few sizes"),
        ("abc,cd->abd", (3, 5), None, (None, 4), "does not have the 3 dimensions"),
    ],
)
def test_errors(equation, output, axes, inputs, message):
    with pytest.raises(ValueError, match=message):
        EinsumDense(equation, output, bias_axes=axes).build(inputs)


def test_in_a_model(rng):
    model = tf.keras.Sequential(
        [
            EinsumDense("abc,cd->abd", (None, 6), "relu", "d", input_shape=(None, 4)),
            EinsumDense("...x,xy->...y", 1),
        ]
    )
    assert model.output_shape == (None, None, 1)
    model.compile("sgd", "mse")
    x = rng.normal(size=(8, 3, 4)).astype("f4")
    losses = model.fit(x, x[..., :1], epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
