"""Safetensors files: all dtypes, damaged ones, and weights of models."""

import json

import ml_dtypes
import numpy as np
import pytest

import meshflow as tf
from meshflow.files.safetensors import load_file, save_file


def test_what_the_formats_own_package_writes(tmp_path):
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
        str(np.dtype(d)): np.arange(3).astype(d)
        for d in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
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
        tf.errors.InvalidArgumentError, match="texts: safetensors files hold no object"
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
    with pytest.raises(ValueError, match=r"does not fit model .*dense/kernel \(\(2, 3\)\)"):
        wide.load_weights(path)
    assert all(map(np.array_equal, wide.get_weights(), before))
    wide.load_weights(path, skip_mismatch=True)
    assert np.array_equal(wide.get_weights()[-1], model.get_weights()[-1])
