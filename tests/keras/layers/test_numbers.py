"""Sizes of layers as NumPy numbers, tensors and floats, as hyperparameters often are."""

import json

import numpy as np
import pytest

import meshflow as tf

L = tf.keras.layers
IMAGES = np.ones((1, 6, 6, 3), np.float32)
STEPS = np.ones((1, 4, 3), np.float32)
LAYERS = [
    (lambda n: L.Dense(n(4)), STEPS),
    (lambda n: L.Conv2D(n(4), n(3), strides=n(2), groups=n(1)), IMAGES),
    (lambda n: L.Conv1D(n(4), (n(2),), dilation_rate=n(2)), STEPS),
    (lambda n: L.Conv2DTranspose(n(4), n(3), strides=n(2), output_padding=n(1)), IMAGES),
    (lambda n: L.DepthwiseConv2D(n(3), depth_multiplier=n(2)), IMAGES),
    (lambda n: L.SeparableConv2D(n(4), (n(3), n(2))), IMAGES),
    (lambda n: L.MaxPooling2D(n(2), strides=n(3)), IMAGES),
    (lambda n: L.UpSampling2D(n(2)), IMAGES),
    (lambda n: L.ZeroPadding2D((n(1), n(2))), IMAGES),
    (lambda n: L.Cropping2D(n(1)), IMAGES),
    (lambda n: L.RandomCrop(n(3), n(3), seed=n(1)), IMAGES),
    (lambda n: L.LSTM(n(4)), STEPS),
]


@pytest.mark.parametrize("number", [np.int64, np.uint8])
@pytest.mark.parametrize(("make", "x"), LAYERS)
def test_numpy_numbers(make, x, number):
    layer, expected = make(number), make(int)
    assert layer(x).shape == expected(x).shape
    configs = [{**part.get_config(), "name": ""} for part in (layer, expected)]
    assert json.dumps(configs[0], default=int) == json.dumps(configs[1])


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (lambda: L.Dense(8 / 2), 4),
        (lambda: L.Dense(tf.constant(4)), 4),
        (lambda: L.Conv1D(8 / 2, 2), 4),
        (lambda: L.Conv1D(tf.constant(4), 2), 4),
        (lambda: L.GRU(tf.constant(4)), 4),
        (lambda: L.GRU(8 / 2), 4),
        (lambda: L.Dense(0), 0),
    ],
)
def test_floats_and_tensors(layer, channels):
    assert layer()(STEPS).shape[-1] == channels


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L.Conv2D(0, 3), "`filters`"),
        (lambda: L.Conv2D("x", 3), "`filters`"),
        (lambda: L.Conv2D(4, 1.5), "`kernel_size`"),
        (lambda: L.Dense("x"), "`units`"),
        (lambda: L.Dense(-1), "`units`"),
        (lambda: L.LSTM("x"), "`units`"),
    ],
)
def test_other_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
