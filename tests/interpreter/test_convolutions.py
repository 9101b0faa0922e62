"""Convolutions, matrix products and windows, next to XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from interpreter.comparison import check
from meshflow.interpreter import build_plan
from meshflow.kernels import library
from meshflow.ops.nn import windows


def make(*shape):
    return np.random.RandomState(shape).randn(*shape).astype(np.float32)


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
CONVOLUTIONS = {
    "plain": (make(2, 7, 6, 3), make(3, 2, 3, 4), {"padding": "SAME"}),
    "pointwise": (make(2, 7, 6, 3), make(1, 1, 3, 4), {"padding": "VALID"}),
    "strided": (make(2, 9, 8, 3), make(3, 3, 3, 4), {"padding": "SAME", "window_strides": (2, 3)}),
    "dilated": (make(2, 9, 8, 3), make(3, 2, 3, 4), {"padding": "VALID", "rhs_dilation": (2, 3)}),
    "transposed": (
        make(2, 5, 4, 3),
        make(3, 3, 3, 4),
        {"padding": [(1, 2), (2, 1)], "lhs_dilation": (2, 3)},
    ),
    "cropped": (make(2, 7, 6, 3), make(2, 2, 3, 4), {"padding": [(-1, 2), (1, -2)]}),
    "cropped and dilated": (
        make(2, 5, 6, 3),
        make(2, 2, 3, 4),
        {"padding": [(-1, -2), (-3, 1)], "lhs_dilation": (2, 3)},
    ),
    "grouped": (make(2, 7, 6, 4), make(3, 3, 2, 6), {"padding": "SAME", "feature_group_count": 2}),
    "depthwise": (
        make(2, 7, 6, 4),
        make(3, 3, 1, 8),
        {"padding": "SAME", "feature_group_count": 4},
    ),
    "batch groups": (
        make(4, 7, 6, 3),
        make(3, 3, 3, 4),
        {"padding": "SAME", "batch_group_count": 2},
    ),
    "large window": (make(2, 7, 6, 3), make(6, 5, 3, 4), {"padding": "VALID"}),
    "channels first": (make(2, 3, 7, 6), make(4, 3, 3, 2), {"padding": "SAME", "layout": NCHW}),
    "one dimension": (
        make(2, 9, 3),
        make(3, 3, 4),
        {"padding": "SAME", "layout": ("NWC", "WIO", "NWC")},
    ),
    "three dimensions": (
        make(1, 4, 5, 6, 2),
        make(2, 3, 2, 2, 3),
        {"padding": "SAME", "layout": ("NDHWC", "DHWIO", "NDHWC")},
    ),
    "empty": (make(0, 7, 6, 3), make(3, 2, 3, 4), {"padding": "SAME"}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients(name):
    x, w, options = CONVOLUTIONS[name]
    options = {"window_strides": (1,) * (x.ndim - 2), **options}
    numbers = lax.conv_dimension_numbers(x.shape, w.shape, options.pop("layout", NHWC))
    convolve = lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=numbers, **options)

    def run(x, w):
        y, pullback = jax.vjp(convolve, x, w)
        half = [a.astype(jnp.bfloat16) for a in (x, w)]
        return y, pullback(jnp.cos(y)), convolve(*half)

    check(run, x, w, rtol=1e-4, atol=1e-4 if name == "empty" else 1e-2)


def test_products():
    a, b = make(2, 3, 4), make(2, 4, 5)

    def run(a, b):
        small = (a * 9).astype(np.int8)
        return [
            a @ b,
            a[0] @ b[0],
            a[0, 0] @ b[0],
            jnp.vdot(a, a),
            jnp.einsum("bij,bjk->kib", a, b),
            jnp.einsum("bij,ckj->bick", a, b.transpose(0, 2, 1)),
            jnp.tensordot(a, b, ([0, 2], [0, 1])),
            a[:, :0] @ b,
            a[:, :, :0] @ b[:, :0],
            a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16),
            lax.dot(
                a[0].astype(jnp.bfloat16),
                b[0].astype(jnp.bfloat16),
                preferred_element_type=np.float32,
            ),
            lax.dot_general(
                small, small, (((2,), (2,)), ((0,), (0,))), preferred_element_type=np.int32
            ),
            (a * 9).astype(np.int32) @ (b * 9).astype(np.int32),
            (a + 1j) @ (b - 2j),
        ]

    check(run, a, b, rtol=1e-5, atol=1e-5)


def test_products_of_groups_of_rows():
    x, w, sizes = make(7, 3), make(3, 3, 4), np.array([2, 0, 3], np.int32)
    loss = lambda x, w, sizes: jnp.sum(jnp.sin(lax.ragged_dot(x, w, sizes)))
    check(lambda *xs: (lax.ragged_dot(*xs), jax.grad(loss, (0, 1))(*xs)), x, w, sizes, rtol=1e-5)


WINDOWS = [
    windows.Windows((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4),
    windows.Windows((1, 3, 2, 1), (1, 2, 1, 1), ((0, 0), (1, 1), (0, 1), (0, 0)), (1,) * 4),
    windows.Windows((1, 2, 3, 1), (1, 1, 2, 1), ((0, 0), (1, 0), (2, 0), (0, 0)), (1, 2, 1, 1)),
    windows.Windows((1, 7, 6, 1), (1, 1, 1, 1), ((0, 0),) * 4, (1,) * 4),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "block"), [("float32", 16), ("bfloat16", 1 << 14)])
def test_windows(window, dtype, block, monkeypatch):
    monkeypatch.setattr("meshflow.interpreter.windows.BLOCK_SIZE", block)
    x = make(2, 7, 6, 3)
    x[0, 2, 2, 0] = np.nan
    size, strides, pads, dilations = window
    options = {"window_strides": strides, "padding": pads, "window_dilation": dilations}

    def run(x):
        found = [
            lax.reduce_window(x, np.asarray(start, x.dtype), combine, size, **options)
            for start, combine in ((-np.inf, lax.max), (np.inf, lax.min), (0.0, lax.add))
        ]
        found.append(
            lax.reduce_window(
                x, np.asarray(0, x.dtype), lambda a, b: a + b + a * b, size, **options
            )
        )
        found += [windows.max_windows(x, window), windows.sum_windows(x, window)]
        found.append(jax.grad(lambda x: jnp.sum(jnp.cos(windows.max_windows(x, window))))(x))
        if max(dilations) == 1:
            largest = lambda x: lax.reduce_window(
                x, np.asarray(-np.inf, x.dtype), lax.max, size, strides, pads
            )
            found.append(jax.grad(lambda x: jnp.sum(jnp.sin(largest(x))))(jnp.nan_to_num(x)))
            found.append(jax.jvp(largest, (jnp.nan_to_num(x),), (jnp.cos(x),))[1])
        return found

    # XLA adds 16-bit floats in another order, and rounds each sum.
    check(run, x.astype(jnp.dtype(dtype)), rtol=1e-4, atol=0.2 if dtype == "bfloat16" else None)


@pytest.mark.parametrize(
    ("padding", "dilation"), [(((1, 0), (-1, 2)), (2, 3)), (((-1, 1), (0, 0)), (1, 1))]
)
def test_maxima_with_negative_padding_and_base_dilation(padding, dilation):
    x = make(3, 5)
    options = {"window_strides": (1, 2), "padding": padding, "base_dilation": dilation}
    check(lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, (2, 3), **options), x)


def test_sequences_of_varying_lengths_need_no_code_for_each(monkeypatch):
    kernel = make(5, 32, 64)
    numbers = ("NWC", "WIO", "NWC")

    def differentiate(x, w):
        convolve = lambda x, w: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=numbers
        )
        y, pullback = jax.vjp(convolve, x, w)
        return y, *pullback(jnp.tanh(y))

    size = jax.export.symbolic_shape("n")[0]
    specs = [jax.ShapeDtypeStruct((4, size, 32), "float32"), kernel]
    plan = build_plan(jax.make_jaxpr(differentiate)(*specs))
    operands = [[make(4, length, 32), kernel] for length in (30, 41)]
    expected = [jax.jit(differentiate)(*arrays) for arrays in operands]
    monkeypatch.setattr(library, "load", lambda: pytest.fail("oneDNN is not needed"))
    for arrays, results in zip(operands, expected, strict=True):
        for a, b in zip(plan.run(arrays), results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
