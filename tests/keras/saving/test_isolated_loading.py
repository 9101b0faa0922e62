"""Models that an isolated process parses."""

import os
import sys
import zipfile

import numpy as np
import pytest

import meshflow as tf
from meshflow.environment.sandbox import choose_mechanism
from meshflow.keras.saving import isolated_loading

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or choose_mechanism() is None, reason="needs Linux"
)
layers = tf.keras.layers


def make_model():
    inputs = tf.keras.Input([3], name="x")
    hidden = layers.Dense(4, activation="relu", dtype="bfloat16")(inputs)
    outputs = tf.reduce_sum(layers.BatchNormalization()(hidden) + 1.0, -1, keepdims=True)
    model = tf.keras.Model(inputs, outputs)
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    return model


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "folder"])
def test_isolated_models_equal_their_files(tmp_path, name):
    model, path = make_model(), tmp_path / name
    model.save(path)
    loaded = tf.keras.models.load_model(path, isolated=True)
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded(x), model(x))
    assert loaded.get_config() == model.get_config()
    assert loaded.optimizer.iterations.numpy() == 1
    for weight, expected in zip(
        loaded.optimizer.variables(), model.optimizer.variables(), strict=True
    ):
        np.testing.assert_array_equal(weight, expected)
    if name == "model.keras":  # Each process takes seconds.
        assert tf.keras.models.load_model(path, isolated=True, compile=False).optimizer is None


def test_vocabularies_and_saved_models_of_tensorflow(tmp_path):
    lookup = layers.StringLookup()
    lookup.adapt(["a", "b", "b"])
    model = tf.keras.Sequential([tf.keras.Input([1], dtype="string"), lookup])
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras", isolated=True)
    assert loaded.layers[-1].get_vocabulary() == ["[UNK]", "b", "a"]


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "model.keras"
    with pytest.raises(OSError, match="No file or directory found"):
        tf.keras.models.load_model(path, isolated=True)
    path.write_bytes(b"PK\3\4 damaged")
    with pytest.raises((OSError, ValueError, tf.errors.DataLossError), match=r"model\.keras"):
        tf.keras.models.load_model(path, isolated=True)
    tf.keras.Sequential([tf.keras.Input([2]), layers.Lambda(lambda x: x + 1)]).save(path)
    with pytest.raises(ValueError, match="layer lambda"):
        tf.keras.models.load_model(path, isolated=True)
    for arguments in ({"safe_mode": False}, {"custom_objects": {"a": layers.Dense}}):
        with pytest.raises(ValueError, match="isolated=True"):
            tf.keras.models.load_model(path, isolated=True, **arguments)


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHFLOW_MAX_UNPACKED_BYTES", "1e6")
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 50_000_000)
    with pytest.raises((ValueError, tf.errors.OpError), match=r"model\.keras"):
        tf.keras.models.load_model(path, isolated=True)


def test_a_result_that_the_file_forged_is_data(tmp_path, monkeypatch):
    model, path = make_model(), tmp_path / "model.keras"
    model.save(path)
    result = isolated_loading.call_isolated(
        "meshflow.keras.saving.loading:load_and_describe",
        {"path": os.fspath(path), "compile": True}, "model", 0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    forgeries = [b"", bytes(8), b"\xff" * 8, result[:-1], result[:100], result + b"x"]
    for _ in range(40):
        data = bytearray(result)
        data[rng.integers(min(len(data), 3000))] ^= 1 << int(rng.integers(8))
        forgeries.append(bytes(data))
    monkeypatch.setattr(isolated_loading, "call_isolated", lambda *_: forgeries.pop(0))
    while forgeries:
        try:
            loaded = tf.keras.models.load_model(path, isolated=True)
        except (ValueError, TypeError, OSError, tf.errors.OpError) as error:
            assert "model.keras" in str(error)
        else:
            assert isinstance(loaded, tf.keras.Model)
