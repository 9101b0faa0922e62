"""Compare record files, serialized examples and tensors with files and values of TensorFlow."""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.core.dispatch import composite
from meshflow.io import parsing
from reference.record_expressions import EXPRESSIONS, examples, tensors

FOUND = json.loads((Path(__file__).parents[1] / "reference" / "records.json").read_text())
TEXTS = [base64.b64decode(t) for t in FOUND["examples"]]
KINDS = ("", "GZIP", "ZLIB")


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, composite.SparseTensor):
        return [plain(p) for p in (value.indices, value.values, value.dense_shape)]
    array = np.asarray(value)
    if value.dtype == tf.string:
        return ["O", list(array.shape), [b.decode() for b in array.reshape(-1).tolist()]]
    return [array.dtype.str, list(array.shape), array.reshape(-1).tolist()]


def names():
    return {
        "tf": tf,
        "examples": tf.constant(TEXTS),
        "sequences": tf.constant([base64.b64decode(t) for t in FOUND["sequences"]]),
    }


def written(path, texts=TEXTS, options=None):
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for text in texts:
            writer.write(text)
    return str(path)


@pytest.mark.parametrize("text", [t for t in EXPRESSIONS if t in FOUND["parsed"]])
def test_parsed_features_are_tensorflows(text):
    assert plain(eval(text, names())) == FOUND["parsed"][text]


@pytest.mark.parametrize("text", [t for t in EXPRESSIONS if t in FOUND["errors"]])
def test_errors_are_tensorflows(text):
    with pytest.raises(Exception) as caught:
        eval(text, names())
    own = {c.__name__ for c in type(caught.value).__mro__}
    assert own & set(FOUND["errors"][text]), caught.value


def test_examples_are_written_as_by_tensorflow():
    single, sequence = examples(tf)
    assert [e.SerializeToString(deterministic=True) for e in single] == TEXTS
    coded = [base64.b64encode(e.SerializeToString(deterministic=True)) for e in sequence]
    assert [c.decode() for c in coded] == FOUND["sequences"]
    for example, text in zip(single, TEXTS, strict=True):
        assert tf.train.Example.FromString(text) == example


def test_messages_print_and_merge():
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    example = tf.train.Example(features=tf.train.Features(feature={"a": feature}))
    assert 'key: "a"' in str(example)
    other = tf.train.Example()
    other.ParseFromString(example.SerializeToString())
    other.features.feature["b"].float_list.value.append(1.5)
    assert sorted(other.features.feature) == ["a", "b"]
    with pytest.raises(TypeError):
        tf.train.Int64List(value=["text"])


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_tensorflow_are_read_and_written(tmp_path, kind):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(base64.b64decode(FOUND["files"][kind]))
    assert list(tf.data.TFRecordDataset(str(theirs), kind).as_numpy_iterator()) == TEXTS
    ours = written(tmp_path / "ours", options=kind)
    if not kind:
        assert Path(ours).read_bytes() == theirs.read_bytes()
    again = tf.data.TFRecordDataset([ours], compression_type=kind, buffer_size=16)
    assert list(again.as_numpy_iterator()) == TEXTS


def test_options_of_compression(tmp_path):
    options = tf.io.TFRecordOptions("GZIP", compression_level=9, mem_level=9, window_bits=12)
    path = written(tmp_path / "a", options=options)
    assert gzip.decompress(Path(path).read_bytes()).count(TEXTS[0]) == 1
    assert tf.io.TFRecordOptions.get_compression_type_string(options) == "GZIP"
    assert tf.io.TFRecordOptions.get_compression_type_string(None) == ""
    with pytest.raises(ValueError, match="compression"):
        tf.io.TFRecordOptions("LZ4")
    with pytest.raises(ValueError, match="compression"):
        tf.data.TFRecordDataset(path, compression_type="LZ4")


def test_writer_refuses_objects_other_than_bytes(tmp_path):
    writer = tf.io.TFRecordWriter(tmp_path / "a")
    with pytest.raises(TypeError, match="SerializeToString"):
        writer.write(3)
    writer.write(b"one")
    writer.flush()
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(tmp_path / "a"))] == [b"one"]
    writer.close()
    writer.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        writer.write(b"two")


def test_empty_file_has_no_records(tmp_path):
    for kind in KINDS:
        assert list(tf.data.TFRecordDataset(written(tmp_path / f"e{kind}", [], kind), kind)) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [(8, "checksum of its length"), (20, "checksum of its bytes"), (-1, "checksum of its bytes")],
)
def test_damaged_record_is_named_with_file_and_byte(tmp_path, place, words):
    path = written(tmp_path / "damaged.tfrecord", [b"a" * 30, b"b" * 30])
    data = bytearray(Path(path).read_bytes())
    second = len(data) // 2
    data[place if place < 0 else second + place] ^= 1
    Path(path).write_bytes(data)
    iterator = iter(tf.data.TFRecordDataset(path))
    assert next(iterator).numpy() == b"a" * 30
    with pytest.raises(tf.errors.DataLossError, match=words) as caught:
        next(iterator)
    assert "damaged.tfrecord" in str(caught.value)
    assert f"byte {second}" in str(caught.value)


