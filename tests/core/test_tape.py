import inspect
from types import SimpleNamespace

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, check_gradients


def test_second_and_third_order():
    x = tf.constant(2.0, tf.float64)
    with tf.GradientTape() as t3:
        t3.watch(x)
        with tf.GradientTape() as t2:
            t2.watch(x)
            with tf.GradientTape() as t1:
                t1.watch(x)
                y = x**4
            d1 = t1.gradient(y, x)
        d2 = t2.gradient(d1, x)
    d3 = t3.gradient(d2, x)
    assert_close([float(d1), float(d2), float(d3)], [32, 48, 48])


def test_second_order_inside_a_function():
    @tf.function
    def f(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.sin(x)
            g = inner.gradient(y, x)
        return outer.gradient(g, x)

    assert_close(f(tf.constant(0.5)), -np.sin(0.5))


def test_gradient_through_a_function_call_reaches_arguments_variables_and_closures():
    v = tf.Variable(3.0)
    c = tf.constant(5.0)

    @tf.function
    def f(x):
        return x * v * c

    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, c])
        y = f(x)
    assert [float(g) for g in tape.gradient(y, [x, v, c])] == [15, 10, 6]


def test_variables_are_watched_unless_told_otherwise():
    v, w = tf.Variable(2.0), tf.Variable(1.0, trainable=False)
    with tf.GradientTape() as tape:
        y = v * w
    assert [t.name for t in tape.watched_variables()] == ["Variable:0"]
    assert float(tape.gradient(y, v)) == 1
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        y = v * 2.0
    assert tape.gradient(y, v) is None


def test_variable_read_twice_sums_gradients():
    v = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = v * v + v
    assert float(tape.gradient(y, v)) == 7


