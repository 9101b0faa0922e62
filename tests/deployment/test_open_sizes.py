"""Test saving and running networks over images of any size, and models whose Python code inspects
tensors."""

import importlib

import numpy as np
import pytest

import meshflow as tf
import meshflow.onnx

L = tf.keras.layers


@pytest.fixture(scope="module")
def convolutional():
    x = tf.keras.Input((None, None, 2))
    fine = L.Conv2D(3, 3, activation="relu")(L.ZeroPadding2D()(x))
    y = L.MaxPooling2D(3, 2, padding="same")(fine)
    y = L.DepthwiseConv2D(3, 2, padding="same")(y)
    y = L.Conv2DTranspose(3, 3, 2, padding="same")(L.UpSampling2D(2)(y))
    y = L.UpSampling2D(2, interpolation="bilinear")(L.AveragePooling2D(3, 2, padding="same")(y))
    return tf.keras.Model(x, L.Add()([fine, y]))


def _onnx(model, folder):
    importlib.import_module("onnx")
    runtime = importlib.import_module("onnxruntime")
    model.export(folder / "m.onnx", format="onnx")
    session = runtime.InferenceSession(folder / "m.onnx", providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]


def _litert(model, folder):
    importlib.import_module("ai_edge_litert")
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    (name,) = run.get_input_details()
    return lambda x: next(iter(run(**{name: x}).values()))


def _save_and_load(model, folder):
    model.save(folder / "saved")
    signature = tf.saved_model.load(folder / "saved").signatures["serving_default"]
    return lambda x: next(iter(signature(tf.constant(x)).values())).numpy()


@pytest.mark.parametrize("through", [_onnx, _litert, _save_and_load])
def test_images_of_any_size(convolutional, through, tmp_path):
    try:
        run = through(convolutional, tmp_path)
    except ImportError as error:
        pytest.skip(f"needs an extra: {error}")
    if through is _save_and_load:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"32\*size1.*got \[1, 30, 32, 2\]"
        ):
            run(np.zeros((1, 30, 32, 2), np.float32))
    for shape in ((2, 32, 64, 2), (1, 96, 32, 2)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(run(x), convolutional(x).numpy(), atol=1e-5)


class Chooses(tf.keras.Model):
    def call(self, x):
        if tf.reduce_sum(x) > 0:
            x = 2 * x
        else:
            x = x - 1
        while tf.reduce_max(x) > 4:
            x = x / 2
        return x


@pytest.mark.parametrize("through", [_onnx, _litert, _save_and_load])
def test_python_that_looks_at_tensors(through, tmp_path):
    model = Chooses()
    examples = np.asarray([[[1.0, 2.0]], [[-1.0, -2.0]], [[9.0, 8.0]]], np.float32)
    expected = [model(x).numpy() for x in examples]
    try:
        run = through(model, tmp_path)
    except ImportError as error:
        pytest.skip(f"needs an extra: {error}")
    np.testing.assert_array_equal([run(x) for x in examples], expected)


def test_interpolation_of_unknown_sizes_is_an_error(tmp_path):
    x = tf.keras.Input((None, None, 2))
    model = tf.keras.Model(x, L.UpSampling2D(2, interpolation="bicubic")(x))
    with pytest.raises(tf.errors.UnimplementedError, match=r"bicubic.*needs known sizes"):
        model.export(tmp_path / "m.onnx", format="onnx")
