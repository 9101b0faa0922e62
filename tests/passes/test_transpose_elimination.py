"""Test that products that absorb transpositions are equal, with fewer or cheaper transpositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec

import meshflow as tf
from meshflow.passes.transpose_elimination import eliminate_transposes


def draw(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), jnp.float32)


def program(fn, *args):
    closed = jax.make_jaxpr(fn)(*args)
    return eliminate_transposes(closed), closed


def transpositions(closed):
    """The orders of all transpositions, also those inside."""
    found = []
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name == "transpose":
            found.append(tuple(eqn.params["permutation"]))
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                found += transpositions(value)
    return found


def assert_same(fn, *args, left):
    """Assert that the program is equal and has the expected remaining transpositions."""
    new, old = program(fn, *args)
    assert transpositions(new) == left
    for got, wanted in zip(jaxpr_as_fun(new)(*args), jaxpr_as_fun(old)(*args), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_kernel_gradient_needs_no_transpose():
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    assert_same(jax.grad(loss), draw(5, 7), draw(3, 5), left=[])


def test_heads_need_no_transpose():
    loss = lambda w, x: jnp.sum(jnp.tanh(jnp.einsum("blc,chd->blhd", x, w)))
    assert_same(jax.grad(loss), draw(5, 2, 3), draw(2, 4, 5), left=[])


def test_transposition_across_a_batch_axis_remains():
    mix = lambda p, v: jnp.einsum("bhqk,bkhd->bqhd", p, v)
    new, _ = program(mix, draw(2, 3, 4, 5), draw(2, 5, 3, 6))
    assert_same(mix, draw(2, 3, 4, 5), draw(2, 5, 3, 6), left=transpositions(new))
    assert all(order[-1] == 3 for order in transpositions(new))


def test_products_read_untransposed_operands():
    assert_same(lambda a, b: jnp.dot(a.T, b), draw(5, 3), draw(5, 4), left=[])
    # Where the free dimensions keep their order only.
    crossed = lambda a, b: jnp.tensordot(a.transpose(1, 0, 2), b, 1)
    assert_same(crossed, draw(2, 3, 5), draw(5, 4), left=[(1, 0, 2)])


def test_products_with_other_readers_are_unchanged():
    both = lambda a, b: ((a @ b).T, a @ b + 1)
    once = lambda a, b: (lambda c: (c.T, c + 1))(a @ b)
    for fn in (both, once):
        new, _ = program(fn, draw(3, 5), draw(5, 4))
        assert_same(fn, draw(3, 5), draw(5, 4), left=transpositions(new))
    assert transpositions(program(once, draw(3, 5), draw(5, 4))[0]) == [(1, 0)]


def test_a_result_that_is_returned_is_turned_and_precisions_change_places():
    precision = (jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT)
    fn = lambda a, b: jax.lax.dot(a, b, precision=precision).T
    assert_same(fn, draw(3, 5), draw(5, 4), left=[])
    (product,) = program(fn, draw(3, 5), draw(5, 4))[0].jaxpr.eqns
    assert product.params["precision"] == precision[::-1]


def test_programs_inside_are_turned():
    def fn(a, b):
        step = lambda carry, row: (carry + (row @ b).T, carry.sum())
        return jax.lax.scan(step, jnp.zeros((4, 3)), a)

    assert_same(fn, draw(2, 3, 5), draw(5, 4), left=[])


def test_solvers_have_programs_with_names():
    solve = lambda a, b: jax.lax.custom_linear_solve(
        lambda x: jnp.dot(x.T, a.T).T, b, lambda _, y: jnp.linalg.inv(a) @ y
    )
    assert_same(solve, jnp.eye(4) * 2 + 0.1, draw(4, 3), left=[])


@pytest.mark.parametrize("fn", [lambda a, b: a @ b, lambda a, b: a.T + b, jnp.multiply])
def test_programs_without_transposes_are_unchanged(fn):
    closed = jax.make_jaxpr(fn)(draw(4, 4), draw(4, 4))
    assert eliminate_transposes(closed) is closed


def test_devices_of_a_mesh_and_batches():
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    mapped = jax.shard_map(
        jax.grad(loss),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("x")),
        out_specs=PartitionSpec("x"),
    )
    for fn in (mapped, jax.vmap(jax.grad(loss), (None, 0))):
        x = draw(3, 5) if fn is mapped else draw(2, 3, 5)
        new, old = program(fn, draw(5, 7), x)
        got, wanted = (jax.jit(jaxpr_as_fun(p))(draw(5, 7), x)[0] for p in (new, old))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_compiled_steps_have_no_transposed_gradients():
    x, w = tf.constant(draw(6, 5)), tf.Variable(draw(5, 7))

    @tf.function
    def gradient():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(x @ w))
            first = tape.gradient(loss, w)
        return first, outer.gradient(first, w)

    plain = lambda w: jnp.sum(jnp.tanh(x.numpy() @ w))
    first = jax.grad(plain)(w.numpy())
    second = jax.grad(lambda w: jax.grad(plain)(w).sum())(w.numpy())
    for got, wanted in zip(gradient(), (first, second), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)
