"""Safetensors files: all dtypes, damaged ones, and weights of models."""

import contextlib
import json
import os

import ml_dtypes
import numpy as np
import pytest

import meshflow as tf
from meshflow.files.safetensors import load_file, load_sharded, save_file, save_sharded


def test_files_of_the_safetensors_package(tmp_path):
    arrays = {"a": np.array([[1.5]], "float32"), "b": np.array([1, -2], "int16")}
    header = (
        b'{"__metadata__":{"of":"tea"},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"I16","shape":[2],"data_offsets":[4,8]}}'
    )
    theirs = b"\x90" + bytes(7) + header.ljust(0x90) + b"\x00\x00\xc0?\x01\x00\xfe\xff"
    save_file(arrays, tmp_path / "ours", {"of": "tea"})
    assert (tmp_path / "ours").read_bytes() == theirs
    (tmp_path / "theirs").write_bytes(theirs)
    found = load_file(tmp_path / "theirs")
    assert {k: v.tolist() for k, v in found.items()} == {"a": [[1.5]], "b": [1, -2]}


def test_every_dtype_survives(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {
        name: np.arange(6).reshape(2, 3).astype(name)
        for name in (
            "float16",
            "float32",
            "float64",
            "int8",
            "int64",
            "uint16",
            "bool",
            "complex64",
        )
    }
    arrays |= {
        str(np.dtype(d)): np.array([1, 2, 4]).astype(d)
        for d in (
            *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
            *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
        )
    }
    arrays |= {"empty": np.zeros([0, 2]), "one": np.float32(3), "variable": tf.Variable([1.0, 2.0])}
    arrays["turned"] = np.arange(6.0).reshape(2, 3).T
    save_file(arrays, path, {"of": "tea"})
    found = load_file(path)
    assert set(found) == set(arrays)
    for name, value in found.items():
        expected = np.asarray(arrays[name])
        assert value.dtype == expected.dtype and np.array_equal(value, expected), name
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="texts: safetensors files support neither object"
    ):
        save_file({"texts": np.array([b"a"], object)}, path)
    assert set(load_file(path)) == set(arrays)


def test_damaged_files(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(4.0), "b": np.arange(2, dtype="int32")}, path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])

    def with_header(**changes):
        encoded = json.dumps({**header, "a": {**header["a"], **changes}}).encode()
        return len(encoded).to_bytes(8, "little") + encoded + content[8 + size :]

    for damaged in (
        *(b"", content[:5], content[:-1], content + b"x", b"\xff" * 8 + content[8:]),
        *(with_header(shape=[5]), with_header(shape=[-4]), with_header(dtype="F33")),
        *(
            with_header(data_offsets=[0, 16]),
            with_header(data_offsets=[8, 40]),
            with_header(shape="x"),
        ),
        b"\x02" + bytes(7) + b"[]",
    ):
        path.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match=r"a\.safetensors is damaged"):
            load_file(path)
    with pytest.raises(tf.errors.NotFoundError):
        load_file(tmp_path / "nowhere")


def test_weights_of_a_model(tmp_path):
    layers = tf.keras.layers

    def make(units=3):
        tf.keras.backend.reset_uids()
        return tf.keras.Sequential(
            [tf.keras.Input([2]), layers.Dense(units), layers.BatchNormalization(), layers.Dense(1)]
        )

    model, other = make(), make()
    path = tmp_path / "model.safetensors"
    model.save_weights(path)
    assert "dense/kernel" in load_file(path)
    other.load_weights(path)
    assert all(map(np.array_equal, other.get_weights(), model.get_weights()))
    wide = make(4)
    before = wide.get_weights()
    with pytest.raises(
        ValueError, match=r"does not fit model .*dense/kernel \(\(2, 3\), not \(2, 4\)\)"
    ):
        wide.load_weights(path)
    assert all(map(np.array_equal, wide.get_weights(), before))
    wide.load_weights(path, skip_mismatch=True)
    assert np.array_equal(wide.get_weights()[-1], model.get_weights()[-1])


