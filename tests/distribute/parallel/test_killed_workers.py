"""Models in parts over two processes that a launcher starts, of which some are killed: the weights of an unbroken run."""

import numpy as np
import pytest

import meshflow as tf
from cli.test_launch import assert_same_bits, launch
from distribute.launching import WORKERS
from distribute.workers import in_parts

pytestmark = pytest.mark.soak


def train(folder, kind, *kills):
    """The curve of the last start, the final weights, and what the launcher wrote."""
    folder.mkdir()
    options = ["--workers", 2, "--devices-per-worker", 2, "--max-restarts", len(kills)]
    code, text = launch(*options, WORKERS / "in_parts.py", folder, kind, *kills)
    assert code == 0, text
    with np.load(folder / "results.npz") as found:
        curve, *weights = [found[k] for k in found.files]
    return curve, weights, text


def on_one_device(kind):
    tf.keras.utils.set_random_seed(1)
    model = in_parts.compiled(kind)
    x, y = in_parts.data()
    history = model.fit(x, y, batch_size=16, epochs=in_parts.EPOCHS, verbose=0).history
    return history["loss"], model.get_weights()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", in_parts.CHOICES)
def test_killed_workers_leave_no_trace_in_weights_that_are_in_parts(tmp_path, kind):
    curve, expected, _ = train(tmp_path / "undisturbed", kind)
    if kind not in in_parts.IN_FEW_BITS:
        losses, weights = on_one_device(kind)
        np.testing.assert_allclose(curve, losses, rtol=1e-5)
        for found, wanted in zip(expected, weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    # In the second epoch, and after going on, in the one after it.
    _, weights, text = train(tmp_path / "killed", kind, "4@1", "2@0")
    assert "Restart 2 of 2" in text
    assert_same_bits(weights, expected)
