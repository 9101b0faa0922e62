"""Several workers on a real Ray cluster of this machine."""

import socket
import sys

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute import ray as on_ray


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[ray\]"):
        on_ray.run(lambda: None, workers=2)


@pytest.mark.parametrize(
    "listens", [False, True], ids=["nobody listens", "another program listens"]
)
def test_clusters_that_do_not_respond_are_not_waited_for(monkeypatch, caplog, listens):
    """A killed cluster leaves a file with its address, and its port may be another program's."""
    ray = pytest.importorskip("ray")
    services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr(on_ray, "_RESPONSE_SECONDS", 0.2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    calls = []
    monkeypatch.setattr(ray, "init", lambda *args, **_: calls.append(args))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        if listens:
            other.listen()
        monkeypatch.setattr(services, "find_bootstrap_address", lambda _: address)
        on_ray.connect()
        assert calls == [("local",)]
        assert f"{address} does not respond; starting one on this machine" in caplog.text
        with pytest.raises(tf.errors.UnavailableError, match=f"address='{address}' does not"):
            on_ray.connect(address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(tf.errors.UnavailableError, match=f"RAY_ADDRESS='{address}' does not"):
            on_ray.connect()
        # The addresses that Ray resolves are its own matter.
        on_ray.connect("ray://127.0.0.1:1")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    on_ray.connect()
    assert calls == [("local",), ("ray://127.0.0.1:1",), (None,)]


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # as `run` starts it
    ray = pytest.importorskip("ray")
    ray.init(
        "local",  # other programs on this machine may have a cluster
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    yield ray
    ray.shutdown()


def make_training(folder):
    """A function that trains; in the first start worker 1 dies in the second epoch."""

    def train(scale, deadly=False):
        import os
        import signal

        import numpy as np

        import meshflow as tf

        class Die(tf.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.epoch = epoch

            def on_train_batch_end(self, batch, logs=None):
                if self.epoch == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        own = strategy.cluster_resolver.task_id
        tf.random.set_seed(1)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
            model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        x = np.arange(16, dtype="float32").reshape(8, 2) * scale
        callbacks = [tf.keras.callbacks.BackupAndRestore(folder)]
        if deadly and own == 1 and os.environ["MESHFLOW_RESTARTS"] == "0":
            callbacks.append(Die())
        history = model.fit(x, x[:, :1], epochs=3, verbose=0, batch_size=4, callbacks=callbacks)
        return own, strategy.num_replicas_in_sync, history.epoch, model.get_weights()[0]

    return train


@pytest.mark.long
def test_workers_on_ray(cluster, tmp_path, capsys):
    assert on_ray.is_responding(cluster.get_runtime_context().gcs_address)
    train = make_training(str(tmp_path / "backup"))
    found = on_ray.run(
        train,
        workers=2,
        args=(0.1,),
        kwargs={"deadly": True},
        devices_per_worker=2,
        max_restarts=1,
        resources_per_worker={"CPU": 1},
    )
    assert [f[:3] for f in found] == [(0, 4, [1, 2]), (1, 4, [1, 2])]
    assert "Worker 1 died. Restart 1 of 1." in capsys.readouterr().out
    # The same training here, on one device.
    tf.random.set_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    x = np.arange(16, dtype="float32").reshape(8, 2) * np.float32(0.1)
    np.random.seed(0)
    model.fit(x, x[:, :1], epochs=3, verbose=0, batch_size=4)
    for *_, kernel in found:
        np.testing.assert_allclose(kernel, model.get_weights()[0], rtol=1e-5)

    def mistaken():
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        on_ray.run(mistaken, workers=1, max_restarts=3)
    with pytest.raises(tf.errors.DeadlineExceededError, match="no room for 3 workers"):
        on_ray.run(mistaken, workers=3, scheduling_timeout=1)
