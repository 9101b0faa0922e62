"""A mesh over two processes: parts within each, sums across, as one device trains."""

import json
from pathlib import Path

import numpy as np

import meshflow as tf
from distribute.parallel.training import in_few_bits, mesh, same_curves
from dtensor.test_two_processes import in_two_processes

PROGRAM = Path(__file__).with_name("in_two_processes.py")


def test_two_processes_equal_one_device(tmp_path):
    found = [json.loads(out.splitlines()[-1]) for out in in_two_processes(PROGRAM, tmp_path)]
    curves = [losses for losses, *_ in found]
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 16)).astype("float32"), rng.normal(size=(32, 8)).astype("float32")
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(8)]
    model = tf.keras.Sequential([tf.keras.Input([16]), *layers])
    model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
    fit = {"batch_size": 16, "shuffle": False, "verbose": 0}
    wanted = model.fit(x, y, epochs=3, **fit).history["loss"]
    np.testing.assert_allclose(curves, [wanted, wanted], rtol=1e-5)
    # Files written by both processes are loaded here.
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(f"{tmp_path}/checkpoint")
    np.testing.assert_allclose(model.fit(x, y, **fit).history["loss"], wanted[2:], rtol=1e-5)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(f"{tmp_path}/of_files")
    for losses, again, (weights, of_files), read, written, _ in found:
        assert again == losses[2:]
        for there, in_file, here in zip(weights, of_files, model.get_weights(), strict=True):
            np.testing.assert_array_equal(in_file, there)
            np.testing.assert_array_equal(here.tolist(), in_file)
        # In each of four steps half of three arrays of all weights for each device; the rest waits for gradients.
        states = 4 * 2 * 3 * 4 * (16 * 32 + 32 + 32 * 8 + 8) // 2
        kept = 4 * 4 * 16 * (16 + 32) // 2
        assert (read, written) == (states + kept, states + kept)
    # Compressed gradients, and AdaScale's gains, equal those of the same number of devices in one
    # process.
    wanted = in_few_bits(mesh(node=2, data=2))
    assert wanted["gain"][-1] > 1
    for *_, curves in found:
        same_curves(curves, wanted)
