"""Gradients of orders 1 to 4 of loops, recurrent layers and custom gradients, with TensorFlow's values."""

import numpy as np
import pytest

import meshflow as tf


def differentiate(function, order):
    if order == 0:
        return function

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(differentiate(function, order - 1)(x))
        return tape.gradient(y, x)

    return gradient


def push_forward(function):
    def derivative(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    return derivative


def scan(x):
    return tf.scan(lambda a, e: tf.sin(a * x + e), tf.constant([0.1, 0.2, 0.3]), x)[-1]


def map_elements(x):
    return tf.reduce_sum(tf.map_fn(lambda e: tf.exp(e * x) * x, tf.constant([0.1, 0.2, 0.3])))


def grow(x):
    y = x
    while y < 20.0:
        y = y * x + tf.sin(x)
    return y


def nest_loops(x):
    def body(i, y):
        _, z = tf.while_loop(
            lambda j, z: j < i + 1, lambda j, z: (j + 1, tf.sin(z * x) + 0.5 * z), [0, y]
        )
        return i + 1, z * x

    return tf.while_loop(lambda i, y: i < tf.constant(3), body, [0, x])[1]


@tf.custom_gradient
def scaled_exp(x):
    return tf.exp(x), lambda d: 2.0 * d * tf.exp(x)


def repeat_custom(x):
    step = lambda i, y: (i + 1, scaled_exp(y * x) * 0.3)
    return tf.while_loop(lambda i, y: i < tf.constant(3), step, [0, x])[1]


def repeat_custom_with_limit(x):
    step = lambda i, y: (i + 1, scaled_exp(y * x) * 0.3)
    return tf.while_loop(lambda i, y: True, step, [0, x], maximum_iterations=3)[1]


# The second and third derivative in TensorFlow 2.21.
LOOPS = {
    scan: (0.7, 1.2541, -13.116),
    map_elements: (0.7, 1.5323, 0.5338),
    grow: (1.5, 180.0561, 381.4582),
    nest_loops: (0.7, 30.4696, -223.8003),
    repeat_custom: (0.7, 6.90609, 60.5795),
    repeat_custom_with_limit: (0.7, 6.90609, 60.5795),
}


@pytest.mark.parametrize("function", LOOPS)
def test_second_and_third_order(function):
    x, *expected = LOOPS[function]
    run = tf.function(lambda x: [differentiate(function, order)(x) for order in (2, 3)])
    np.testing.assert_allclose(run(tf.constant(x)), expected, rtol=2e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SimpleRNN", [0.17749, -0.01763, -0.00600]),
        ("GRU", [0.52029, -0.05565, -0.14599]),
        ("LSTM", [-0.39285, 0.12209, -0.05979]),
    ],
)
def test_recurrent_layers(name, expected):
    layer = getattr(tf.keras.layers, name)(3)
    layer.build((None, 4, 2))
    layer.set_weights(
        [np.sin(np.arange(w.size)).reshape(w.shape).astype("float32") for w in layer.get_weights()]
    )
    x = tf.constant(np.cos(np.arange(8)).reshape(1, 4, 2).astype("float32"))
    run = tf.function(
        lambda x: [tf.reduce_sum(differentiate(layer, order)(x)) for order in (1, 2, 3)]
    )
    np.testing.assert_allclose(run(x), expected, atol=2e-5)


def sine_loop(x, n):
    return tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, tf.sin(y * x) + y), [0, x])[1]


def unrolled(x):
    y = x
    for _ in range(4):
        y = tf.sin(y * x) + y
    return y


def compute_combinations(function):
    """Return derivatives of the orders 2, 2, 2, 3 and 4 in several combinations of modes."""
    return lambda x: [
        push_forward(differentiate(function, 1))(x),
        differentiate(push_forward(function), 1)(x),
        push_forward(push_forward(function))(x),
        push_forward(differentiate(function, 2))(x),
        differentiate(function, 4)(x),
    ]


def test_forward_and_reverse_mode_of_loops():
    x, n = tf.constant(0.7), tf.constant(4)
    got = tf.function(lambda x, n: compute_combinations(lambda x: sine_loop(x, n))(x))(x, n)
    np.testing.assert_allclose(got, compute_combinations(unrolled)(x), rtol=1e-4)


@pytest.mark.parametrize(("persistent", "vectorized"), [(True, False), (False, True)])
def test_hessians_of_loops(persistent, vectorized):
    def compute_hessian(function):
        def hessian(x):
            with tf.GradientTape(persistent=persistent) as outer:
                outer.watch(x)
                with tf.GradientTape(persistent=persistent) as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(function(x)) ** 2
                gradient = inner.gradient(y, x)
            return outer.jacobian(gradient, x, experimental_use_pfor=vectorized)

        return tf.function(hessian)

    x, n = tf.constant([0.3, 0.5, 0.7]), tf.constant(4)
    got = compute_hessian(lambda x: sine_loop(x, n))(x)
    np.testing.assert_allclose(got, compute_hessian(unrolled)(x), rtol=1e-4)


def test_size_of_programs_of_higher_order():
    """Programs of equal layers do not contain the dead forward passes of inner gradients."""
    model = tf.keras.Sequential(
        [tf.keras.Input((1,)), *(tf.keras.layers.Dense(4, "tanh") for _ in range(4))]
    )

    def count_equations(order):
        function = tf.function(differentiate(model, order))
        concrete = function.get_concrete_function(tf.ones([8, 1]))
        return len(concrete.traced.closed_jaxpr.jaxpr.eqns)

    first, second, third = map(count_equations, (1, 2, 3))
    assert second < 5 * first and third < 5 * second
