"""Test profiles of this process: their contents, and that only one runs at a time."""

import sys
import time

import jax
import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.profiler import folders

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


def test_only_one_profile_at_a_time(tmp_path):
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


def test_a_server_listens_to_this_machine(tmp_path):
    script = """
import meshflow as tf
import socket, sys
server, client = tf.profiler.experimental.server, tf.profiler.experimental.client
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    try:
        server.start(taken.getsockname()[1])
    except tf.errors.UnavailableError as error:
        assert "Choose another port" in str(error), error
    port = taken.getsockname()[1]
server.start(port)
try:
    server.start(1)
except tf.errors.AlreadyExistsError:
    pass
sockets = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}")]
ours = [words[1] for words in sockets if words[1].endswith(f":{port:04X}") and words[3] == "0A"]
assert ours and all(one.partition(":")[0].endswith("0100007F") for one in ours), ours
try:
    client.trace(f"localhost:{port}", sys.argv[1], 20)
except tf.errors.UnavailableError as error:
    assert "nothing happened" in str(error), error
print("done")
"""
    assert forked.run(script, tmp_path) == [0, "done\n"]


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    for call in (
        lambda: profiler.client.trace("localhost:1", "logs", 5),
        lambda: profiler.client.monitor("localhost:1", 5),
        lambda: profiler.server.start(1),
    ):
        with pytest.raises(ImportError, match=r"pip install 'meshflow-tf\[profiler\]'"):
            call()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("tea")
    with (
        pytest.raises((tf.errors.OpError, OSError), match="file"),
        profiler.Profile(tmp_path / "file"),
    ):
        pass
    with pytest.raises(tf.errors.OpError, match="file"):
        profiler.client.trace("localhost:1", tmp_path / "file", 5)
    with profiler.Profile(tmp_path / "other"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="threads have their names in /proc")
def test_threads_of_pipelines_have_names(tmp_path):
    def slow(x):
        return tf.py_function(lambda v: v + 1, [x], tf.int64)

    with profiler.Profile(tmp_path):
        data = tf.data.Dataset.range(6).map(slow, num_parallel_calls=2).prefetch(2)
        assert [int(v) for v in data] == [1, 2, 3, 4, 5, 6]
    (path,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    threads = {}
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            names = {e.name for e in line.events if e.name.startswith("meshflow:data")}
            if names:
                threads.setdefault(line.name.partition("/")[0], set()).update(names)
    assert threads == {
        "tf.data ahead": {"meshflow:data/ahead"},
        "tf.data map": {"meshflow:data/map"},
    }


class Nap(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)


def test_a_profile_of_fit(tmp_path, capsys):
    """Layers, input, callbacks and checkpoints have their names, in the page and in the line at the end."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, name="wide"), tf.keras.layers.Dense(1, name="narrow")],
        name="net",
    )
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([8, 64]), tf.ones([8, 1]))).repeat(20)
    saved = tf.keras.callbacks.ModelCheckpoint(
        str(tmp_path / "w.h5"), save_weights_only=True, save_freq=8
    )
    board = tf.keras.callbacks.TensorBoard(str(tmp_path / "logs"), profile_batch=(4, 14))
    model.fit(data, verbose=0, callbacks=[Nap(), saved, board])
    line = capsys.readouterr().out
    assert line.startswith("Host-bound: ") and "; the slowest callback is " in line
    (worker,) = folders.load_report(tmp_path / "logs").workers
    layers = {(o.layer, o.backward) for o in worker.operations if o.program == "train_step"}
    assert {("net/wide", False), ("net/wide", True), ("net/narrow", True)} <= layers
    assert {"optimizer"} <= {name for name, _ in layers}
    assert "save_weights" in worker.details["checkpoint"]
    parts = {name: float(own.sum()) for name, own in worker.breakdown.parts.items()}
    # Computation may overlap a part of a sleep.
    assert parts["callback"] > 10 * 0.01e9
    assert parts["checkpoint"] > 0 and "input" in parts
    assert worker.details["callback"]["Nap"] > 10 * 0.02e9
    assert [n for _, n in worker.breakdown.steps] == list(range(3, 14))
    assert worker.memory[-1][1] > 10**7
    assert any(o.what == "matrix product" or o.flops for o in worker.operations)
    assert list((tmp_path / "logs").glob("plugins/profile/*/meshflow.html"))


def test_a_verdict(capsys):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.ones([64, 2]), tf.ones([64, 1])
    model.fit(*data, batch_size=8, verbose=0, callbacks=[tf.profiler.Verdict((3, 6)), Nap()])
    assert "The mean step is" in capsys.readouterr().out
    model.fit(*data, batch_size=8, verbose=0, callbacks=[tf.profiler.Verdict((30, 60))])
    assert "had 8 batches" in capsys.readouterr().out
    with pytest.raises(ValueError, match="profile_batch"):
        tf.profiler.Verdict((6, 3))
