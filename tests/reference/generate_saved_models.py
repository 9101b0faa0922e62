"""Save small models with TensorFlow and tf-keras, with inputs and outputs, into `saved_models.tar.xz`.

Run in the peers' environment: `TF_USE_LEGACY_KERAS=1 .venv-peers/bin/python tests/reference/generate_saved_models.py`.
"""

import os
import tarfile
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers
TARGET = Path(__file__).parent / "saved_models.tar.xz"
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype("float32")


def mlp():
    model = keras.Sequential(
        [keras.Input([8]), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(3)]
    )
    return model, normal(5, 8)


def cnn():
    model = keras.Sequential(
        [
            keras.Input([12, 12, 3]),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.DepthwiseConv2D(3),
            layers.AveragePooling2D(2, 1),
            layers.Conv2DTranspose(4, 3, strides=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, "softmax"),
        ]
    )
    return model, normal(5, 12, 12, 3)


def lstm():
    ids = keras.Input([None], dtype="int32")
    hidden = layers.Embedding(20, 8, mask_zero=True)(ids)
    hidden = layers.Bidirectional(layers.LSTM(4))(hidden)
    model = keras.Model(ids, layers.Dense(2)(hidden))
    return model, np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]], np.int32)


def gru():
    inputs = keras.Input([None, 5])
    hidden = layers.GRU(4, return_sequences=True)(inputs)
    return keras.Model(inputs, layers.SimpleRNN(3)(hidden)), normal(3, 6, 5)


def transformer():
    inputs = keras.Input([6, 8])
    attended = layers.MultiHeadAttention(2, 4)(inputs, inputs)
    hidden = layers.LayerNormalization()(inputs + attended)
    outputs = layers.Dense(8)(layers.Dense(16, "gelu")(hidden))
    return keras.Model(inputs, layers.LayerNormalization()(hidden + outputs)), normal(3, 6, 8)


def text():
    words = layers.TextVectorization(
        output_sequence_length=6, vocabulary=["the", "cat", "sat", "mat", "on"]
    )
    inputs = keras.Input([1], dtype="string")
    hidden = layers.Embedding(words.vocabulary_size(), 4)(words(inputs))
    outputs = layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden))
    lines = [["The cat sat!"], ["on the mat, dog"], [""]]
    return keras.Model(inputs, outputs), np.array(lines, object)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = layers.Dense(3)
        self.parts = [layers.Dense(4), layers.BatchNormalization()]

    def call(self, inputs, training=False):
        hidden = self.parts[1](self.parts[0](inputs), training=training)
        return self.last(hidden)


def build_subclassed():
    model, inputs = Subclassed(), normal(4, 5)
    model(inputs)
    return model, inputs


class Module(tf.Module):
    """Variables in containers, tables, a file, and functions with Python's arguments and control flow."""

    def __init__(self, file):
        super().__init__()
        self.factor = tf.Variable([1.0, 2.0])
        self.calls = tf.Variable(0, trainable=False)
        self.parts = [tf.Variable(3.0), {"inner": tf.Variable(4.0)}]
        pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
        self.table = tf.lookup.StaticHashTable(pairs, -1)
        lines = tf.lookup.TextFileInitializer(file, tf.string, -2, tf.int64, -1)
        self.words = tf.lookup.StaticVocabularyTable(lines, 2)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def __call__(self, x):
        self.calls.assign_add(1)
        return x * self.factor

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def look(self, words):
        return {"table": self.table.lookup(words), "words": self.words.lookup(words)}

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([], tf.int32)])
    def loop(self, x, times):
        for _ in tf.range(times):
            x = x * 2 + self.factor[0]
        return x + 1.0 if tf.reduce_sum(x) > 0 else x - 1.0

    @tf.function
    def power(self, x, exponent=2):
        return x**exponent + self.parts[0]


def randomize(model):
    for weight in model.weights:
        if weight.dtype == tf.float32:
            weight.assign(0.3 * normal(*weight.shape) + ("variance" in weight.name))


def main():
    with tempfile.TemporaryDirectory() as folder:
        for make in (mlp, cnn, lstm, gru, transformer, text, build_subclassed):
            name = make.__name__
            model, inputs = make()
            randomize(model)
            model.compile("adam", "mse")
            if name in ("mlp", "cnn"):
                model.fit(inputs, np.zeros(model(inputs).shape), verbose=0)
            np.savez(f"{folder}/{name}.npz", x=inputs, y=model(inputs))
            if name in ("lstm", "gru", "text"):
                model.export(f"{folder}/{name}_export")
            if name not in ("lstm",):
                model.save(f"{folder}/{name}_save", save_format="tf")
        Path(f"{folder}/words.txt").write_text("x\ny\nz\n")
        module = Module(f"{folder}/words.txt")
        for exponent in (2, 3):
            module.power(tf.constant([1.0, 2.0]), exponent=exponent)
        tf.saved_model.save(
            module, f"{folder}/module", {"serving_default": module.__call__, "look": module.look}
        )
        Path(f"{folder}/words.txt").unlink()
        with tarfile.open(TARGET, "w:xz") as archive:
            archive.add(folder, "")


if __name__ == "__main__":
    main()
