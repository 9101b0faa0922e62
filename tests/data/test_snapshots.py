"""Test datasets stored by `snapshot`."""

import os
import subprocess
import sys

import numpy as np
import pytest

import meshflow as tf
from meshflow.data.storage.fingerprints import compute_fingerprint

D = tf.data.Dataset


def values(dataset):
    return [tf.nest.map_structure(lambda v: v.tolist(), e) for e in dataset.as_numpy_iterator()]


@pytest.fixture
def counted():
    """Return a dataset of ten elements, and a counter of its computations."""

    class Passes:
        count = 0

    def numbers():
        Passes.count += 1
        yield from range(10)

    def dataset():
        return D.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))

    return dataset, Passes


@pytest.mark.parametrize("compression", ["AUTO", "SNAPPY", "GZIP", None])
def test_elements_are_computed_once(tmp_path, counted, compression):
    dataset, passes = counted
    kept = dataset().snapshot(str(tmp_path), compression)
    assert values(kept) == values(kept) == list(range(10))
    # Another program with the same pipeline reads it too.
    assert values(dataset().snapshot(tmp_path)) == list(range(10))
    assert passes.count == 1


def test_incomplete_pass_writes_no_snapshot(tmp_path, counted):
    dataset, passes = counted
    kept = dataset().snapshot(tmp_path)
    assert values(kept.take(3)) == [0, 1, 2]
    assert values(kept) == list(range(10)) and passes.count == 2


def test_a_changed_pipeline_is_computed_again(tmp_path):
    def kept(factor, size=2):
        return values(D.range(4).map(lambda x: x * factor).batch(size).snapshot(tmp_path))

    assert kept(1) == [[0, 1], [2, 3]]
    assert kept(2) == [[0, 2], [4, 6]]
    assert kept(2, 4) == [[0, 2, 4, 6]]
    assert len(os.listdir(tmp_path)) == 3

    def of(rows):
        return values(D.from_tensor_slices(np.array(rows)).snapshot(tmp_path))

    assert (of([1, 2]), of([1, 3])) == ([1, 2], [1, 3])


def test_shard_and_reader_functions(tmp_path):
    data = D.range(6).snapshot(
        tmp_path, shard_func=lambda x: x // 3, reader_func=lambda d: d.flat_map(lambda s: s.skip(1))
    )
    assert values(data) == list(range(6))
    assert values(data) == [1, 2, 4, 5]
    in_turns = D.range(6).snapshot(tmp_path / "other", shard_func=lambda x: x // 3)
    assert (values(in_turns), values(in_turns)) == (list(range(6)), [0, 3, 1, 4, 2, 5])


def test_invalid_results_of_functions_are_refused(tmp_path):
    with pytest.raises(TypeError, match="integer scalar"):
        D.range(3).snapshot(tmp_path, shard_func=lambda _: "first")
    with pytest.raises(TypeError, match="must return a Dataset"):
        D.range(3).snapshot(tmp_path, reader_func=lambda d: 1)
    with pytest.raises(ValueError, match="compression"):
        D.range(3).snapshot(tmp_path, compression="LZ4")


def double(x):
    return x * 2


class Adds:
    def __init__(self, number):
        self.number = number

    def __call__(self, x):
        return x + self.number


def pipelines():
    layer = tf.keras.layers.Rescaling(2.0)
    yield D.range(5).map(lambda x: x + 1).batch(2)
    yield D.range(5).map(double, num_parallel_calls=2).shuffle(3).prefetch(2)
    yield D.range(5).map(tf.function(double))
    yield D.range(5).map(lambda x: layer(tf.cast(x, tf.float32)))
    yield D.range(5).interleave(lambda x: D.range(x), cycle_length=2)
    yield D.range(4).map(lambda x: tf.fill([x], x)).padded_batch(2)
    yield D.range(4).map(lambda x: tf.random.uniform([]))
    for number in range(3):
        yield D.range(4).map(Adds(number))
        yield D.range(number).map(double).batch(3)
    yield D.from_tensor_slices(["a"]).map(lambda s: s if "q" not in {"a", "b", "c"} else "")


def test_equal_pipelines_have_equal_fingerprints_and_others_not():
    first, second = ([compute_fingerprint(d) for d in pipelines()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


FACTOR = [1, 2]


def test_globals_of_functions_count(monkeypatch):
    def found():
        return compute_fingerprint(D.range(3).map(lambda x: x * FACTOR[1]))

    before = found()
    assert found() == before
    monkeypatch.setitem(globals(), "FACTOR", [1, 3])
    assert found() != before


def test_fingerprint_is_equal_across_processes(tmp_path):
    source = """
import meshflow as tf
words = {"a", "b", "c"}
data = tf.data.Dataset.from_tensor_slices(["a", "x"]).map(lambda s: s if "q" in {"a", "b", "c"} else s)
print([s.numpy() for s in data.snapshot(SNAPSHOTS)])
""".replace("SNAPSHOTS", repr(str(tmp_path)))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", source], check=True, timeout=200)
    assert len(os.listdir(tmp_path)) == 1