@pytest.mark.parametrize("cut", [1, 5, 41])
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_file(tmp_path, cut, kind):
    path = written(tmp_path / "cut", [b"a" * 30, b"b" * 30], kind)
    Path(path).write_bytes(Path(path).read_bytes()[:-cut])
    with pytest.raises(tf.errors.DataLossError, match="cut"):
        list(tf.data.TFRecordDataset(path, kind))


def test_wrong_compression_and_missing_file(tmp_path):
    path = written(tmp_path / "a")
    for kind in ("GZIP", "ZLIB"):
        with pytest.raises(tf.errors.DataLossError, match="decompressed"):
            list(tf.data.TFRecordDataset(path, kind))
    with pytest.raises(tf.errors.DataLossError, match="compression_type"):
        list(tf.data.TFRecordDataset(written(tmp_path / "b", options="GZIP")))
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        list(tf.data.TFRecordDataset(str(tmp_path / "nowhere")))


def test_names_from_a_dataset_and_several_files_in_turn(tmp_path):
    paths = [written(tmp_path / f"{n}.rec", [b"%d%d" % (n, i) for i in range(3)]) for n in range(3)]
    one_by_one = [b"%d%d" % (n, i) for n in range(3) for i in range(3)]
    assert [r.numpy() for r in tf.data.TFRecordDataset(paths)] == one_by_one
    files = tf.data.Dataset.list_files(str(tmp_path / "*.rec"), shuffle=False)
    assert [r.numpy() for r in tf.data.TFRecordDataset(files)] == one_by_one
    assert [r.numpy() for r in files.flat_map(tf.data.TFRecordDataset)] == one_by_one
    in_turn = [r.numpy() for r in tf.data.TFRecordDataset(files, num_parallel_reads=2)]
    assert sorted(in_turn) == one_by_one
    assert in_turn[:4] == [b"00", b"10", b"01", b"11"]
    every = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)
    assert sorted(r.numpy() for r in every) == one_by_one
    with pytest.raises(TypeError, match="string"):
        tf.data.TFRecordDataset(tf.data.Dataset.range(3))


def test_pipeline_of_records(tmp_path):
    def example(i):
        feature = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i, i + 0.5])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[i])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    wanted = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    dataset = tf.data.TFRecordDataset(written(tmp_path / "a", map(example, range(7))))
    parsed = dataset.map(lambda r: tf.io.parse_single_example(r, wanted)).batch(4)
    whole = dataset.batch(4).map(lambda r: tf.io.parse_example(r, wanted))
    for one, other in zip(parsed, whole, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])
    dense = dataset.map(
        lambda r: tf.sparse.to_dense(
            tf.io.parse_single_example(r, {"x": tf.io.VarLenFeature(tf.float32)})["x"]
        )
    )
    np.testing.assert_array_equal(np.stack(list(dense)), [[i, i + 0.5] for i in range(7)])


def test_dataset_written_as_records(tmp_path):
    path = str(tmp_path / "a")
    data = tf.data.Dataset.from_tensor_slices([b"one", b"two"])
    tf.data.experimental.TFRecordWriter(path).write(data)
    assert [r.numpy() for r in tf.data.TFRecordDataset(path)] == [b"one", b"two"]
    with pytest.raises(TypeError, match="string"):
        tf.data.experimental.TFRecordWriter(path).write(tf.data.Dataset.range(2))
    with pytest.raises(TypeError, match="Dataset"):
        tf.data.experimental.TFRecordWriter(path).write([b"one"])


@pytest.mark.parametrize("number", range(len(FOUND["tensors"])))
def test_tensors_are_serialized_as_by_tensorflow(number):
    tensor = tensors(tf)[number]
    theirs, proto = (base64.b64decode(FOUND[k][number]) for k in ("tensors", "protos"))
    for text in (tf.io.serialize_tensor(tensor).numpy(), theirs, proto):
        again = tf.io.parse_tensor(text, tensor.dtype)
        assert again.dtype == tensor.dtype
        np.testing.assert_array_equal(again.numpy(), tensor.numpy())
    assert tf.io.serialize_tensor(tensor).numpy() == theirs


