"""Maps with checks of values, which run on many elements: values, errors, and the elements after them."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.data.execution import checked_maps

Dataset = tf.data.Dataset


def collect_elements(dataset):
    """The elements as numbers or lists; the texts of errors in their places."""
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(np.asarray(next(iterator)).tolist())
        except StopIteration:
            return found
        except tf.errors.InvalidArgumentError as error:
            found.append(str(error))


def invert(n):
    return tf.debugging.check_numerics(1.0 / tf.cast(n % 20, tf.float32), "bad")


def compare(n):
    tf.debugging.assert_less(n, np.int64(300), message="big")
    with tf.control_dependencies([tf.debugging.Assert(n != 7, ["seven", n])]):
        return n * 2


def test_failed_elements_are_dropped():
    data = Dataset.range(600).map(invert).ignore_errors()
    expected = [np.float32(1) / np.float32(n % 20) for n in range(600) if n % 20]
    np.testing.assert_array_equal([x.numpy() for x in data], expected)
    assert [len(b) for b in data.batch(64)] == [64] * 8 + [58]


def test_errors_occur_at_their_elements():
    found = collect_elements(Dataset.range(305).map(compare))
    assert found[:7] == [2 * n for n in range(7)] and found[8:300] == [2 * n for n in range(8, 300)]
    assert "seven" in found[7]
    assert all("big" in text and str(n) in text for n, text in enumerate(found[300:], 300))


def test_failures_of_batches():
    found = collect_elements(Dataset.range(12).map(compare).batch(4))
    assert found[0] == [0, 2, 4, 6] and "seven" in found[1] and found[2] == [16, 18, 20, 22]


def test_captured_tensors_and_variables():
    limit, scale = tf.Variable(3), tf.constant([1.0, 2.0])

    def check(n):
        tf.debugging.assert_less(tf.cast(n, tf.int32), limit)
        return {"x": scale * tf.cast(n, tf.float32)}

    data = Dataset.range(5).map(check).ignore_errors()
    assert [d["x"].numpy().tolist() for d in data] == [[0, 0], [1, 2], [2, 4]]
    limit.assign(1)
    assert len(list(data)) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda n: tf.cond(n > 1, lambda: invert(n), lambda: 0.0),
        lambda n: invert(n) + tf.random.uniform([]),
        lambda n: tf.py_function(lambda x: x, [invert(n)], tf.float32),
    ],
)
def test_other_effects_run_for_each_element(function):
    data = Dataset.range(3).map(function)
    assert data.function.checked is None
    assert len(list(data.ignore_errors())) >= 2


def test_resumed_iterator_continues_after_failures(tmp_path):
    data = Dataset.range(50).map(invert).ignore_errors().batch(7)
    iterator = iter(data)
    first = [next(iterator).numpy().tolist() for _ in range(3)]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    expected = [x.numpy().tolist() for x in iterator]
    resumed = iter(data)
    tf.train.Checkpoint(iterator=resumed).restore(path)
    assert [x.numpy().tolist() for x in resumed] == expected and first[0][0] == 1.0


def test_programs_that_the_interpreter_does_not_support(monkeypatch):
    monkeypatch.setattr(checked_maps, "is_interpreter_enabled", lambda: False)
    found = collect_elements(Dataset.range(9).map(compare))
    assert found[6] == 12 and "seven" in found[7] and found[8] == 16
