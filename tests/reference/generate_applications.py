"""Describes the networks of tf-keras as tests/keras/applications/test_applications.py does; run in the peers' environment."""

import hashlib
import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

NAMES = (
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0"),
    *("EfficientNetV2S", "ResNet50V2", "ConvNeXtTiny", "InceptionResNetV2", "NASNetMobile"),
    *("NASNetLarge", "ResNetRS50", "ResNetRS270", "RegNetY002", "RegNetX320", "RegNetY160"),
)


def describe_model(model):
    layers = [[layer.name, type(layer).__name__] for layer in model.layers[1:]]
    shapes = [[int(size) for size in weight.shape] for weight in model.weights]
    digests = [hashlib.sha256(json.dumps(v).encode()).hexdigest() for v in (layers, shapes)]
    return [model.name, model.count_params(), len(layers), *digests]


def main():
    found = {"version": tf.__version__}
    for name in NAMES:
        tf.keras.backend.clear_session()
        make = getattr(tf.keras.applications, name)
        found[name] = describe_model(make(weights=None, input_shape=(96, 96, 3), classes=7))
    path = Path(__file__).with_name("applications.json")
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
