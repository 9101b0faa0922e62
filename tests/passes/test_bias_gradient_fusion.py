"""Test that gradients of kernels and biases computed together equal those computed separately."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshflow.kernels.kernel_and_bias_gradient import kernel_and_bias_p
from meshflow.passes.bias_gradient_fusion import fuse_bias_gradients


def convolve(x, w):
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def draw(shape, seed=0, dtype=jnp.bfloat16):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def of_kernel(x, g):
    """Return the kernel's gradient for the image of a convolution and the gradient of its result."""
    w = jnp.zeros((3, 3, x.shape[-1], g.shape[-1]), x.dtype)
    return jax.vjp(functools.partial(convolve, x), w)[1](g)[0]


def gradients(x, g):
    return of_kernel(x, g), jax.lax.reduce_sum(g, (0, 1, 2))


def rewritten(fn, *args):
    return fuse_bias_gradients(jax.make_jaxpr(fn)(*args))


def count(fn, *args):
    return str(rewritten(fn, *args)).count(kernel_and_bias_p.name)


def assert_near(got, wanted, tolerance=1e-2):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


X, G = draw((32, 9, 8, 32)), draw((32, 9, 8, 64), 1)


# Geometries with code for matrix tiles; a batch that is too small; a grid that fits no block of
# channels.
@pytest.mark.parametrize("shape", [(32, 9, 8, 32), (61, 5, 20, 32), (2, 9, 8, 32), (32, 9, 8, 5)])
def test_sums_equal_float64(shape):
    x, g = draw(shape), draw((*shape[:3], 64), 1)
    assert count(gradients, x, g) == 1
    kernel, bias = jax.jit(jaxpr_as_fun(rewritten(gradients, x, g)))(x, g)
    assert kernel.dtype == bias.dtype == jnp.bfloat16
    wide = gradients(x.astype(jnp.float64), g.astype(jnp.float64))
    for got, wanted in zip((kernel, bias), wide, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8, atol=2e-3)


def test_sums_at_the_start_and_in_loops_are_matched():
    def first(x, g):
        total = jax.lax.reduce_sum(g, (0, 1, 2))
        return total, of_kernel(x, g)

    def loop(x, g):
        return jax.lax.scan(lambda x, _: (x + 1, gradients(x, g)), x, None, 2)[1]

    for fn in (first, loop):
        assert count(fn, X, G) == 1
        got = jax.jit(jaxpr_as_fun(rewritten(fn, X, G)))(X, G)
        for a, b in zip(got, jax.jit(fn)(X, G), strict=True):
            assert_near(a, b)


def test_sums_of_other_computations_are_unchanged():
    other_axes = lambda x, g: (of_kernel(x, g), jax.lax.reduce_sum(g, (0, 1)))
    other_values = lambda x, g: (of_kernel(x, g), jax.lax.reduce_sum(g + 1, (0, 1, 2)))
    forward = lambda x, w: (convolve(x, w), jax.lax.reduce_sum(w, (0, 1, 2)))
    # The image depends on the sum.
    late = lambda x, g: of_kernel(x + jax.lax.reduce_sum(g, (0, 1, 2))[:32], g)
    assert count(forward, X, draw((3, 3, 32, 64))) == 0
    for fn in (other_axes, other_values, late):
        assert count(fn, X, G) == 0
    assert count(gradients, X.astype(jnp.float32), G.astype(jnp.float32)) == 0
    plain = jax.make_jaxpr(other_axes)(X, G)
    assert fuse_bias_gradients(plain) is plain


def test_derivatives_and_vmap():
    program = jaxpr_as_fun(rewritten(gradients, X, G))
    total = lambda f, x, g: sum(jnp.sum(y.astype(jnp.float32) ** 2) for y in f(x, g))
    for at in (0, 1):
        assert_near(
            *(jax.grad(functools.partial(total, f), argnums=at)(X, G) for f in (program, gradients))
        )
    many = jnp.stack([G, 2 * G])
    for got, wanted in zip(
        jax.vmap(program, in_axes=(None, 0))(X, many),
        jax.vmap(gradients, in_axes=(None, 0))(X, many),
        strict=True,
    ):
        assert_near(got, wanted)
    assert_near(program(X, G)[1], gradients(X, G)[1])


@pytest.mark.nan_expected
def test_infinities_and_nans_propagate_to_their_sums():
    g = G.at[3, 2, 1, 5].set(jnp.nan).at[0, 0, 0, 7].set(jnp.inf)
    _, bias = jax.jit(jaxpr_as_fun(rewritten(gradients, X, g)))(X, g)
    bias = np.asarray(bias, np.float32)
    assert np.isnan(bias[5]) and np.isposinf(bias[7])
    assert np.isfinite(np.delete(bias, [5, 7])).all()


def test_on_a_mesh_each_device_sums_its_part():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    x, g = draw((64, 9, 8, 32)), draw((64, 9, 8, 64), 1)
    spec = PartitionSpec("batch")
    # JAX reduces the gradient of the replicated kernel.
    mapped = jax.shard_map(
        lambda x, g: (of_kernel(x, g), jax.lax.psum(jax.lax.reduce_sum(g, (0, 1, 2)), "batch")),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=PartitionSpec(),
    )
    split = [jax.device_put(a, NamedSharding(mesh, spec)) for a in (x, g)]
    for fn in (gradients, mapped):
        assert count(fn, x, g) == 1
        program = jaxpr_as_fun(rewritten(fn, x, g))
        for got, wanted in zip(jax.jit(program)(*split), gradients(x, g), strict=True):
            assert_near(got, wanted)
