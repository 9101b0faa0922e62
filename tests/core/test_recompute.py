"""`tf.recompute_grad`: less memory, the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.core.gradients.rematerialization import make_policy_transform
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
BLOCKS, BATCH, WIDTH, INNER = 8, 256, 16, 256


class Block(LAYERS.Layer):
    """A block with a wide inside; `again` computes it twice."""

    def __init__(self, again, rate):
        super().__init__()
        self.again = again
        self.wide = LAYERS.Dense(INNER, "tanh")
        self.narrow = LAYERS.Dense(WIDTH)
        self.dropout = LAYERS.Dropout(rate)

    def build(self, shape):
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], INNER))
        super().build(shape)

    def call(self, x, training=False):
        def inside(x):
            return x + self.narrow(self.dropout(tf.sin(self.wide(x)), training=training))

        return tf.recompute_grad(inside)(x) if self.again else inside(x)


def blocks(again, rate=0.0):
    tf.keras.utils.set_random_seed(3)
    inner = [Block(again, rate) for _ in range(BLOCKS)]
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *inner])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model


def batch():
    x = np.random.RandomState(0).randn(BATCH, WIDTH).astype("float32")
    return x, x[:, ::-1].copy()


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_training_step_stores_activations_of_one_block_only(rate):
    inside = 4 * BATCH * INNER
    plain, again = [
        dtensor.explain(blocks(again, rate), *batch()).memory["temporaries"] / inside
        for again in (False, True)
    ]
    # Without it each block keeps two values of its size until the gradient.
    assert plain > 2 * BLOCKS
    assert again < plain / 4


def test_recomputation_does_not_change_training():
    plain, again = blocks(False), blocks(True)
    losses = [m.fit(*batch(), BATCH, 3, verbose=0).history["loss"] for m in (plain, again)]
    assert_close(*losses)
    for a, b in zip(plain.get_weights(), again.get_weights(), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputation_repeats_random_numbers(compiled):
    x = tf.ones([100])
    drop = tf.recompute_grad(lambda x: tf.nn.dropout(x, 0.5))

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = drop(x)
        return y, tape.gradient(y, x)

    y, gradient = (tf.function(step) if compiled else step)()
    assert 20 < np.count_nonzero(y) < 80
    np.testing.assert_array_equal(y, gradient)


def test_devices_that_sum_inside_compute_again_together():
    mesh = dtensor.create_mesh([("batch", 2), ("model", 2)])
    U = dtensor.UNSHARDED
    inwards = dtensor.DVariable(tf.ones([8, 16]) / 8, layout=dtensor.Layout([U, "model"], mesh))
    outwards = dtensor.DVariable(tf.ones([16, 8]) / 9, layout=dtensor.Layout(["model", U], mesh))
    start = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)

    def gradients(again, x):
        def inside(x):
            return x + tf.matmul(tf.tanh(tf.matmul(x, inwards)), outwards)

        f = tf.recompute_grad(inside) if again else inside

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.sin(f(f(x))))
            return tape.gradient(loss, [x, inwards, outwards])

        found = step(x)
        assert dtensor.fetch_layout(found[1]).sharding_specs[1] == "model"
        return [dtensor.relayout(g, dtensor.Layout.replicated(mesh, 2)).numpy() for g in found]

    x = dtensor.copy_to_mesh(tf.constant(start), dtensor.Layout(["batch", U], mesh))
    for a, b in zip(gradients(False, x), gradients(True, x), strict=True):
        assert_close(a, b)


def test_under_a_strategy():
    histories = []
    for again in (False, True):
        with tf.distribute.MirroredStrategy().scope():
            model = blocks(again)
        histories.append(model.fit(*batch(), BATCH // 2, 2, verbose=0).history["loss"])
    assert_close(histories[0], histories[1])


def test_second_order_gradients_and_map_fn():
    f = tf.recompute_grad(lambda x, n: tf.cast(n, "float32") * tf.sin(x) ** 2)
    x = tf.constant([0.3, 0.7])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x, tf.constant(3))
        slope = inner.gradient(y, x)
    assert_close(slope, 3 * np.sin(2 * x.numpy()))
    assert_close(outer.gradient(slope, x), 6 * np.cos(2 * x.numpy()))

    @tf.function
    def jacobian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, 3)
        return tape.jacobian(y, x)

    assert_close(jacobian(x), np.diag(3 * np.sin(2 * x.numpy())))
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as moves:
        y = f(x, 3)
    assert_close(moves.jvp(y), 3 * np.sin(2 * x.numpy()))


def test_a_saved_function_computes_again_too(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.v = tf.Variable([2.0, 3.0])

        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def slope(self, x):
            with tf.GradientTape() as tape:
                y = tf.recompute_grad(lambda x: tf.sin(x * self.v))(x)
            return tape.gradient(y, self.v)

    module = Module()
    tf.saved_model.save(module, str(tmp_path / "m"))
    x = tf.constant([0.1, 0.2])
    assert_close(tf.saved_model.load(str(tmp_path / "m")).slope(x), module.slope(x).numpy())


def test_seeded_ops_are_unchanged_by_recomputation():
    def draws(function):
        tf.random.set_seed(1)
        return [function(tf.ones([64])).numpy().tolist() for _ in range(2)]

    def drop(x):
        return tf.nn.dropout(x, 0.5, seed=5)

    first, second = draws(drop)
    assert first != second
    assert draws(tf.recompute_grad(drop)) == [first, second]


@pytest.mark.parametrize("size", [0, 100])
def test_fetched_captures_are_no_residuals(size):
    """Test that captures are fetched once per pass, and that values derived only from them are
    recomputed."""

    def run(arguments, captures):
        (x,), (kernel, bias) = arguments, captures
        return [jnp.tanh(x @ (2.0 * kernel).T + bias)]

    def fetch(captures):
        part, bias = captures
        return [jnp.concatenate([part, -part]), bias]

    call = make_policy_transform(None, None, size)(run, fetch)
    x, part, bias = jnp.ones([3, 2]), jnp.array([[0.5, 0.2]]), jnp.array([0.1, 0.3])
    zero = jnp.zeros([])

    def loss(x, part, bias):
        first, token = call([[x], [part, bias], zero], ())
        second, _ = call([[first], [part, bias], token], ())
        return second.sum()

    def plain(x, part, bias):
        for _ in range(2):
            (x,) = run([x], fetch([part, bias]))
        return x.sum()

    found = jax.grad(loss, (0, 1, 2))(x, part, bias)
    for a, b in zip(found, jax.grad(plain, (0, 1, 2))(x, part, bias), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    # Between the passes there is no full kernel, of four elements, but for the parts and two results of six.
    _, pull = jax.vjp(loss, x, part, bias)
    assert {leaf.size for leaf in jax.tree.leaves(pull)} <= {1, 2, 6}
    assert str(jax.make_jaxpr(jax.grad(loss))(x, part, bias)).count("optimization_barrier") >= 4
