"""Test that iterators are saved in the middle of every transformation and resume with the same
elements."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def shuffle_range(x):
    return D.range(4).shuffle(4).map(lambda y: y + 10 * x)


PIPELINES = {
    "batch": lambda: D.range(30).batch(3),
    "bucket": lambda: (
        D.range(30)
        .map(lambda x: tf.fill([x % 5], x))
        .bucket_by_sequence_length(lambda v: tf.shape(v)[0], [2, 4], [2, 2, 2])
    ),
    "cache": lambda: D.range(20).shuffle(20).cache().repeat(2),
    "choose": lambda: D.choose_from_datasets(
        [D.range(9).shuffle(9), D.range(9)], D.range(18).map(lambda i: i % 2)
    ),
    "concatenate": lambda: D.range(9).shuffle(9).concatenate(D.range(9)),
    "enumerate": lambda: D.range(20).shuffle(9).enumerate(),
    "filter": lambda: D.range(60).shuffle(9).filter(lambda x: x % 3 == 0),
    "flat_map": lambda: D.range(6).flat_map(shuffle_range),
    "generator": lambda: D.from_generator(lambda: iter(range(20)), tf.int64).shuffle(5),
    "group_by_window": lambda: D.range(30).group_by_window(
        lambda x: x % 2, lambda k, d: d.shuffle(4).batch(2), 4
    ),
    "interleave": lambda: D.range(6).interleave(shuffle_range, cycle_length=3, block_length=2),
    "map of random numbers": lambda: D.range(20).map(lambda x: tf.random.uniform([], seed=3)),
    "padded_batch": lambda: D.range(1, 20).map(lambda x: tf.fill([x % 3], x)).padded_batch(2),
    "random": lambda: D.random(seed=4).take(20),
    "repeat": lambda: D.range(5).shuffle(5).repeat(4),
    "sample": lambda: D.sample_from_datasets([D.range(9), D.range(9)], [0.3, 0.7]),
    "scan": lambda: D.range(20).shuffle(4).scan(np.int64(0), lambda s, x: (s + x, s)),
    "shard": lambda: D.range(40).shuffle(9).shard(2, 1),
    "take_while": lambda: D.range(30).shuffle(3).take_while(lambda x: x < 25),
    "threads": lambda: D.range(20).map(
        lambda x: tf.numpy_function(lambda v: v * 2, [x], tf.int64), num_parallel_calls=2
    ),
    "unbatch": lambda: D.range(20).batch(6).shuffle(9).unbatch(),
    "unique": lambda: D.range(40).map(lambda x: x % 20).shuffle(8).unique(),
    "window": lambda: D.range(20).shuffle(9).window(3, shift=1).flat_map(lambda w: w.batch(3)),
    "zip": lambda: D.zip((D.range(20).shuffle(5), D.range(20).shuffle(20))).prefetch(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_restored_iterators_resume(name, tmp_path):
    dataset = PIPELINES[name]()
    iterator = iter(dataset)
    for _ in range(7):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "saved"))
    rest = [convert_to_lists(e) for e in iterator]
    assert rest
    other = iter(PIPELINES[name]())
    next(other)
    tf.train.Checkpoint(iterator=other).read(path)
    assert [convert_to_lists(e) for e in other] == rest


def convert_to_lists(element):
    return [np.asarray(a).tolist() for a in tf.nest.flatten(element)]
