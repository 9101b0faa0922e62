"""Convolutions in bfloat16 on matrix tiles, against the same in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow import kernels
from meshflow.cli import doctor
from meshflow.kernels import lowerings, plans
from meshflow.kernels.library import Library

pytestmark = pytest.mark.skipif(
    not isinstance(kernels.status(), Library) or "amx_bf16" not in doctor.instruction_sets(),
    reason="no matrix tiles here",
)

# Image, kernel, strides, dilations, padding.
CASES = {
    "plain": ((2, 16, 16, 32), (3, 3, 32, 32), (1, 1), (1, 1), "SAME"),
    "a row of two images": ((3, 8, 8, 64), (3, 3, 64, 32), (1, 1), (1, 1), "SAME"),
    "a row that ends in a tile": ((1, 7, 21, 64), (3, 3, 64, 64), (1, 1), (1, 1), "SAME"),
    "places of 16 images, not all there": ((17, 5, 3, 64), (3, 3, 64, 64), (1, 1), (1, 1), "VALID"),
    "channels and features that fill no block": (
        (2, 9, 9, 100),
        (3, 3, 100, 41),
        (1, 1),
        (1, 1),
        "SAME",
    ),
    "strides": ((3, 9, 11, 64), (3, 3, 64, 64), (2, 2), (1, 1), "SAME"),
    "strides of 16 images": ((16, 9, 3, 64), (3, 3, 64, 64), (1, 2), (1, 1), "SAME"),
    "dilations": ((2, 12, 13, 64), (3, 3, 64, 64), (1, 1), (2, 3), "SAME"),
    "uneven padding": ((2, 8, 8, 64), (3, 2, 64, 64), (1, 1), (1, 1), ((5, 0), (0, 4))),
    "several bands of rows": ((1, 70, 32, 128), (3, 3, 128, 32), (1, 1), (1, 1), "SAME"),
    "a kernel larger than the cache": ((2, 6, 6, 384), (3, 3, 384, 384), (1, 1), (1, 1), "SAME"),
}


def convolve(x, w, strides, dilations, padding):
    return jax.lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilations, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def operands(image, kernel):
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
    return draw(image), draw(kernel)


@pytest.mark.parametrize("name", CASES)
def test_it_and_its_gradient_equal_the_sums_in_float64(name):
    image, kernel, *how = CASES[name]
    x, w = operands(image, kernel)
    got, back = jax.vjp(lambda x: jax.jit(lambda x: convolve(x, w, *how))(x), x)
    wide = w.astype(jnp.float64)
    wanted, wanted_back = jax.vjp(lambda x: convolve(x, wide, *how), x.astype(jnp.float64))
    y = jnp.asarray(np.random.default_rng(1).standard_normal(got.shape), jnp.bfloat16)
    # The sums are exact but for the last rounding, to eight bits.
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8, atol=1e-2)
    (gradient,), (wanted_gradient,) = back(y), wanted_back(y.astype(jnp.float64))
    np.testing.assert_allclose(gradient.astype(np.float64), wanted_gradient, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_these_run_on_tiles(name):
    image, kernel, *how = CASES[name]
    x, w = operands(image, kernel)
    y = jax.eval_shape(lambda x, w: convolve(x, w, *how), x, w)
    (eqn,) = jax.make_jaxpr(lambda x, w: convolve(x, w, *how))(x, w).jaxpr.eqns
    plan = lowerings.convolution_plans(x, w, y, **lowerings.geometry(eqn.params))
    forward = next(p for p in plan if p[0] == plans.FORWARD)
    library = kernels.status()
    assert isinstance(library, Library)
    assert library.implementation(forward, ["bfloat16"] * 3) == "meshflow:amx"
    assert library.implementation(forward, ["bfloat16"] * 2 + ["float32"]) == "meshflow:amx"


@pytest.mark.nan_expected
def test_infinities_and_nans_arrive():
    x, w = jnp.ones((2, 8, 8, 32), jnp.bfloat16), jnp.ones((3, 3, 32, 32), jnp.bfloat16)
    x = x.at[0, 4, 4, 5].set(jnp.nan).at[1, 0, 0, 7].set(jnp.inf)
    got = convolve(x, w, (1, 1), (1, 1), "SAME").astype(np.float32)
    assert np.isnan(got[0, 3:6, 3:6]).all() and np.isnan(got[0]).sum() == 9 * 32
    assert np.isinf(got[1, :2, :2]).all() and np.isinf(got[1]).sum() == 4 * 32
