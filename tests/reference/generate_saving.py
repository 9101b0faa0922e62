"""Write saving.npz: files saved by tf-keras (their bytes), and predictions of the models.

Keys are `<model>_<kind of optimizer><suffix>`; `predictions` of each, and `trained` after one more
epoch. `words.keras` contains layers with adapted vocabularies, `words_predictions` their outputs
for WORDS. `learnt.keras`, `.h5` and `.tar.xz` (a SavedModel) contain empty and unnamed weights, and
many of one shape; `learnt_predictions` are the outputs for WORDS' last three and X, `learnt_ends`
the adapted boundaries.
"""

import io
import os
import tarfile
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras as keras

layers = keras.layers
X = np.linspace(-1, 1, 24).reshape(8, 3).astype("float32")


def sequential():
    return keras.Sequential(
        [
            layers.Dense(4, activation="relu", input_shape=(3,), kernel_regularizer="l2", name="a"),
            layers.BatchNormalization(name="b"),
            layers.Dropout(0.0, name="c"),
            layers.Dense(2, activation="softmax", name="d"),
        ],
        name="sequential",
    )


def functional():
    x = keras.Input((3,), name="x")
    inner = keras.Sequential(
        [layers.Dense(3, input_shape=(3,), activation="tanh", name="p")], name="inner"
    )
    joined = layers.Concatenate(name="s")([inner(x), layers.Dense(3, name="r")(x)])
    return keras.Model(x, layers.Dense(1, name="out")(joined), name="functional")


def targets(columns):
    """One-hot classes for two columns, numbers for one."""
    return np.eye(2, dtype="float32")[np.arange(8) % 2] if columns == 2 else np.abs(X[:, :1])


WORDS = [["a b c"], ["b, c! d"], ["b"], [""]]


def words():
    """Build a model with adapted vocabularies, which are stored next to its configuration."""
    text = layers.TextVectorization(output_mode="tf_idf", max_tokens=8, pad_to_max_tokens=True)
    text.adapt(["a b c", "a b", "a d e"])
    lookup = layers.StringLookup(output_mode="multi_hot", num_oov_indices=2)
    lookup.adapt(["a", "b", "c", "a"])
    x = keras.Input((1,), dtype="string")
    both = layers.Concatenate()([text(x), lookup(x)])
    return keras.Model(x, layers.Dense(2)(both), name="words")


def store_words(stored):
    tf.keras.utils.set_random_seed(1)
    model = words()
    stored["words_predictions"] = model(tf.constant(WORDS)).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "words.keras")
        model.save(path)
        stored["words.keras"] = np.frombuffer(Path(path).read_bytes(), np.uint8)


def learnt():
    """Build a model with a table of weighted words, adapted boundaries, a weight shared by two
    layers, and a nested model."""
    word, number = keras.Input((1,), dtype="string", name="word"), keras.Input((3,), name="number")
    table = layers.StringLookup(
        vocabulary=["b", "a c"], output_mode="tf_idf", idf_weights=[0.5, 2.0], num_oov_indices=2
    )
    ranges = layers.Discretization(num_bins=4, output_mode="count")
    ranges.adapt(X)
    both = layers.Concatenate()([table(word), ranges(number)])
    inner = keras.Sequential(
        [
            layers.SpectralNormalization(layers.Dense(2)),
            layers.BatchNormalization(),
            layers.Dense(2),
            layers.BatchNormalization(),
        ]
    )
    model = keras.Model([word, number], inner(both))
    random = np.random.default_rng(0)
    inner.set_weights([random.uniform(0.5, 1.5, w.shape) for w in inner.get_weights()])
    return model


def store_learnt(stored):
    tf.keras.utils.set_random_seed(1)
    model = learnt()
    stored["learnt_predictions"] = model([tf.constant(WORDS[1:]), tf.constant(X[:3])]).numpy()
    stored["learnt_ends"] = np.array(model.layers[3].bin_boundaries)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".keras", ".h5", ""):
            model.save(os.path.join(folder, "learnt" + suffix))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz") as archive:
            archive.add(os.path.join(folder, "learnt"), "learnt")
        stored["learnt.tar.xz"] = np.frombuffer(packed.getvalue(), np.uint8)
        for suffix in (".keras", ".h5"):
            data = Path(folder, "learnt" + suffix).read_bytes()
            stored["learnt" + suffix] = np.frombuffer(data, np.uint8)


def main():
    stored = {"x": X}
    store_words(stored)
    store_learnt(stored)
    for name, make, loss, columns in (
        ("sequential", sequential, "categorical_crossentropy", 2),
        ("functional", functional, keras.losses.MeanSquaredError(), 1),
    ):
        for kind, optimizer in (
            ("legacy", keras.optimizers.legacy.Adam(0.01)),
            ("new", keras.optimizers.Adam(0.01)),
        ):
            tf.keras.utils.set_random_seed(1)
            model = make()
            model.compile(optimizer, loss, metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
            y = targets(columns)
            model.fit(X, y, epochs=3, shuffle=False, verbose=0)
            key = f"{name}_{kind}"
            stored[f"{key}_predictions"] = model.predict(X, verbose=0)
            stored[f"{key}_json"] = model.to_json()
            with tempfile.TemporaryDirectory() as folder:
                for suffix in (".h5", ".keras", "_w.h5", "_w.weights.h5"):
                    path = os.path.join(folder, key + suffix)
                    save = model.save_weights if suffix.startswith("_w") else model.save
                    save(path)
                    stored[key + suffix] = np.frombuffer(Path(path).read_bytes(), np.uint8)
            model.fit(X, y, shuffle=False, verbose=0)
            stored[f"{key}_trained"] = model.predict(X, verbose=0)
    stored["source"] = f"tf-keras {keras.__version__}, TensorFlow {tf.__version__}"
    np.savez_compressed(Path(__file__).with_name("saving.npz"), **stored)


if __name__ == "__main__":
    main()
