"""Checkpoints that TensorFlow wrote are read, and those written here are read there."""

import importlib.util
import os
import pathlib
import subprocess
import zipfile

import jax
import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from helpers import assert_close
from meshflow import train
from meshflow.checkpoint.bundle_writer import write_bundle
from meshflow.checkpoint.slices import ArrayParts

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "in_tensorflow.py"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

spec = importlib.util.spec_from_file_location("cases", REFERENCE / "checkpoint_cases.py")
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)

with zipfile.ZipFile(REFERENCE / "checkpoints.zip") as archive:
    NAMES = sorted(n.removesuffix(".npz") for n in archive.namelist() if n.endswith(".npz"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    with zipfile.ZipFile(REFERENCE / "checkpoints.zip") as archive:
        archive.extractall(folder)
    return folder


def numbers(path):
    with np.load(path) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]


@pytest.mark.parametrize("name", [n for n in NAMES if "functional" not in n])
def test_training_started_in_tensorflow_continues_here(name, stored):
    layout, optimizer = name.split("-")
    model = cases.compiled(tf.keras, layout, optimizer)
    checkpoint = train.Checkpoint(model=model, optimizer=model.optimizer)
    status = checkpoint.read(stored / name)
    expected = numbers(stored / f"{name}.npz")
    saved, after = expected[: len(expected) // 2], expected[len(expected) // 2 :]
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), saved, strict=True))
    cases.train(model)
    status.assert_existing_objects_matched()
    if layout != "keras3":
        status.assert_consumed()
    assert int(model.optimizer.iterations) == 2 * cases.STEPS
    for ours, theirs in zip(model.get_weights(), after, strict=True):
        assert_close(ours, theirs, 2e-6)


@pytest.mark.parametrize("layout", ["legacy", "new", "keras3"])
@pytest.mark.parametrize("ours", ["legacy", "new"])
def test_every_layout_fits_every_adam(layout, ours, stored):
    """Adam computes the same in all versions; of the new one the stored file has vhat besides."""
    model = cases.sequential(tf.keras)
    place = tf.keras.optimizers.legacy if ours == "legacy" else tf.keras.optimizers
    model.compile(place.Adam(0.5, amsgrad=layout == "new"), "mse")
    status = train.Checkpoint(model=model, optimizer=model.optimizer).read(
        stored / f"{layout}-Adam"
    )
    cases.train(model)
    if layout != "legacy":
        after = numbers(stored / f"{layout}-Adam.npz")[8:]
        for found, theirs in zip(model.get_weights(), after, strict=True):
            assert_close(found, theirs, 2e-6)
    assert int(model.optimizer.iterations) == 2 * cases.STEPS
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    status.assert_nontrivial_match()


@pytest.mark.parametrize("layout", ["new", "keras3"])
def test_functional_models(layout, stored):
    model = cases.functional(tf.keras)
    status = train.Checkpoint(model).read(stored / f"{layout}-functional")
    status.assert_existing_objects_matched()
    expected = numbers(stored / f"{layout}-functional.npz")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), expected, strict=True))


def test_weights_of_a_model(stored, tmp_path):
    model = cases.functional(tf.keras)
    model.load_weights(stored / "weights").assert_existing_objects_matched()
    expected = numbers(stored / "new-functional.npz")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), expected, strict=True))
    model.save_weights(tmp_path / "again")
    wanted = {k: s for k, s in train.list_variables(stored / "weights") if k.startswith("layer")}
    found = dict(train.list_variables(tmp_path / "again"))
    assert wanted and all(found[key] == shape for key, shape in wanted.items())


def test_objects_other_than_models(stored):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, -1.0, -1, -2)
    values = {k: tf.Variable(tf.zeros_like(tf.constant(v, k))) for k, v in cases.values().items()}
    parts, mean, state = (
        [tf.Variable(0), {"a/b": tf.Variable(0)}],
        tf.keras.metrics.Mean(),
        cases.noting(train.experimental.PythonState),
    )
    checkpoint = train.Checkpoint(
        table=table, dense=dense, values=values, parts=parts, mean=mean, state=state
    )
    checkpoint.read(stored / "others").assert_consumed()
    assert dict(zip(*(t.numpy().tolist() for t in table.export()), strict=True)) == {
        b"a": 1,
        b"b": 2,
    }
    assert dense[tf.constant([5, 6, 7], tf.int64)].numpy().tolist() == [0.5, pytest.approx(0.6), -1]
    for name, value in cases.values().items():
        assert np.array_equal(values[name].numpy(), tf.constant(value, name).numpy())
    assert (int(parts[0]), int(parts[1]["a/b"]), float(mean.result())) == (2, 3, 3.0)
    assert state.value == b"\x80state"
    dtypes = train.load_checkpoint(stored / "others").get_variable_to_dtype_map()
    for name in cases.values():
        assert dtypes[f"values/{name}{VALUE}"] is tf.as_dtype(name)


def test_parts_of_arrays(stored):
    reader = train.load_checkpoint(stored / "slices")
    assert reader.get_tensor("w").tolist() == np.arange(24.0).reshape(6, 4).tolist()
    assert reader._checkpoint.open("w")[2:4, 1:2].tolist() == [[9.0], [13.0]]
    assert reader.get_tensor("b").tolist() == [1.0]
    assert reader.get_variable_to_shape_map() == {"w": [6, 4], "b": [1]}


# ---- the other direction: TensorFlow reads files of Meshflow -------------------------------


def run(task, folder, legacy):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1" if legacy else ""}
    command = [PEERS_PYTHON, str(SCRIPT), task, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_tensorflow
@pytest.mark.parametrize("legacy", [True, False], ids=["tf-keras", "Keras 3"])
def test_training_started_here_continues_in_tensorflow(legacy, tmp_path):
    after = {}
    for layout, names in cases.OPTIMIZERS.items():
        if legacy == (layout == "keras3"):
            continue
        for name in names:
            if (layout, name) == ("new", "Nadam"):
                continue  # tf-keras counts its steps in a number that no checkpoint has
            model = cases.compiled(tf.keras, layout, name)
            cases.train(model)
            path = tmp_path / f"{layout}-{name}"
            train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
            cases.train(model)
            after[path.name] = model.get_weights()
    run("train", tmp_path, legacy)
    for name, weights in after.items():
        for theirs, ours in zip(numbers(tmp_path / f"{name}.npz"), weights, strict=True):
            np.testing.assert_allclose(theirs, ours, 2e-6, 1e-6, err_msg=name)


@needs_tensorflow
def test_objects_other_than_models_in_tensorflow(tmp_path):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a", "b"], [1, 2])
    values = {k: tf.Variable(tf.constant(v, k)) for k, v in cases.values().items()}
    state = cases.noting(train.experimental.PythonState)
    state.kept = "text"
    train.Checkpoint(table=table, values=values, state=state).write(tmp_path / "others")
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x")
    )
    split = {
        dtype: jax.device_put(jax.numpy.arange(32, dtype=dtype).reshape(8, 4), sharding)
        for dtype in ("float32", "bfloat16", "int32")
    }
    write_bundle(tmp_path / "split", split)
    write_bundle(tmp_path / "many", {f"{'long' * 5}/{i:05d}": np.int32(i) for i in range(9000)})
    shards = [(((4 * i, n),), np.arange(4 * i, 4 * i + n)) for i, n in enumerate((4, 4, 2))]
    write_bundle(tmp_path / "table", {"w": ArrayParts((10,), shards)})
    assert run("others", tmp_path, True).strip().endswith("all read")
