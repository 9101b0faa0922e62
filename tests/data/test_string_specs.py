"""Specs of functions of strings whose results have sizes that depend on the contents of the strings."""

import numpy as np
import pytest

import meshflow as tf

LINES = ["a b c", "d e f", "g"]


def _make_records():
    def make(values):
        ints = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Example(features=tf.train.Features(feature={"n": ints}))

    return [make(values).SerializeToString() for values in ([1, 2, 3], [4, 5, 6], [7])]


def _parse_sparse(record):
    found = tf.io.parse_single_example(record, {"n": tf.io.VarLenFeature(tf.int64)})
    return tf.sparse.to_dense(found["n"])


def _parse_sequence(record):
    spec = {"n": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    return tf.io.parse_single_example(record, spec)["n"]


TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(list("abcdefg"), list(range(1, 8))), 0
)


@pytest.mark.parametrize(
    "texts, function, rows",
    [
        (LINES, lambda s: TABLE.lookup(tf.strings.split(s)), [[1, 2, 3], [4, 5, 6], [7]]),
        (["ab", "cd", "e"], lambda s: tf.io.decode_raw(s, tf.uint8), [[97, 98], [99, 100], [101]]),
        (
            ["ab", "cd", "e"],
            lambda s: tf.strings.unicode_decode(s, "UTF-8"),
            [[97, 98], [99, 100], [101]],
        ),
        (_make_records(), _parse_sparse, [[1, 2, 3], [4, 5, 6], [7]]),
        (_make_records(), _parse_sequence, [[1, 2, 3], [4, 5, 6], [7]]),
    ],
)
def test_first_elements_of_equal_sizes(texts, function, rows):
    """The size of the first elements is not taken for that of all elements."""
    data = tf.data.Dataset.from_tensor_slices(texts).map(function)
    assert data.element_spec.shape.as_list() == [None]
    (batch,) = list(data.padded_batch(3))
    expected = [[*row, *[0] * (len(rows[0]) - len(row))] for row in rows]
    np.testing.assert_array_equal(batch, expected)


def test_sequence_examples():
    def make(values):
        steps = [tf.train.Feature(float_list=tf.train.FloatList(value=[v, v + 1])) for v in values]
        lists = {"x": tf.train.FeatureList(feature=steps)}
        return tf.train.SequenceExample(
            feature_lists=tf.train.FeatureLists(feature_list=lists)
        ).SerializeToString()

    def parse(record):
        features = {"x": tf.io.FixedLenSequenceFeature([2], tf.float32)}
        return tf.io.parse_single_sequence_example(record, sequence_features=features)[1]["x"]

    records = [make([1.0]), make([2.0, 3.0])]
    data = tf.data.Dataset.from_tensor_slices(records).map(parse)
    assert data.element_spec.shape.as_list() == [None, 2]
    (batch,) = list(data.padded_batch(2))
    np.testing.assert_array_equal(batch, [[[1, 2], [0, 0]], [[2, 3], [3, 4]]])


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda s: TABLE.lookup(tf.strings.split(s).to_tensor("a")), [None, None]),
        (lambda s: TABLE.lookup(s), [None]),
        (lambda s: tf.strings.length(s)[:, None], [None, 1]),
        (lambda s: tf.strings.split(s).values, [None]),
    ],
)
def test_batches(function, shape):
    """The number of strings of the first batch is not taken for that of all batches."""
    data = tf.data.Dataset.from_tensor_slices(LINES).batch(2).map(function)
    assert data.element_spec.shape.as_list() == shape
    assert len(list(data)) == 2


def test_sizes_that_the_function_fixes_are_known(tmp_path):
    paths = []
    for size in (5, 7):
        paths.append(str(tmp_path / f"{size}.png"))
        tf.io.write_file(paths[-1], tf.io.encode_png(np.zeros([size, 6, 3], np.uint8)))

    def load(path):
        image = tf.io.decode_png(tf.io.read_file(path), channels=3)
        image = tf.image.adjust_saturation(tf.image.convert_image_dtype(image, tf.float32), 0.5)
        return tf.image.resize_with_crop_or_pad(image, 8, 8), image

    cropped, image = tf.data.Dataset.from_tensor_slices(paths).map(load).element_spec
    assert cropped.shape.as_list() == [8, 8, 3]
    assert image.shape.as_list() == [None, None, 3]


def test_files_are_written_only_for_elements(tmp_path):
    def write(path):
        tf.io.write_file(path, "text")
        return tf.strings.split(path, "|")

    data = tf.data.Dataset.from_tensor_slices([f"{tmp_path}/a|b"]).map(write)
    assert data.element_spec.shape.as_list() == [None]
    assert [len(parts) for parts in data] == [2]
    assert [path.name for path in tmp_path.rglob("*")] == ["a|b"]
