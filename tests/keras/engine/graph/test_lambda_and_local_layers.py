"""`Lambda` layers in files, and layers that tests/reference computes: their configurations and shapes."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.safe_mode import safe_mode_scope

layers = tf.keras.layers


def _model():
    scale = 3.0
    return tf.keras.Sequential(
        [
            tf.keras.Input((3,)),
            layers.Lambda(lambda x, k=2.0: tf.nn.relu(x) * k + 1.0),
            layers.Lambda(lambda x: x * scale),
            layers.Lambda(tf.math.square),
        ]
    )


@pytest.mark.parametrize("ending", ["keras", "h5", ""])
def test_functions_without_a_name_are_saved(tmp_path, ending):
    model, x = _model(), np.linspace(-1, 1, 6, dtype="f4").reshape(2, 3)
    path = str(tmp_path / f"model.{ending}") if ending else str(tmp_path / "folder")
    model.save(path)
    with pytest.raises(ValueError, match=r"code of the file's author.*safe_mode=False"):
        tf.keras.models.load_model(path)
    loaded = tf.keras.models.load_model(path, safe_mode=False)
    assert np.array_equal(loaded(x), model(x))


def test_lambda_configuration():
    config = layers.Lambda(lambda x: x + 1).get_config()
    assert config["function_type"] == "lambda" and len(config["function"]) == 3
    again = layers.Lambda.from_config(config)
    assert again(tf.constant([1.0])).numpy().tolist() == [2.0]
    assert layers.Lambda(tf.nn.relu).get_config()["function"] == "nn.relu"
    with safe_mode_scope(False), pytest.raises(ValueError, match="another version of Python"):
        layers.Lambda.from_config({**config, "function": ["AAAA", None, None]})


@pytest.mark.parametrize(
    "layer, shape, output",
    [
        (lambda: layers.ConvLSTM1D(2, 3), (4, 6, 3), (4, 2)),
        (lambda: layers.ConvLSTM2D(2, 3, return_sequences=True), (4, 6, 5, 3), (4, 4, 3, 2)),
        (lambda: layers.ConvLSTM3D(2, 2, strides=2), (2, 4, 4, 4, 1), (2, 2, 2, 2)),
        (lambda: layers.LocallyConnected1D(2, 3), (6, 3), (4, 2)),
        (lambda: layers.LocallyConnected2D(2, 3, strides=2), (7, 5, 3), (3, 2, 2)),
        (lambda: layers.DepthwiseConv1D(3, depth_multiplier=2), (6, 3), (4, 6)),
        (lambda: layers.SeparableConvolution1D(2, 3), (6, 3), (4, 2)),
        (lambda: layers.Convolution1DTranspose(2, 3), (6, 3), (8, 2)),
    ],
)
def test_shapes_and_configurations(layer, shape, output):
    made = layer()
    symbolic = made(tf.keras.Input(shape))
    assert tuple(symbolic.shape) == (None, *output)
    copy = type(made).from_config(made.get_config())
    assert copy(tf.ones([2, *shape])).shape == (2, *output)
    assert [w.shape for w in copy.weights] == [w.shape for w in made.weights]


def test_convolutional_recurrence():
    layer = layers.ConvLSTM2D(2, 3, padding="same", return_state=True, return_sequences=True)
    x = tf.random.normal([2, 3, 4, 4, 1])
    sequence, hidden, carry = layer(x)
    assert sequence.shape == (2, 3, 4, 4, 2) and carry.shape == (2, 4, 4, 2)
    assert np.array_equal(sequence[:, -1], hidden)
    again, *_ = layer(x[:, 1:], initial_state=layer(x[:, :1])[1:])
    np.testing.assert_allclose(again[:, -1], hidden, atol=1e-5)
    first = layers.ConvLSTM2D(2, 3, data_format="channels_first", padding="same")
    first.build((2, 3, 1, 4, 4))
    first.set_weights(layer.get_weights())
    moved = first(tf.transpose(x, [0, 1, 4, 2, 3]))
    np.testing.assert_allclose(tf.transpose(moved, [0, 2, 3, 1]), hidden, atol=1e-5)


def test_convolutional_recurrence_drops_and_remembers():
    x = tf.ones([2, 3, 4, 4, 1])
    dropping = layers.ConvLSTM2D(2, 3, dropout=0.5, recurrent_dropout=0.5)
    assert not np.array_equal(dropping(x, training=True), dropping(x))
    keeping = layers.ConvLSTM2D(2, 3, stateful=True)
    once = keeping(x).numpy()
    assert not np.array_equal(keeping(x), once)
    keeping.reset_states()
    assert np.array_equal(keeping(x), once)


def test_errors_of_local_layers():
    with pytest.raises(ValueError, match="Invalid border mode for LocallyConnected2D"):
        layers.LocallyConnected2D(2, 3, padding="same")
    with pytest.raises(ValueError, match="fully-defined"):
        layers.LocallyConnected1D(2, 3)(tf.keras.Input((None, 3)))
    with pytest.raises(ValueError, match="Unrecognized implementation mode: 4"):
        layers.LocallyConnected1D(2, 3, implementation=4)


# Of tf-keras 2.21: the first results and the sum of all sizes, for weights that are cosines of their places.
LOCAL = [
    ((1, 1, "valid", "channels_first", 2), [0.839, 0.516, -0.253, -1.19], 11.55),
    ((1, 2, "same", "channels_last", 2), [0.909, 0.456, -0.416, -1.267], 16.85),
    ((1, 3, "same", "channels_first", 1), [1.324, 0.248, -1.0, 0.335], 56.62),
    ((2, 2, "valid", "channels_first", 2), [0.824, 0.232, 0.523, 0.262], 62.04),
    ((2, 3, "same", "channels_last", 2), [1.054, 0.441, -0.388, -1.086], 122.27),
]


@pytest.mark.parametrize("case, begin, total", LOCAL)
def test_local_layers_by_every_implementation(case, begin, total):
    rank, implementation, padding, order, strides = case
    sizes = (6,) if rank == 1 else (4, 5)
    shape = (2, 2, *sizes) if order == "channels_first" else (2, *sizes, 2)
    layer = getattr(layers, f"LocallyConnected{rank}D")(
        3, 2, strides, padding, order, implementation=implementation
    )
    layer.build(shape)
    layer.set_weights([np.cos(np.arange(np.prod(w.shape))).reshape(w.shape) for w in layer.weights])
    result = layer(np.arange(np.prod(shape), dtype="float32").reshape(shape) / 10).numpy()
    np.testing.assert_allclose(result.ravel()[:4], begin, atol=6e-4)
    np.testing.assert_allclose(np.abs(result).sum(), total, atol=6e-3)
    assert layer.get_config()["implementation"] == implementation


def test_spectral_normalization_divides_the_kernel_by_its_largest_singular_value():
    layer = layers.SpectralNormalization(layers.Dense(3), power_iterations=2)
    x = tf.ones([2, 4])
    layer(x)
    layer.layer.kernel.assign(np.arange(12).reshape(4, 3) / 10)
    layer.vector_u.assign([[1.0, 0.0, 0.0]])
    np.testing.assert_allclose(layer(x)[0], [1.8, 2.2, 2.6], rtol=1e-6)
    # Numbers of tf-keras 2.21.
    np.testing.assert_allclose(
        layer(x, training=True)[0], [0.801898, 0.98009753, 1.1582971], rtol=1e-5
    )
    np.testing.assert_allclose(layer.vector_u, [[0.49759474, 0.5739724, 0.6503501]], rtol=1e-5)
    again = layers.SpectralNormalization.from_config(layer.get_config())
    assert (again.layer.units, again.power_iterations) == (3, 2)
    model = tf.keras.Sequential([layers.SpectralNormalization(layers.Conv2D(2, 3))])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 4, 4, 1)), np.ones((2, 2, 2, 2)), verbose=0)
    assert [len(model.trainable_weights), len(model.weights)] == [2, 3]
    with pytest.raises(ValueError, match="greater than zero"):
        layers.SpectralNormalization(layers.Dense(3), power_iterations=0)
    with pytest.raises(ValueError, match="no attribute 'kernel' nor 'embeddings'"):
        layers.SpectralNormalization(layers.ReLU())(x)
