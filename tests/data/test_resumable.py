"""Test errors in a pass over a dataset: their classes, and the elements after them."""

import threading

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def collect_elements(dataset):
    """The elements as lists; the names of the classes of errors in their places."""
    iterator, found = iter(dataset), []
    while True:
        try:
            element = next(iterator)
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)
        else:
            found.append(tf.nest.map_structure(lambda t: np.asarray(t.numpy()).tolist(), element))


def numbers(**kwargs):
    values = np.array([1.0, 2.0, np.nan, 4.0, 5.0], np.float32)
    return D.from_tensor_slices(values).map(
        lambda x: tf.debugging.check_numerics(x, "bad"), **kwargs
    )


BAD = "InvalidArgumentError"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: numbers(), [1, 2, BAD, 4, 5]),
        (lambda: numbers(num_parallel_calls=2), [1, 2, BAD, 4, 5]),
        (lambda: numbers().prefetch(2), [1, 2, BAD, 4, 5]),
        (lambda: numbers().map(lambda x: -x), [-1, -2, BAD, -4, -5]),
        (lambda: numbers().filter(lambda x: x > 1), [2, BAD, 4, 5]),
        (lambda: numbers().take_while(lambda x: x < 5), [1, 2, BAD, 4]),
        (lambda: numbers().batch(2), [[1, 2], BAD, [5]]),
        (lambda: numbers().padded_batch(2), [[1, 2], BAD, [4, 5]]),
        (lambda: numbers().enumerate(), [(0, 1), (1, 2), BAD, (3, 4), (4, 5)]),
        (lambda: numbers().skip(1), [2, BAD, 4, 5]),
        (lambda: numbers().scan(0.0, lambda s, x: (s + x, s)), [0, 1, BAD, 3, 7]),
        (lambda: numbers().concatenate(numbers().take(1)), [1, 2, BAD, 4, 5, 1]),
        (lambda: numbers().repeat(2), [1, 2, BAD, 4, 5] * 2),
        (lambda: D.zip((numbers(), D.range(5))), [(1, 0), (2, 1), BAD, (4, 3), (5, 4)]),
        (lambda: numbers().cache(), [1, 2, BAD, 4, 5]),
        (lambda: numbers().flat_map(D.from_tensors), [1, 2, BAD, 4, 5]),
        (lambda: numbers().window(2).flat_map(lambda w: w.batch(2)), [[1, 2], BAD, [5]]),
        (lambda: numbers().map(lambda x: -x).batch(1).ignore_errors(), [[-1], [-2], [-4], [-5]]),
    ],
)
def test_interrupted_pass_resumes(made, expected):
    assert collect_elements(made()) == expected


def test_shuffled_failures():
    found = collect_elements(numbers().shuffle(3, seed=1))
    assert sorted(map(str, found)) == sorted(map(str, [1.0, 2.0, BAD, 4.0, 5.0]))


def test_cache_with_a_missing_element_is_ignored():
    seen = []
    data = D.from_generator(lambda: seen.append(0) or iter([1, "x", 3]), tf.int32).cache()
    assert collect_elements(data) == collect_elements(data) == [1, BAD, 3]
    assert len(seen) == 2


@pytest.mark.parametrize("call", [tf.py_function, tf.numpy_function])
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError, tf.errors.InvalidArgumentError),
        (TypeError, tf.errors.InvalidArgumentError),
        (StopIteration, tf.errors.OutOfRangeError),
        (NotImplementedError, tf.errors.UnimplementedError),
        (KeyError, tf.errors.UnknownError),
        (UnicodeDecodeError, tf.errors.InvalidArgumentError),
    ],
)
def test_errors_of_python(call, raised, error):
    def failing(x):
        raise raised("utf-8", b"", 0, 1, "?") if raised is UnicodeDecodeError else raised("no")

    with pytest.raises(error, match=raised.__name__):
        call(failing, [1.0], tf.float32)
    with pytest.raises(error, match=raised.__name__):
        tf.function(lambda x: call(failing, [x], tf.float32))(tf.constant(1.0))
    if raised is ValueError:
        with pytest.raises(ValueError, match="no"):
            call(failing, [1.0], tf.float32)


def test_python_is_called_at_every_run():
    calls = []
    count = tf.function(lambda: tf.py_function(lambda x: calls.append(1) or x, [1], tf.int32))
    count(), count()
    assert len(calls) == 2


def test_generators_continue_after_a_conversion_error():
    data = D.from_generator(lambda: [[1, 2], "x", [3, 4, 5], [6, 7]], tf.int64, [2])
    assert collect_elements(data) == [[1, 2], BAD, BAD, [6, 7]]
    pairs = D.from_generator(lambda: [(1, 2), 5, (6, 7, 8), (9, 10)], (tf.int64, tf.int64))
    assert collect_elements(pairs) == [(1, 2), BAD, BAD, (9, 10)]
    assert collect_elements(D.from_generator(lambda: [1.5, True, np.float32(2)], tf.int32)) == [
        BAD,
        1,
        2,
    ]


def test_threads_end_after_a_failure():
    before = threading.active_count()
    iterator = iter(numbers().prefetch(1))
    assert float(next(iterator)) == 1
    iterator.close()
    assert threading.active_count() == before


def test_unreadable_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,a\nx,b\n3,c\n")
    rows = tf.data.experimental.CsvDataset(str(path), [tf.int32, tf.string])
    assert collect_elements(rows) == [(1, b"a"), BAD, (3, b"c")]
    assert collect_elements(rows.batch(1).ignore_errors()) == [([1], [b"a"]), ([3], [b"c"])]
