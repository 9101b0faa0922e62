"""Test the state of every optimizer in `.keras` and `.h5` files, in the order of Keras."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest

import meshflow as tf
from meshflow.keras.engine.saving.optimizer_state import restore_state

OPTIMIZERS = tf.keras.optimizers
# The slots of Keras 2.11 and later (tf-keras 2.21) and Keras 3.15 for a layer's kernel k and bias
# b.
PAIRS = dict.fromkeys(("Adam", "AdamW", "Adamax", "Nadam", "Adadelta", "Ftrl"), "1k 2k 1b 2b")
SLOTS = {"SGD": "mk mb", "RMSprop": "vk vb", "Adagrad": "ak ab", "Lion": "mk mb", **PAIRS}
OF_KERAS_2 = {**SLOTS, "Adafactor": "rk ck vk vb"}
OF_KERAS_3 = {**SLOTS, "SGD": "", "Adafactor": "rk ck vk rb cb vb", "Lamb": "1k 2k 1b 2b"}
SHAPES = {"k": (3, 2), "b": (2,), "rk": (3,), "ck": (2,), "rb": (), "cb": ()}


def shapes(slots):
    return [SHAPES.get(slot, SHAPES[slot[-1]]) for slot in slots.split()]


def made(optimizer, seed=0):
    """Return a model whose optimizer contains random numbers, after 7 steps."""
    model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2, name="d")])
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    random = np.random.default_rng(seed)
    for variable in state(optimizer):
        whole = variable.dtype.is_integer
        value = np.full(variable.shape, 7) if whole else random.uniform(1, 2, variable.shape)
        variable.assign(value.astype(variable.dtype.as_numpy_dtype))
    return model


def state(optimizer):
    return [*optimizer.weights, *getattr(optimizer, "_scale_weights", [])]


def contents(path):
    """The optimizer's arrays, and its configuration, of a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))["compile_config"]["optimizer"]
        with archive.open("model.weights.h5") as inner, h5py.File(inner) as file:
            group = file["optimizer/vars"]
            return [np.asarray(group[key]) for key in sorted(group, key=int)], config


def assert_restored(path, model):
    loaded = tf.keras.models.load_model(path).optimizer
    for ours, found in zip(state(model.optimizer), state(loaded), strict=True):
        np.testing.assert_array_equal(found.numpy(), ours.numpy(), ours.name)


@pytest.mark.parametrize("name", OF_KERAS_3)
def test_each_version_finds_the_optimizer_state(name, tmp_path):
    model = made(getattr(OPTIMIZERS, name)(0.5))
    for version in (2, 3) if name in OF_KERAS_2 else (3,):
        path = str(tmp_path / f"{version}.keras")
        model.save(path, keras_version=version)
        values, config = contents(path)
        first, slots = ([()], OF_KERAS_2) if version == 2 else ([(), ()], OF_KERAS_3)
        last = [()] if (name, version) == ("Nadam", 3) else []
        assert [v.shape for v in values] == [*first, *shapes(slots[name]), *last]
        assert int(values[0]) == 7 and (version == 2 or float(values[1]) == 0.5)
        assert (config["module"], config["class_name"]) == ("keras.optimizers", name)
        assert not {"is_legacy_optimizer", "jit_compile"} & set(config["config"])
        assert_restored(path, model)
    path = str(tmp_path / "model.h5")
    model.save(path)
    assert_restored(path, model)


SETTINGS = {
    "averages": lambda: OPTIMIZERS.Adam(0.5, use_ema=True),
    "largest": lambda: OPTIMIZERS.Adam(0.5, amsgrad=True),
    "centered": lambda: OPTIMIZERS.RMSprop(0.5, momentum=0.5, centered=True),
    "gathering": lambda: OPTIMIZERS.Adam(0.5, gradient_accumulation_steps=2),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(OPTIMIZERS.Adam(0.5)),
    "schedule": lambda: OPTIMIZERS.Nadam(OPTIMIZERS.schedules.ExponentialDecay(1.0, 2, 0.5)),
}


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("version", [2, 3])
def test_all_settings_have_their_state(case, version, tmp_path):
    optimizer = SETTINGS[case]()
    model = made(optimizer)
    if case == "gathering":
        optimizer._accumulated_steps.assign(1)
    for suffix in ("keras", "h5") if version == 2 else ("keras",):
        path = str(tmp_path / f"model.{suffix}")
        model.save(path, keras_version=version)
        assert_restored(path, model)
    values, config = contents(str(tmp_path / "model.keras"))
    if case == "averages":
        average = optimizer.get_slot(model.trainable_variables[0], "average")
        np.testing.assert_array_equal(values[version - 1], average.numpy())
    elif case == "gathering":  # Keras 2 does not know it, so all files have Keras 3's order
        assert int(values[0]) == 7 * 2 + 1
    elif case == "scaled":
        inner = config["config"]["inner_optimizer"]
        assert (inner["module"], inner["class_name"]) == ("keras.optimizers", "Adam")
        assert config["class_name"].endswith("V3") == (version == 2)
        assert ("is_legacy_optimizer" in inner["config"]) == (version == 2)
    elif case == "schedule":
        rate = config["config"]["learning_rate"]
        assert rate["module"] == "keras.optimizers.schedules" and "name" not in rate["config"]


