"""Test weights of layers in files of Keras 1, and of layers that used cuDNN. The sums are TensorFlow's."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.engine.saving.older_weights import convert_weights

layers = tf.keras.layers


def _make_layer(layer, shape):
    layer.build((None, *shape))
    return layer


def _convert(layer, shapes, version="2"):
    """Return the shapes and weighted sums of converted random weights."""
    random = np.random.RandomState(0)
    weights = [random.randint(0, 9, shape).astype(np.float32) for shape in shapes]
    converted = convert_weights(layer, weights, version)
    return [(list(w.shape), float(np.dot(w.ravel(), np.arange(1, w.size + 1)))) for w in converted]


@pytest.mark.parametrize(
    ("layer", "input_shape", "shapes", "expected"),
    [
        (layers.Conv1D(4, 3), (8, 2), [(4, 2, 3, 1), (4,)], [([3, 2, 4], 1420), ([4], 21)]),
        (layers.Conv1D(4, 3), (8, 2), [(3, 1, 2, 4), (4,)], [([3, 2, 4], 1425), ([4], 21)]),
        (layers.Conv2D(4, (3, 2), data_format="channels_first"), (2, 8, 8), [(4, 2, 3, 2), (4,)],
         [([3, 2, 2, 4], 4799), ([4], 57)]),
        (layers.Conv2D(4, (3, 2)), (8, 8, 2), [(3, 2, 2, 4), (4,)], [([3, 2, 2, 4], 4083), ([4], 57)]),
        (layers.Conv2DTranspose(4, (3, 2)), (8, 8, 5), [(3, 2, 5, 4), (4,)], [([3, 2, 4, 5], 23778), ([4], 75)]),
        (layers.Conv2DTranspose(4, (3, 2), data_format="channels_first"), (5, 8, 8), [(4, 5, 3, 2), (4,)],
         [([3, 2, 4, 5], 26772), ([4], 75)]),
        (layers.Conv3D(4, (3, 2, 1), data_format="channels_first"), (5, 8, 8, 8), [(4, 5, 3, 2, 1), (4,)],
         [([3, 2, 1, 5, 4], 27035), ([4], 75)]),
        (layers.LSTM(2), (3, 4), [(4, 2), (2, 2), (2,)] * 4, [([4, 8], 2188), ([2, 8], 574), ([8], 103)]),
        (layers.GRU(2, reset_after=False), (3, 4), [(4, 2), (2, 2), (2,)] * 3,
         [([4, 6], 1234), ([2, 6], 343), ([6], 45)]),
        (layers.Bidirectional(layers.LSTM(2)), (3, 4), [(4, 2), (2, 2), (2,)] * 8,
         [([4, 8], 2188), ([2, 8], 574), ([8], 103), ([4, 8], 1772), ([2, 8], 462), ([8], 141)]),
    ],
)  # fmt: skip
def test_keras_1(layer, input_shape, shapes, expected):
    assert _convert(_make_layer(layer, input_shape), shapes, "1") == expected


@pytest.mark.parametrize(
    ("layer", "shapes", "expected"),
    [
        (layers.LSTM(2), [(4, 8), (2, 8), (16,)], [([4, 8], 2263), ([2, 8], 379), ([8], 269)]),
        (layers.GRU(2), [(4, 6), (2, 6), (12,)], [([4, 6], 1345), ([2, 6], 269), ([2, 6], 237)]),
        (layers.Bidirectional(layers.LSTM(2)), [(4, 8), (2, 8), (16,)] * 2,
         [([4, 8], 2263), ([2, 8], 379), ([8], 269), ([4, 8], 1818), ([2, 8], 473), ([8], 221)]),
    ],
)  # fmt: skip
def test_cudnn(layer, shapes, expected):
    assert _convert(_make_layer(layer, (3, 4)), shapes) == expected


def test_layers_of_a_model_in_a_model():
    model = tf.keras.Sequential(
        [layers.Input((3, 4)), layers.BatchNormalization(), layers.LSTM(2), layers.Dense(2)]
    )
    shapes = [(4,), (4,), (4, 8), (2, 8), (16,), (2, 2), (2,), (4,), (4,)]
    sums = [26, 36, 2079, 459, 265, 44, 17, 28, 18]
    assert [total for _, total in _convert(model, shapes)] == sums


def test_incompatible_variants_of_gru():
    plain, reset_after = (_make_layer(layers.GRU(2, reset_after=x), (3, 4)) for x in (False, True))
    with pytest.raises(ValueError, match=r"is not compatible with GRU\(reset_after=False\)"):
        _convert(plain, [(4, 6), (2, 6), (12,)])
    with pytest.raises(ValueError, match=r"is not compatible with GRU\(reset_after=True\)"):
        _convert(reset_after, [(4, 6), (2, 6), (6,)])


def test_weights_of_another_number_are_kept():
    assert convert_weights(_make_layer(layers.Conv1D(2, 3), (5, 4)), [], "1") == []
    kernel = np.zeros((3, 3, 4, 2))
    assert convert_weights(layers.Conv2D(2, 3), [kernel], "2")[0] is kernel


def test_files_with_weights_of_cudnn(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = tf.keras.Sequential([layers.Input((3, 4)), layers.LSTM(2, name="lstm")])
    path = str(tmp_path / "model.h5")
    model.save_weights(path)
    random = np.random.RandomState(0)
    stored = [random.randint(0, 9, s).astype(np.float32) for s in ((4, 8), (2, 8), (16,))]
    with h5py.File(path, "r+") as file:
        names = list(file["lstm"].attrs["weight_names"])
        for name, value in zip(names, stored, strict=True):
            del file["lstm"][name]
            file["lstm"][name] = value
    model.load_weights(path)
    for weight, expected in zip(
        model.get_weights(), convert_weights(model.layers[0], stored, "2"), strict=True
    ):
        np.testing.assert_array_equal(weight, expected)
