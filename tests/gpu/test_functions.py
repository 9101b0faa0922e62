"""`tf.function` on the default device: control flow, calls of Python, checks, and transformations."""

import numpy as np
import pytest

import meshflow as tf
from device_and_cpu import FLOAT32, ON_GPU, TF32, assert_alike, on_both

pytestmark = pytest.mark.gpu


def test_control_flow():
    @tf.function
    def collatz(n):
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    assert [int(collatz(tf.constant(n))) for n in (1, 7, 27)] == [0, 16, 111]


def test_loops_have_gradients():
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            power = tf.while_loop(
                lambda i, v: i < 5, lambda i, v: (i + 1, v * x), (0, tf.ones_like(x))
            )[1]
            mapped = tf.map_fn(lambda row: tf.sin(row) * tf.reduce_sum(row), x)
            scanned = tf.scan(lambda a, b: a * 0.5 + b, x)
            loss = tf.reduce_sum(power) + tf.reduce_sum(mapped) + tf.reduce_sum(scanned)
        return [power, mapped, scanned, tape.gradient(loss, x)]

    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    assert_alike(["power", "map", "scan", "gradient"], *on_both(run, x), 2 * FLOAT32)


def test_eager_ops_and_gradients():
    x = tf.Variable(np.arange(100, dtype=np.float32).reshape(10, 10) / 50)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.tanh(x) * tf.matmul(x, x, transpose_b=True)) / 10.0
    gradient = tape.gradient(y, x)
    a = x.numpy().astype(np.float64)
    expected = (1 - np.tanh(a) ** 2) * (a @ a.T) + (np.tanh(a) + np.tanh(a).T) @ a
    np.testing.assert_allclose(gradient.numpy(), expected / 10, rtol=5e-3, atol=5e-3)
    assert ("GPU" in gradient.device) == ON_GPU


def test_variables_in_functions():
    total, counts = tf.Variable(0.0), tf.Variable(tf.zeros([4], tf.int64))

    @tf.function
    def add(x):
        total.assign_add(tf.reduce_sum(x))
        counts.scatter_nd_add([[1]], tf.constant([2], tf.int64))
        return total.read_value()

    for _ in range(3):
        last = add(tf.ones([5]))
    assert float(last) == 15.0 and counts.numpy().tolist() == [0, 6, 0, 0]


def test_calls_of_python(capsys):
    @tf.function
    def call(x):
        tf.print("sum:", tf.reduce_sum(x))
        doubled = tf.numpy_function(lambda a: a * 2, [x], tf.TensorSpec([3], tf.float32))
        return tf.py_function(lambda a: a + 1, [doubled], tf.TensorSpec([3], tf.float32))

    assert call(tf.constant([1.0, 2.0, 3.0])).numpy().tolist() == [3.0, 5.0, 7.0]
    assert "sum: 6" in "".join(capsys.readouterr())


def test_checks_raise():
    @tf.function
    def checked(x):
        tf.debugging.assert_positive(x)
        return x * 2

    assert checked(tf.constant([1.0])).numpy().tolist() == [2.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        checked(tf.constant([-1.0]))


def test_second_derivatives_and_jacobians():
    def run(x, w):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.tanh(tf.matmul(x, w)) ** 2)
            first = inner.gradient(y, x)
        second = outer.batch_jacobian(first, x)
        return [first, second]

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)
    assert_alike(["first", "second"], *on_both(run, x, w), 2 * TF32)


def test_custom_and_recomputed_gradients():
    @tf.custom_gradient
    def clipped(x):
        return x, lambda g: tf.clip_by_value(g, -0.1, 0.1)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            again = tf.recompute_grad(lambda v: tf.sin(tf.exp(v)))
            loss = tf.reduce_sum(clipped(x) * 3.0) + tf.reduce_sum(again(x))
        return tape.gradient(loss, x)

    x = np.linspace(-1, 1, 50).astype(np.float32)
    assert_alike(["gradient"], *on_both(run, x), FLOAT32)


def test_placement_by_name():
    with tf.device("CPU:0"):
        here = tf.ones([2000]) + 1.0
    assert "CPU:0" in here.device
    if ON_GPU:
        with tf.device("/GPU:0"):
            assert "GPU:0" in (tf.ones([2000]) + here).device
    assert float(tf.reduce_sum(here * tf.ones([2000]))) == 4000.0


def test_a_program_for_all_platforms_runs_here(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4))
    module.call = tf.function(
        lambda x: tf.nn.softmax(tf.matmul(x, module.w)),
        input_signature=[tf.TensorSpec([None, 3], tf.float32)],
    )
    x = np.ones((2, 3), np.float32) / 10
    tf.saved_model.save(module, str(tmp_path / "module"))
    loaded = tf.saved_model.load(str(tmp_path / "module"))
    np.testing.assert_allclose(loaded.call(tf.constant(x)), module.call(tf.constant(x)), atol=2e-3)
