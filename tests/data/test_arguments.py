"""Test the errors of transformations for invalid arguments, which are raised at construction."""

import os

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset
InvalidArgumentError = tf.errors.InvalidArgumentError


def rows():
    return D.from_tensor_slices([1, 2]).map(lambda x: tf.fill([x], x))


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: D.range(3).map(3), ValueError),
        (lambda: D.range(3).map(lambda x: object()), TypeError),
        (lambda: D.range(3).map(lambda x, y: x), TypeError),
        (lambda: D.range(3).map(lambda x: x, num_parallel_calls=0), InvalidArgumentError),
        (lambda: D.range(3).filter(lambda x: x), ValueError),
        (lambda: D.range(3).take_while(lambda x: "a"), ValueError),
        (lambda: D.range(3).batch(2.0), TypeError),
        (lambda: D.range(3).prefetch(-2), InvalidArgumentError),
        (lambda: D.range(3).unbatch(), ValueError),
        (lambda: D.range(3).rebatch(2), ValueError),
        (lambda: D.from_tensors(([1, 2], [1, 2, 3])).unbatch(), ValueError),
        (lambda: D.range(3).padded_batch(0), InvalidArgumentError),
        (lambda: D.range(3).padded_batch(2, padded_shapes=[1]), ValueError),
        (lambda: D.from_tensors([1, 2]).padded_batch(2, padded_shapes=[1]), ValueError),
        (lambda: rows().padded_batch(2, padded_shapes=[[1, 1]]), ValueError),
        (lambda: rows().padded_batch(2, padded_shapes=np.array([1.5])), TypeError),
        (lambda: rows().padded_batch(2, padding_values=[1, 2]), ValueError),
        (lambda: rows().padded_batch(2, padding_values=1.5), TypeError),
        (lambda: D.range(3).interleave(lambda x: D.range(x), cycle_length=0), InvalidArgumentError),
        (lambda: D.range(3).reduce(0, lambda s, x: x), TypeError),
        (lambda: D.range(3).scan(0, lambda s, x: (x, x)), TypeError),
        (lambda: D.range(3).scan(np.int64(0), lambda s, x: ((x, x), x)), TypeError),
        (lambda: D.from_tensors(1.0).unique(), TypeError),
        (lambda: D.zip((D.range(2), D.range(2))).unique(), InvalidArgumentError),
        (lambda: D.choose_from_datasets([D.range(1)], D.from_tensors(0)), TypeError),
        (lambda: D.sample_from_datasets([D.range(1)], [1]), TypeError),
        (lambda: D.from_generator(lambda: [1], output_signature=tf.int32), TypeError),
        (lambda: tf.data.TextLineDataset(D.from_tensors(["a"])), TypeError),
        (lambda: D.range(4).group_by_window(lambda x: 1.0, lambda k, d: d, 2), ValueError),
    ],
)
def test_refused(made, error):
    with pytest.raises(error):
        made()


def test_padding_of_one_component_only():
    data = rows().map(lambda x: {"a": x, "b": tf.as_string(x)})
    batch = data.padded_batch(2, padding_values={"a": None, "b": "-"}).get_single_element()
    assert batch["a"].numpy().tolist() == [[1, 0], [2, 2]]
    assert batch["b"].numpy().tolist() == [[b"1", b"-"], [b"2", b"2"]]


def test_elements_larger_than_their_padded_shape():
    data = rows().padded_batch(2, padded_shapes=[1])
    with pytest.raises(tf.errors.DataLossError, match="smaller size"):
        list(data)


def test_several_results_of_a_function():
    """Test that a list is several components, including ones that cannot be traced."""
    pair = D.range(2).map(lambda x: [x, "a", None])
    assert str(pair.element_spec[2]) == "NoneTensorSpec()"
    assert [(int(x), s.numpy(), n) for x, s, n in pair] == [(0, b"a", None), (1, b"a", None)]
    both = D.range(2).map(
        lambda x: tf.numpy_function(lambda v: (v, np.ones(2) * v), [x], [tf.int64, tf.float64])
    )
    assert [b.numpy().tolist() for _, b in both] == [[0, 0], [1, 1]]
    assert [int(x) for x, _ in D.from_tensors((np.arange(2), None)).unbatch()] == [0, 1]


def test_functions_that_read_an_iterator():
    numbers = iter(D.range(10))
    found = D.range(3).map(lambda x: x * numbers.get_next())
    assert [int(x) for x in found] == [0, 1, 4]


def test_rebatch():
    batches = D.range(9).batch(4).rebatch([2, 3])
    assert [b.numpy().tolist() for b in batches] == [[0, 1], [2, 3, 4], [5, 6], [7, 8]]
    assert D.range(8).batch(4, True).rebatch(2).element_spec == tf.TensorSpec([2], tf.int64)


def test_weights_of_each_turn():
    weights = D.from_tensor_slices([[1.0, 0.0], [0.0, 1.0]]).repeat()
    found = D.sample_from_datasets([D.range(2), D.range(5, 7)], weights)
    assert [int(x) for x in found] == [0, 5, 1, 6]
    never = D.sample_from_datasets([D.range(2), D.range(5, 7)], [1.0, 0.0])
    assert [int(x) for x in never] == [0, 1]


def test_element_spec_of_an_empty_dataset():
    assert D.range(0).flat_map(D.from_tensors).element_spec == tf.TensorSpec([], tf.int64)


def test_endless_numbers():
    assert D.range(2).repeat().interleave(D.from_tensors).cardinality() == -1
    assert D.counter(3, -2).cardinality() == -1
    assert [int(x) for x in D.counter(3, -2).take(2)] == [3, 1]


def test_elements_by_number():
    batches = D.range(5).batch(2)
    assert tf.data.experimental.at(batches, 2).numpy().tolist() == [4]
    for number in (-1, 3):
        with pytest.raises(tf.errors.OutOfRangeError, match=str(number)):
            tf.data.experimental.at(batches, number)


def test_sizes_known_only_at_run_time():
    def total(count):
        return D.range(count).reduce(tf.constant(0, tf.int64), lambda a, b: a + b)

    assert int(tf.function(total)(tf.constant(3, tf.int64))) == 3
    with pytest.raises(TypeError, match="`range` of a dataset"):
        tf.function(total, jit_compile=True)(tf.constant(3, tf.int64))


@pytest.mark.parametrize(("calls", "first"), [(None, 8), (-1, 3), (2, 2), (20, 8)])
def test_default_cycle_length_of_interleave(monkeypatch, calls, first):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    data = D.range(20).interleave(lambda i: D.from_tensors(i).repeat(2), num_parallel_calls=calls)
    assert [int(i) for i in data.take(first + 1)] == [*range(first), 0]
