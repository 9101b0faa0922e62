"""Test states and weights in host memory between steps: equal numbers, and smaller arguments of
devices."""

import contextlib
import errno
import os
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
import tiers
from meshflow.core.gradients.rematerialization import (
    HostMemory,
    make_policy_transform,
    make_recompute_transform,
)
from meshflow.dtensor.explanation import _trace
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED as U
from meshflow.experimental.dtensor import Layout
from meshflow.placement.file_store import FileArray


def train_model(scope, x, steps=1):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    with scope:
        wide = tf.keras.layers.Dense(16, "relu")
        model = tf.keras.Sequential([tf.keras.Input((8,)), wide, tf.keras.layers.Dense(8)])
        model.compile("adam", "mse", steps_per_execution=steps)
    return model, model.fit(x, x**2, batch_size=8, epochs=2, verbose=0, shuffle=False)


def kinds(values):
    return {v._value.sharding.memory_kind for v in values}


def in_host(text):
    """Count the arguments and results of a compiled program in host memory."""
    entry = re.search(r"entry_computation_layout=\{\((.*?)\)->(.*)", text)
    return [part.count("S(5)") for part in entry.groups()]


@pytest.mark.parametrize(
    "sizes, options, steps",
    [
        pytest.param({"data": 1}, {"offload": "optimizer"}, 1, marks=pytest.mark.soak),
        ({"data": 4}, {"offload": ("optimizer", "parameters"), "zero": 3}, 2),
    ],
)
def test_offloaded_losses_equal_device_memory(sizes, options, steps, rng, tmp_path):
    x = rng.normal(size=(32, 8)).astype("float32")
    expected_model, expected = train_model(contextlib.nullcontext(), x)
    devices = [f"CPU:{i}" for i in range(sizes["data"])]
    mesh = dtensor.create_mesh([*sizes.items()], devices=devices)
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", **options)
    model, found = train_model(strategy.scope(), x, steps)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-6 if steps == 1 else 1e-5
    )
    weights = model.trainable_variables
    slots = [model.optimizer.get_slot(w, n) for w in weights for n in ("m", "v")]
    assert kinds(slots) == {"pinned_host"}
    of_weights = "pinned_host" if "parameters" in options["offload"] else "device"
    assert kinds(weights) == {of_weights}
    count = len(slots) + (len(weights) if of_weights == "pinned_host" else 0)
    explained = dtensor.explain(model, x[:8], x[:8])
    assert in_host(explained.text) == [count, count]
    held = slots + (weights if of_weights == "pinned_host" else [])
    of_device = sum(v._value.addressable_shards[0].data.nbytes for v in held)
    assert explained.memory["host"] == of_device and "to_host" not in explained.memory
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
    assert layout != Layout(["x", U], mesh) == layout.with_memory("device")
    variable = dtensor.DVariable(dtensor.copy_to_mesh(tf.ones([4, 2]), Layout(["x", U], mesh)))
    variable.layout = layout
    double = tf.function(lambda: variable.assign(2 * variable))
    double()
    variable.assign_add(tf.ones([4, 2]))
    assert kinds([variable]) == {"pinned_host"} and float(tf.reduce_sum(variable)) == 24
    with pytest.raises(ValueError, match='memory must be "device" or "host"'):
        Layout(["x"], mesh, memory="disk")


def blocks():
    """Three blocks of two layers between two others."""
    inputs = values = tf.keras.Input((16,))
    for i in range(3):
        inner = [tf.keras.layers.Dense(64, "tanh"), tf.keras.layers.Dense(16)]
        values = values + tf.keras.Sequential(inner, name=f"block_{i}")(values)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(4, name="last")(values))


def curve(strategy, x, y):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = blocks()
        model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False)
    return model, history.history["loss"]


@pytest.fixture(scope="module")
def one_device():
    """The data of the blocks, their model on one device, and its curve."""
    x = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")
    y = np.tanh(x[:, :4] * x[:, 4:8])
    return x, y, *curve(None, x, y)


# Bytes of a device's four rows of 16 numbers.
ROWS = 4 * 16 * 4


