"""Sums of 16-bit numbers accumulate in float32, as GPUs need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.wide_sums import widen_sums


def _bias_gradient(x, bias):
    return jax.grad(lambda b: ((x + b) * x).sum().astype(jnp.float32))(bias)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_gradient_of_a_bias_is_summed_in_float32(dtype):
    x, bias = jnp.full((4096, 8), 0.5, dtype), jnp.zeros(8, dtype)
    closed = jax.make_jaxpr(jax.jit(_bias_gradient))(x, bias)
    wide = widen_sums(closed)
    text = str(wide)
    assert "f32[8] = reduce_sum" in text and "f32[8] = reduce_sum" not in str(closed)
    (result,) = jex_core.jaxpr_as_fun(wide)(x, bias)
    assert result.dtype == dtype
    np.testing.assert_array_equal(np.asarray(result, np.float32), 2048.0)


def test_other_sums_remain():
    closed = jax.make_jaxpr(lambda x: x.sum(0))(jnp.ones((3, 2)))
    assert widen_sums(closed) is closed
