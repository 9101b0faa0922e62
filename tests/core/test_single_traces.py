"""Functions with unknown sizes in their signature: Python runs once, for all sizes."""

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch.tiers import TierSettings
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.passes.size_specialization import SizeSpecializer

ROWS = tf.TensorSpec([None, 3])
IMAGES = tf.TensorSpec([None, None, None, 2])
STEPS = tf.TensorSpec([None, None, 3])


def make_rows(n):
    return [np.random.RandomState(n).randn(n, 3).astype("float32")]


def make_images(n):
    return [np.random.RandomState(n).randn(n, n + 3, n + 4, 2).astype("float32")]


def make_steps(n):
    return [np.random.RandomState(n).randn(n, n + 1, 3).astype("float32")]


def sum_rows(x):
    total = tf.zeros([3])
    for i in tf.range(tf.shape(x)[0]):
        total = 0.5 * total + tf.nn.relu(x[i])
    return total


def halve(x):
    i, y = tf.constant(0), x
    while i < tf.shape(x)[0]:
        i, y = i + 1, 0.5 * y
    return y


def collect(x):
    array = tf.TensorArray(tf.float32, size=tf.shape(x)[0])
    for i in tf.range(tf.shape(x)[0]):
        array = array.write(i, x[i] * tf.cast(i, tf.float32))
    return array.stack()


def choose(x):
    if tf.reduce_sum(x) > 0:
        return 2 * x
    return -x


def pool(x):
    kernel = tf.reshape(tf.range(36.0), [3, 3, 2, 2]) / 36
    y = tf.nn.conv2d(x, kernel, 2, "SAME")
    return tf.reduce_mean(tf.nn.max_pool2d(tf.nn.relu(y), 2, 2, "SAME"), [1, 2])


def attend(x):
    scores = tf.matmul(x, x, transpose_b=True)
    size = tf.shape(x)[1]
    mask = tf.linalg.band_part(tf.ones([size, size]), -1, 0)
    return tf.matmul(tf.nn.softmax(scores - 1e9 * (1 - mask)), x)


FUNCTIONS = {
    "products": (lambda x: tf.nn.softmax(tf.matmul(x, tf.transpose(x))), ROWS, make_rows),
    "distances": (lambda x: tf.reduce_sum((x[:, None] - x[None]) ** 2, -1), ROWS, make_rows),
    "sizes": (lambda x: tf.reshape(x, [tf.shape(x)[0] * 3]) + len(x.shape), ROWS, make_rows),
    "slices": (lambda x: tf.concat([x[1:], x[:1], tf.pad(x, [[1, 2], [0, 0]])], 0), ROWS, make_rows),
    "orders": (lambda x: tf.cumsum(tf.sort(x, 0)) + tf.reverse(x, [0]), ROWS, make_rows),
    "map": (lambda x: tf.map_fn(lambda r: r * tf.reduce_sum(r), x), ROWS, make_rows),
    "for": (sum_rows, ROWS, make_rows),
    "while": (halve, ROWS, make_rows),
    "array": (collect, ROWS, make_rows),
    "cond": (choose, ROWS, make_rows),
    "images": (pool, IMAGES, make_images),
    "attention": (attend, STEPS, make_steps),
}  # fmt: skip


CASES = [(name, mode) for name in FUNCTIONS for mode in ("call", "concrete", "tape", "nested")]


@pytest.mark.parametrize(("name", "mode"), [*CASES, ("for", "compile"), ("images", "compile")])
def test_python_runs_once_for_all_sizes(name, mode, monkeypatch):
    body, spec, make = FUNCTIONS[name]
    if mode == "compile":
        monkeypatch.setattr(TierSettings, "tier", "compile")
    runs = []

    def record(*arguments):
        runs.append(None)
        return body(*arguments)

    function = call = tf.function(record, input_signature=[spec])
    if mode == "concrete":
        call = function.get_concrete_function()
        assert len(runs) == 1 and call.structured_outputs.shape.rank is not None
    elif mode == "nested":
        call = tf.function(lambda x: function(x))
    body = tf.autograph.to_graph(body) if name == "cond" else body
    for size in (4, 1, 6):
        operands = [tf.constant(a) for a in make(size)]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(operands)
            expected = body(*operands)
            actual = call(*operands) if mode == "tape" else None
        actual = call(*operands) if actual is None else actual
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        if mode == "tape":
            gradients = [tape.gradient(y, operands[0]).numpy() for y in (actual, expected)]
            np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)
    assert len(runs) == function.experimental_get_tracing_count() == 1


