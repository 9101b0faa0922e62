"""A mesh over two processes: parts within each, sums across, as one device trains."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import meshflow as tf
from dtensor.test_two_processes import free_ports

PROGRAM = Path(__file__).with_name("in_two_processes.py")


def test_two_processes_train_as_one_device(tmp_path):
    addresses = ",".join(f"127.0.0.1:{p}" for p in free_ports(2))
    workers = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(i), addresses, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        results = [w.communicate(timeout=180) for w in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, results, strict=True):
        assert worker.returncode == 0, errors
    curves = [json.loads(out.splitlines()[-1]) for out, _ in results]
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
