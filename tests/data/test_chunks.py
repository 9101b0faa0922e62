"""Test that elements computed in groups or by indices equal elements computed one by one."""

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunk_reordering, chunks
from meshflow.data.execution.failures import Failure
from meshflow.data.execution.random_draws import RandomDraws
from meshflow.data.transformations import shuffle_items

D = tf.data.Dataset
E = tf.data.experimental


def nodes(dataset):
    yield dataset
    for parent in dataset.parents:
        yield from nodes(parent)


@contextlib.contextmanager
def disable_gathering(dataset):
    """Restrict gathering to sources; later transformations see single elements."""
    kinds = {type(node) for node in nodes(dataset) if node.parents}
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            for method in ("vectorize", "_iter_chunks"):
                patch.setattr(kind, method, lambda self, run: None)
        yield


def elements(dataset, seeds):
    found = dataset.iter_elements(Epoch(dataset, seeds))
    return [[np.asarray(a).tolist() for a in tf.nest.flatten(e)] for e in found]


def check(make):
    """Compare passes over two datasets that are created in the same way."""
    fast, seeds = make(), {}
    wanted = elements(fast, seeds)
    again = elements(fast, seeds)
    slow = make()
    with disable_gathering(slow):
        assert elements(slow, seeds) == wanted
    assert again == wanted
    return wanted


SIZES = st.integers(1, 7)


def pair(x):
    return x, tf.stack([x, -x])


def first(element):
    return element[0] if isinstance(element, tuple) else element


STEPS = {
    "map": lambda d, n: d.map(lambda *e: tf.nest.map_structure(lambda x: x * n + 1, e)),
    "shuffle": lambda d, n: d.shuffle(n, seed=3),
    "repeat": lambda d, n: d.repeat(n % 4),
    "take": lambda d, n: d.take(3 * n),
    "skip": lambda d, n: d.skip(n),
    "shard": lambda d, n: d.shard(3, n % 3),
    "prefetch": lambda d, n: d.prefetch(n),
    "filter": lambda d, n: d.filter(lambda *e: tf.nest.flatten(e)[0] % (n + 1) != 0),
    "take_while": lambda d, n: d.take_while(lambda *e: tf.nest.flatten(e)[0] < 9 * n),
    "batch and unbatch": lambda d, n: d.batch(n).unbatch(),
    "concatenate": lambda d, n: d.concatenate(d.take(n)),
    "enumerate": lambda d, n: d.enumerate(n).map(
        lambda i, e: tf.nest.map_structure(lambda x: x + i, e)
    ),
    "zip": lambda d, n: D.zip((d, d.skip(n))).map(lambda a, b: b),
    "cache": lambda d, n: d.cache(),
    "flat_map": lambda d, n: d.flat_map(lambda *e: D.from_tensors(e).repeat(2)),
    "interleave": lambda d, n: D.range(5).interleave(lambda i: d, cycle_length=3, block_length=n),
    "choose": lambda d, n: D.choose_from_datasets(
        [d, d.skip(n)], D.range(40).map(lambda i: i // n % 2)
    ),
    "sample": lambda d, n: D.sample_from_datasets([d, d.skip(n)], [0.3, 0.7], seed=n),
    "ignore_errors": lambda d, n: d.apply(E.ignore_errors()),
}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 12),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), SIZES), min_size=1, max_size=3),
    SIZES,
    st.booleans(),
)
def test_pipelines(count, nested, steps, size, batched):
    def make():
        dataset = D.range(count)
        if nested:
            dataset = dataset.map(pair)
        shuffles = False
        for name, number in steps:
            # The order in which two passes over a shuffled dataset start or fill its cache is
            # unspecified.
            if name in ("cache", "choose", "sample") and shuffles:
                continue
            shuffles = shuffles or name == "shuffle"
            dataset = STEPS[name](dataset, number)
        return dataset.batch(size, drop_remainder=size % 2 == 0) if batched else dataset

    check(make)


