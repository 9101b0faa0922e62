"""`tf.cond`, `case`, `switch_case`, `while_loop`: eagerly and inside `tf.function`."""

from __future__ import annotations

import numpy as np
import pytest

import meshflow as tf

both = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])


@both
def test_cond(wrap):
    v = tf.Variable(2.0)

    def f(x):
        def double():
            v.assign_add(1.0)
            return {"y": x * v, "z": [1, x]}

        return tf.cond(x > 1, double, lambda: {"y": x, "z": [0, x]})

    g = wrap(f)
    result = g(tf.constant(2.0))
    assert (float(result["y"]), int(result["z"][0]), float(v)) == (6.0, 1, 3.0)
    result = g(tf.constant(0.5))
    assert (float(result["y"]), int(result["z"][0]), float(v)) == (0.5, 0, 3.0)


@both
def test_cond_gradients_reach_captures_and_variables(wrap):
    v = tf.Variable(3.0)

    def f(x, c):
        return tf.cond(c, lambda: x * x * v, lambda: x + v)

    g = wrap(f)
    for flag, expected in ((True, (12.0, 4.0)), (False, (1.0, 1.0))):
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = g(x, tf.constant(flag))
        assert tuple(map(float, tape.gradient(y, [x, v]))) == expected


def test_tape_inside_a_function_around_a_cond():
    c = tf.constant(2.0)

    @tf.function
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch([x, c])
            y = tf.cond(x > 0, lambda: x * c, lambda: -x)
        return tape.gradient(y, [x, c])

    assert [float(g) for g in f(tf.constant(3.0))] == [2.0, 3.0]


@both
def test_case_and_switch_case(wrap):
    def f(x):
        return tf.case([(x < 1, lambda: x * 10), (x < 2, lambda: x * 100)], default=lambda: -x)

    def g(x):
        return tf.switch_case(x, {3: lambda: 30, 1: lambda: 10}, default=lambda: -1)

    def h(x):
        return tf.switch_case(x, [lambda: 5, lambda: 6])

    assert [int(wrap(f)(tf.constant(v))) for v in (0, 1, 5)] == [0, 100, -5]
    assert [int(wrap(g)(tf.constant(v))) for v in (1, 2, 3, -9)] == [10, -1, 30, -1]
    assert [int(wrap(h)(tf.constant(v))) for v in (0, 1, 2, -1)] == [5, 6, 6, 6]