def test_unconnected_gradients():
    x, z = tf.constant([1.0, 2.0]), tf.Variable([3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * 2
    assert tape.gradient(y, z) is None
    assert_close(tape.gradient(y, z, unconnected_gradients=tf.UnconnectedGradients.ZERO), [0.0])
    assert_close(tape.gradient(y, {"a": [x]}, unconnected_gradients="zero")["a"][0], [2.0, 2.0])


def test_a_tape_is_used_once_unless_persistent():
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="non-persistent"):
        tape.gradient(y, x)


def test_stop_recording_reset_and_output_gradients():
    x = tf.constant(3.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        with tape.stop_recording():
            hidden = x * x
        y = x * x
    assert tape.gradient(hidden, x) is None
    assert float(tape.gradient(y, x, output_gradients=tf.constant(10.0))) == 60
    tape.reset()
    assert tape.gradient(y, x) is None


def test_jacobian_and_batch_jacobian():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x**3
    full = tape.jacobian(y, x).numpy()
    assert full.shape == (2, 2, 2, 2)
    assert_close(full[0, 1, 0, 1], 12.0)
    assert_close(tape.batch_jacobian(y, x).numpy()[1], np.diag([27.0, 48.0]))


def test_hessian_by_jacobian_of_gradient():
    x = tf.constant([1.0, 2.0], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(x**3) * x[0]
        g = inner.gradient(y, x)
    assert_close(outer.jacobian(g, x), [[12.0, 12.0], [12.0, 12.0]])


def test_complex_gradients_follow_tensorflow():
    z = tf.constant(1.0 + 2.0j)
    with tf.GradientTape() as tape:
        tape.watch(z)
        y = z * z
    assert tape.gradient(y, z).numpy() == pytest.approx(np.conj(2 * (1 + 2j)))


def test_indexing_gradient():
    v = tf.Variable(np.arange(6.0).reshape(3, 2))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.gather(v, [0, 0, 2]) ** 2)
    expected = np.zeros((3, 2))
    expected[0], expected[2] = 4 * v.numpy()[0], 2 * v.numpy()[2]
    gradient = tape.gradient(y, v)
    assert_close(gradient, expected)
    tf.keras.optimizers.SGD(1.0).apply_gradients([(gradient, v)])
    assert_close(v.numpy()[1], [2.0, 3.0])


def test_integer_targets_have_no_gradient():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.argmax(x)
    assert tape.gradient(y, x) is None


def test_custom_gradient_everywhere():
    @tf.custom_gradient
    def clip_gradient(x):
        return tf.identity(x) * 1.0, lambda dy: tf.clip_by_value(dy, -1.0, 1.0)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = clip_gradient(x) * 5.0
        return tape.gradient(y, x)

    x = tf.constant(2.0)
    assert float(gradient(x)) == 1
    assert float(tf.function(gradient)(x)) == 1
    compiled = tf.function(lambda v: clip_gradient(v) * 5.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = compiled(x)
    assert float(tape.gradient(y, x)) == 1


def test_custom_gradient_with_variables():
    v = tf.Variable(3.0)

    @tf.custom_gradient
    def f(x):
        def grad(dy, variables=None):
            return dy * 100.0, [dy * 10.0 for _ in variables]

        return x * v, grad

    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert [float(g) for g in tape.gradient(y, [x, v])] == [100, 10]


@tf.custom_gradient
def scaled_product(x, y, scale=2.0, mode="sum"):
    return x * y * scale, lambda dy: (dy * 10.0 * y, dy * 100.0 * x)


@tf.custom_gradient
def defaults_between(a, b=3.0, *, k=1.0):
    return a * b * k, lambda dy: (dy * 1.0, dy * 2.0, dy * 3.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x, y: scaled_product(x, y=y), [30, 200]),
        (lambda x, y: scaled_product(y=y, x=x), [30, 200]),
        (lambda x, y: scaled_product(mode="mean", y=y, scale=3.0, x=x), [30, 200]),
        (lambda x, y: scaled_product(x, y=[y][0], scale=np.float32(1.0)), [30, 200]),
        (lambda x, y: defaults_between(x, k=y), [1, 3]),
        (lambda x, y: defaults_between(k=y, b=x, a=1.0), [2, 3]),
        # The gradient function may ignore tensors that were passed by name, as in TensorFlow.
        (
            lambda x, y: tf.custom_gradient(lambda a, s: (a * s, lambda d: d * 7.0))(x, s=y),
            [7, None],
        ),
    ],
)
def test_custom_gradients_of_tensors_passed_by_name(call, expected):
    def gradients(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            z = call(x, y)
        return tape.gradient(z, [x, y])

    def outside(x, y):
        compiled = tf.function(call)
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            z = compiled(x, y)
        return tape.gradient(z, [x, y], unconnected_gradients="zero")

    x, y = tf.constant(2.0), tf.constant(3.0)
    for function in (gradients, tf.function(gradients)):
        assert [g if g is None else float(g) for g in function(x, y)] == expected
    assert [float(g) for g in outside(x, y)] == [e or 0 for e in expected]


def test_custom_gradients_of_variables_passed_by_name():
    v, w = tf.Variable(2.0), tf.Variable(5.0)

    @tf.custom_gradient
    def f(x, s):
        def grad(dy, variables=None):
            return (dy * 7.0, dy * 8.0), [dy * 9.0 for _ in variables]

        return x * w * s, grad

    with tf.GradientTape() as tape:
        y = f(s=v, x=tf.constant(1.0))
    assert [float(g) for g in tape.gradient(y, [v, w])] == [8, 9]


def test_wrong_number_of_custom_gradients_by_name():
    f = tf.custom_gradient(lambda x, y: (x * y, lambda dy: (dy, dy, dy)))
    x = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        z = f(y=x, x=1.0)
    with pytest.raises(ValueError, match="expected to return 1 gradients, but returned 3"):
        tape.gradient(z, x)


def test_custom_gradients_of_symbolic_tensors(tmp_path):
    clip = tf.custom_gradient(lambda x: (x * 1.0, lambda dy: dy * 5.0))
    inputs = tf.keras.Input([3])
    x = tf.constant([[1.0, 2.0, 3.0]])
    for outputs in (clip(inputs), clip(x=inputs), tf.keras.layers.Activation(clip)(inputs)):
        model = tf.keras.Model(inputs, outputs)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        assert_close(tape.gradient(y, x), [[5.0, 5.0, 5.0]])
    model = tf.keras.Model(inputs, scaled_product(inputs, y=inputs * 1.0))
    assert_close(model(x), [[2.0, 8.0, 18.0]])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    assert_close(tf.keras.models.clone_model(model)(x), [[2.0, 8.0, 18.0]])


def test_recompute_grad_changes_no_number():
    v = tf.Variable([0.5, 1.5])
    x = tf.constant([1.0, 2.0])

    def f(x):
        return tf.sin(x * v) * tf.exp(x)

    def gradients(g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
        return tape.gradient(y, [x, v])

    for a, b in zip(gradients(f), gradients(tf.recompute_grad(f)), strict=True):
        assert_close(a, b.numpy())


def test_stop_gradient():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * tf.stop_gradient(x)
    assert float(tape.gradient(y, x)) == 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x * y + tf.sin(x),
        lambda x, y: tf.matmul(x, y),
        lambda x, y: tf.concat([x, y], 0) ** 2,
        lambda x, y: tf.nn.softmax(x) * y,
        lambda x, y: tf.reduce_logsumexp(x * y, axis=1),
        lambda x, y: tf.linalg.inv(x) @ y,
        lambda x, y: tf.where(x > y, x * x, y),
        lambda x, y: tf.cumsum(x, axis=1) / (1.0 + y * y),
        lambda x, y: tf.linalg.norm(x - y),
        lambda x, y: tf.einsum("ij,kj->ik", x, y) ** 2,
        lambda x, y: tf.stack([x, y])[1, :, 0] * x[0, 1],
    ],
)
def test_gradients_against_finite_differences(fn, rng):
    check_gradients(fn, rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))