def test_defaults_of_legacy_optimizers_are_preserved(tmp_path):
    path = str(tmp_path / "model.keras")
    model = made(OPTIMIZERS.SGD(0.5, decay=0.25))
    model.save(path)
    _, config = contents(path)
    assert config["module"] == "keras.optimizers.legacy"
    assert set(config["config"]) >= {"decay", "learning_rate"}
    assert not {"weight_decay", "use_ema", "jit_compile"} & set(config["config"])
    assert_restored(path, model)


def test_a_fixed_loss_scale_is_not_written_for_keras_3(tmp_path):
    scaling = tf.keras.mixed_precision.LossScaleOptimizer
    model = made(scaling(OPTIMIZERS.SGD(0.5), dynamic=False, initial_scale=8.0))
    with pytest.raises(ValueError, match="dynamic=False"):
        model.save(str(tmp_path / "model.keras"), keras_version=3)


# ---- Keras itself --------------------------------------------------------------------------

SCRIPT = pathlib.Path(__file__).parents[2] / "reference" / "optimizer_files.py"
PEERS = os.environ.get("MESHFLOW_PEERS_PYTHON", "")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.access(PEERS, os.X_OK), reason="MESHFLOW_PEERS_PYTHON names no Python")
@pytest.mark.parametrize("program", ["tf-keras", "keras3"])
def test_training_continues_in_the_other_program(program, tmp_path):
    for writer, reader in (("meshflow", program), (program, "meshflow")):
        folder = tmp_path / writer
        folder.mkdir()
        for task, here in (("write", writer), ("read", reader)):
            python = sys.executable if here == "meshflow" else PEERS
            command = [python, str(SCRIPT), task, str(folder), writer, reader]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert len(found) >= 15
        assert {key: value for key, value in found.items() if not value <= 2e-6} == {}


@pytest.mark.parametrize("options", [{}, {"decay": 0.1}])
@pytest.mark.parametrize("kind", ["folder", "model.keras", "model.h5", "old.h5"])
def test_slots_of_one_shape_are_not_confused(tmp_path, kind, options):
    """Files until version 0.2 are ordered by slot, with the names of Keras 2, if no version of Keras has the optimizer."""
    path = tmp_path / kind
    layers = [tf.keras.layers.Dense(2), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential([tf.keras.Input([2]), *layers])
    optimizer = OPTIMIZERS.Adam(**options)
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    for i, variable in enumerate(optimizer.weights[1:]):
        variable.assign(tf.fill(variable.shape, float(i)))
    model.save(path)
    if kind == "old.h5":
        with h5py.File(path, "r+") as file:
            group = file["optimizer_weights"]
            names = [n if isinstance(n, str) else n.decode() for n in group.attrs["weight_names"]]
            values = [np.asarray(group[n]) for n in names]
            del file["optimizer_weights"]
            group = file.create_group("optimizer_weights")
            new_names = ["Adam/iter:0", *(f"Adam/{i}/m:0" for i in range(8))]
            for name, i in zip(new_names, [0, *range(1, 9, 2), *range(2, 9, 2)], strict=True):
                group[name] = values[i]
            group.attrs["weight_names"] = [name.encode() for name in new_names]
    loaded = tf.keras.models.load_model(path)
    for name in ("m", "v"):
        for ours, found in zip(model.weights, loaded.weights, strict=True):
            slots = optimizer.get_slot(ours, name), loaded.optimizer.get_slot(found, name)
            np.testing.assert_array_equal(*slots)


def test_slots_of_a_subclass_have_the_order_of_keras(tmp_path):
    class OwnAdam(OPTIMIZERS.Adam):
        """Optimizer that no version of Keras has."""

    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2)])
    model.compile(OwnAdam(), "mse")
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    arrays = [np.full(v.shape, float(i)) for i, v in enumerate(optimizer.weights)]
    # Files of Keras contain no names.
    assert restore_state(optimizer, model, [""] * len(arrays), arrays)
    assert [float(np.ravel(v)[0]) for v in optimizer.get_weights()] == [0, 1, 2, 3, 4]
    model.save(tmp_path / "model.h5")
    loaded = tf.keras.models.load_model(tmp_path / "model.h5", {"OwnAdam": OwnAdam})
    for own, found in zip(optimizer.get_weights(), loaded.optimizer.get_weights(), strict=True):
        np.testing.assert_array_equal(own, found)
