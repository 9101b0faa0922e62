"""Several workers on a real Ray cluster of this machine."""

import sys

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute import ray as on_ray


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[ray\]"):
        on_ray.run(lambda: None, workers=2)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # as where `run` begins it
    ray = pytest.importorskip("ray")
    ray.init(
        "local",  # others on this machine may have a cluster of their own
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


def test_workers_on_ray(cluster, tmp_path, capsys):
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
