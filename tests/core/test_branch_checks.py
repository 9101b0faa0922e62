"""Checks in branches of vectorized functions concern only the rows that take the branch."""

import numpy as np
import pytest

import meshflow as tf

TABLE = [1, 2, 3]


def divide(v):
    return tf.cond(tf.equal(v, 0), lambda: 0, lambda: 10 // v)


def look_up(v):
    return tf.cond(v < 3, lambda: tf.gather(TABLE, v), lambda: -1)


def look_up_pairs(v):
    table = tf.reshape(tf.range(9), [3, 3])
    return tf.cond(v < 3, lambda: tf.gather_nd(table, tf.stack([v, v])), lambda: -1)


def choose(v):
    return tf.switch_case(tf.minimum(v, 2), [lambda: 0, lambda: 1, lambda: 10 // (v - 1)])


def nest(v):
    return tf.cond(v < 3, lambda: tf.cond(v > 0, lambda: 10 // v, lambda: 7), lambda: -1)


def repeat(v):
    # The loop reads its branch in each of two iterations.
    step = lambda total, i: total + tf.cond(v + i < 3, lambda: tf.gather(TABLE, v + i), lambda: 0)
    return tf.foldl(step, tf.range(2), 0)


def count_down(v):
    total = tf.constant(0)
    while v > 0:
        total += 10 // v
        v -= 1
    return total


CASES = [
    (divide, [0, 5, 2]),
    (look_up, [1, 3, -1]),
    (look_up_pairs, [0, 8, -1]),
    (choose, [0, 10, 2]),
    (nest, [7, 5, -1]),
    (repeat, [3, 3, 0]),
]


@pytest.mark.parametrize("function, expected", CASES)
def test_vectorized_functions(function, expected):
    # The results of TensorFlow 2.15.
    values = tf.constant([0, 2, 5])
    run = lambda x: tf.vectorized_map(function, x, fallback_to_while_loop=False)
    assert run(values).numpy().tolist() == tf.function(run)(values).numpy().tolist() == expected


@pytest.mark.parametrize("function, expected", [*CASES, (count_down, [0, 15, 22])])
def test_maps_of_datasets(function, expected):
    values = tf.data.Dataset.from_tensor_slices([0, 2, 5])
    assert list(values.map(function).as_numpy_iterator()) == expected
    assert next(values.map(function).batch(3).as_numpy_iterator()).tolist() == expected
    kept = values.filter(lambda v: function(v) > 1)
    assert len(list(kept)) == np.sum(np.array(expected) > 1)


def test_taken_branches_are_checked():
    values = tf.constant([0, 2, 5])
    fails = lambda v: tf.cond(v < 9, lambda: tf.gather(TABLE, v), lambda: -1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"5 is not in \[0, 3\)"):
        tf.vectorized_map(fails, values).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"5 is not in \[0, 3\)"):
        list(tf.data.Dataset.from_tensor_slices(values).map(fails))


def test_gradients_and_replicas():
    weights = tf.Variable([1.0, 2.0, 3.0])
    pick = lambda v: tf.cond(v < 3, lambda: tf.gather(weights, v), lambda: 0.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.vectorized_map(pick, tf.constant([2, 2, 7])))
    assert tf.convert_to_tensor(tape.gradient(loss, weights)).numpy().tolist() == [0, 0, 2]
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    per_replica = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(5))
    assert strategy.run(tf.function(look_up), (per_replica,)).numpy() == -1
