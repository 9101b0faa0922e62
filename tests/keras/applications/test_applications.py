"""`tf.keras.applications`: layers, weights and numbers of parameters are those of tf-keras."""

import hashlib
import inspect
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

applications = tf.keras.applications
STORED = json.loads((Path(__file__).parents[2] / "reference" / "applications.json").read_text())


def described(model):
    """Return the compared properties: name, parameters, and digests of the layers and of the
    weights' shapes."""
    layers = [[layer.name, type(layer).__name__] for layer in model.layers[1:]]
    shapes = [[int(size) for size in weight.shape] for weight in model.weights]
    digests = [hashlib.sha256(json.dumps(v).encode()).hexdigest() for v in (layers, shapes)]
    return [model.name, model.count_params(), len(layers), *digests]


def zeros(initializer, shape):
    return np.broadcast_to(0.0, shape)


LARGE = ("InceptionResNetV2", "NASNetLarge", "ResNetRS270", "RegNetX320", "RegNetY160")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name in LARGE else [])
        for name in STORED
        if name != "version"
    ],
)
def test_architecture(name, monkeypatch):
    tf.keras.backend.reset_uids()
    # Only names and shapes are compared, and drawing millions of numbers takes longest.
    monkeypatch.setattr(tf.keras.initializers.VarianceScaling, "values", zeros)
    make = getattr(applications, name)
    model = make(weights=None, input_shape=(96, 96, 3), classes=7)
    assert described(model) == STORED[name]


def test_features_and_images_of_any_size(tmp_path):
    model = applications.MobileNetV2(weights=None, include_top=False, alpha=0.35, pooling="avg")
    assert tuple(model.input_shape) == (None, None, None, 3)
    image = np.random.default_rng(0).uniform(0, 255, (1, 40, 48, 3))
    features = model(applications.mobilenet_v2.preprocess_input(image))
    assert features.shape == (1, 1280)
    path = str(tmp_path / "weights.h5")
    model.save_weights(path)
    again = applications.MobileNetV2(weights=path, include_top=False, alpha=0.35, pooling="avg")
    assert np.array_equal(again.get_weights()[0], model.get_weights()[0])


def test_small_windows_and_unscaled_images():
    make = applications.MobileNetV3Large
    model = make(weights=None, minimalistic=True, include_preprocessing=False, include_top=False)
    kinds = {type(layer).__name__ for layer in model.layers}
    assert not kinds & {"Rescaling", "Multiply", "GlobalAveragePooling2D"}
    windows = [w.shape[:2] for w in model.weights if "depthwise_kernel" in w.name]
    assert windows == [(3, 3)] * 15


def test_bad_arguments():
    make = applications.MobileNet
    with pytest.raises(ValueError, match="`weights` argument should be either"):
        make(weights="other")
    with pytest.raises(ValueError, match="`classes` should be 1000"):
        make(classes=10)
    with pytest.raises(ValueError, match="must be at least 32x32"):
        make(weights=None, input_shape=(16, 16, 3))
    with pytest.raises(ValueError, match="static `input_shape`"):
        make(weights=None, input_shape=(None, None, 3))
    with pytest.raises(ValueError, match="alpha can be one of"):
        applications.MobileNetV3Small(minimalistic=True, alpha=0.75)


def test_constructors_are_functions_with_explicit_signatures():
    make = applications.ConvNeXtTiny
    assert pickle.loads(pickle.dumps(make)) is make
    parameters = inspect.signature(make).parameters
    assert parameters["model_name"].default == "convnext_tiny"
    with pytest.raises(
        TypeError, match=r"ConvNeXtTiny: .*'poling'. Its arguments are model_name, "
    ):
        make(poling="avg")


def test_weights_named_by_the_size_of_images():
    with pytest.raises(ValueError, match="ResNetRS101: weights must be one of 'imagenet-i160'"):
        applications.ResNetRS101(weights="imagenet-i128")


def test_the_sum_that_is_scaled():
    kind = applications.inception_resnet_v2.CustomScaleLayer
    layer = kind.from_config(kind(0.25).get_config())
    assert layer([tf.constant([1.0]), tf.constant([8.0])]).numpy() == [3.0]
    assert tuple(layer.compute_output_shape([(None, 2), (None, 2)])) == (None, 2)


PIXELS = np.array([[[[0.0, 100.0, 255.0]]]], "f4")


@pytest.mark.parametrize(
    "module, expected",
    [
        ("vgg16", [151.061, -16.779, -123.68]),
        ("xception", [-1.0, -0.2156863, 1.0]),
        ("densenet", [-2.117904, -0.285014, 2.64]),
        ("efficientnet", [0.0, 100.0, 255.0]),
    ],
)
def test_preprocess_input(module, expected):
    preprocess = getattr(applications, module).preprocess_input
    for images in (PIXELS, tf.constant(PIXELS)):
        found = preprocess(images)
        assert type(found) is type(images)
        np.testing.assert_allclose(np.asarray(found).ravel(), expected, atol=1e-4)
    first = preprocess(np.moveaxis(PIXELS, -1, 1), data_format="channels_first")
    np.testing.assert_allclose(first.ravel(), expected, atol=1e-4)
    symbolic = preprocess(tf.keras.Input((1, 1, 3)))
    assert tuple(symbolic.shape) == (None, 1, 1, 3)


def test_names_of_classes(tmp_path, monkeypatch):
    utils = applications.imagenet_utils
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "imagenet_class_index.json"
    path.write_text(json.dumps({str(i): [f"n{i}", f"name{i}"] for i in range(1000)}))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    checksum = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(utils, "CLASSES_MD5", checksum)
    answers = np.zeros((1, 1000), "f4")
    answers[0, [3, 7]] = 0.25, 0.75
    assert utils.decode_predictions(answers, top=2) == [
        [("n7", "name7", 0.75), ("n3", "name3", 0.25)]
    ]
    with pytest.raises(ValueError, match="expects a batch of predictions"):
        utils.decode_predictions(np.zeros((2, 10)))
