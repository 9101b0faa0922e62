"""Write checkpoints in TensorFlow, and the results of its further training: checkpoints.zip.

Run it twice: with TF_USE_LEGACY_KERAS=1 for tf-keras, and without for Keras 3, which adds to the
file.
"""

import io
import os
import pathlib
import sys
import tempfile
import zipfile

import numpy as np
import tensorflow as tf

sys.path.insert(0, os.path.dirname(__file__))
import checkpoint_cases as cases

HERE = pathlib.Path(__file__).parent
KERAS_3 = not os.environ.get("TF_USE_LEGACY_KERAS")
STORED = {
    "legacy": ("Adam", "Nadam", "RMSprop"),
    "new": ("Adam", "SGD", "RMSprop", "Ftrl", "Adadelta"),
    "keras3": ("Adam", "SGD", "Adamax", "Lion"),
}


class State(tf.train.experimental.PythonState):
    def serialize(self):
        return b"\x80state"

    def deserialize(self, value):
        pass


def others(folder):
    """Return objects other than models."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a", "b"], [1, 2])
    dense = tf.lookup.experimental.DenseHashTable(
        *(tf.int64, tf.float32, -1.0, -1, -2), initial_num_buckets=4
    )
    dense.insert([5, 6], [0.5, 0.6])
    variables = {name: tf.Variable(tf.constant(v, name)) for name, v in cases.values().items()}
    mean = tf.keras.metrics.Mean()
    mean.update_state([1.0, 5.0])
    tf.train.Checkpoint(
        table=table,
        dense=dense,
        values=variables,
        mean=mean,
        state=State(),
        parts=[tf.Variable(2), {"a/b": tf.Variable(3)}],
    ).write(f"{folder}/others")
    shards = [tf.Variable(np.arange(12.0).reshape(3, 4) + 12 * i) for i in range(2)]
    whole = [6, 4]
    tf.raw_ops.SaveV2(
        prefix=f"{folder}/slices",
        tensor_names=["w", "w", "b"],
        shape_and_slices=["6 4 0,3:0,4", "6 4 3,3:0,4", ""],
        tensors=[*shards, tf.constant([1.0], tf.bfloat16)],
    )
    assert tf.train.load_checkpoint(f"{folder}/slices").get_tensor("w").shape == tuple(whole)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for layout, names in STORED.items():
            if (layout == "keras3") != KERAS_3:
                continue
            for name in names:
                model = cases.compiled(tf.keras, layout, name)
                cases.train(model)
                path = f"{folder}/{layout}-{name}"
                tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
                saved = model.get_weights()
                cases.train(model)
                np.savez(f"{path}.npz", *saved, *model.get_weights())
        layout = "keras3" if KERAS_3 else "new"
        model = cases.compiled(tf.keras, layout, "SGD", cases.functional)
        cases.train(model)
        tf.train.Checkpoint(model).write(f"{folder}/{layout}-functional")
        np.savez(f"{folder}/{layout}-functional.npz", *model.get_weights())
        if not KERAS_3:
            model.save_weights(f"{folder}/weights", save_format="tf")
            others(folder)
        buffer = io.BytesIO()
        target = HERE / "checkpoints.zip"
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            names = set(os.listdir(folder))
            if target.exists():
                with zipfile.ZipFile(target) as old:
                    for name in sorted(set(old.namelist()) - names):
                        archive.writestr(
                            zipfile.ZipInfo(name), old.read(name), zipfile.ZIP_DEFLATED
                        )
            for name in sorted(names):
                with open(f"{folder}/{name}", "rb") as file:
                    archive.writestr(zipfile.ZipInfo(name), file.read(), zipfile.ZIP_DEFLATED)
        target.write_bytes(buffer.getvalue())


main()
