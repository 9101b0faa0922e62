"""Test partitioned models over launched processes, some of which are killed: the weights equal an
uninterrupted run."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from cli.test_launch import assert_same_bits, launch
from distribute.launching import WORKERS
from distribute.parallel.training import mesh
from distribute.workers import in_parts


def train(folder, kind, *kills, workers=2, watchdog=600):
    """Return the curve of the last start, the final weights, and the launcher's output."""
    folder.mkdir()
    options = ["--workers", workers, "--devices-per-worker", 4 // workers]
    # Gloo waits half a minute for other processes, which a busy machine may exceed once.
    options += ["--max-restarts", len(kills) + 1, "--watchdog", watchdog]
    code, text = launch(*options, WORKERS / "in_parts.py", folder, kind, *kills)
    assert code == 0, text
    with np.load(folder / "results.npz") as found:
        curve, *weights = [found[k] for k in found.files]
    return curve, weights, text


def in_one_process(kind, strategy=None):
    """The curve and the weights on one device, or under a strategy."""
    tf.keras.utils.set_random_seed(1)
    if strategy is None:
        model = in_parts.make_compiled_model(kind)
    else:
        with strategy.scope():
            model = in_parts.make_compiled_model(kind)
    x, y = in_parts.data()
    history = model.fit(x, y, batch_size=16, epochs=in_parts.EPOCHS, verbose=0).history
    return history["loss"], model.get_weights()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_stage_leaves_no_trace(tmp_path):
    _, weights, text = train(tmp_path / "killed", "residuals", "4+0.01@1")
    assert "Restart 1 of 2" in text
    # Sums of two devices have the same bits, whichever of them adds.
    sizes, rules, options = in_parts.CHOICES["residuals"]
    _, expected = in_one_process(
        "residuals", tf.distribute.MeshStrategy(mesh(**sizes), rules, **options)
    )
    assert_same_bits(weights, expected)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("kind", in_parts.CHOICES)
def test_killed_workers_leave_no_trace_in_weights_that_are_in_parts(tmp_path, kind, workers):
    curve, expected, _ = train(tmp_path / "undisturbed", kind, workers=workers)
    if kind not in in_parts.IN_FEW_BITS:
        losses, weights = in_one_process(kind)
        np.testing.assert_allclose(curve, losses, rtol=1e-5)
        for found, wanted in zip(expected, weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    # At random moments of the first three steps, of those after going on, and of those after that.
    rng = np.random.default_rng(sorted(in_parts.CHOICES).index(kind) + workers)
    moments = [f"{rng.integers(1, 3)}+{rng.random() / 10:.3f}" for _ in range(3)]
    kills = [f"{moment}@{rng.integers(workers)}" for moment in moments]
    _, weights, text = train(tmp_path / "killed", kind, *kills, workers=workers)
    assert "Restart 3 of 4" in text
    assert_same_bits(weights, expected)


# While the model is created, while the first step is compiled, before a file of the backup is opened and before one gets
# its name, and two workers at once.
UNUSUAL = ["0+0.2@1", "1+0.3@0", "open:9@0", "rename:3@0", "2+0.02@0,1"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("kind", ["pipeline", "zero", "experts"])
def test_kills_at_unusual_moments(tmp_path, kind, workers):
    _, expected, _ = train(tmp_path / "undisturbed", kind, workers=workers)
    _, weights, text = train(tmp_path / "killed", kind, *UNUSUAL, workers=workers)
    assert f"Restart {len(UNUSUAL)} of" in text
    assert_same_bits(weights, expected)


# In the middle of a step, before a file of the backup is opened and before one gets its name, and two workers at once.
SIGNALS = ["TERM/2+0.02@1", "STOP/2+0.02@0", "STOP/rename:3@0", "TERM/open:9@0", "STOP/2+0.02@0,1"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("kind", ["pipeline", "zero", "experts"])
def test_workers_that_hang_or_are_terminated(tmp_path, kind, workers):
    _, expected, _ = train(tmp_path / "undisturbed", kind, workers=workers)
    _, weights, text = train(tmp_path / "killed", kind, *SIGNALS, workers=workers, watchdog=20)
    assert f"Restart {len(SIGNALS)} of" in text
    # On a busy machine, the watchdog may also find a slow step.
    assert text.count(" for 20 s") >= 3
    assert_same_bits(weights, expected)


def kill_coordination_service(after, found):
    """Kill the service that this process's launcher starts, some seconds after its start."""
    while not found:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if int(parent) == os.getpid() and b"coordination_service.py" in command:
                found.append(int(folder.name))
        time.sleep(0.01)
    time.sleep(after)
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [0.0, 4.0])
def test_the_coordination_service_is_killed(tmp_path, after):
    _, expected, _ = train(tmp_path / "undisturbed", "pipeline")
    killed = []
    threading.Thread(target=kill_coordination_service, args=(after, killed), daemon=True).start()
    _, weights, text = train(tmp_path / "killed", "pipeline", "5+0.5@1")
    assert killed and "Restart 1 of 2" in text
    assert_same_bits(weights, expected)
