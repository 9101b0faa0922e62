"""Test the contents of tensor bundles, and their replacement."""

import os

import ml_dtypes
import numpy as np
import pytest

import meshflow as tf
from meshflow import train
from meshflow.checkpoint.bundle import BundleReader
from meshflow.checkpoint.bundle_messages import (
    BundleEntry,
    ObjectAttribute,
    ObjectNode,
    SlotReference,
    decode_graph,
    encode_graph,
)
from meshflow.checkpoint.bundle_writer import write_bundle
from meshflow.checkpoint.slices import ArrayParts, SlicedArray
from meshflow.checkpoint.sstable import read_table, write_table
from meshflow.core.variables.sharded_variable import ShardedVariable

ARRAYS = {
    "empty": np.zeros([0, 3], np.float32),
    "big-endian": np.arange(3, dtype=">i4"),
    "strided": np.arange(12).reshape(3, 4)[:, ::2],
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "int4": np.arange(-4, 4).astype(ml_dtypes.int4),
    "uint64": np.array([2**64 - 1], np.uint64),
    "complex128": np.array(1 - 2j),
    "text": np.array(["tea", b"\xff", ""], object),
    "Größe/α": np.float64(0.1),
}


def test_read_returns_written_tensors(tmp_path):
    arrays = ARRAYS
    write_bundle(tmp_path / "b", arrays)
    bundle = BundleReader(tmp_path / "b")
    assert set(bundle.entries) == set(arrays) and "empty" in bundle
    for name, value in arrays.items():
        for found in (bundle.read(name), bundle.open(name)):
            expected = [b"tea", b"\xff", b""] if name == "text" else value
            assert found.shape == np.shape(value) and np.array_equal(found, expected), name
    with pytest.raises(tf.errors.NotFoundError, match="Key nothing not found"):
        bundle.read("nothing")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^when has the dtype datetime64"):
        write_bundle(tmp_path / "b", {"when": np.array(["2021-01-01"], "datetime64[D]")})
    with pytest.raises(TypeError, match=r"things: Arrays of Python objects"):
        write_bundle(tmp_path / "b", {"things": np.array([object()])})
    # A failed write preserves the previous bundle and leaves no other file.
    assert len(os.listdir(tmp_path)) == 2 and set(BundleReader(tmp_path / "b").entries) == set(
        arrays
    )


def test_replacing_a_bundle_keeps_open_readers_valid(tmp_path):
    for number in range(3):
        write_bundle(tmp_path / "b", {"a": np.full(5, number)})
        opened = BundleReader(tmp_path / "b")
        write_bundle(tmp_path / "b", {"a": np.full(5, 9)})
        assert opened.read("a").tolist() == opened.open("a").tolist() == [number] * 5
        assert BundleReader(tmp_path / "b").read("a").tolist() == [9] * 5
    assert len(os.listdir(tmp_path)) == 2 + len(list(tmp_path.glob("*of-00002"))) // 2


def test_tables_of_many_blocks():
    items = [(f"key/{i:06d}".encode(), os.urandom(i % 90)) for i in range(9000)]

    class File(list):
        write = list.append

    file = File()
    write_table(file, items)
    data = b"".join(file)
    assert list(read_table(data)) == items and len(data) > 300_000
    for wrong in (data[: 1 << 18], data.replace(b"004000", b"004x00")):
        with pytest.raises(ValueError):
            list(read_table(wrong))


def test_messages():
    entry = BundleEntry(
        1, (70, 0), 2, 1 << 40, 7, 0xDEADBEEF, [((0, -1), (3, 4)), ((5, 6), (0, 0))]
    )
    assert BundleEntry.decode(entry.encode()) == entry
    nodes = [
        ObjectNode({"a": 1, "b": 2, "self": 0}),
        ObjectNode(attributes=[ObjectAttribute("VARIABLE_VALUE", "w", "a/key")]),
        ObjectNode(slots=[SlotReference(1, "m", 1)]),
        ObjectNode(),
    ]
    assert decode_graph(encode_graph(nodes)) == nodes
    for wrong in (
        b"",
        encode_graph(nodes)[:-3],
        b"\x0a\x02\x0a\x00"[:3],
        encode_graph(nodes) + b"\x07",
    ):
        with pytest.raises(ValueError):
            decode_graph(wrong)


def test_slices_are_joined_to_the_full_tensor(tmp_path):
    whole = np.arange(24.0).reshape(6, 4)
    places = (((0, 2), (0, -1)), ((2, 4), (0, 1)), ((2, 4), (1, 3)))
    parts = ArrayParts(
        (6, 4), list(zip(places, (whole[:2], whole[2:, :1], whole[2:, 1:]), strict=True))
    )
    assert np.array_equal(np.asarray(parts), whole)
    write_bundle(tmp_path / "b", {"w": parts})
    opened = BundleReader(tmp_path / "b").open("w")
    assert np.array_equal(opened[1:4], whole[1:4]) and np.array_equal(opened[:, 2:], whole[:, 2:])
    assert train.list_variables(tmp_path / "b") == [("w", [6, 4])]
    read = lambda _: whole
    with pytest.raises(ValueError, match=r"hold 8 of 24 elements"):
        SlicedArray((6, 4), whole.dtype, places[:1], read)
    with pytest.raises(ValueError, match="outside"):
        SlicedArray((6, 4), whole.dtype, [((4, 3), (0, -1))], read)
    with pytest.raises(ValueError, match="2 dimensions"):
        SlicedArray((6,), whole.dtype, [((4, 3), (0, -1))], read)


def test_sharded_tables_are_slices_of_one_array(tmp_path):
    def table(sizes, first=0.0):
        rows = np.split(first + np.arange(16.0).reshape(8, 2), np.cumsum(sizes)[:-1])
        return ShardedVariable([tf.Variable(r) for r in rows], "table")

    path = train.Checkpoint(t=table([3, 3, 2])).write(tmp_path / "ckpt")
    key = "t/.ATTRIBUTES/VARIABLE_VALUE"
    bundle = BundleReader(path)
    assert bundle.entries[key]["shape"] == [8, 2] and len(bundle._entries[key].slices) == 3
    other, plain = table([5, 3], 7.0), tf.Variable(tf.zeros([8, 2], "float64"))
    for target in (other, plain):
        train.Checkpoint(t=target).read(path).assert_consumed()
    expected = np.arange(16.0).reshape(8, 2)
    assert np.array_equal(plain.numpy(), expected)
    assert np.array_equal(np.concatenate([v.numpy() for v in other.variables]), expected)
