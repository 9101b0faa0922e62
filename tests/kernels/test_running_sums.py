"""Running sums by the kernels' one pass are those of exact numbers, along any dimension, either way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import needs
from meshflow.kernels import library, running_sums

pytestmark = needs(library.RUNNING_SUMS)


@pytest.fixture(autouse=True)
def _every_size(monkeypatch):
    monkeypatch.setattr(running_sums, "MIN_ELEMENTS", 0)


def program(axis, reverse, x):
    return jax.jit(lambda x: jax.lax.cumsum(x, axis, reverse)).lower(x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "shape, axis",
    [((1,), 0), ((7, 5), 1), ((300,), 0), ((5, 130), 0), ((9, 40, 200), 1), ((6, 3, 1), 1)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums(shape, axis, reverse, dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    lowered = program(axis, reverse, x)
    assert "meshflow_running_sums" in lowered.as_text()
    found = lowered.compile()(x)
    exact = np.asarray(x, np.float64)
    exact = (
        np.flip(np.cumsum(np.flip(exact, axis), axis), axis) if reverse else np.cumsum(exact, axis)
    )
    # Rounded once.
    np.testing.assert_array_equal(
        np.asarray(found), np.asarray(jnp.asarray(exact.astype("f4"), dtype))
    )


def test_many_small_numbers_are_accumulated():
    x = jnp.full([1 << 20], 0.1, jnp.float32)
    last = program(0, False, x).compile()(x)[-1]
    np.testing.assert_allclose(last, np.float64(np.float32(0.1)) * (1 << 20), rtol=1e-7)


def test_other_types_and_small_arrays_use_xla(monkeypatch):
    for dtype in ("int32", "float16", "float64"):
        assert "meshflow" not in program(0, False, jnp.ones([64], dtype)).as_text()
    monkeypatch.undo()
    assert "meshflow" not in program(0, False, jnp.ones([64])).as_text()
    assert "meshflow" not in program(0, False, jnp.ones([0, 4])).as_text()


def test_gradients_and_loops_over_examples():
    x = jnp.arange(12.0, dtype=jnp.float32).reshape(3, 4)
    weights = jnp.asarray([1.0, 2.0, 3.0, 4.0], jnp.float32)
    found = jax.jit(jax.vmap(jax.grad(lambda row: (jnp.cumsum(row) * weights).sum())))(x)
    np.testing.assert_array_equal(found, [[10.0, 9.0, 7.0, 4.0]] * 3)


def test_by_the_public_name():
    x = tf.ones([2, 5000])
    found = tf.cumsum(x, axis=1, exclusive=True, reverse=True)
    np.testing.assert_array_equal(found, [np.arange(5000)[::-1]] * 2)
