"""Use checkpoints that Meshflow wrote in TensorFlow. test_tensorflow.py runs this script with
TensorFlow's Python."""

import os
import pathlib
import sys

import numpy as np
import tensorflow as tf

REFERENCE = pathlib.Path(__file__).parent.parent.parent / "reference"
sys.path.insert(0, str(REFERENCE))
import checkpoint_cases as cases


def train(folder):
    for name in sorted(
        n.removesuffix(".index") for n in os.listdir(folder) if n.endswith(".index")
    ):
        layout, optimizer = name.split("-")
        model = cases.compiled(tf.keras, layout, optimizer)
        model.optimizer.build(model.trainable_variables) if layout != "legacy" else None
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = checkpoint.read(f"{folder}/{name}")
        cases.train(model)
        assert int(model.optimizer.iterations) == 2 * cases.STEPS, name
        # Checkpoints of the new optimizers also fit Keras 3: they contain no list of all variables.
        if name == "legacy-Ftrl":
            status.expect_partial()  # its other settings are variables there
        elif layout == "legacy":
            status.assert_consumed()
        np.savez(f"{folder}/{name}.npz", *model.get_weights())


def others(folder):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    values = {k: tf.Variable(tf.zeros_like(tf.constant(v, k))) for k, v in cases.values().items()}
    state = cases.noting(tf.train.experimental.PythonState)
    checkpoint = tf.train.Checkpoint(table=table, values=values, state=state)
    checkpoint.read(f"{folder}/others").assert_consumed()
    assert state.value == b"text"
    assert table.lookup(tf.constant(["a", "b", "c"])).numpy().tolist() == [1, 2, -1]
    for name, value in cases.values().items():
        assert np.array_equal(values[name].numpy(), tf.constant(value, name).numpy()), name
    table = tf.train.load_checkpoint(f"{folder}/table")
    assert table.get_tensor("w").tolist() == list(range(10))
    many = tf.train.load_checkpoint(f"{folder}/many")
    found = many.get_variable_to_shape_map()
    assert len(found) == 9000 and all(many.get_tensor(k) == int(k[-5:]) for k in list(found)[::99])
    reader = tf.train.load_checkpoint(f"{folder}/split")
    for name in reader.get_variable_to_shape_map():
        expected = np.arange(32).reshape(8, 4)
        assert np.array_equal(reader.get_tensor(name).astype("float64"), expected), name
    print("all read")


{"train": train, "others": others}[sys.argv[1]](sys.argv[2])
