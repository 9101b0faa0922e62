"""A mesh over two processes: parts within each, sums across, as one device trains."""

import json
from pathlib import Path

import numpy as np

import meshflow as tf
from dtensor.test_two_processes import in_two_processes

PROGRAM = Path(__file__).with_name("in_two_processes.py")


def test_two_processes_train_as_one_device(tmp_path):
    curves = [json.loads(out.splitlines()[-1]) for out in in_two_processes(PROGRAM, tmp_path)]
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 16)).astype("float32"), rng.normal(size=(32, 8)).astype("float32")
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(8)]
    model = tf.keras.Sequential([tf.keras.Input([16]), *layers])
    model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
    fit = {"batch_size": 16, "shuffle": False, "verbose": 0}
    wanted = model.fit(x, y, epochs=3, **fit).history["loss"]
    np.testing.assert_allclose(curves, [wanted, wanted], rtol=1e-5)
    # What both have written goes on here.
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(f"{tmp_path}/checkpoint")
    np.testing.assert_allclose(model.fit(x, y, **fit).history["loss"], wanted[2:], rtol=1e-5)