def test_constants_made_inside_a_function_can_be_watched():
    @tf.function
    def f():
        x = tf.constant([2.0, 3.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * x
            dy = tape.gradient(y, x)
        return dy, tape.gradient(dy, x), tape.jacobian(y, x)

    dy, ddy, jacobian = f()
    assert_close(dy, [12, 27])
    assert_close(ddy, [12, 18])
    assert_close(jacobian, [[12, 0], [0, 27]])


def test_a_variable_may_be_target_and_source():
    variables = [tf.Variable(2.0), tf.Variable(5.0)]
    with tf.GradientTape() as tape:
        largest = max(variables)
    assert [None if g is None else float(g) for g in tape.gradient(largest, variables)] == [None, 1]


def test_watching_a_sparse_tensor_watches_its_values():
    values = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        sparse = tf.SparseTensor([[0, 0], [1, 2]], values, [3, 4])
        tape.watch(sparse)
        y = sparse.values * 3.0
    assert_close(tape.gradient(y, values), [3, 3])


def test_output_gradients_are_repeated_to_the_shape_of_the_target():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert_close(tape.gradient(y, x, output_gradients=2.0), [4, 8])


def test_tape_errors():
    x = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(TypeError, match="received None"):
        tf.GradientTape().gradient(None, x)
    with pytest.raises(ValueError, match="Unknown value for unconnected_gradients: 'nonsense'"):
        tf.GradientTape().gradient(y, x, unconnected_gradients="nonsense")
    with pytest.raises(RuntimeError, match="not recording"), tape.stop_recording():
        pass
    for method in (tape.jacobian, tape.batch_jacobian):
        with pytest.raises(RuntimeError, match="persistent"):
            method(y, x, experimental_use_pfor=False)
    with pytest.raises(ValueError, match="rank at least 2"):
        tape.batch_jacobian(y[0], x[0])


def test_batch_jacobian_of_unconnected_target_is_zero():
    x = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.ones([1, 3])
    assert_close(tape.batch_jacobian(y, x), np.zeros([1, 3, 2]))


def test_recompute_grad_passes_python_values():
    f = tf.recompute_grad(lambda x, double: x * 2 if double else x)
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x, True)
    assert_close([tape.gradient(y, x), f(x, False)], [2, 1])


def test_methods_with_custom_gradients():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @tf.custom_gradient
        def __call__(self, x):
            return x * self.factor, lambda dy: 10.0 * self.factor * dy

    x = tf.constant(1.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, z = Scale(2.0)(x), tf.function(lambda x: Scale(3.0).__call__(x))(x)
    assert_close([y, z, tape.gradient(y, x), tape.gradient(z, x)], [2, 3, 20, 30])


def test_read_after_assignment_is_connected_to_the_variable():
    v = tf.Variable([2.0, 3.0])

    def gradient():
        with tf.GradientTape() as tape:
            v.assign(v / tf.reduce_sum(v))
            result = tf.reduce_sum(v * v)
        return tape.gradient(result, v)

    for function in (gradient, tf.function(gradient)):
        v.assign([2.0, 3.0])
        assert_close(function(), [0.8, 1.2])
        assert_close(v, [0.4, 0.6])


@pytest.mark.parametrize(
    "wrap", [tf.function, tf.recompute_grad, lambda f: tf.function(tf.recompute_grad(f))]
)
def test_programs_read_assigned_values_as_the_variable(wrap):
    v, scale = tf.Variable(3.0), tf.Variable(1.0, trainable=False)

    def compute(x):
        before = v * x
        v.assign(2.0 * v)
        scale.assign(v + 1.0)
        return before + scale * v**2 * x

    run = wrap(compute)
    for _ in range(2):
        v.assign(3.0)
        with tf.GradientTape() as tape:
            result = run(tf.constant(5.0))
        # 5 of the first read; 2 * 7 * 6 * 5 of the second, none of the assigned values.
        assert_close([result, tape.gradient(result, v), v], [1275, 425, 6])


@pytest.mark.parametrize("count", [3, tf.constant(3)], ids=["known", "unknown"])
def test_loops_read_assigned_values_as_the_variable(count):
    v, w, calls = tf.Variable(1.5), tf.Variable(2.0), tf.Variable(0)

    @tf.function
    def compute(limit):
        total = tf.constant(0.0)
        for _ in tf.range(limit):
            total += v * v * w
            v.assign(v * w)
            calls.assign_add(1)
            total += v
        return total + v

    with tf.GradientTape() as tape:
        total = compute(count)
    # Reads of 1.5, 3 and 6 before assignments, and of 3, 6, 12 and 12 after them.
    gradients = tape.gradient(total, [v, w])
    assert_close([total, *gradients, calls], [127.5, 2 * 2 * 10.5 + 4, 47.25, 3])


# TensorFlow's gradients, with respect to x and w, of the gradient with respect to x.
_SECOND = {
    "linear": (lambda x, w: 3.0 * x, [None, None]),
    "add": (lambda x, w: x + w, [None, None]),
    "multiply": (lambda x, w: x * w, [None, 1.0]),
    "divide": (lambda x, w: x / w, [None, -1.0]),
    "mean": (lambda x, w: tf.reduce_mean([x, w]), [None, None]),
    "matmul": (lambda x, w: tf.matmul([[x]], [[w]]), [None, 1.0]),
    "gather": (lambda x, w: tf.gather([x, w], [0]), [None, None]),
    "maximum": (lambda x, w: tf.maximum(x, w), [None, None]),
    "where": (lambda x, w: tf.where(x > 0, x, w), [None, None]),
    "clip": (lambda x, w: tf.clip_by_value(x, 0.0, 1.0), [None, None]),
    "cast": (lambda x, w: tf.cast(x, tf.float64), [None, None]),
    "relu": (lambda x, w: tf.nn.relu(x), [0.0, None]),
    "abs": (lambda x, w: tf.abs(x), [0.0, None]),
    "dense": (lambda x, w: tf.nn.relu(tf.matmul([[x]], [[w]]) + 1.0), [0.0, 1.0]),
    "square": (lambda x, w: x * x, [2.0, None]),
    "power": (lambda x, w: x**1.0, [0.0, None]),
}


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
@pytest.mark.parametrize("name", _SECOND)
def test_second_gradients_of_independent_sources(name, wrap):
    f, expected = _SECOND[name]
    x, w = tf.Variable(2.0), tf.Variable(1.0)

    @wrap
    def second(unconnected="none"):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = f(x, w)
            g = inner.gradient(y, x)
        return outer.gradient(g, [x, w], unconnected_gradients=unconnected)

    found = second()
    assert [None if g is None else float(g) for g in found] == expected
    assert [float(g) for g in second("zero")] == [e or 0.0 for e in expected]


def test_methods_have_python_functions_that_are_methods():
    class Model(tf.Module):
        @tf.function
        def scaled(self, x, by=2):
            return x * by

    model = Model()
    python = model.scaled.python_function
    assert python(3, by=4) == 12 and list(inspect.signature(python).parameters) == ["x", "by"]
    assert "scaled" in tf.autograph.to_code(model.scaled)
    assert int(tf.function(python)(tf.constant(3))) == 6


def test_objects_that_refer_to_a_variable_are_sources():
    holder = SimpleNamespace(_should_act_as_resource_variable=True, handle=tf.Variable(3.0))
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(holder)
        loss = holder.handle**2
    assert tape.gradient(loss, [holder])[0].numpy() == 6
