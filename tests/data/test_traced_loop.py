"""`for element in dataset` inside a compiled function."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def sum_elements(dataset):
    total = tf.constant(0.0)
    for x in dataset:
        total += tf.reduce_sum(tf.cast(x, tf.float32))
    return total


PIPELINES = {
    "alike": lambda: D.range(12).batch(4),
    "smaller last batch": lambda: D.range(11).batch(4),
    "mapped batches": lambda: D.range(11).batch(4).map(lambda b: b * 2).prefetch(1),
    "elements": lambda: D.range(7).map(lambda x: tf.cast(x, tf.float32)),
    "shuffled": lambda: D.range(9).shuffle(4).batch(2, drop_remainder=True),
    "unknown number": lambda: D.range(9).filter(lambda x: x % 2 == 0),
    "empty": lambda: D.range(0).batch(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_same_as_eagerly(name):
    function = tf.function(sum_elements)
    dataset = PIPELINES[name]()
    # A dropped remainder of shuffled elements differs from pass to pass.
    if name == "shuffled":
        dataset = D.range(8).shuffle(4).batch(2, drop_remainder=True)
    for _ in range(2):
        assert float(function(dataset)) == float(sum_elements(dataset))


def test_dataset_loop_is_compiled():
    small = tf.function(sum_elements).get_concrete_function(D.range(10).batch(5))
    large = tf.function(sum_elements).get_concrete_function(D.range(1000).batch(5))
    assert len(small.closed_jaxpr.eqns) == len(large.closed_jaxpr.eqns) < 20


def test_variables_are_trained_and_every_pass_is_new():
    v = tf.Variable(0.0)
    seen = tf.Variable(tf.zeros([6], tf.int64))
    place = tf.Variable(0)

    @tf.function
    def train(dataset):
        for x in dataset:
            v.assign_add(tf.cast(x, tf.float32))
            seen[place].assign(x)
            place.assign_add(1)
        return v.value()

    dataset = D.range(6).shuffle(6)
    orders = []
    for epoch in range(4):
        place.assign(0)
        assert float(train(dataset)) == 15.0 * (epoch + 1)
        orders.append(tuple(seen.numpy().tolist()))
    assert all(sorted(o) == list(range(6)) for o in orders) and len(set(orders)) > 1


def test_gradients_and_a_last_partial_batch():
    x = np.arange(10, dtype="float32").reshape(10, 1)
    dataset = D.from_tensor_slices((x, 3 * x)).batch(4)

    def train(v):
        for a, b in dataset:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((a * v - b) ** 2)
            v.assign_sub(0.01 * tape.gradient(loss, v))

    compiled, eager = tf.Variable(0.0), tf.Variable(0.0)
    tf.function(train)(compiled)
    train(eager)
    assert float(compiled) == pytest.approx(float(eager), rel=1e-6)


def test_break_ends_an_endless_dataset():
    @tf.function
    def first_above(dataset, limit):
        found = tf.constant(0, tf.int64)
        for x in dataset:
            if x > limit:
                found = x
                break
        return found

    assert int(first_above(D.range(10).repeat(), tf.constant(4, tf.int64))) == 5


def test_errors_of_the_pipeline_reach_the_caller():
    def failing():
        yield 1
        raise KeyError("lost")

    dataset = D.from_generator(failing, output_signature=tf.TensorSpec([], tf.int64))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(2))
    with pytest.raises(KeyError, match="lost"):
        tf.function(sum_elements)(dataset)


def test_reduce_calls_a_function_once_for_every_element():
    seen = []

    def noted(x):
        return tf.py_function(lambda v: seen.append(int(v)) or v, [x], tf.int64)

    for dataset in (
        tf.data.Dataset.range(4).map(noted),
        tf.data.Dataset.range(4).map(noted).prefetch(1),
    ):
        seen.clear()
        assert int(dataset.reduce(np.int64(0), lambda total, x: total + x)) == 6
        assert seen == [0, 1, 2, 3]
        assert int(dataset.take(0).reduce(np.int64(5), lambda total, x: total + x)) == 5


def test_functions_of_a_pipeline_see_tensors_of_the_function_around():
    @tf.function
    def total(y):
        numbers = tf.data.Dataset.range(4)
        scaled = numbers.map(lambda x: tf.cast(x, tf.float32) * y)
        found = tf.constant(0.0)
        for value in scaled.batch(2):
            found += tf.reduce_sum(value)
        kept = numbers.filter(lambda x: tf.cast(x, tf.float32) > y)
        words = tf.data.Dataset.from_tensor_slices(["a", "b"])
        texts = words.map(lambda s: tf.cast(tf.strings.length(s), tf.float32) + y)
        joined = texts.reduce(0.0, lambda s, x: s + x)
        return found, kept.reduce(np.int64(0), lambda s, x: s + x), joined

    assert [float(v) for v in total(tf.constant(2.0))] == [12, 3, 6]
    assert [float(v) for v in total(tf.constant(1.0))] == [6, 5, 4]
