"""Shapes and dtypes of the results of Python functions in pipelines, with TensorFlow 2.21's specs."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def load(i):
    return np.full((4, 4, 3), i, np.float32)


def with_shape(shape, change=lambda x: x, dtype=tf.float32, function=load):
    def apply(i):
        x = change(tf.numpy_function(function, [i], dtype))
        x.set_shape(shape)
        return x

    return apply


def python_result(function, dtype, op=tf.numpy_function):
    return lambda i: op(function, [i], dtype)


def load_two(i):
    x, y = tf.numpy_function(
        lambda q: (load(q), np.int64(q)), [i], [tf.float32, tf.TensorSpec([], tf.int64)]
    )
    return {"x": tf.ensure_shape(x, [None, None, 3]), "y": y}


def branch(i):
    x = tf.ensure_shape(python_result(load, tf.float32)(i), [4, 4, 3])
    return tf.cond(i > 1, lambda: x, lambda: x * 2)


inner = tf.function(lambda i: tf.ensure_shape(python_result(load, tf.float32)(i), [4, 4, None]))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (with_shape([4, 4, 3]), [4, 4, 3]),
        (with_shape([None, None, 3]), [None, None, 3]),
        # An op before the shape is declared; the placeholder sizes would not match.
        (with_shape([4, 4, 3], lambda x: (x - [1.0, 2.0, 3.0]) / 255.0), [4, 4, 3]),
        (with_shape([2], dtype=tf.string, function=lambda i: np.array([b"a", b"b"])), [2]),
        (lambda i: tf.reshape(python_result(load, tf.float32)(i), [4, 4, 3]), [4, 4, 3]),
        (lambda i: tf.reshape(python_result(load, tf.float32)(i), [-1, 3]), [None, 3]),
        (lambda i: tf.image.resize(with_shape([None, None, 3])(i), (2, 2)), [2, 2, 3]),
        (lambda i: tf.transpose(with_shape([4, None, 3])(i), [2, 0, 1]), [3, 4, None]),
        (lambda i: tf.concat([with_shape([4, 4, 3])(i)] * 2, 0), [8, 4, 3]),
        (lambda i: load_two(i)["x"], [None, None, 3]),
        (branch, [4, 4, 3]),
        (lambda i: inner(i), [4, 4, None]),
        (
            python_result(lambda t: tf.ones((2, 3)), tf.TensorSpec([None, 3]), tf.py_function),
            [None, 3],
        ),
    ],
)
def test_declared_shapes(function, shape):
    mapped = D.range(3).map(function)
    assert mapped.element_spec.shape.as_list() == shape
    assert mapped.batch(2).element_spec.shape.as_list() == [None, *shape]
    assert len(list(mapped.batch(2))) == 2  # The placeholders are in no program that runs.


def test_declared_shapes_of_strings_and_generators():
    names = D.from_tensor_slices((["a", "bc"], [1, 2]))
    images = names.map(lambda p, y: (with_shape([4, 4, 3], function=lambda q: load(len(q)))(p), y))
    assert [s.shape.as_list() for s in images.element_spec] == [[4, 4, 3], []]
    assert [float(x[0, 0, 0]) for x, _ in images] == [1.0, 2.0]
    rows = D.from_generator(lambda: iter([np.ones(3)]), output_types=tf.float32)
    assert rows.map(lambda x: tf.ensure_shape(x, [3])).element_spec.shape == [3]
    assert rows.map(lambda x: tf.reshape(x, [1, 3])).element_spec.shape == [1, 3]
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(images.batch(2), verbose=0)
    assert model.input_shape == (None, 4, 4, 3)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (python_result(load, tf.float64), "float32"),
        (python_result(lambda i: 1.5, tf.float32), "float64"),
        (python_result(lambda i: np.int32(i), tf.int64), "int32"),
        (python_result(lambda i: "text", tf.int64), "string"),
        (python_result(lambda i: [1, 2], tf.int64), "returned 2 results"),
        (python_result(lambda i: (i,), [tf.int64, tf.int64]), "returned 1 results"),
        (python_result(lambda i: tf.ones(2), tf.int32, tf.py_function), "float32"),
        (python_result(lambda i: [1.5], tf.int32, tf.py_function), "float32"),
        (with_shape([5, 4, 3]), "not compatible"),
        (lambda i: tf.ensure_shape(python_result(load, tf.float32)(i), [5, 4, 3]), "not comp"),
    ],
)
def test_results_of_other_dtypes_or_shapes(function, match):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        list(D.range(3).map(function))
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        tf.function(function)(tf.constant(1, tf.int64))


def test_conversions_that_tensorflow_makes():
    twice = D.range(2).map(python_result(lambda i: np.ones(2), tf.float32, tf.py_function))
    assert twice.element_spec.dtype == tf.float32
    assert tf.numpy_function(lambda i: 1.5, [1], tf.float32).dtype == tf.float32  # eagerly
