"""Test that pickles of public data sets are read as data, and that malicious ones run no code."""

import io
import os
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest

import meshflow as tf
from meshflow.files.safe_pickles import read_arrays, read_pickle


def _lists(*lists):
    found = np.empty(len(lists), object)
    found[:] = lists
    return found


ARRAYS = {
    "numbers": np.arange(6, dtype=">i4").reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "lists": _lists([1, 2], [], [3, 10**20]),
    "square": np.array([["a", None], [b"b", (1.5, True)]], object),
    "words": np.array(["one", "three"]),
    "bytes": np.array([b"one", b"three"]),
    "none": np.zeros((0, 3), np.float16),
    "single": np.array(7),
}


def assert_same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def test_arrays_of_files(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert_same(found[name], array)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_in_pickles(tmp_path, protocol):
    path = tmp_path / "data"
    path.write_bytes(pickle.dumps({**ARRAYS, "scalar": np.float32(2.5), b"k": [b"\xff"]}, protocol))
    found = read_pickle(path)
    for name, array in ARRAYS.items():
        assert_same(found[name], array)
    assert found["scalar"] == 2.5 and found[b"k"] == [b"\xff"]


def test_pickles_of_python_2(tmp_path):
    """A batch as CIFAR-10 has it."""
    pixels = bytes(range(12))
    path = tmp_path / "data"
    path.write_bytes(
        b"\x80\x02}q\x01(U\x06labelsq\x04]q\x05(K\x06K\x09eU\x04dataq\x07"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x08cnumpy\nndarray\nq\tK\x00\x85U\x01b\x87Rq\n"
        b"(K\x01K\x02K\x06\x86cnumpy\ndtype\nq\x0bU\x02u1K\x00K\x01\x87Rq\x0c"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T" + struct.pack("<i", 12) + pixels + b"tbu."
    )  # fmt: skip
    found = read_pickle(path, encoding="bytes")
    assert found[b"labels"] == [6, 9]
    assert_same(found[b"data"], np.arange(12, dtype="u1").reshape(2, 6))


class Planted:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def _make_malicious_pickles(target):
    return {
        "a command": Planted(os.system, f"touch {target}"),
        "evaluated": Planted(eval, f"open({str(target)!r}, 'w')"),
        "imported": Planted(__import__, "antigravity"),
        "an object": io.StringIO("x"),
        "a codec": Planted(__import__("codecs").encode, b"x", "zlib"),
        "a function of NumPy": Planted(np.load, str(target)),
        "a class": dict,
        "a set": {1, 2},
        "a record": np.zeros(2, [("a", object)]),
        "a dtype": np.dtype("f4"),
    }


@pytest.mark.parametrize("kind", _make_malicious_pickles(""))
def test_malicious_pickles_run_no_code(tmp_path, kind):
    target = tmp_path / "pwned"
    value = _make_malicious_pickles(target)[kind]
    sys.modules.pop("antigravity", None)
    data = pickle.dumps([value])
    (tmp_path / "data").write_bytes(data)
    if kind == "a dtype":
        assert read_pickle(tmp_path / "data") == [np.dtype("f4")]
        return
    with pytest.raises(tf.errors.DataLossError, match="data"):
        read_pickle(tmp_path / "data")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|O", "fortran_order": False, "shape": (1,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + data)
    with pytest.raises(tf.errors.DataLossError, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")
    assert not target.exists() and "antigravity" not in sys.modules


def test_malicious_data_sets_run_no_code(tmp_path, monkeypatch):
    """Test malicious files that `tf.keras.datasets` loads."""
    from meshflow.keras.datasets.cifar10 import read_batch

    target = tmp_path / "pwned"
    command = Planted(os.system, f"touch {target}")
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": command, b"labels": [1]}))
    with pytest.raises(tf.errors.DataLossError, match=r"names posix\.system, which is not run"):
        read_batch(tmp_path / "batch")
    planted = _lists([1], command)
    for name in ("imdb", "reuters", "boston_housing"):
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=planted, y=[0, 1], x_train=planted, y_train=[0, 1])
        module = getattr(tf.keras.datasets, name)
        monkeypatch.setattr(module, "get_file", lambda *_, path=path, **__: str(path))
        with pytest.raises(tf.errors.DataLossError, match=f"{name}.npz"):
            module.load_data()
    assert not target.exists()


def test_damaged_files_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    whole = (tmp_path / "a.npz").read_bytes()
    data = pickle.dumps(ARRAYS)
    generator = np.random.default_rng(0)
    for number in range(150):
        for content, read in ((whole, read_arrays), (data, read_pickle)):
            changed = bytearray(content)
            for place in generator.integers(0, len(changed), 3):
                changed[place] = generator.integers(256)
            if number % 3 == 0:
                del changed[generator.integers(len(changed)) :]
            path = tmp_path / "changed"
            path.write_bytes(changed)
            try:
                read(path)
            except tf.errors.DataLossError as error:
                assert "changed" in str(error)


def test_recursive_lists(tmp_path):
    endless = []
    endless.append(endless)
    (tmp_path / "data").write_bytes(pickle.dumps(endless))
    with pytest.raises(tf.errors.DataLossError, match="too deep"):
        read_pickle(tmp_path / "data")
