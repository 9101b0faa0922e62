"""Adam's update by the kernels: the bits of XLA's code, in place, for any size; other types are XLA's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from capabilities import needs
from meshflow.kernels import adam, library

pytestmark = needs("CPU kernels")

SCALARS = tuple(np.float32(x) for x in (0.1, 0.001, 3e-4))
EPSILON = 1e-7


def arrays(shape, dtype="float32"):
    rng = np.random.default_rng(0)
    var, grad, mean = (rng.normal(size=shape) * scale for scale in (1, 0.1, 0.01))
    # If the gradient was always zero, the denominator is epsilon.
    grad.flat[0] = mean.flat[0] = 0
    square = np.where(grad == 0, 0, rng.normal(size=shape) ** 2 * 1e-4)
    return [jnp.asarray(a, dtype) for a in (var, grad, mean, square)]


def lower_update(operands, scalars=SCALARS):
    return jax.jit(lambda *xs: adam.update_variable(*xs, EPSILON)).lower(*operands, *scalars)


def without_the_handler(monkeypatch):
    monkeypatch.setattr(library.Library, "has_handler", lambda self, name: name != library.ADAM)
    jax.clear_caches()


@pytest.mark.isa
@pytest.mark.optimized
@pytest.mark.parametrize("shape", [(), (1,), (7,), (16,), (3, 3, 5, 7), (64, 65), ((1 << 20) + 3,)])
def test_updates_have_the_bits_of_xlas_code(shape):
    operands = arrays(shape or (1,))
    operands = [a.reshape(shape) for a in operands]
    program = lower_update(operands)
    assert "meshflow_adam" in program.as_text()
    found = program.compile()(*operands, *SCALARS)
    by_xla = jax.jit(lambda *xs: adam._compute_update(*xs, epsilon=EPSILON))(*operands, *SCALARS)
    for own, other, before in zip(found, by_xla, (operands[0], *operands[2:]), strict=True):
        np.testing.assert_array_equal(np.asarray(own), np.asarray(other))
        # Arguments are not changed.
        assert own.unsafe_buffer_pointer() != before.unsafe_buffer_pointer()
    np.testing.assert_array_equal(operands[0], arrays(shape or (1,))[0].reshape(shape))


@pytest.mark.isa
@pytest.mark.optimized
@pytest.mark.parametrize("shape", [(7, 5), (40, 1), (9, 3, 21), (20, 64), ((1 << 15) + 3, 33)])
def test_rows_are_updated_as_by_a_gradient_with_zeros(shape):
    var, grad, mean, square = arrays(shape)
    # Row indices repeat, count from the end, and exceed the last row.
    indices = np.array([3, -1, 0, 3, shape[0] + 2, shape[0] - 1, 5, 3], np.int32)
    rows = np.asarray(grad)[: len(indices)]
    rows = np.concatenate([rows, rows])[: len(indices)]
    update = lambda *xs: adam.update_variable(*xs[:-1], *SCALARS, EPSILON, xs[-1])
    program = jax.jit(update).lower(var, rows, mean, square, indices)
    assert "meshflow_adam_rows" in program.as_text()
    found = program.compile()(var, rows, mean, square, indices)
    dense = jax.jit(lambda i, r: jnp.zeros(shape, r.dtype).at[i].add(r))(indices, rows)
    for own, other in zip(
        found,
        lower_update([var, dense, mean, square]).compile()(var, dense, mean, square, *SCALARS),
        strict=True,
    ):
        np.testing.assert_allclose(own, other, 1e-6, 1e-7)
    plain = jax.jit(functools.partial(adam._compute_row_update, epsilon=EPSILON))(
        var, rows, indices % shape[0], mean, square, *SCALARS
    )
    valid = jax.jit(update)(var, rows, mean, square, indices % shape[0])
    for own, other in zip(valid, plain, strict=True):
        np.testing.assert_allclose(own, other, 1e-5, 1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_use_xla(dtype):
    scalars = [jnp.asarray(x, dtype) for x in SCALARS]
    program = lower_update(arrays((4, 4), dtype), scalars)
    assert "meshflow" not in program.as_text()
    found = program.compile()(*arrays((4, 4), dtype), *scalars)
    assert [a.dtype.name for a in found] == [dtype] * 3


def test_derivatives_and_vmap_are_those_of_the_equations():
    *operands, square = arrays((3, 4))
    # The root has no derivative at zero.
    operands.append(square + 1)
    own = lambda *xs: adam.update_variable(*xs, *SCALARS, EPSILON)
    plain = lambda *xs: adam._compute_update(*xs, *SCALARS, epsilon=EPSILON)
    for wrap in (
        lambda f: jax.vmap(f),
        lambda f: lambda *xs: jax.grad(lambda g: f(xs[0], g, *xs[2:])[0].sum())(xs[1]),
    ):
        pair = (jax.jit(wrap(f))(*operands) for f in (own, plain))
        for a, b in zip(*pair, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def weights_after(steps):
    variables = [tf.Variable(np.linspace(-1, 1, n, dtype="float32")) for n in (1, 6, 40)]
    optimizer = tf.keras.optimizers.Adam(0.1)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum((v - 3.0) ** 2) for v in variables])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(steps):
        step()
    concrete = step.get_concrete_function()
    captured = [c._value for c in concrete.traced.captures]
    text = concrete.lower([], captured).as_text()
    return text, [w.numpy() for w in [*variables, *optimizer.variables()]]


@pytest.mark.optimized
def test_an_optimizers_steps(monkeypatch):
    text, own = weights_after(3)
    assert text.count("@meshflow_adam(") == 3
    without_the_handler(monkeypatch)
    text, plain = weights_after(3)
    assert "meshflow" not in text
    for a, b in zip(own, plain, strict=True):
        np.testing.assert_array_equal(a, b)
