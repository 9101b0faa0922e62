"""Train a small network on handwritten digits in TensorFlow, and save it as
`examples/digits_from_tensorflow.tar.xz`.

The digits are Meshflow's data set: `python -c "import meshflow as tf, numpy as np; (x, y), _ =
tf.keras.datasets.digits.load_data(); np.savez('digits.npz', x=x, y=y)"`, then in the peers'
environment `TF_USE_LEGACY_KERAS=1 python tests/reference/generate_example_model.py digits.npz`.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

layers = tf.keras.layers
TARGET = Path(__file__).parent.parent.parent / "examples" / "digits_from_tensorflow.tar.xz"


def main(file):
    with np.load(file) as stored:
        images, labels = stored["x"][..., None].astype("float32") / 255, stored["y"]
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1), name="image"),
            layers.Conv2D(8, 3, activation="relu", name="edges"),
            layers.BatchNormalization(name="norm"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(name="flat"),
            layers.Dense(10, name="digit"),
        ],
        name="digits",
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    model.fit(images, labels, epochs=15, verbose=2)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/digits", save_format="tf")
        (Path(folder) / "digits" / "fingerprint.pb").unlink(missing_ok=True)
        with tarfile.open(TARGET, "w:xz") as archive:
            archive.add(f"{folder}/digits", "digits", filter=without_owner)


def without_owner(member):
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main(sys.argv[1])
