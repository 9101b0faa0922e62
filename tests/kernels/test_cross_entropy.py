"""Test that the kernel's cross entropy equals its definition, with derivatives of any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshflow as tf
from kernels.beside_xla import needs
from meshflow.kernels import cross_entropy, library
from meshflow.ops.nn.cross_entropy import _compute_negative_log

compiled = needs(library.CROSS_ENTROPY)


@pytest.fixture(autouse=True, scope="module")
def _every_size():
    saved, cross_entropy.MIN_ELEMENTS = cross_entropy.MIN_ELEMENTS, 0
    yield
    cross_entropy.MIN_ELEMENTS = saved


RNG = np.random.default_rng(0)
# More than one part per row, and a last part that is smaller than a vector.
X = jnp.asarray(RNG.standard_normal((6, 1037)) * 5, jnp.float32)
INDEX = jnp.asarray([0, 1036, 5, 1023, 1024, 5])
WEIGHTS = jnp.asarray([1.0, -2.0, 0.5, 0.0, 3.0, 1.0], jnp.float32)


def compute_definition(x, index):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), index[..., None], -1)[..., 0]


def total(function, x):
    return (function(x, INDEX) * WEIGHTS.astype(x.dtype)).sum()


def square_slope(function):
    return jax.grad(lambda x: (jax.grad(function)(x) ** 2).sum())


def forward(function):
    return lambda x: jax.jvp(function, (x,), (jnp.cos(x),))[1]


TRANSFORMS = {
    "values": lambda f: f,
    "gradient": jax.grad,
    "gradient of a gradient": square_slope,
    "forward": forward,
    "forward of a gradient": lambda f: forward(jax.grad(f)),
    "gradient of a tangent": lambda f: jax.grad(forward(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_are_those_of_the_definition(transform):
    of = TRANSFORMS[transform]
    got = jax.jit(of(functools.partial(total, _compute_negative_log)))(X)
    wanted = jax.jit(of(functools.partial(total, compute_definition)))(np.asarray(X, np.float64))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5 * np.abs(wanted).max())


@compiled
def test_the_handler_runs_for_loss_and_gradient():
    step = jax.jit(jax.value_and_grad(functools.partial(total, _compute_negative_log)))
    assert step.lower(X).as_text().count("@meshflow_cross_entropy") == 2
    many = jax.jit(jax.vmap(_compute_negative_log, in_axes=(1, None))).lower(X[:, None] * 2, INDEX)
    assert many.as_text().count("@meshflow_cross_entropy") == 1


@compiled
def test_exponentials_are_exact_to_the_last_digits():
    shift = jnp.linspace(-110, 0, 4001, dtype=jnp.float32)
    rows = jnp.stack([jnp.zeros_like(shift), shift], 1)
    one = jnp.ones(len(shift), jnp.float32)
    _, high, _ = cross_entropy.compute_losses(rows, jnp.zeros(len(shift), jnp.int32))
    slope = cross_entropy.gradient_p.bind(
        *(rows, jnp.zeros(len(shift), jnp.int32), high, 0 * high, one),
        dtype=np.dtype("float32"),
        result=np.dtype("float32"),
    )[:, 1]
    wanted = np.where(shift < -87.3, 0, np.exp(np.asarray(shift, np.float64)))
    np.testing.assert_allclose(slope, wanted, rtol=2.5e-7, atol=0)


@pytest.mark.nan_expected
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_propagates_and_infinite_logits_have_no_weight(dtype):
    x = np.array(X)
    x[0, 7], x[1, 1], x[2, :4], x[3] = np.nan, np.inf, -np.inf, -np.nan
    x = jnp.asarray(x, dtype)
    both = jax.jit(jax.value_and_grad(functools.partial(total, _compute_negative_log)))
    slope = np.asarray(both(x)[1], np.float32)
    assert np.isnan(slope[[0, 1, 3]]).all()
    assert not np.isnan(slope[[2, 4, 5]]).any() and (slope[2, :4] == 0).all()
    assert np.isnan(both(x)[0])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_use_xla(dtype):
    both = jax.jit(jax.value_and_grad(functools.partial(total, _compute_negative_log)))
    x = np.asarray(X, dtype)
    assert "meshflow_cross_entropy" not in both.lower(x).as_text()
    got, wanted = both(x)[1], jax.jit(jax.grad(functools.partial(total, compute_definition)))(X)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, atol=1e-2)


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: None)
    both = jax.jit(jax.value_and_grad(lambda x: total(_compute_negative_log, x)))
    assert "meshflow_cross_entropy" not in both.lower(X).as_text()
    np.testing.assert_allclose(
        both(X)[1], jax.grad(functools.partial(total, compute_definition))(X), atol=2e-6
    )


def test_on_a_mesh():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    rows = PartitionSpec("batch")
    split = jax.device_put(X, NamedSharding(mesh, rows))
    slope = lambda x, i: jax.grad(lambda x: _compute_negative_log(x, i).sum())(x)
    mapped = jax.shard_map(slope, mesh=mesh, in_specs=(rows, rows), out_specs=rows)
    wanted = jax.grad(lambda x: compute_definition(x, INDEX).sum())(X)
    for function in (slope, mapped):
        np.testing.assert_allclose(jax.jit(function)(split, INDEX), wanted, atol=2e-6)


def test_logits_in_16_bits_are_converted_on_the_way():
    @tf.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            tape.watch(x)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(x, tf.float32))
        return losses, tape.gradient(losses, x)

    x = tf.constant(np.asarray(X), tf.bfloat16)
    losses, slope = step(x, tf.constant(INDEX))
    assert losses.dtype == tf.float32 and slope.dtype == tf.bfloat16
    exact = jnp.asarray(x.numpy(), jnp.float64)
    np.testing.assert_allclose(losses.numpy(), compute_definition(exact, INDEX), rtol=1e-6)
    wanted = jax.grad(lambda x: compute_definition(x, INDEX).sum())(exact)
    np.testing.assert_allclose(slope.numpy().astype(np.float64), wanted, rtol=5e-3, atol=1e-30)
