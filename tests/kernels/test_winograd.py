"""Float32 convolutions with 3 x 3 kernels by Winograd's filtering, against the same in float64."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capabilities import needs
from meshflow import kernels
from meshflow.cli import doctor
from meshflow.kernels import lowerings

pytestmark = needs("AVX2")

# Image, features, padding.
CASES = {
    "even sizes": ((6, 8, 8, 64), 64, "SAME"),
    "odd sizes": ((5, 7, 9, 64), 96, "SAME"),
    "a panel that is half empty": ((11, 6, 6, 80), 112, "SAME"),
    "no padding": ((12, 6, 9, 64), 64, "VALID"),
    "one row is left": ((20, 3, 12, 64), 64, "VALID"),
    "uneven padding": ((5, 8, 8, 64), 64, ((2, 0), (0, 3))),
    "padding wider than a tile": ((4, 5, 5, 64), 64, ((4, 4), (5, 2))),
    "few tiles": ((32, 2, 2, 64), 160, "SAME"),
    "several blocks": ((2, 16, 16, 160), 192, "SAME"),
}


def convolve(x, w, padding):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=numbers)


def everything(x, w, padding):
    """The result, and the gradients of half the sum of its squares."""
    y, back = jax.vjp(lambda x, w: convolve(x, w, padding), x, w)
    return y, *back(y)


def serving(x, w, padding):
    """The name of the code that computes the convolution."""
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    counts = ("feature_group_count", "batch_group_count")
    (equation,) = jax.make_jaxpr(lambda x, w: convolve(x, w, padding))(x, w).eqns
    geometry = {name: equation.params[name] for name in (*names, *counts)}
    (descriptor, *_) = lowerings.list_convolution_descriptors(
        x, w, equation.outvars[0].aval, **geometry
    )
    return kernels.status().find_implementation(descriptor, ("float32",) * 3)


def operands(image, features):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((3, 3, image[-1], features)) / np.sqrt(9 * image[-1])
    return jnp.asarray(rng.standard_normal(image), "float32"), jnp.asarray(kernel, "float32")


@pytest.mark.isa
@pytest.mark.parametrize("name", CASES)
def test_result_equals_float64_sums(name):
    image, features, padding = CASES[name]
    x, w = operands(image, features)
    assert serving(x, w, padding) == "meshflow:winograd"
    run = jax.jit(lambda x, w: everything(x, w, padding))
    got, wanted = run(x, w), run(np.asarray(x, np.float64), np.asarray(w, np.float64))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=4e-6 * np.abs(b).max())


def test_gradients_of_gradients():
    x, w = operands((11, 6, 6, 64), 64)

    def second(x, w):
        inner = jax.grad(lambda x, w: (convolve(x, w, "SAME") ** 2).sum(), (0, 1))
        return jax.grad(lambda x, w: sum((g**2).sum() for g in inner(x, w)), (0, 1))(x, w)

    wanted = jax.jit(second)(np.asarray(x, np.float64), np.asarray(w, np.float64))
    for a, b in zip(jax.jit(second)(x, w), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


PROGRAM = """
import hashlib, sys
sys.path[:0] = [{folder!r}, {above!r}]
from test_winograd import everything, operands
import jax
found = jax.jit(lambda x, w: everything(x, w, "SAME"))(*operands((4, 9, 9, 128), 128))
print(hashlib.sha256(b"".join(bytes(jax.device_get(a)) for a in found)).hexdigest())
"""


def test_the_same_bits_with_any_number_of_threads():
    program = PROGRAM.format(
        folder=os.path.dirname(__file__), above=os.path.dirname(os.path.dirname(__file__))
    )
    environment = {**os.environ, "MESHFLOW_CACHE_DIR": "", "XLA_FLAGS": ""}
    seen = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, env={**environment, "NPROC": threads},
        ).stdout
        for threads in ("1", "2")
    ]  # fmt: skip
    assert len(seen[0]) > 60 and seen[0] == seen[1]


def test_doctor_names_the_kernel():
    assert doctor.find_implementations()["convolution"]["float32"] == "meshflow:winograd"
    assert doctor.find_implementations()["its kernel gradient"]["float32"] == "meshflow:winograd"
