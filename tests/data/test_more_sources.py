"""Test databases, batches of parsed records, reductions by group, and the rest of `experimental`."""

import sqlite3

import numpy as np
import pytest

import meshflow as tf

D, E = tf.data.Dataset, tf.data.experimental


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "a.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE t (i INTEGER, x REAL, s TEXT, b BLOB)")
        rows = [(1, 0.5, "one", b"\x00"), (2, None, None, b"\xff"), (3, 2.5, "thrée", None)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    connection.close()
    return str(path)


def test_rows_of_a_database(database):
    types = (tf.int64, tf.float64, tf.string, tf.string)
    rows = E.SqlDataset("sqlite", database, "SELECT * FROM t ORDER BY i DESC", types)
    assert rows.element_spec == tuple(tf.TensorSpec([], t) for t in types)
    for _ in range(2):
        found = [tuple(v.numpy() for v in row) for row in rows]
        assert found[0] == (3, 2.5, "thrée".encode(), b"")
        assert found[1] == (2, 0.0, b"", b"\xff")
    (only,) = next(
        iter(E.SqlDataset("sqlite", database, "SELECT i > 1 FROM t", (tf.bool,)).skip(1))
    )
    assert only.dtype == tf.bool and bool(only)
    assert len(list(rows.batch(2).prefetch(1))) == 2


def test_bad_queries(database):
    with pytest.raises(tf.errors.InvalidArgumentError, match="sqlite"):
        E.SqlDataset("mysql", database, "", (tf.int32,))
    with pytest.raises(ValueError, match="float32"):
        E.SqlDataset("sqlite", database, "SELECT x FROM t", (tf.float32,))
    with pytest.raises(tf.errors.UnknownError, match="no such table"):
        list(E.SqlDataset("sqlite", database, "SELECT * FROM u", (tf.int32,)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="returns 2 columns"):
        list(E.SqlDataset("sqlite", database, "SELECT i, x FROM t", (tf.int32,)))


def test_batches_of_parsed_records(tmp_path):
    pytest.importorskip("google.protobuf")
    train = tf.train
    for part in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"{part}.tfrecord")) as writer:
            for n in range(3):
                feature = {
                    "x": train.Feature(float_list=train.FloatList(value=[part, n])),
                    "y": train.Feature(int64_list=train.Int64List(value=[10 * part + n])),
                }
                example = train.Example(features=train.Features(feature=feature))
                writer.write(example.SerializeToString())
    wanted = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    pattern = str(tmp_path / "*.tfrecord")
    batches = list(
        E.make_batched_features_dataset(
            pattern, 4, wanted, label_key="y", num_epochs=1, shuffle=False
        )
    )
    assert [y.numpy().tolist() for _, y in batches] == [[0, 1, 2, 10], [11, 12]]
    assert batches[0][0]["x"].numpy().tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
    endless = E.make_batched_features_dataset(pattern, 4, wanted, shuffle_seed=1)
    found = [int(n) for batch in endless.take(3) for n in batch["y"]]
    assert sorted(found) == sorted([0, 1, 2, 10, 11, 12] * 2)
    with pytest.raises(ValueError, match="label_key"):
        E.make_batched_features_dataset(pattern, 4, wanted, label_key="z")
    with pytest.raises(ValueError, match="features"):
        E.parse_example_dataset({})


def test_groups_are_reduced():
    mean = E.Reducer(
        lambda key: (0.0, 0.0),
        lambda state, x: (state[0] + tf.cast(x, tf.float32), state[1] + 1),
        lambda total, count: total / count,
    )
    groups = D.from_tensor_slices(np.array([5, 1, 7, 2])).apply(
        E.group_by_reducer(lambda x: x % 2, mean)
    )
    np.testing.assert_allclose(list(groups), [2, 13 / 3], rtol=1e-6)
    assert groups.element_spec.dtype == tf.float32


def test_padding_to_a_number_of_elements():
    data = D.from_tensor_slices({"x": [1, 2], "s": ["a", "b"]}).apply(E.pad_to_cardinality(4))
    assert len(data) == 4
    assert [bool(e["valid"]) for e in data] == [True, True, False, False]
    assert [int(e["x"]) for e in data] == [1, 2, 0, 0]
    assert [e["s"].numpy() for e in data] == [b"a", b"b", b"", b""]
    with pytest.raises(ValueError, match="to be a dictionary"):
        D.range(3).apply(E.pad_to_cardinality(4))
    with pytest.raises(ValueError, match=r"target cardinality \(1\), but has cardinality 2"):
        D.from_tensor_slices({"x": [1, 2]}).apply(E.pad_to_cardinality(1))
    with pytest.raises(ValueError, match="a known cardinalty, but has cardinality -1"):
        D.from_tensors({"x": 1}).repeat().apply(E.pad_to_cardinality(1))
    with pytest.raises(ValueError, match="already contain the key 'x'"):
        D.from_tensor_slices({"x": [1, 2]}).apply(E.pad_to_cardinality(2, "x"))


def test_debug_mode(monkeypatch):
    from meshflow.data.execution import map_function

    monkeypatch.setitem(map_function.DEBUG, "eager", False)
    seen = []
    E.enable_debug_mode()
    data = D.range(3).map(lambda x: seen.append(x.numpy()) or x)
    assert "debug mode" in E.explain(data)
    assert [int(x) for x in data] == [0, 1, 2] == seen


def test_names_of_version_1():
    v1 = tf.compat.v1.data
    data = v1.Dataset.from_tensor_slices({"x": [[1.0, 2.0]]})
    assert v1.get_output_types(data) == {"x": tf.float32}
    assert v1.get_output_shapes(data) == {"x": tf.TensorShape([2])}
    assert v1.get_output_classes(data) == {"x": tf.Tensor}
    assert v1.make_one_shot_iterator(data).get_next()["x"].numpy().tolist() == [1, 2]
    assert E.AutotuneAlgorithm.HILL_CLIMB.name == "HILL_CLIMB"


def test_compressed_strings_and_file_names(tmp_path):
    import gzip
    import zlib

    words = tf.constant([zlib.compress(b"a"), zlib.compress(b"bc")])
    assert tf.io.decode_compressed(words, "ZLIB").numpy().tolist() == [b"a", b"bc"]
    assert tf.io.decode_compressed(gzip.compress(b"x"), "GZIP") == "x"
    assert tf.io.decode_compressed("x") == "x"
    with pytest.raises(tf.errors.DataLossError, match="GZIP"):
        tf.io.decode_compressed("text", "GZIP")
    with pytest.raises(ValueError, match="LZ4"):
        tf.io.decode_compressed("text", "LZ4")
    (tmp_path / "a.txt").write_text("")
    found = tf.io.match_filenames_once(str(tmp_path / "*.txt")).numpy().tolist()
    assert found == [str(tmp_path / "a.txt").encode()]
