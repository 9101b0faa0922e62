"""Test that partitioners return TensorFlow's numbers, and that invalid results are refused."""

import json
import pathlib

import pytest

import meshflow as tf
from meshflow.distribute.parameter_server.variables.sharding import compute_shard_sizes

PARTITIONERS = tf.distribute.experimental.partitioners
ANSWERS = json.loads(pathlib.Path(__file__).with_name("partitioners.json").read_text())


@pytest.mark.parametrize(
    "kind", ["FixedShardsPartitioner", "MinSizePartitioner", "MaxSizePartitioner"]
)
def test_numbers_are_tensorflows(kind):
    cases = [case for case in ANSWERS if case[0] == kind]
    assert len(cases) > 100
    for _, arguments, shape, dtype, expected in cases:
        partitioner = getattr(PARTITIONERS, kind)(**arguments)
        found = partitioner(tf.TensorShape(shape), tf.as_dtype(dtype))
        assert found == expected, (kind, arguments, shape, dtype)


def test_other_axes_and_both_names():
    shape = tf.TensorShape([3, 8])
    assert PARTITIONERS.MinSizePartitioner(4, 4)(shape, tf.float32, axis=1) == [1, 4]
    assert PARTITIONERS.FixedShardsPartitioner(2)(shape, tf.float32, axis=1) == [1, 2]
    assert tf.distribute.partitioners.__all__ == PARTITIONERS.__all__


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PARTITIONERS.MinSizePartitioner(min_shard_bytes=0), "`min_shard_bytes` must be"),
        (lambda: PARTITIONERS.MinSizePartitioner(max_shards=0), "`max_shards` must be positive"),
        (lambda: PARTITIONERS.MinSizePartitioner(bytes_per_string=0), "`bytes_per_string` must"),
        (lambda: PARTITIONERS.MaxSizePartitioner(0), "`max_shard_bytes` must be positive"),
        (lambda: PARTITIONERS.MaxSizePartitioner(4, 2, 0), "`bytes_per_string` must be positive"),
        (
            lambda: PARTITIONERS.MinSizePartitioner()(tf.TensorShape([3, 8]), tf.int32, axis=2),
            r"Cannot partition variable along axis 2 when shape is only \(3, 8\)",
        ),
        (
            lambda: PARTITIONERS.MinSizePartitioner()(tf.TensorShape([None, 8]), tf.int32),
            "unknown shape",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(NotImplementedError, match="Partitioner must define __call__"):
        PARTITIONERS.Partitioner()(tf.TensorShape([3]), tf.float32)


def test_remaining_rows_belong_to_the_first_shards():
    fixed = PARTITIONERS.FixedShardsPartitioner(3)
    assert compute_shard_sizes(fixed, [10, 2], tf.float32) == [4, 3, 3]
    assert compute_shard_sizes(fixed, [2, 2], "float32") == [1, 1]
    assert compute_shard_sizes(fixed, [], tf.float32) == []
    assert compute_shard_sizes(None, [10, 2], tf.float32) == [10]
    assert compute_shard_sizes(lambda shape, dtype, axis=0: [2, 1], [5, 2], tf.float32) == [3, 2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([7, 1], r"cuts the shape \(5, 2\) into 7 parts, but it has only 5 rows"),
        ([1, 2], "only the first axis can be cut"),
        ([2], "a positive number of parts for each of its 2 axes"),
        ([0, 1], "a positive number of parts"),
        (3, "must return a list"),
    ],
)
def test_answers_that_do_not_fit(answer, message):
    with pytest.raises(ValueError, match=message):
        compute_shard_sizes(lambda shape, dtype: answer, [5, 2], tf.float32)
