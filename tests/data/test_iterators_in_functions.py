"""Test `next(iterator)` in a `tf.function`: each call reads one element, in order and without loss."""

import numpy as np
import pytest

import meshflow as tf


def numbers(count=10, size=2, drop=True):
    return tf.data.Dataset.range(count).batch(size, drop_remainder=drop)


def test_each_call_reads_the_next_element():
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return next(iterator), iterator.get_next()

    iterator = iter(numbers(7, drop=False))
    assert [v.numpy().tolist() for v in step(iterator)] == [[0, 1], [2, 3]]
    # The last element has another shape and is traced again, without loss.
    assert [v.numpy().tolist() for v in step(iterator)] == [[4, 5], [6]]
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        step(iterator)
    again = iter(numbers(7, drop=False))
    assert [v.numpy().tolist() for v in step(again)] == [[0, 1], [2, 3]]
    assert [v.numpy().tolist() for v in step(again)] == [[4, 5], [6]]
    assert len(traces) == 2


def test_iterator_of_a_closure():
    iterator = iter(numbers())

    @tf.function
    def step():
        return tf.reduce_sum(next(iterator))

    assert [int(step()) for _ in range(5)] == [1, 5, 9, 13, 17]
    with pytest.raises(tf.errors.OutOfRangeError):
        step()


def test_loops_call_for_elements():
    @tf.function
    def steps(iterator, count):
        result = tf.zeros([2], tf.int64)
        for _ in tf.range(count):
            result = result * 100 + next(iterator) * 10 + next(iterator)
        return result

    first = iter(numbers(16))
    expected = np.zeros(2, np.int64)
    for _ in range(2):
        expected = expected * 100 + next(first).numpy() * 10 + next(first).numpy()
    again = iter(numbers(16))
    np.testing.assert_array_equal(steps(again, tf.constant(2)), expected)
    np.testing.assert_array_equal(next(again), next(first))


def test_branches_read_only_used_elements():
    @tf.function
    def step(iterator, taken):
        if taken:
            value = next(iterator)
        else:
            value = tf.zeros([2], tf.int64)
        return value

    iterator = iter(numbers())
    assert step(iterator, tf.constant(False)).numpy().tolist() == [0, 0]
    assert step(iterator, tf.constant(True)).numpy().tolist() == [0, 1]
    assert step(iterator, tf.constant(True)).numpy().tolist() == [2, 3]


def test_functions_in_functions():
    @tf.function
    def inner(iterator):
        return next(iterator)

    @tf.function
    def outer(iterator, count):
        first = inner(iterator)
        for _ in tf.range(count):
            first = first * 10 + inner(iterator)
        return first, inner(iterator)

    iterator = iter(numbers(20))
    found = [v.numpy().tolist() for v in outer(iterator, tf.constant(2))]
    assert found == [[24, 135], [6, 7]]
    other = iter(numbers(20))
    assert [v.numpy().tolist() for v in outer(other, tf.constant(1))] == [[2, 13], [4, 5]]
    assert next(other).numpy().tolist() == [6, 7]


def test_gradients_and_variables():
    w = tf.Variable([1.0, 2.0])
    dataset = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(8.0), [4, 2]))

    @tf.function
    def loss(iterator):
        return tf.reduce_sum(w * next(iterator))

    iterator = iter(dataset)
    for expected in ([0.0, 1.0], [2.0, 3.0]):
        with tf.GradientTape() as tape:
            value = loss(iterator)
        assert tape.gradient(value, w).numpy().tolist() == expected


def test_position_survives_a_checkpoint(tmp_path):
    @tf.function
    def step(iterator):
        return next(iterator)

    iterator = iter(numbers())
    step(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "it"))
    step(iterator)
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert step(iterator).numpy().tolist() == [2, 3]


def test_shapes_that_change_in_a_loop():
    @tf.function
    def steps(iterator):
        total = tf.constant(0, tf.int64)
        for _ in tf.range(4):
            total += tf.reduce_sum(next(iterator))
        return total

    assert int(steps(iter(numbers(7, drop=False)))) == sum(range(7))


def test_uncompilable_iterators_are_refused():
    @tf.function
    def step(iterator):
        return next(iterator)

    with pytest.raises(tf.errors.InvalidArgumentError, match="contain strings"):
        step(iter(tf.data.Dataset.from_tensor_slices(["a", "b"])))

    @tf.function
    def both(iterator):
        for _ in zip(iterator, iterator):
            tf.print("never")

    with pytest.raises(tf.errors.InvalidArgumentError, match="iterator of a zipped dataset"):
        both(iter(numbers()))


def test_iterator_created_inside_belongs_to_the_function():
    @tf.function
    def first_of(dataset):
        return next(iter(dataset))

    assert first_of(numbers()).numpy().tolist() == [0, 1]
    assert first_of(numbers()).numpy().tolist() == [0, 1]
