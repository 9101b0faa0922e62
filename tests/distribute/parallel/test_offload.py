"""States and weights in the host's memory between steps: the same numbers, and what the devices are given."""

import contextlib
import re

import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED as U
from meshflow.experimental.dtensor import Layout


def trained(scope, x, steps=1):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    with scope:
        wide = tf.keras.layers.Dense(16, "relu")
        model = tf.keras.Sequential([tf.keras.Input((8,)), wide, tf.keras.layers.Dense(8)])
        model.compile("adam", "mse", steps_per_execution=steps)
    return model, model.fit(x, x**2, batch_size=8, epochs=2, verbose=0, shuffle=False)


def kinds(values):
    return {v._value.sharding.memory_kind for v in values}


def in_host(text):
    """How many arguments and results of a compiled program lie in the host's memory."""
    entry = re.search(r"entry_computation_layout=\{\((.*?)\)->(.*)", text)
    return [part.count("S(5)") for part in entry.groups()]


@pytest.mark.parametrize(
    "sizes, options, steps",
    [
        pytest.param({"data": 1}, {"offload": "optimizer"}, 1, marks=pytest.mark.soak),
        ({"data": 4}, {"offload": ("optimizer", "parameters"), "zero": 3}, 2),
    ],
)
def test_fit_gives_the_losses_of_device_memory(sizes, options, steps, rng, tmp_path):
    x = rng.normal(size=(32, 8)).astype("float32")
    expected_model, expected = trained(contextlib.nullcontext(), x)
    devices = [f"CPU:{i}" for i in range(sizes["data"])]
    mesh = dtensor.create_mesh([*sizes.items()], devices=devices)
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", **options)
    model, found = trained(strategy.scope(), x, steps)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-6 if steps == 1 else 1e-5
    )
    weights = model.trainable_variables
    slots = [model.optimizer.get_slot(w, n) for w in weights for n in ("m", "v")]
    assert kinds(slots) == {"pinned_host"}
    of_weights = "pinned_host" if "parameters" in options["offload"] else "device"
    assert kinds(weights) == {of_weights}
    count = len(slots) + (len(weights) if of_weights == "pinned_host" else 0)
    assert in_host(dtensor.explain(model, x[:8], x[:8]).text) == [count, count]
    # Outside of a step they are variables like others.
    first = weights[0]
    np.testing.assert_allclose((first + 0.0).numpy(), first.numpy())
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected_model.predict(x, verbose=0), 1e-5, 1e-5
    )
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "c")
    before = first.numpy()
    first.assign(tf.zeros_like(first))
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    np.testing.assert_array_equal(first.numpy(), before)
    assert kinds(slots) == {"pinned_host"} and kinds([first]) == {of_weights}


def test_layouts_in_host_memory():
    mesh = dtensor.create_mesh({"x": 4})
    layout = Layout(["x", U], mesh, memory="host")
    assert layout != Layout(["x", U], mesh) == layout.in_memory("device")
    variable = dtensor.DVariable(dtensor.copy_to_mesh(tf.ones([4, 2]), Layout(["x", U], mesh)))
    variable._layout = layout
    double = tf.function(lambda: variable.assign(2 * variable))
    double()
    variable.assign_add(tf.ones([4, 2]))
    assert kinds([variable]) == {"pinned_host"} and float(tf.reduce_sum(variable)) == 24
    with pytest.raises(ValueError, match='memory must be "device" or "host"'):
        Layout(["x"], mesh, memory="disk")
