"""Convolutions and products with an epilogue against the same in float64."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capabilities import needs
from meshflow.kernels import epilogues

pytestmark = needs("oneDNN")

STEPS = {
    "scaled, shifted, rectified": ("add", "scale", "add", "relu"),
    "what skips layers": ("scale", "plus", "relu"),
    "a gradient's gate": ("plus", "relu_mask"),
    "GELU": ("add", "gelu"),
    "GELU by tanh": ("gelu_tanh",),
}
# Image, kernel, stride, groups.
IMAGES = {
    "places": ((5, 21, 19, 40), (1, 1, 40, 41), 1, 1),
    "strides": ((7, 25, 23, 32), (1, 1, 32, 48), 2, 1),
    "windows": ((6, 31, 30, 3), (5, 5, 3, 24), 2, 1),
    "each channel alone": ((6, 20, 20, 48), (3, 3, 1, 48), 1, 48),
}
GELU = jax.jit(jax.nn.gelu, static_argnames="approximate")
TOLERANCES = {"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}


def draw(seed, shape, dtype, scale=1.0):
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype)


def reads(steps, shape, dtype):
    """Return the operands of the steps."""
    shapes = {"add": shape[-1:], "scale": shape[-1:], "plus": shape, "relu_mask": shape}
    return [draw(i + 9, shapes[step], dtype) for i, step in enumerate(steps) if step in shapes]


def exactly(y, steps, operands):
    """The steps in float64."""
    left = iter(np.asarray(a, np.float64) for a in operands)
    for step in steps:
        other = next(left) if step in ("add", "scale", "plus", "relu_mask") else 0
        if step == "scale":
            y = y * other
        elif step in ("add", "plus"):
            y = y + other
        elif step == "relu_mask":
            y = np.where(other > 0, y, 0)
        elif step == "relu":
            y = np.maximum(y, 0)
        else:
            y = np.asarray(GELU(y, approximate=step == "gelu_tanh"))
    return y


def convolve(x, w, stride, groups):
    return jax.lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def run_fused(x, w, how, steps, others):
    (eqn,) = jax.make_jaxpr(lambda x, w: convolve(x, w, *how))(x, w.astype(x.dtype)).jaxpr.eqns
    parameters = {**eqn.params, "epilogue": steps, "flipped": False, "packed": False}
    call = lambda *operands: epilogues.convolution_p.bind(*operands, **parameters)
    return jax.jit(call)(x, w, *others)


def product(x, w, steps, others):
    (eqn,) = jax.make_jaxpr(jnp.matmul)(x, w).jaxpr.eqns
    parameters = {**eqn.params, "epilogue": steps}
    call = epilogues.choose_product((x, w, *others), eqn.outvars[0].aval, parameters)
    return None if call is None else jax.jit(call)(x, w, *others)


def assert_close(got, wanted, dtype):
    limit = TOLERANCES[dtype]
    np.testing.assert_allclose(
        np.asarray(got, np.float64), wanted, rtol=limit, atol=limit * np.abs(wanted).max()
    )


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions_equal_the_sums_in_float64(dtype, name, steps):
    image, kernel, *how = IMAGES[name]
    x, w = draw(0, image, dtype), draw(1, kernel, dtype, 0.2)
    exact = np.asarray(convolve(*(np.asarray(a, np.float64) for a in (x, w)), *how))
    others = reads(STEPS[steps], exact.shape, dtype)
    got = run_fused(x, w, how, STEPS[steps], others)
    assert got.dtype == dtype
    assert_close(got, exactly(exact, STEPS[steps], others), dtype)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_products_equal_the_sums_in_float64(dtype, steps):
    rows = 512 * os.cpu_count() + 3
    x, w = draw(0, (rows, 72), dtype), draw(1, (72, 41), dtype, 0.2)
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    others = reads(STEPS[steps], exact.shape, dtype)
    got = product(x, w, STEPS[steps], others)
    if got is None:
        pytest.skip("oneDNN has no fast code for this here")
    assert_close(got, exactly(exact, STEPS[steps], others), dtype)
    np.testing.assert_array_equal(got, product(x, w, STEPS[steps], others))


def test_a_kernel_in_float32_is_rounded_on_the_way():
    x, w = draw(0, (8, 24, 24, 32), "bfloat16"), draw(1, (1, 1, 32, 32), "float32")
    got = run_fused(x, w, (1, 1), ("relu",), [])
    wanted = run_fused(x, w.astype("bfloat16"), (1, 1), ("relu",), [])
    np.testing.assert_array_equal(np.asarray(got, "f4"), np.asarray(wanted, "f4"))


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_is_accurate_for_small_results(approximate):
    x = np.linspace(-12, 12, 4096 * 16).reshape(-1, 16).astype("float32")
    step = "gelu_tanh" if approximate else "gelu"
    got = product(jnp.asarray(x), jnp.eye(16, dtype="float32"), (step,), [])
    if got is None:
        pytest.skip("oneDNN has no fast code for this here")
    wanted = np.asarray(jax.nn.gelu(x.astype("float64"), approximate=approximate))
    # The square in an exponent has the relative error of its size.
    near = np.abs(x) < 4
    np.testing.assert_allclose(np.asarray(got)[near], wanted[near], rtol=5e-6, atol=1e-9)
    # Far from zero 1 + tanh has no digits left in float64 either.
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-14 if approximate else 1e-30)


@pytest.mark.nan_expected
def test_nan_propagates_through_epilogues():
    x = jnp.ones((4096, 32), "float32").at[5, 0].set(jnp.nan).at[7, 0].set(-jnp.inf)
    for step in ("relu", "gelu", "gelu_tanh"):
        got = product(x, jnp.ones((32, 32), "float32"), (step,), [])
        if got is None:
            pytest.skip("oneDNN has no fast code for this here")
        assert np.isnan(got[5]).all() and not np.isnan(got[:5]).any()
        assert step != "relu" or (np.asarray(got[7]) == 0).all()


def test_small_products_use_onednn():
    w = draw(1, (256, 256), "float32")
    assert product(draw(0, (64, 256), "float32"), w, ("relu",), []) is None


def test_steps_after_a_convolution_of_onednn_are_those_of_xla():
    x, w = draw(0, (1, 9, 9, 64), "float32"), draw(1, (1, 1, 64, 64), "float32")
    (eqn,) = jax.make_jaxpr(lambda x, w: convolve(x, w, 1, 1))(x, w).jaxpr.eqns
    parameters = {**eqn.params, "epilogue": ("scale", "relu"), "flipped": False, "packed": False}
    operands, out = (x, w, w[0, 0, 0]), eqn.outvars[0].aval
    code = epilogues.plan_convolution(operands, out, parameters)
    assert code is not None and code.remaining_epilogue == ("scale", "relu")
    got = jax.jit(epilogues.choose_convolution(operands, out, parameters))(*operands)
    exact = np.asarray(convolve(x.astype("float64"), w.astype("float64"), 1, 1))
    assert_close(got, np.maximum(exact * np.asarray(w[0, 0, 0], np.float64), 0), "float32")


def test_lone_bias_is_added_by_the_consumer():
    x, w = draw(0, (4096, 64), "float32"), draw(1, (64, 64), "float32")
    assert product(x, w, ("add",), [w[0]]) is None
