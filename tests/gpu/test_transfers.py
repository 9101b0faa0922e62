"""Test transfers between host and device during `fit`: each batch once, and none back before the
end of an epoch."""

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.runtime import device_to_host

pytestmark = pytest.mark.gpu


class Counted:
    """How often values were read from a device, and the steps that were started before."""

    def __init__(self, monkeypatch):
        self.reads = 0
        array = type(jax.numpy.zeros(1))
        value, block = array._value, array.block_until_ready

        def read(this):
            self.reads += 1
            return value.fget(this)

        def wait(this):
            self.reads += 1
            return block(this)

        monkeypatch.setattr(array, "_value", property(read))
        monkeypatch.setattr(array, "block_until_ready", wait)
        read_from_device = device_to_host.read_from_device

        def read_whole(this):
            self.reads += 1
            return read_from_device(this)

        if read_from_device is not None:
            monkeypatch.setattr(device_to_host, "read_from_device", read_whole)


def _model(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((16,)),
            layers.Dense(32, "relu"),
            layers.Dropout(0.1),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def _data(source, count):
    rng = np.random.default_rng(0)
    x, y = (
        rng.normal(size=(count, 16)).astype(np.float32),
        rng.normal(size=(count, 1)).astype(np.float32),
    )
    if source == "arrays":
        return {"x": x, "y": y, "batch_size": 8}
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(8).prefetch(2)}


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("source", ["arrays", "dataset"])
def test_the_host_waits_once_an_epoch(monkeypatch, source, policy):
    model = _model(policy)
    model.fit(**_data(source, 32), verbose=0)
    counted = Counted(monkeypatch)
    found = []
    for steps in (5, 40):
        before = counted.reads
        model.fit(**_data(source, 8 * steps), epochs=2, verbose=0)
        found.append(counted.reads - before)
    # The loss and the metric of each epoch, for any number of steps.
    assert found[0] == found[1] <= 2 * 4, found


def test_a_progress_bar_waits_at_the_end_of_an_epoch(monkeypatch, capsys):
    model = _model("float32")
    model.fit(**_data("arrays", 32), verbose=0)
    counted = Counted(monkeypatch)
    model.fit(**_data("arrays", 400), epochs=2, verbose=2)
    assert counted.reads <= 2 * 8


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_each_batch_crosses_once(monkeypatch, steps_per_execution, compile_tier):
    """Arrays that the compiled step is called with are the batch's: 2 for each call, and no others on the host."""
    model = _model("float32")
    model.compile("adam", "mse", steps_per_execution=steps_per_execution)
    model.fit(**_data("arrays", 80), verbose=0)
    from meshflow.core.functions.concrete_function import ConcreteFunction

    launch, seen = ConcreteFunction._launch, []

    def counting(self, arrays, captured, *rest):
        seen.append((len(arrays), sum(isinstance(c, np.ndarray) for c in captured)))
        return launch(self, arrays, captured, *rest)

    monkeypatch.setattr(ConcreteFunction, "_launch", counting)
    model.fit(**_data("arrays", 160), verbose=0)
    steps = [one for one in seen if one[0] == 2]
    assert len(steps) in (20 // steps_per_execution, 20 // steps_per_execution + 4)
    assert all(constants == 0 for _, constants in steps), seen