def test_tensor_of_another_dtype():
    text = tf.io.serialize_tensor([1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"int32.*float32"):
        tf.io.parse_tensor(text, tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="TensorProto"):
        tf.io.parse_tensor(b"\xff\xff", tf.float32)


def test_unreadable_features():
    with pytest.raises(TypeError, match="list of partition objects"):
        ragged = tf.io.RaggedFeature(tf.int64, partitions=[1])
        tf.io.parse_example(TEXTS, {"n": ragged})
    with pytest.raises(ValueError, match="int32"):
        tf.io.parse_single_example(TEXTS[0], {"n": tf.io.FixedLenFeature([], tf.int32)})
    with pytest.raises(ValueError, match="FixedLenFeature"):
        tf.io.parse_single_example(TEXTS[0], {"n": tf.int64})
    with pytest.raises(tf.errors.InvalidArgumentError, match="The record has: empty, ix"):
        tf.io.parse_single_example(TEXTS[0], {"other": tf.io.FixedLenFeature([], tf.int64)})


def test_names_of_version_1(tmp_path):
    v1 = tf.compat.v1
    path = str(tmp_path / "a")
    options = v1.python_io.TFRecordOptions(v1.python_io.TFRecordCompressionType.ZLIB)
    with v1.python_io.TFRecordWriter(path, options) as writer:
        writer.write(TEXTS[0])
    assert list(v1.python_io.tf_record_iterator(path, options)) == TEXTS[:1]
    assert list(v1.io.tf_record_iterator(path, "ZLIB")) == TEXTS[:1]
    found = v1.parse_single_example(TEXTS[0], {"n": v1.FixedLenFeature([], tf.int64)})
    assert int(found["n"]) == -3
    assert v1.train.Example is tf.train.Example


def test_missing_package_is_named():
    code = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "import meshflow as tf\n"
        "for use in (lambda: tf.train.Example(),\n"
        "            lambda: tf.io.parse_single_example('', {'n': tf.io.VarLenFeature(tf.int64)})):\n"
        "    try:\n"
        "        use()\n"
        "    except ImportError as error:\n"
        "        assert 'pip install meshflow-tf' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    assert forked.run(code, after="import jax") == [0, ""]


def test_many_records_are_parsed_in_blocks(monkeypatch):
    """Otherwise other threads wait until the messages of all records are deleted."""
    records = []
    for value in (1.0, None, 3.0, 4.0, 5.0):
        features = (
            {}
            if value is None
            else {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[value]))}
        )
        records.append(
            tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        )
    counts, make_records = [], parsing._make_records
    monkeypatch.setattr(parsing, "_BLOCK_RECORDS", 2)
    monkeypatch.setattr(
        parsing,
        "_make_records",
        lambda texts, names: counts.append(len(texts)) or make_records(texts, names),
    )
    found = parsing.parse_feature(records, "x", [1], tf.float32, [9.0])
    np.testing.assert_array_equal(found, [[1], [9], [3], [4], [5]])
    assert counts == [2, 2, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: x"):
        parsing.parse_feature(records, "x", [1], tf.float32, None)


@pytest.mark.parametrize(
    "second",
    [tf.io.VarLenFeature(tf.int64), tf.io.SparseFeature("ids", "values", tf.float32, 5)],
)
def test_features_of_two_kinds_read_different_keys(second):
    first = tf.io.RaggedFeature(tf.int64, value_key="ids")
    with pytest.raises(ValueError, match="Ragged and sparse keys must not intersect"):
        tf.io.parse_example([b""], {"rows": first, "ids": second})


def test_ragged_features_of_sequences():
    train = tf.train
    floats = lambda v: train.Feature(float_list=train.FloatList(value=v))
    integers = lambda v: train.Feature(int64_list=train.Int64List(value=v))

    def serialize(**steps):
        lists = {name: train.FeatureList(feature=values) for name, values in steps.items()}
        message = train.SequenceExample(feature_lists=train.FeatureLists(feature_list=lists))
        return message.SerializeToString()

    first = serialize(v=[floats([1, 2, 3]), floats([4])], s=[integers([0, 1, 3]), integers([0, 1])])
    second = serialize(v=[floats([])], s=[integers([0])])
    ragged = tf.io.RaggedFeature
    features = {
        "flat": ragged(tf.float32, "v"),
        "rows": ragged(tf.float32, "v", [ragged.RowSplits("s")]),
    }
    _, steps = tf.io.parse_single_sequence_example(first, sequence_features=features)
    assert steps["flat"].to_list() == [[1, 2, 3], [4]]
    assert steps["rows"].to_list() == [[[1], [2, 3]], [[4]]]
    _, steps, lengths = tf.io.parse_sequence_example([first, second], sequence_features=features)
    assert steps["flat"].to_list() == [[[1, 2, 3], [4]], [[]]] and lengths == {}
    assert steps["rows"].to_list() == [[[[1], [2, 3]], [[4]]], [[]]]
    misaligned = serialize(v=[floats([1])], s=[])
    with pytest.raises(tf.errors.InvalidArgumentError, match="are not aligned"):
        tf.io.parse_sequence_example([misaligned], sequence_features=features)


def test_no_sequences():
    features = {"a": tf.io.FixedLenSequenceFeature([2], tf.int64)}
    empty = tf.constant([], tf.string)
    _, steps, lengths = tf.io.parse_sequence_example(empty, sequence_features=features)
    assert steps["a"].shape == [0, 0, 2] and lengths["a"].shape == [0]


def test_errors_of_steps_name_their_index():
    message = tf.train.SequenceExample()
    message.feature_lists.feature_list["a"].feature.add().int64_list.value.append(1)
    message.feature_lists.feature_list["a"].feature.add().float_list.value.append(1.0)
    features = {"a": tf.io.FixedLenSequenceFeature([1], tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Index: 1\.  Data types don't match"):
        tf.io.parse_single_sequence_example(message.SerializeToString(), sequence_features=features)
    with pytest.raises(ValueError, match="Missing shape for feature a"):
        tf.io.parse_example([b""], {"a": tf.io.FixedLenFeature(None, tf.int64)})
