"""The gradient of a convolution's kernel on matrix tiles, against the same in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capabilities import needs
from meshflow.cli import doctor

pytestmark = needs("AMX tiles")

# Image, kernel, strides, dilations, padding.
CASES = {
    "plain": ((32, 8, 8, 32), (3, 3, 32, 32), (1, 1), (1, 1), "SAME"),
    "channels that fill half a pair of tiles": (
        (32, 9, 7, 48),
        (3, 3, 48, 80),
        (1, 1),
        (1, 1),
        "SAME",
    ),
    "strides": ((32, 12, 13, 32), (3, 3, 32, 64), (2, 3), (1, 1), "SAME"),
    "dilations": ((32, 12, 12, 32), (3, 3, 32, 64), (1, 1), (2, 3), "SAME"),
    "strides and dilations": ((32, 17, 13, 32), (3, 2, 32, 32), (3, 2), (2, 1), "SAME"),
    "no padding, two groups of images": ((64, 10, 10, 32), (3, 3, 32, 32), (1, 1), (1, 1), "VALID"),
    "a batch that leaves images out": ((61, 8, 8, 32), (3, 3, 32, 32), (1, 1), (1, 1), "SAME"),
    "uneven padding": ((32, 8, 8, 32), (3, 3, 32, 32), (1, 1), (1, 1), ((2, 0), (0, 1))),
    "a large kernel": ((32, 20, 20, 64), (7, 7, 64, 64), (2, 2), (1, 1), "SAME"),
    "strides larger than the kernel": (
        (32, 13, 13, 32),
        (2, 2, 32, 32),
        (3, 3),
        (1, 1),
        "VALID",
    ),
    "places of the result that meet none of the image": (
        (32, 6, 4, 32),
        (3, 3, 32, 32),
        (1, 1),
        (1, 1),
        ((1, 1), (19, 11)),
    ),
    "several blocks": ((32, 6, 6, 224), (3, 3, 224, 288), (1, 1), (1, 1), "SAME"),
}


def gradient(x, y, kernel, strides, dilations, padding):
    def forward(w):
        return jax.lax.conv_general_dilated(
            x, w, strides, padding, rhs_dilation=dilations, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )  # fmt: skip

    return jax.vjp(forward, jnp.zeros(kernel, x.dtype))[1](y)[0]


@pytest.mark.parametrize("name", CASES)
def test_result_equals_float64_sums(name):
    image, kernel, strides, dilations, padding = CASES[name]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal(image), jnp.bfloat16)
    shape = jax.eval_shape(
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, strides, padding, rhs_dilation=dilations, dimension_numbers=("NHWC", "HWIO", "NHWC")
        ), x, jnp.zeros(kernel, x.dtype),
    ).shape  # fmt: skip
    y = jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
    run = jax.jit(lambda x, y: gradient(x, y, kernel, strides, dilations, padding))
    got, wanted = run(x, y), run(np.asarray(x, np.float64), np.asarray(y, np.float64))
    assert got.dtype == jnp.bfloat16
    # The sums are exact but for the last rounding, to eight bits.
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8, atol=1e-3)


@pytest.mark.nan_expected
def test_infinities_and_nans_propagate():
    x = jnp.ones((32, 8, 8, 32), jnp.bfloat16).at[3, 4, 4, 5].set(jnp.nan)
    y = jnp.ones((32, 8, 8, 32), jnp.bfloat16).at[0, 0, 0, 7].set(jnp.inf)
    got = gradient(x, y, (3, 3, 32, 32), (1, 1), (1, 1), "SAME").astype(np.float32)
    assert np.isnan(got[:, :, 5, :]).all() and not np.isnan(got[:, :, 6, :7]).any()
    assert np.isinf(got[1, 1, 6, 7]) and np.isfinite(got[:, :, 6, 8:]).all()


def test_doctor_names_the_kernel():
    assert doctor.find_implementations()["its kernel gradient"]["bfloat16"].startswith(
        "meshflow:amx"
    )
