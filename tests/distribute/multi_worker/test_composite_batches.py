"""Ragged tensors, sparse tensors and extension types in `MultiWorkerMirroredStrategy` with two real processes."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from distribute.launching import WORKERS, finish, free_ports, start
from distribute.workers import composites

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return the results of two workers with a replica each."""
    folder = tmp_path_factory.mktemp("composites")
    addresses = [f"127.0.0.1:{p}" for p in free_ports(2)]
    script = WORKERS / "composites.py"
    processes = [start(script, folder, task=i, addresses=addresses, devices=1) for i in (1, 0)]
    written = finish(processes)
    assert all(p.returncode == 0 for p in processes), "\n".join(written)
    return [dict(np.load(folder / f"{i}.npz")) for i in range(2)]


def test_training_equals_one_device(seen):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    for name, expected in composites.list_results(strategy, contextlib.nullcontext).items():
        for found in seen:
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_workers_exchange_values(seen):
    # Every replica receives the values above 2 of the first replica, once for each of two replicas.
    expected = {
        "graph": [[], [7, 8] * 2],
        "sparse": [[3, 4] * 2, [3, 4, 3] * 2],
    }
    for kind, batches in expected.items():
        for found in seen:
            results = [found[f"merged_{kind}/{i}"].tolist() for i in range(2)]
            assert results == batches, kind
