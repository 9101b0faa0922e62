"""Compare complete training runs with numbers of tf-keras (tests/reference/generate_cnn.py)."""

from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers, optimizers

STORED = np.load(Path(__file__).parents[3] / "reference" / "cnn.npz")
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.legacy.Adam(0.01),
    "rmsprop": lambda: optimizers.legacy.RMSprop(0.01, momentum=0.5, centered=True),
    "nadam": lambda: optimizers.legacy.Nadam(0.01),
    "ftrl": lambda: optimizers.legacy.Ftrl(0.1, l1_regularization_strength=0.001),
    "adagrad": lambda: optimizers.legacy.Adagrad(0.05),
}


def build():
    return tf.keras.Sequential(
        [
            layers.Conv2D(6, 3, padding="same", activation="relu", input_shape=(8, 8, 3), name="a"),
            layers.BatchNormalization(name="b"),
            layers.MaxPooling2D(name="c"),
            layers.SeparableConv2D(5, 3, activation="elu", name="d"),
            layers.Flatten(name="e"),
            layers.LayerNormalization(name="f"),
            layers.Dense(7, activation="gelu", kernel_regularizer="l2", name="g"),
            layers.Dense(4, activation="softmax", name="h"),
        ]
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_follows_tensorflows(name):
    model = build()
    model.set_weights([STORED[f"weight_{i}"] for i in range(len(model.weights))])
    model.compile(OPTIMIZERS[name](), "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = STORED["x"], STORED["y"]
    history = model.fit(x, y, batch_size=10, epochs=4, shuffle=False, verbose=0).history
    assert_close(history["loss"], STORED[f"{name}_loss"], 1e-3)
    assert_close(history["accuracy"], STORED[f"{name}_accuracy"], 1e-6)
    assert_close(model.predict(x, verbose=0), STORED[f"{name}_prediction"], 2e-2, 2e-3)
