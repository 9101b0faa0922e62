import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close


def test_global_seed_restarts_the_sequence():
    tf.random.set_seed(7)
    a, b = tf.random.normal([3]), tf.random.normal([3])
    tf.random.set_seed(7)
    assert_close(tf.random.normal([3]), a.numpy())
    assert not np.allclose(a, b)


def test_functions_draw_new_random_numbers_in_each_call():
    @tf.function
    def f():
        return tf.random.uniform([4])

    tf.random.set_seed(1)
    a, b = f(), f()
    assert not np.allclose(a, b)
    tf.random.set_seed(1)
    assert_close(f(), a.numpy())


def test_op_seeds():
    tf.random.set_seed(1)
    a = [tf.random.uniform([], seed=5).numpy() for _ in range(2)]
    tf.random.set_seed(1)
    assert a == [tf.random.uniform([], seed=5).numpy() for _ in range(2)] and a[0] != a[1]


def test_distributions():
    x = tf.random.stateless_normal([20000], [1, 2], mean=3.0, stddev=2.0).numpy()
    assert abs(x.mean() - 3) < 0.1 and abs(x.std() - 2) < 0.1
    u = tf.random.stateless_uniform([20000], [1, 2], 5, 10, tf.int32).numpy()
    assert u.min() == 5 and u.max() == 9
    t = tf.random.stateless_truncated_normal([20000], [1, 2]).numpy()
    assert np.abs(t).max() <= 2
    c = tf.random.categorical([[0.0, np.log(3.0)]], 20000).numpy()
    assert abs(c.mean() - 0.75) < 0.02
    with pytest.raises(ValueError, match="maxval"):
        tf.random.uniform([2], dtype=tf.int32)


def test_generators():
    g = tf.random.Generator.from_seed(3)
    a = g.normal([2])
    state = g.state.numpy()
    b = g.normal([2])
    g.reset(state)
    assert_close(g.normal([2]), b.numpy())
    assert_close(tf.random.Generator.from_seed(3).normal([2]), a.numpy())
    one, two = g.split(2)
    assert not np.allclose(one.normal([3]), two.normal([3]))
    h = tf.random.Generator.from_seed(3)
    f = tf.function(lambda: h.normal([2]))
    assert_close(f(), a.numpy())


def test_ops_of_a_function_have_separate_streams():
    tf.random.set_seed(5)
    eager = [float(tf.random.uniform([], seed=1)) for _ in range(2)]

    @tf.function
    def seeded():
        return tf.random.uniform([], seed=1), tf.random.uniform([], seed=1)

    calls = [[float(x) for x in seeded()] for _ in range(2)]
    # Two ops with one seed draw equal numbers, like eager ops from their first call.
    assert calls == [[eager[0]] * 2, [eager[1]] * 2]

    def unseeded():
        return tf.random.uniform([]), tf.random.uniform([])

    one, other = tf.function(unseeded), tf.function(unseeded)
    first, second = ([float(x) for x in f()] for f in (one, other))
    assert first == second and first[0] != first[1]
    # Setting the seed restarts the ops of a function.
    tf.random.set_seed(6)
    assert [float(x) for x in one()] == first


def test_random_ops_in_loops_advance():
    @tf.function
    def drawn():
        found = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            found = found.write(i, tf.random.uniform([], seed=1))
        return found.stack()

    assert len(set(drawn().numpy().tolist() + drawn().numpy().tolist())) == 8


def test_shuffle_keeps_the_rows():
    x = np.arange(10)
    assert sorted(tf.random.shuffle(x).numpy()) == list(range(10))


def test_sampled_classes_are_unique_and_likely_as_stated():
    true = tf.constant([[0], [3]], tf.int64)
    sampled, expected, of_sampled = tf.random.log_uniform_candidate_sampler(true, 1, 6, True, 8)
    assert len(set(sampled.numpy().tolist())) == 6
    assert (expected.numpy() <= 1).all() and expected[0, 0] > expected[1, 0]
    assert of_sampled.shape == [6]
    many = tf.random.uniform_candidate_sampler(true, 1, 4000, False, 4).sampled_candidates
    shares = np.bincount(many.numpy(), minlength=4) / 4000
    np.testing.assert_allclose(shares, 0.25, atol=0.04)
    with pytest.raises(tf.errors.InvalidArgumentError, match="unique"):
        tf.random.uniform_candidate_sampler(true, 1, 5, True, 4)
