"""Profiles of this process: what they hold, and one at a time."""

import subprocess
import sys

import jax
import numpy as np
import pytest

import meshflow as tf
import stores

profiler = tf.profiler.experimental


def events(folder):
    """Names and numbers of everything in the one profile of a folder."""
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    return [(e.name, dict(e.stats)) for p in data.planes for line in p.lines for e in line.events]


def test_steps_have_their_names(tmp_path):
    with profiler.Profile(tmp_path):
        for step in range(3):
            with profiler.Trace("practice", step_num=step, _r=1) as trace:
                tf.reduce_sum(tf.ones([4]))
                trace.set_metadata(rows=4)
    steps = [stats for name, stats in events(tmp_path) if name == "practice"]
    assert [s["step_num"] for s in steps] == [0, 1, 2]
    assert [s["rows"] for s in steps] == [4, 4, 4]
    assert list(tmp_path.glob("*tfevents*profile-empty"))


def test_fit_names_its_steps(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones([12, 2], np.float32), np.ones([12, 1], np.float32)
    profiler.start(str(tmp_path), profiler.ProfilerOptions(host_tracer_level=2))
    model.fit(*data, batch_size=4, verbose=0)
    profiler.stop()
    assert [s["step_num"] for name, s in events(tmp_path) if name == "train"] == [0, 1, 2]


def test_one_at_a_time(tmp_path):
    with pytest.raises(tf.errors.UnavailableError, match="no profile"):
        profiler.stop()
    profiler.start(str(tmp_path / "first"))
    with pytest.raises(tf.errors.AlreadyExistsError, match="first"):
        profiler.start(str(tmp_path / "second"))
    with pytest.raises(tf.errors.AlreadyExistsError):
        tf.summary.trace_on(profiler=True)
    profiler.stop(save=False)
    assert not list(tmp_path.iterdir())


def test_an_error_ends_the_profile(tmp_path):
    with pytest.raises(KeyError), profiler.Profile(tmp_path):
        raise KeyError
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    with profiler.Profile(tmp_path):
        pass


def test_bad_requests():
    with pytest.raises(tf.errors.InvalidArgumentError, match="duration_ms"):
        profiler.client.trace("grpc://localhost:1", "logs", -5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="duration_ms"):
        profiler.client.monitor("grpc://localhost:1", 0)


SERVED = """
import sys, threading, time
import meshflow as tf
import stores
tf.profiler.experimental.server.start(int(sys.argv[1]))
try:
    tf.profiler.experimental.server.start(1)
except tf.errors.AlreadyExistsError:
    print("ready", flush=True)
step = 0
while True:
    with tf.profiler.experimental.Trace("serve", step_num=step, _r=1):
        tf.reduce_sum(tf.ones([4]))
    step += 1
    time.sleep(0.01)
"""


def test_profiles_of_other_processes(tmp_path):
    pytest.importorskip("xprof")
    import socket

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVED, str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        profiler.client.trace(f"grpc://localhost:{port}", str(tmp_path), 2000)
    finally:
        process.kill()
        process.wait()
    assert any(name == "serve" for name, _ in events(tmp_path))


def test_profiles_of_other_processes_in_a_store(monkeypatch):
    class Library:
        @staticmethod
        def trace(address, folder, *_):
            tf.io.write_file(f"{folder}/plugins/profile/now/{address}.xplane.pb", "tea")

    monkeypatch.setattr("meshflow.profiler.client._library", Library)
    place = stores.memory()
    profiler.client.trace("grpc://localhost:1", place, 5)
    assert tf.io.gfile.glob(f"{place}/plugins/profile/now/*") == [
        f"{place}/plugins/profile/now/localhost:1.xplane.pb"
    ]