@pytest.mark.parametrize("seed", [None, 5])
def test_random_maps_draw_in_element_order(seed):
    tf.random.set_seed(2)

    def noisy(x):
        drawn = tf.random.uniform([2], seed=seed)
        return tf.where(x % 2 == 0, drawn, -drawn), tf.random.shuffle(tf.range(5), seed=seed)

    dataset = D.range(300).map(noisy)
    assert "at a time" in E.explain(dataset)
    parts = [tf.concat([b[0] for b in dataset.batch(n)], 0).numpy() for n in (1, 7, 300)]
    for found in parts[1:]:
        np.testing.assert_array_equal(found, parts[0])
    alone = D.range(300).map(noisy)
    with disable_gathering(alone):
        np.testing.assert_array_equal([a for a, _ in alone.as_numpy_iterator()], parts[0])
    twice = np.array([a for a, _ in dataset.repeat(2).as_numpy_iterator()])
    np.testing.assert_array_equal(twice[:300], parts[0])
    assert len(np.unique(np.abs(twice))) > 1100


def test_predicates_read_current_variable_values():
    limit = tf.Variable(5, dtype=tf.int64)
    found = []
    for x in D.range(100).filter(lambda x: x < limit):
        found.append(int(x))
        if int(x) == 4:
            limit.assign(8)
    assert found == list(range(8))


def test_failures_travel_with_chunks():
    def make(array):
        def gather(index):
            if 7 in index:
                raise ValueError("seven")
            return [array[index]]

        from meshflow.data.sources import IndexedDataset

        return IndexedDataset(20, gather, tf.TensorSpec([], tf.int64))

    data = make(np.arange(20))
    for step in (
        lambda d: d.filter(lambda x: x % 5 != 0),
        lambda d: d.concatenate(D.range(3)),
        lambda d: d.shuffle(4, seed=1),
        lambda d: D.zip((d, D.range(20))),
        lambda d: d.batch(3).unbatch(),
        lambda d: D.choose_from_datasets([d, D.range(9)], D.range(30).map(lambda i: i % 2)),
        lambda d: D.range(2).interleave(lambda i: d, cycle_length=2, block_length=3),
        lambda d: d.filter(lambda x: x > 1).batch(4),
    ):
        fast, slow = step(data), step(data)
        seeds = {}
        with disable_gathering(slow):
            wanted = list(items(slow.iter_elements(Epoch(slow, seeds))))
        assert items(fast.iter_elements(Epoch(fast, seeds))) == wanted
        assert "seven" in wanted


def items(found):
    taken = []
    while True:
        try:
            taken.append([np.asarray(a).tolist() for a in tf.nest.flatten(next(found))])
        except StopIteration:
            return taken
        except ValueError as error:
            taken.append(str(error))


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_shuffled_chunks(sizes, buffer_size, failing):
    ends = np.cumsum([0, *sizes])
    parts = [[np.arange(a, b)] for a, b in itertools.pairwise(ends) if b > a]
    failure = Failure(ValueError("x"))
    singles = list(range(ends[-1]))
    if failing:
        at = len(parts) // 2
        singles.insert(sum(len(p[0]) for p in parts[:at]), failure)
        parts.insert(at, failure)
    found = []
    for chunk in chunk_reordering.shuffle_chunks(
        iter(parts), [np.zeros(1)], buffer_size, RandomDraws([1, 2], 0)
    ):
        found.extend([chunk] if chunk is failure else chunk[0].tolist())
    assert found == list(shuffle_items(iter(singles), buffer_size, RandomDraws([1, 2], 0)))


def test_elements_of_several_sizes_are_refused_by_batch_only():
    data = (
        D.range(1, 4)
        .flat_map(lambda n: D.from_tensors(tf.range(n)).repeat(2))
        .filter(lambda x: tf.size(x) > 1)
    )
    assert [x.tolist() for x in data.as_numpy_iterator()] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="different shapes"):
        list(data.batch(3))