@pytest.mark.parametrize(
    "options, moved",
    [
        # The inputs of blocks and of the last layer.
        ({"recompute": "layer", "offload": "activations"}, (3 + 1) * ROWS),
        # Those of two blocks, in two micro-batches.
        (
            {
                "recompute": "layer",
                "offload": {"activations": ["block_[02]"], "optimizer": "dense_[0-3]/"},
                "micro_batches": 2,
                "zero": 1,
            },
            2 * ROWS,
        ),
        # Stored activations of a block: its input, the tanh results, and their slopes.
        ({"offload": {"activations": "block_1"}}, None),
    ],
)
def test_activations_wait_in_the_host(options, moved, one_device):
    x, y, _, expected = one_device
    mesh = dtensor.create_mesh({"data": 4})
    model, found = curve(tf.distribute.MeshStrategy(mesh, "batch:data", **options), x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    memory = dtensor.explain(model, x[:16], y[:16]).memory
    if moved is None:
        assert 4 * (16 + 64) * 4 <= memory["to_host"] <= 4 * (16 + 3 * 64) * 4
    else:
        assert memory["to_host"] == moved
    if "zero" in options:
        slots = {w.name: kinds([model.optimizer.get_slot(w, "m")]) for w in model.weights}
        assert {n for n, kind in slots.items() if kind == {"pinned_host"}} == {
            f"dense{i}/{part}:0" for i in ("_1", "_2", "_3") for part in ("kernel", "bias")
        }
        assert kinds(model.weights) == {"device"}


def test_accelerator_programs_move_stored_activations():
    weights, x = jnp.ones((8, 8)), jnp.ones((4, 8))
    run = lambda arguments, captures: [jnp.tanh(arguments[0] @ captures[0])]
    # The input; without recomputation also the arrays that the gradient of tanh needs: JAX 0.11 keeps one, not two.
    kept = 3 if tiers.JAX < (0, 11) else 2
    for form, arrays in (
        (make_recompute_transform(HostMemory()), 1),
        (make_policy_transform(None, HostMemory()), kept),
    ):
        block = form(run)

        def loss(w, block=block):
            return sum(block(([x * w.sum()], [w], jnp.float32(0)), None)).sum()

        traced = jax.jit(jax.grad(loss)).trace(weights)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        placed = re.findall(r'_xla_buffer_placement = "(\w+)"', text)
        assert placed.count("pinned_host") == placed.count("device") == arrays


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_steps_for_accelerators_move_all_that_is_offloaded(platform):
    mesh = dtensor.create_mesh({"data": 4})
    everything = ("optimizer", "parameters", "activations")
    options = {"zero": 3, "recompute": "layer", "micro_batches": 2, "offload": everything}
    with tf.distribute.MeshStrategy(mesh, "batch:data", **options).scope():
        model = blocks()
        model.compile("adam", "mse")
    x = np.zeros((16, 16), "float32")
    concrete, arrays = _trace(model, (x, x[:, :4]), {})
    captured = [c._value for c in concrete.traced.captures]
    text = concrete.lower(arrays, captured, (platform,)).as_text()
    placed = re.findall(r'_xla_buffer_placement = "(\w+)"', text)
    # Weights and two slots of each, there and back; and the inputs of four units in the loop of micro-batches.
    moves = 3 * len(model.trainable_variables) + 4
    assert placed.count("pinned_host") == placed.count("device") == moves


@pytest.mark.parametrize(
    "options, weights",
    [
        pytest.param({"zero": 1, "offload": {"optimizer": "dense"}}, False, marks=pytest.mark.soak),
        ({"zero": 3, "micro_batches": 2, "offload": ("optimizer", "parameters")}, True),
    ],
)
def test_slots_and_weights_in_files(options, weights, one_device, tmp_path, monkeypatch):
    calls = []
    for name in ("_read_callback", "_write_callback"):
        kept = getattr(FileArray, name)

        def noted(self, number, *rest, kept=kept, name=name):
            calls.append((name, id(self), int(number)))
            return kept(self, number, *rest)

        monkeypatch.setattr(FileArray, name, noted)
    x, y, plain, expected = one_device
    mesh = dtensor.create_mesh({"data": 4})
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", offload_to=tmp_path, **options)
    model, found = curve(strategy, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    optimizer, trained = model.optimizer, model.trainable_variables
    slots = [optimizer.get_slot(w, n) for w in trained for n in ("m", "v")]
    held = [v for v in (*slots, *trained) if v._held is not None]
    # No value of the last layer is selected by name; files have no names.
    assert len(held) == (len(slots) + len(trained) if weights else len(slots) - 4)
    assert not list(tmp_path.iterdir())
    moved = 6 * 4 * 4 * sum(map(part, held))
    files = strategy.files["optimizer"]
    assert (files.read_bytes, files.written_bytes) == (moved, moved)
    # Each device loads two slots at a time, and releases them before it loads the next.
    own = {id(s._held) for s in slots}
    order = [name for name, array, number in calls if number == 0 and array in own]
    assert order == (["_read_callback"] * 2 + ["_write_callback"] * 2) * (len(order) // 4)
    # They are no arguments of the step.
    arguments = dtensor.explain(model, x[:16], y[:16]).memory["arguments"]
    others = [v for v in (*model.weights, *optimizer.variables) if v._held is None]
    assert arguments <= 4 * sum(map(part, others)) + 2000
    # Outside of steps they are variables like others.
    np.testing.assert_allclose(
        model.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )
    first, last = held[0], held[-1]
    assert float(tf.reduce_max(tf.abs(first + 0.0))) > 0 and "CPU" in first.device
    saved = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = saved.save(tmp_path / "c")
    before = first.numpy(), last.numpy()
    for variable in (first, last):
        variable.assign(tf.zeros_like(variable))
    assert not first.numpy().any() and not last.numpy().any()
    saved.restore(path)
    np.testing.assert_array_equal(first, before[0])
    np.testing.assert_array_equal(last, before[1])
    model.save_weights(str(tmp_path / "w.weights.h5"))
    model.load_weights(str(tmp_path / "w.weights.h5"))
    model.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    assert (first.numpy() != before[0]).any() and (last.numpy() != before[1]).any()


def part(variable):
    """How many numbers of a variable each device has."""
    sharding = variable._value.sharding
    return int(np.prod(sharding.shard_shape(tuple(variable.shape))))


@pytest.mark.parametrize(
    "sizes, options",
    [
        ({"data": 4}, {"recompute": "layer", "micro_batches": 2, "zero": 3}),
        pytest.param({"data": 2, "model": 2}, {"recompute": "layer"}, marks=pytest.mark.soak),
        # All stored activations, some of which remain on the devices.
        ({"data": 1}, {}),
    ],
)
def test_activations_in_files(sizes, options, rng, tmp_path):
    x = rng.normal(size=(32, 16)).astype("float32")
    y = np.tanh(x[:, :4] * x[:, 4:8])
    mesh = dtensor.create_mesh(
        sizes, devices=[f"CPU:{i}" for i in range(np.prod([*sizes.values()]))]
    )
    rules = "batch:data, hidden:model" if "model" in sizes else "batch:data"
    plain, expected = curve(tf.distribute.MeshStrategy(mesh, rules, **options), x, y)
    strategy = tf.distribute.MeshStrategy(
        mesh, rules, offload={"activations": "block"}, offload_to=tmp_path, **options
    )
    model, found = curve(strategy, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    store = strategy.files["activations"]
    moved = dtensor.explain(model, x[:16], y[:16]).memory["to_files"]
    devices = mesh.size
    assert store.read_bytes == store.written_bytes == 6 * devices * moved
    if options:
        assert moved == 3 * 16 // sizes["data"] * 16 * 4
    # With enough rows for activations to dominate.
    rows = [np.zeros((8192, n), "float32") for n in (16, 4)]
    less, more = (dtensor.explain(m, *rows).memory for m in (model, plain))
    assert less["temporaries"] < 0.9 * more["temporaries"], (less, more)
    assert not list(tmp_path.iterdir())


class Again(tf.keras.Model):
    """Define a looped layer with an input per iteration and a shared input."""

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.Dense(16, "tanh", name="inner")

    def call(self, x):
        value = x
        for _ in tf.range(3):
            value = self.inner(value) + self.inner(x)
        return value[:, :4]


def test_looped_layers_read_activations_of_their_iteration(rng, tmp_path):
    x = rng.normal(size=(16, 16)).astype("float32")
    y = np.tanh(x[:, :4])
    losses = []
    for more in ({}, {"offload": "activations", "offload_to": tmp_path}):
        tf.keras.utils.set_random_seed(3)
        strategy = tf.distribute.MeshStrategy(recompute="layer", **more)
        with strategy.scope():
            model = Again()
            model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        losses.append(model.fit(x, y, epochs=3, batch_size=8, verbose=0, shuffle=False).history)
    np.testing.assert_allclose(losses[1]["loss"], losses[0]["loss"], rtol=1e-6)
    assert strategy.files["activations"].read_bytes > 0


def test_location_of_offloaded_values(tmp_path):
    options = tf.distribute.ParallelOptions
    slow, fast = tmp_path / "slow", tmp_path / "fast"
    both = {"optimizer": slow, "activations": fast}
    chosen = options(offload=("optimizer", "parameters", "activations"), offload_to=both)
    assert chosen.offload_folders == {"optimizer": str(slow), "activations": str(fast)}
    assert options(**chosen.get_non_defaults()) == chosen
    slow.mkdir(), fast.mkdir()
    mesh = dtensor.create_mesh({"data": 2}, devices=["CPU:0", "CPU:1"])
    strategy = tf.distribute.MeshStrategy(mesh, "batch:data", options=chosen)
    x = np.ones((8, 16), "float32")
    model, _ = curve(strategy, x, x[:, :4])
    weights = model.trainable_variables
    assert kinds(weights) == {"pinned_host"}
    assert all(model.optimizer.get_slot(w, "m")._held.store.folder == str(slow) for w in weights)
    assert strategy.files["activations"].folder == str(fast)


def test_devices_that_do_not_reach_the_hosts_memory(monkeypatch):
    """Imitate a backend without host memory; the strategy reports it at creation."""
    mesh = dtensor.create_mesh({"data": 2}, devices=["CPU:0", "CPU:1"])
    memory = types.SimpleNamespace(kind="device")
    of_kind = type(mesh.jax_mesh.devices.flat[0])
    monkeypatch.setattr(of_kind, "addressable_memories", lambda device: [memory])
    expected = (
        r"needs devices that reach the memory 'pinned_host'; those of the mesh \(cpu\) have \['device'\]. "
        "Leave it out"
    )
    with pytest.raises(ValueError, match=r"offload=\['optimizer', 'parameters'\] " + expected):
        tf.distribute.MeshStrategy(mesh, "batch:data", offload=("optimizer", "parameters"))
    with pytest.raises(ValueError, match='Layout: memory="host" ' + expected):
        Layout([U], mesh, memory="host")


def test_files_that_cannot_be(tmp_path, monkeypatch):
    mesh = dtensor.create_mesh({"data": 4})

    def of(**options):
        return tf.distribute.MeshStrategy(mesh, "batch:data", **options)

    with pytest.raises(ValueError, match="is no folder"):
        of(offload="optimizer", offload_to=tmp_path / "none")
    with pytest.raises(ValueError, match=r"offload=\(\) selects none"):
        of(offload_to=tmp_path)
    with pytest.raises(ValueError, match="has a folder for 'parameters', which"):
        of(offload="optimizer", offload_to={"parameters": tmp_path})
    with pytest.raises(ValueError, match="offload_to must be one of 'optimizer'"):
        of(offload="optimizer", offload_to={"slots": tmp_path})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    strategy = of(offload="activations", offload_to=tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    x = np.ones((16, 16), "float32")
    # Before anything is computed.
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"{tmp_path}.*bytes.*No space left"):
        curve(strategy, x, x[:, :4])
    assert not strategy.files["activations"].written_bytes
