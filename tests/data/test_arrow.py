"""Rows of Arrow tables and Parquet files."""

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.data.readers import arrow

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
E = tf.data.experimental


def table(count=10):
    numbers = list(range(count))
    return pa.table(
        {
            "i": pa.array(numbers, pa.int32()),
            "f": pa.array([n / 2 for n in numbers], pa.float64()),
            "flag": [n % 2 == 0 for n in numbers],
            "text": [f"t{n}" for n in numbers],
            "raw": pa.array([bytes([n]) for n in numbers], pa.binary()),
            "category": pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
            "pair": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int64(), 2)),
            "inside": [{"x": n, "y": [float(n)] * 3} for n in numbers],
        }
    ).set_column(
        7,
        "inside",
        pa.array(
            [{"x": n, "y": [float(n)] * 3} for n in numbers],
            pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float32(), 3))]),
        ),
    )


def check(rows, count=10):
    rows = list(rows)
    assert len(rows) == count
    for n, row in enumerate(rows):
        assert row["i"].dtype == tf.int32 and int(row["i"]) == n
        assert row["f"].dtype == tf.float64 and float(row["f"]) == n / 2
        assert bool(row["flag"]) == (n % 2 == 0)
        assert row["text"].numpy() == f"t{n}".encode() and row["raw"].numpy() == bytes([n])
        assert row["category"].numpy() == b"ab"[n % 2 : n % 2 + 1]
        assert row["pair"].numpy().tolist() == [n, n + 1]
        assert int(row["inside"]["x"]) == n and row["inside"]["y"].numpy().tolist() == [n] * 3


def test_table_in_memory():
    data = E.from_arrow(table())
    check(data)
    assert data.element_spec["pair"] == tf.TensorSpec([2], tf.int64)
    assert data.element_spec["inside"]["y"] == tf.TensorSpec([3], tf.float32)
    assert len(data) == 10
    check(E.from_arrow(table().to_batches(max_chunksize=3)))
    check(E.from_arrow([table().slice(0, 4), table().slice(4)]))
    assert [int(r["a"]) for r in E.from_arrow({"a": [1, 2]})] == [1, 2]
    batch = next(iter(data.batch(4)))
    assert batch["pair"].numpy().tolist() == [[n, n + 1] for n in range(4)]
    assert batch["text"].numpy().tolist() == [b"t0", b"t1", b"t2", b"t3"]


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files(tmp_path, stream):
    path = str(tmp_path / "a.arrow")
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=4)
    check(E.from_arrow(path))
    check(E.from_arrow([path]).take(10))


def test_parquet_files(tmp_path):
    for n, part in enumerate((table().slice(0, 7), table().slice(7))):
        parquet.write_table(part, tmp_path / f"{n}.parquet", row_group_size=2)
    data = E.from_parquet(str(tmp_path / "*.parquet"))
    check(data)
    assert int(data.cardinality()) == 10
    check(E.from_parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"]))
    some = E.from_parquet(str(tmp_path / "0.parquet"), columns=["text", "i"])
    assert list(some.element_spec) == ["text", "i"]
    assert [int(r["i"]) for r in some] == list(range(7))


def test_complete_blocks_are_read(tmp_path):
    parquet.write_table(
        table(100).select(["i", "f", "pair"]), tmp_path / "a.parquet", row_group_size=7
    )
    data = E.from_parquet(str(tmp_path / "a.parquet"))
    pipeline = data.map(lambda r: r["i"] + tf.cast(r["pair"][1], tf.int32)).shuffle(50, seed=1)
    assert "Map: vectorized" in E.explain(pipeline.batch(8))
    found = [int(v) for batch in pipeline.batch(8) for v in batch]
    assert sorted(found) == [2 * n + 1 for n in range(100)] and found != sorted(found)
    kept = [int(v) for v in data.map(lambda r: r["i"]).skip(90).repeat(2).batch(20).unbatch()]
    assert kept == [*range(90, 100)] * 2


def test_few_chunks_are_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "_MAX_CACHED_BYTES", 2000)
    numbers = pa.table({"x": np.arange(4000)})
    parquet.write_table(numbers, tmp_path / "a.parquet", row_group_size=50)
    data = E.from_parquet(str(tmp_path / "a.parquet"))
    shuffled = data.shuffle(3000, seed=3)
    assert "larger than the source holds" in E.explain(shuffled)
    loads = []
    load = data._load
    data._load = lambda number: loads.append(number) or load(number)
    assert sorted(int(b) for r in shuffled.batch(100) for b in r["x"]) == list(range(4000))
    assert len(loads) < 3 * 80
    assert len(data._chunks) <= 5
    near = [int(b) for r in data.shuffle(60, seed=3).batch(100) for b in r["x"]]
    assert sorted(near) == list(range(4000))


def test_lists_of_different_lengths():
    rows = E.from_arrow(pa.table({"v": [[1.0], [], [2.0, 3.0]], "w": [["a"], ["b", "c"], []]}))
    assert rows.element_spec["v"] == tf.TensorSpec([None], tf.float64)
    assert [r["v"].numpy().tolist() for r in rows] == [[1.0], [], [2.0, 3.0]]
    assert [r["w"].numpy().tolist() for r in rows] == [[b"a"], [b"b", b"c"], []]
    batch = next(iter(rows.padded_batch(3)))
    assert batch["v"].numpy().tolist() == [[1, 0], [0, 0], [2, 3]]


def test_tensors_of_fixed_shape():
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4))
    array = pa.ExtensionArray.from_storage(kind, storage)
    rows = E.from_arrow(pa.table({"m": array}))
    assert rows.element_spec["m"] == tf.TensorSpec([2, 2], tf.float32)
    assert [r["m"].numpy().tolist() for r in rows][1] == [[5, 6], [7, 8]]


def test_missing_values():
    floats = E.from_arrow(pa.table({"x": [1.0, None]}))
    np.testing.assert_array_equal([r["x"] for r in floats], [1.0, np.nan])
    for column in ([1, None], ["a", None]):
        with pytest.raises(ValueError, match="'x' misses 1 of 2"):
            list(E.from_arrow(pa.table({"x": column})))


def test_bad_input(tmp_path):
    import datetime

    with pytest.raises(ValueError, match="'when' has the type timestamp"):
        E.from_arrow(pa.table({"when": [datetime.datetime(2020, 1, 1)]}))
    with pytest.raises(ValueError, match="no column 'b'"):
        E.from_arrow(pa.table({"a": [1]}), columns=["b"])
    with pytest.raises(ValueError, match="other types"):
        E.from_arrow([pa.table({"a": [1]}), pa.table({"a": ["x"]})])
    with pytest.raises(TypeError, match="int"):
        E.from_arrow(3)
    with pytest.raises(tf.errors.NotFoundError, match="none"):
        E.from_parquet(str(tmp_path / "none.parquet"))
    assert list(E.from_arrow(pa.table({"a": pa.array([], pa.int64())}))) == []


def test_missing_package_is_named():
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import meshflow as tf\n"
        "try:\n"
        "    tf.data.experimental.from_parquet('x')\n"
        "except ImportError as error:\n"
        "    assert 'meshflow-tf[arrow]' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    assert forked.run(code, after="import jax") == [0, ""]