def test_case_errors():
    with pytest.raises(tf.errors.InvalidArgumentError, match="no predicate is True"):
        tf.case([(tf.constant(False), lambda: 1)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 of 2 predicates"):
        tf.case([(True, lambda: 1), (True, lambda: 2)], exclusive=True)
    with pytest.raises(TypeError, match="pairs"):
        tf.case([lambda: 1])
    with pytest.raises(TypeError, match="int keys"):
        tf.switch_case(0, {"a": lambda: 1})
    with pytest.raises(ValueError, match="distinct"):
        tf.switch_case(0, [(1, lambda: 1), (1, lambda: 2)])


def test_cond_errors():
    with pytest.raises(TypeError, match="true_fn must be callable"):
        tf.cond(True, 1, 2)

    @tf.function
    def dtype(x):
        return tf.cond(x > 0, lambda: x, lambda: 1.5)

    @tf.function(jit_compile=True)
    def shape(x):
        return tf.cond(x > 0, lambda: tf.zeros([2]), lambda: tf.zeros([3]))

    @tf.function
    def structure(x):
        return tf.cond(x > 0, lambda: [x], lambda: x)

    with pytest.raises(
        TypeError,
        match=r"true_fn and false_fn must return the same dtype, got int32\[\] and float32",
    ):
        dtype(tf.constant(1))
    with pytest.raises(
        TypeError, match=r"same shape, got float32\[2\] and float32\[3\]. Shapes are static"
    ):
        shape(tf.constant(1))
    with pytest.raises(TypeError, match=r"same structure, got \[int32\[\]\] and int32"):
        structure(tf.constant(1))
    with pytest.raises(ValueError, match="ambiguous"):
        tf.cond(tf.constant([True, False]), lambda: 1, lambda: 2)


@both
def test_while_loop(wrap):
    v = tf.Variable(0)

    def f(n):
        def body(i, state):
            v.assign_add(1)
            return i + 1, {"sum": state["sum"] + i, "last": i}

        return tf.while_loop(lambda i, s: i < n, body, (0, {"sum": 0, "last": -1}))

    i, state = wrap(f)(tf.constant(4))
    assert (int(i), int(state["sum"]), int(state["last"]), int(v)) == (4, 6, 3, 4)
    i, state = wrap(f)(tf.constant(0))
    assert (int(i), int(state["last"])) == (0, -1)


@both
def test_while_loop_preserves_the_structure_of_its_variables(wrap):
    def f(x):
        one = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [x])
        nested = tf.while_loop(
            lambda a, b: a < 3, lambda a, b: [a + 1, b], [x, (x, x)], maximum_iterations=2
        )
        return one, nested

    one, nested = wrap(f)(tf.constant(0))
    assert isinstance(one, list) and int(one[0]) == 3
    assert isinstance(nested, list) and isinstance(nested[1], tuple) and int(nested[0]) == 2


@pytest.mark.parametrize("limit", [None, 40, "symbolic"])
def test_while_loop_gradients(limit):
    a = tf.Variable(0.9, dtype=tf.float64)

    @tf.function
    def f(x, n):
        most = n + 100 if limit == "symbolic" else limit
        return tf.while_loop(
            lambda i, y: i < n,
            lambda i, y: (i + 1, tf.sin(y) * a + 0.1),
            (0, x),
            maximum_iterations=most,
        )[1]

    def reference(x, a, n):
        for _ in range(n):
            x = np.sin(x) * a + 0.1
        return x

    for n in (0, 1, 7, 30):
        x = tf.constant(0.7, tf.float64)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x, tf.constant(n))
            by_x, by_a = tape.gradient(y, [x, a], unconnected_gradients="zero")
        second = outer.gradient(by_x, x, unconnected_gradients="zero")
        h = 1e-6
        expected_x = (reference(0.7 + h, 0.9, n) - reference(0.7 - h, 0.9, n)) / (2 * h)
        expected_a = (reference(0.7, 0.9 + h, n) - reference(0.7, 0.9 - h, n)) / (2 * h)
        assert float(y) == pytest.approx(reference(0.7, 0.9, n), rel=1e-12)
        assert float(by_x) == pytest.approx(expected_x, rel=1e-6, abs=1e-9)
        assert float(by_a) == pytest.approx(expected_a, rel=1e-6, abs=1e-9)
        h = 1e-4
        curve = (
            reference(0.7 + h, 0.9, n) - 2 * reference(0.7, 0.9, n) + reference(0.7 - h, 0.9, n)
        ) / h**2
        assert float(second) == pytest.approx(curve, rel=1e-4, abs=1e-5)


def test_while_loop_without_back_prop():
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * x), (0, x), back_prop=False)[
            1
        ]
    assert float(y) == 8.0
    assert tape.gradient(y, x) is None


def test_while_loop_errors():
    with pytest.raises(TypeError, match="body must be callable"):
        tf.while_loop(lambda i: i < 1, 3, [0])
    with pytest.raises(ValueError, match="no loop variables"):
        tf.while_loop(lambda: True, lambda: None, [])
    with pytest.raises(ValueError, match="expected 2 values, got 1 values"):
        tf.while_loop(lambda i, j: i < 1, lambda i, j: [i], [0, 0])

    @tf.function
    def shape(x):
        return tf.while_loop(
            lambda i, y: i < x, lambda i, y: (i + 1, tf.concat([y, y], 0)), (0, tf.zeros([1]))
        )

    @tf.function
    def dtype(x):
        return tf.while_loop(
            lambda i: tf.cast(i, tf.int32) < x, lambda i: tf.cast(i, tf.float32) + 1.0, [0]
        )

    with pytest.raises(
        ValueError,
        match=r"loop_vars\[1\] must keep its shape, got float32\[1\] before and float32\[2\]",
    ):
        shape(tf.constant(3))
    with pytest.raises(
        ValueError,
        match=r"loop_vars\[0\] must keep its dtype, got int32\[\] before and float32\[\]",
    ):
        dtype(tf.constant(3))


def test_callbacks_are_converted_inside_functions():
    @tf.function
    def f(n):
        def body(i, total):
            if i % 2 == 0:
                total += i
            return i + 1, total

        return tf.while_loop(lambda i, t: i < n and t < 100, body, (0, 0))[1]

    assert int(f(tf.constant(7))) == 12


def test_tracing_static_operands_runs_nothing():
    printed = []

    def record(value):
        printed.append(int(value))
        return []

    @tf.function
    def f():
        for i in tf.range(3):
            tf.py_function(record, [i], [])

    f()
    f()
    assert sorted(printed) == [0, 0, 1, 1, 2, 2]


def test_branches_may_return_none():
    v = tf.Variable(0.0)

    @tf.function
    def f(p):
        return tf.cond(p, lambda: (None, v.assign(1.0)), lambda: (None, v.assign(2.0)))[0]

    assert f(tf.constant(True)) is None and v.numpy() == 1