def test_programs_are_not_made_for_every_size():
    sizes = set()
    for count in (100, 3, 70, 90, 33, 256, 5, 255):
        size = chunks.choose_program_size(count, sizes)
        assert size >= count
        sizes.add(size)
    assert sizes == {100, 3, 256, 8}


def _check(x):
    return tf.debugging.check_numerics(tf.cast(x, tf.float32), "not a number")


def _batch_unrecognized(window):
    """Batch a window in a way that cannot be recognized."""
    return window.take(100).batch(5, drop_remainder=True)


WINDOW_FUNCTIONS = [
    (lambda w: w.batch(5), lambda w: w.take(100).batch(5)),
    (lambda w: w.batch(5, drop_remainder=True), _batch_unrecognized),
    (lambda w: w.batch(9, drop_remainder=True), lambda w: w.take(100).batch(9, True)),
    (lambda w: w.batch(3), lambda w: w.take(100).batch(3)),
    (lambda w: w, lambda w: w.take(100)),
]


@pytest.mark.parametrize("sizes", [(5, 1, 1), (5, 2, 3), (5, 7, 1), (4, 30, 2), (5, None, 1)])
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("functions", WINDOW_FUNCTIONS)
def test_batched_windows_equal_datasets_of_windows(functions, drop, sizes):
    windows = tf.data.Dataset.range(60).map(lambda x: x * 2).window(*sizes, drop_remainder=drop)
    results = [windows.flat_map(f) for f in functions]
    assert results[0].element_spec == results[1].element_spec
    stacked, expected = ([b.tolist() for b in r.as_numpy_iterator()] for r in results)
    assert stacked == expected


def test_batched_windows_of_several_components():
    rows = {"a": np.arange(40.0).reshape(20, 2), "b": np.array([b"x%d" % i for i in range(20)])}
    windows = tf.data.Dataset.from_tensor_slices(rows).window(4, shift=3)
    zipped = [
        windows.flat_map(
            lambda w, n=n: tf.data.Dataset.zip((w["b"].take(n).batch(4), w["a"].batch(4)))
        )
        for n in (4, 9)
    ]
    direct = windows.flat_map(lambda w: tf.data.Dataset.zip((w["b"].batch(4), w["a"].batch(4))))
    joined = windows.flat_map(lambda w: tf.data.Dataset.zip((w["b"], w["a"])).batch(4))
    elements = [
        [(b.tolist(), a.tolist()) for b, a in d.as_numpy_iterator()]
        for d in (*zipped, direct, joined)
    ]
    assert elements[1:] == elements[:1] * 3
    assert [len(a) for _, a in elements[0]] == [4, 4, 4, 4, 4, 4, 2]


@pytest.mark.parametrize("stride", [1, 2])
def test_failure_is_raised_by_every_window_that_contains_it(stride):
    values = np.arange(20.0)
    values[7] = np.nan
    windows = tf.data.Dataset.from_tensor_slices(values).map(_check).window(3, 1, stride)

    def collect(data):
        found, iterator = [], iter(data)
        while True:
            try:
                found.append(next(iterator).numpy().tolist())
            except StopIteration:
                return found
            except tf.errors.InvalidArgumentError:
                found.append("error")

    stacked = collect(windows.flat_map(lambda w: w.batch(3)))
    assert stacked.count("error") == 3
    assert stacked == collect(windows.flat_map(lambda w: w.take(9).batch(3)))


def test_windows_of_varying_batch_sizes_are_not_stacked():
    windows = tf.data.Dataset.range(8).window(2)
    length = tf.Variable(2, dtype=tf.int64)
    data = iter(windows.flat_map(lambda w: w.batch(length)))
    assert next(data).shape == [2]
    length.assign(1)
    assert [len(b) for b in data] == [1] * 6
