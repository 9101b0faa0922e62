"""Test that errors in a function are raised by the transformation, unless the function may be
valid."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def refuse(x):
    raise ArithmeticError("never")


def only_pairs(x):
    if x.shape != (2,):
        raise OSError("no pair")
    return x


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: D.range(3).map(lambda x: x + 1.5), TypeError),
        (lambda: D.range(3).map(lambda x: tf.reshape(x, [2])), ValueError),
        (lambda: D.range(3).map(lambda x: unheard_of), NameError),  # noqa: F821
        (lambda: D.range(3).map(refuse), ArithmeticError),
        (lambda: D.range(3).map(only_pairs), OSError),
        (lambda: D.range(3).map(tf.strings.upper), TypeError),
        (lambda: D.from_tensor_slices({"a": ["x"]}).map(lambda e: e["b"]), KeyError),
        (lambda: D.range(3).batch(2).map(lambda x: x + tf.constant(1)), TypeError),
        (lambda: D.range(3).filter(lambda x: x > tf.constant(1)), TypeError),
        (lambda: D.range(3).scan(0, lambda s, x: (s + x, x)), TypeError),
        (lambda: D.range(3).interleave(D.range, 2, num_parallel_calls=0), ValueError),
        (lambda: D.range(3).interleave(D.range, 2, num_parallel_calls=3), ValueError),
        (lambda: D.range(3).map(lambda x: None), ValueError),
        (lambda: tf.data.FixedLengthRecordDataset("f", 0), tf.errors.InvalidArgumentError),
    ],
)
def test_mistakes(made, error):
    with pytest.raises(error):
        made()


def test_functions_that_may_be_right():
    def checked(x):
        if x < 0:
            raise ValueError("negative")
        return x

    assert [int(x) for x in D.range(3).map(checked)] == [0, 1, 2]
    assert [int(x) for x in D.range(3).map(lambda x: int(x.numpy()) + 1)] == [1, 2, 3]
    # A matrix of some rows may have the elements that are asked for.
    rows = D.range(4).batch(4).map(lambda x: tf.reshape(x, [2, 2]))
    assert rows.get_single_element().numpy().tolist() == [[0, 1], [2, 3]]


def test_growing_scan_states():
    numbers = D.range(3).scan(np.zeros(0, np.int64), lambda s, x: (tf.concat([s, [x]], 0), 2 * s))
    assert numbers.element_spec.shape.as_list() == [None]
    assert [x.numpy().tolist() for x in numbers] == [[], [0], [0, 2]]
    joined = D.range(3).reduce(np.zeros(0, np.int64), lambda s, x: tf.concat([s, [x]], 0))
    assert joined.numpy().tolist() == [0, 1, 2]


def test_result_sizes_that_differ_from_placeholders():
    sounds = D.from_generator(lambda: iter([np.ones(100)]), tf.float64, [None])
    frames = sounds.map(lambda x: tf.signal.frame(x, 32, 16))
    assert frames.element_spec.shape.as_list() == [None, 32]
    assert sounds.map(lambda x: x[:50]).element_spec.shape.as_list() == [None]


def test_files_that_are_not_compressed(tmp_path):
    path = tmp_path / "lines"
    path.write_text("one\n")
    with pytest.raises(tf.errors.DataLossError, match="lines"):
        list(tf.data.TextLineDataset(str(path), "GZIP"))
