"""Train a small CNN in tf-keras from fixed weights and store weights, data and losses.

Run in the peers' environment: `TF_USE_LEGACY_KERAS=1 .venv-peers/bin/python tests/reference/generate_cnn.py`.
"""

import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

layers = tf.keras.layers


def build():
    """The network; the test builds the same one."""
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


def main():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 8, 8, 3)).astype("float32"), rng.integers(0, 4, 24)
    stored = {"x": x, "y": y}
    tf.keras.utils.set_random_seed(0)
    model = build()
    start = model.get_weights()
    for i, w in enumerate(start):
        stored[f"weight_{i}"] = w
    for name, optimizer in (
        ("sgd", tf.keras.optimizers.legacy.SGD(0.05, momentum=0.9, nesterov=True)),
        ("adam", tf.keras.optimizers.legacy.Adam(0.01)),
        ("rmsprop", tf.keras.optimizers.legacy.RMSprop(0.01, momentum=0.5, centered=True)),
        ("nadam", tf.keras.optimizers.legacy.Nadam(0.01)),
        ("ftrl", tf.keras.optimizers.legacy.Ftrl(0.1, l1_regularization_strength=0.001)),
        ("adagrad", tf.keras.optimizers.legacy.Adagrad(0.05)),
    ):
        model = build()
        model.set_weights(start)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(x, y, batch_size=10, epochs=4, shuffle=False, verbose=0).history
        stored[f"{name}_loss"] = history["loss"]
        stored[f"{name}_accuracy"] = history["accuracy"]
        stored[f"{name}_prediction"] = model.predict(x, verbose=0)
    stored["version"] = np.array(f"tensorflow {tf.__version__}")
    np.savez_compressed(Path(__file__).with_name("cnn.npz"), **stored)


if __name__ == "__main__":
    main()