def test_several_files_with_an_index(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    arrays = {f"w{i}": np.full([4], i, ml_dtypes.bfloat16) for i in range(5)}
    save_sharded(arrays, index, max_shard_size=16, metadata={"format": "tf"})
    said = json.loads(index.read_text())
    assert said["metadata"] == {"total_size": 40}
    assert said["weight_map"]["w4"] == "model-00003-of-00003.safetensors"
    found = load_sharded(index)
    assert all(found[n].dtype == a.dtype and np.array_equal(found[n], a) for n, a in arrays.items())

    def refused(error, message, **places):
        index.write_text(json.dumps({**said, "weight_map": {**said["weight_map"], **places}}))
        with pytest.raises(error, match=message):
            load_sharded(index)

    refused(tf.errors.DataLossError, "not the bare name", w0="../model-00001-of-00003.safetensors")
    refused(tf.errors.DataLossError, "is damaged", w0=3)
    refused(
        tf.errors.DataLossError, "which lacks this array", more="model-00001-of-00003.safetensors"
    )
    refused(tf.errors.NotFoundError, "other", w0="other.safetensors")
    for content in ("", "[]", "{}", '{"weight_map": []}', "[" * 100_000):
        index.write_text(content)
        with pytest.raises(tf.errors.DataLossError, match=r"index\.json is damaged"):
            load_sharded(index)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the name of an index must end in"):
        save_sharded(arrays, tmp_path / "model.json")


def _dense(units=3, name=None):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input([2]), layers.Dense(units, name=name), layers.Dense(1)]
    )


def test_names_that_differ_in_numbers_or_wholly(tmp_path):
    tf.keras.backend.reset_uids()
    model, again = _dense(), _dense()
    path = tmp_path / "model.safetensors"
    model.save_weights(path)
    assert again.weights[0].name == "dense_2/kernel:0"
    again.load_weights(path)
    assert all(map(np.array_equal, again.get_weights(), model.get_weights()))
    other = _dense(name="first")
    before = other.get_weights()
    with pytest.raises(ValueError, match=r"dense/bias \(not in the model\).*first/bias \(missing"):
        other.load_weights(path)
    assert all(map(np.array_equal, other.get_weights(), before))
    with pytest.raises(ValueError, match="has nothing that fits model"):
        _dense(name="one").load_weights(path, by_name=True)
    # Keys of only one of the two are ignored, but not another shape.
    tf.keras.backend.reset_uids()
    longer = tf.keras.Sequential([*_dense().layers, tf.keras.layers.Dense(2, name="more")])
    longer.build([None, 2])
    longer.load_weights(path, by_name=True)
    assert np.array_equal(longer.get_weights()[0], model.get_weights()[0])
    tf.keras.backend.reset_uids()
    with pytest.raises(ValueError, match="does not fit"):
        _dense(4).load_weights(path, by_name=True)


def test_dtypes_of_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    tf.keras.backend.reset_uids()
    model = _dense()
    stored = {w.name[:-2]: w.numpy() for w in model.weights}
    save_file({n: a.astype(ml_dtypes.float8_e4m3fn) for n, a in stored.items()}, path)
    model.load_weights(path)
    wanted = stored["dense/kernel"].astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(model.get_weights()[0], wanted)
    save_file({**stored, "dense/bias": np.zeros([3], np.complex64)}, path)
    with pytest.raises(ValueError, match=r"dense/bias \(complex64, not float32\)"):
        model.load_weights(path)


def test_weights_in_several_files_and_no_file(tmp_path):
    model = _dense()
    path = str(tmp_path / "model.safetensors.index.json")
    model.save_weights(path)
    assert (tmp_path / "model-00001-of-00001.safetensors").exists()
    before = model.get_weights()
    model.set_weights([w + 1 for w in before])
    model.load_weights(path)
    assert all(map(np.array_equal, model.get_weights(), before))
    with pytest.raises(FileNotFoundError, match=r"No weights file at .*none\.safetensors"):
        model.load_weights(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="not created its variables yet"):
        tf.keras.Sequential([tf.keras.layers.Dense(1)]).load_weights(path)


def test_interrupted_replacement_of_shards_leaves_one_version(tmp_path, monkeypatch):
    index = tmp_path / "model.safetensors.index.json"
    first = {f"w{i}": np.full([4], i, np.float32) for i in range(4)}
    second = {f"w{i}": np.full([4], 10 + i, np.float32) for i in range(3)}
    rename, left = os.replace, []

    def rename_while_it_lives(source, target):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        rename(source, target)

    monkeypatch.setattr(os, "replace", rename_while_it_lives)
    for renamed in range(5):  # three files and their index
        for arrays, files in ((first, 99), (second, renamed)):
            left[:] = [None] * files
            with contextlib.suppress(KeyboardInterrupt):
                save_sharded(arrays, index, max_shard_size=16)
        wanted = second if renamed == 4 else first
        np.testing.assert_equal(load_sharded(index), wanted)
    places = json.loads(index.read_text())["weight_map"]
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(places.values())
