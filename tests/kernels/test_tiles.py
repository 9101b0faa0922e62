"""Convolutions in bfloat16 on matrix tiles, against the same in float64."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capabilities import needs
from meshflow import kernels
from meshflow.kernels import epilogues

pytestmark = needs("AMX tiles")

CODE = ("meshflow:amx", "meshflow:amx:emulated")

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


def convolve(x, w, kernel_layout, strides, dilations, padding):
    return jax.lax.conv_general_dilated(
        x,
        w,
        strides,
        padding,
        rhs_dilation=dilations,
        dimension_numbers=("NHWC", kernel_layout, "NHWC"),
    )


def on_tiles(x, w, *how, epilogue="relu_mask", flipped=False):
    """Return the convolution with an epilogue without effect: a gate that is open everywhere."""
    (eqn,) = jax.make_jaxpr(lambda x, w: convolve(x, w, *how))(x, w.astype(x.dtype)).jaxpr.eqns
    gate = jnp.ones(eqn.outvars[0].aval.shape, x.dtype)
    operands = (x, w, gate) if epilogue == "relu_mask" else (x, w)
    parameters = {
        **eqn.params,
        "epilogue": (epilogue,) if epilogue else (),
        "flipped": flipped,
        "packed": False,
    }
    code = epilogues.plan_convolution(operands, gate, parameters)
    types = [t.name for t in (*code.types, code.out)]
    if kernels.status().find_implementation(code.descriptor, types) not in CODE:
        return None
    return jax.jit(epilogues.choose_convolution(operands, gate, parameters))(*operands)


def draw(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.bfloat16)


# A kernel with contiguous input channels belongs to the gradient of an image.
@pytest.mark.parametrize("layout", ["HWIO", "HWOI"])
@pytest.mark.parametrize("name", CASES)
def test_result_equals_float64_sums(name, layout):
    image, kernel, *how = CASES[name]
    x, w = draw(0, image), draw(1, kernel)
    if layout == "HWOI":
        w = jnp.swapaxes(w, 2, 3)
    got = on_tiles(x, w, layout, *how)
    wanted = convolve(x.astype(jnp.float64), w.astype(jnp.float64), layout, *how)
    # The sums are exact but for the last rounding, to eight bits.
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8, atol=1e-2)


@settings(max_examples=int(os.environ.get("MESHFLOW_TEST_EXAMPLES", "8")), deadline=None)
@given(st.data())
def test_any_geometry_equals_the_sums_in_float64(data):
    pair = lambda *of: tuple(data.draw(st.sampled_from(of)) for _ in range(2))
    batch, size = data.draw(st.sampled_from([1, 2, 3, 7, 15, 17, 33])), pair(*range(1, 14))
    channels = data.draw(st.sampled_from([32, 64, 96, 100, 131]))
    features = data.draw(st.sampled_from([32, 33, 63, 65, 98]))
    taps, strides, dilations = pair(2, 3, 4), pair(1, 1, 2, 3), pair(1, 1, 2)
    layout = data.draw(st.sampled_from(["HWIO", "HWOI"]))
    how = (layout, strides, dilations, (pair(0, 1, 2, 4), pair(0, 1, 2, 4)))
    x = draw(0, (batch, *size, channels))
    w = draw(1, (*taps, *((channels, features) if layout == "HWIO" else (features, channels))))
    assume(all(jax.eval_shape(lambda x, w: convolve(x, w, *how), x, w).shape))
    got = on_tiles(x, w, *how)
    wanted = convolve(x.astype(jnp.float64), w.astype(jnp.float64), *how)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("layout", ["HWIO", "HWOI"])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_are_read_in_either_layout(dtype, flipped, layout):
    how = ((1, 1), (1, 1), ((1, 1), (0, 1)))
    x = draw(0, (2, 9, 8, 64))
    w = jnp.asarray(np.random.default_rng(1).standard_normal((3, 2, 64, 70)), dtype)
    if layout == "HWOI":
        w = jnp.swapaxes(w, 2, 3)
    rounded = w.astype(jnp.bfloat16)
    got = on_tiles(x, w, layout, *how, flipped=flipped)
    wanted = on_tiles(x, rounded[::-1, ::-1] if flipped else rounded, layout, *how)
    np.testing.assert_array_equal(np.asarray(got, "f4"), np.asarray(wanted, "f4"))


def test_tiles_are_chosen_if_faster():
    how = ("HWIO", (1, 1), (1, 1), "SAME")
    for channels, taken in ((64, False), (256, True)):
        x, w = draw(0, (2, 8, 8, channels)), draw(1, (3, 3, channels, 64))
        assert (on_tiles(x, w, *how, epilogue=None) is not None) == taken
        assert on_tiles(x, w, *how, epilogue="relu") is not None


@pytest.mark.nan_expected
def test_infinities_and_nans_propagate():
    x, w = jnp.ones((2, 8, 8, 32), jnp.bfloat16), jnp.ones((3, 3, 32, 32), jnp.bfloat16)
    x = x.at[0, 4, 4, 5].set(jnp.nan).at[1, 0, 0, 7].set(jnp.inf)
    got = on_tiles(x, w, "HWIO", (1, 1), (1, 1), "SAME").astype(np.float32)
    assert np.isnan(got[0, 3:6, 3:6]).all() and np.isnan(got[0]).sum() == 9 * 32
    assert np.isinf(got[1, :2, :2]).all() and np.isinf(got[1]).sum() == 4 * 32
