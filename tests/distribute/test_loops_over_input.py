"""Test compiled loops over distributed batches: `next(iterator)`, loops over the dataset, the end."""

import numpy as np
import pytest

import meshflow as tf


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def batches(strategy, count=12, size=4, drop=True):
    dataset = tf.data.Dataset.range(count).map(lambda v: tf.cast(v, tf.float32))
    return strategy.experimental_distribute_dataset(dataset.batch(size, drop_remainder=drop))


def total(strategy, batch):
    parts = strategy.run(tf.reduce_sum, args=(batch,))
    return strategy.reduce("SUM", parts, axis=None)


def test_next_in_a_step(strategy):
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return total(strategy, next(iterator))

    for _ in range(2):
        iterator = iter(batches(strategy, 10, drop=False))
        assert [float(step(iterator)) for _ in range(3)] == [6.0, 22.0, 17.0]
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    # One program for complete batches and one for the last, shared by both iterators.
    assert len(traces) == 2


def test_next_in_a_loop(strategy):
    @tf.function
    def steps(iterator, count):
        result = tf.constant(0.0)
        for _ in tf.range(count):
            result = result * 100.0 + total(strategy, next(iterator))
        return result

    iterator = iter(batches(strategy))
    assert float(steps(iterator, tf.constant(2))) == 622.0
    assert float(steps(iterator, tf.constant(1))) == 38.0
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        steps(iterator, tf.constant(1))


@pytest.mark.parametrize("drop", [True, False])
def test_loop_over_the_dataset(strategy, drop):
    seen = tf.Variable(tf.zeros([3]))

    @tf.function
    def epoch(dataset):
        i = 0
        for batch in dataset:
            seen[i].assign(seen[i] + total(strategy, batch))
            i += 1
        return i

    dataset = batches(strategy, 10, drop=drop)
    for times in (1, 2):
        assert int(epoch(dataset)) == (2 if drop else 3)
        np.testing.assert_array_equal(seen, np.array([6, 22, 0 if drop else 17]) * times)


def test_shuffled_dataset_is_another_at_each_pass(strategy):
    dataset = tf.data.Dataset.range(64).shuffle(64, seed=1).batch(64)
    distributed = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def epoch():
        result = tf.zeros([64], tf.int64)
        for batch in distributed:
            result = strategy.gather(batch, axis=0)
        return result

    first, second = epoch().numpy(), epoch().numpy()
    assert sorted(first) == sorted(second) == list(range(64)) and list(first) != list(second)


def test_next_after_a_loop(strategy):
    @tf.function
    def steps(iterator):
        result = tf.constant(0.0)
        for _ in tf.range(2):
            result = result * 100.0 + total(strategy, next(iterator))
        return result * 100.0 + total(strategy, next(iterator))

    assert float(steps(iter(batches(strategy)))) == 62238.0


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("count", [12, 10])
def test_loop_over_an_iterator(strategy, count, several):
    if not several:
        strategy = tf.distribute.get_strategy()

    @tf.function
    def rest(iterator, most):
        result, steps = tf.constant(0.0), 0
        for batch in iterator:
            result = result * 100.0 + total(strategy, batch)
            steps += 1
            if result > most:
                break
        return result, steps

    iterator = iter(batches(strategy, count, drop=False))
    last = 38.0 if count == 12 else 17.0
    assert [float(v) for v in rest(iterator, 1.0)] == [6.0, 1.0]
    # The finished loop read only the elements it iterated over.
    assert [float(v) for v in rest(iterator, 1e9)] == [2200.0 + last, 2.0]
    assert [float(v) for v in rest(iterator, 1e9)] == [0.0, 0.0]


def test_enumerated_iterator_and_an_iterator_in_an_inner_function(strategy):
    @tf.function
    def weighted(iterator):
        result = 0.0
        for i, batch in enumerate(iterator):
            result += tf.cast(i, tf.float32) * total(strategy, batch)
        return result

    outer = tf.function(lambda iterator: (total(strategy, next(iterator)), weighted(iterator)))
    first, others = outer(iter(batches(strategy, 14, drop=False)))
    assert float(first) == 6.0 and float(others) == 0 * 22 + 1 * 38 + 2 * 25


def test_next_after_a_loop_that_computes_nothing(strategy):
    @tf.function
    def steps(iterator):
        for _ in tf.range(2):
            next(iterator)
        return total(strategy, next(iterator))

    with pytest.raises(NotImplementedError, match=r"Use Dataset\.skip"):
        steps(iter(batches(strategy)))


def test_steps_that_call_python(strategy, capfd):
    seen = []

    def note(x):
        seen.append(sorted(x.tolist()))
        return x

    def replica(batch):
        tf.print("replica", tf.reduce_sum(batch))
        return tf.numpy_function(note, [batch], tf.TensorSpec([2], tf.float32))

    @tf.function
    def step(iterator):
        found = strategy.run(replica, args=(next(iterator),))
        sums = strategy.reduce("SUM", found, axis=None)
        tf.print("together", sums)
        return sums

    assert step(iter(batches(strategy))).numpy().tolist() == [2.0, 4.0]
    assert sorted(seen) == [[0.0, 1.0], [2.0, 3.0]]
    lines = capfd.readouterr().err.splitlines()
    assert {"replica 1", "replica 5", "together [2 4]"} <= set(lines)