def test_a_training_step_has_its_side_effects_once():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3), layers.Dense(1)]
    )
    twin = tf.keras.Sequential(
        [layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3), layers.Dense(1)]
    )
    runs = []

    def make_step(model, optimizer):
        def step(x, y):
            runs.append(x.shape)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return step

    specs = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, 1])]
    step = make_step(model, tf.keras.optimizers.Adam(0.1))
    exact = tf.function(make_step(twin, tf.keras.optimizers.Adam(0.1)))
    model.build([None, None])
    twin.build([None, None])
    twin.set_weights(model.get_weights())
    step = tf.function(step, input_signature=specs)
    for size in (4, 1, 6):
        x = np.random.RandomState(size).randint(0, 9, (size, size + 2)).astype("int32")
        y = np.ones((size, 1), "float32")
        np.testing.assert_allclose(step(x, y), exact(x, y), rtol=1e-5)
    assert len(runs) == 4 and str(runs[0]) == "(None, None)"


def test_variables_are_created_once():
    class Scale(tf.Module):
        scale = None

        @tf.function(input_signature=[ROWS])
        def __call__(self, x):
            if self.scale is None:
                self.scale = tf.Variable(tf.fill([3], 2.0))
            self.scale.assign_add(tf.ones([3]))
            return x * self.scale

    module = Scale()
    for runs, size in enumerate((3, 1, 5), 1):
        assert module(tf.ones([size, 3])).numpy().tolist() == [[2.0 + runs] * 3] * size


def test_compiled_programs_of_new_sizes_are_specialized():
    @tf.function(jit_compile=True, input_signature=[ROWS])
    def function(x):
        count = tf.shape(x)[0]
        return tf.cast(count, tf.float32) * tf.reduce_mean(x, 0), count

    for size in (3, 1, 5):
        total, count = function(tf.ones([size, 3]))
        assert total.numpy().tolist() == [size] * 3 and count.numpy() == size
    assert function.experimental_get_tracing_count() == 1


def test_custom_gradients_are_those_of_the_size():
    @tf.custom_gradient
    def scale(x):
        return 2 * x, lambda upstream: upstream * tf.cast(tf.shape(x)[0], tf.float32)

    function = tf.function(lambda x: scale(x), input_signature=[ROWS])
    for size in (3, 1, 5):
        x = tf.ones([size, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        assert tape.gradient(y, x).numpy().tolist() == [[size] * 3] * size
    assert function.experimental_get_tracing_count() == 1


def test_sizes_that_depend_on_values_need_one_trace_under_a_tape():
    runs = []

    def sum_positive(x):
        runs.append(x.shape)
        return tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0) ** 2)

    function = tf.function(sum_positive, input_signature=[ROWS])
    for size in (4, 6, 5):
        x = tf.constant(*make_rows(size))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        mask = x.numpy()[:, :1] > 0
        np.testing.assert_allclose(tape.gradient(y, x), 2 * x.numpy() * mask, rtol=1e-6)
    # Under a tape, the function then runs as Python.
    assert len(runs) == 4 and function.experimental_get_tracing_count() == 1


def test_specialized_programs_have_no_equations_on_sizes():
    def program(x):
        many = jax.numpy.asarray(16 * x.shape[0]) // 2 > 100
        y = jax.lax.cond(many, jax.numpy.sin, jax.numpy.cos, x)
        return jax.nn.relu(y) / x.shape[0]

    sizes = GuardedSizes([[(8, 3)], [(9, 3)]])
    with sizes.record():
        general = jax.make_jaxpr(program)(jax.ShapeDtypeStruct(sizes.shapes[0], "float32"))
    for size, name in ((4, "cos"), (40, "sin")):
        closed = SizeSpecializer(sizes.shapes, [(size, 3)]).specialize(general)
        names = [eqn.primitive.name for eqn in closed.eqns]
        assert names[0] == name and not {"cond", "dim_as_value", "convert_element_type"} & {*names}
        assert closed.out_avals[0].shape == (size, 3)
