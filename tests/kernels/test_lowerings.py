"""Compare convolutions and products of oneDNN with float64 results of XLA."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capabilities import needs
from meshflow.kernels import descriptors, library, lowerings, sizes

pytestmark = needs("oneDNN")
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}


@pytest.fixture(autouse=True, params=["inline", "team"])
def every_size(monkeypatch, request):
    """oneDNN for every size, by the calling thread or by a team of threads."""
    monkeypatch.setattr(sizes, "MIN_PRODUCT_WORK", 0)
    monkeypatch.setattr(sizes, "MIN_CONVOLUTION_WORK", 0)
    monkeypatch.setattr(sizes, "VECTOR_WORK", math.inf)
    monkeypatch.setattr(sizes, "MAX_INLINE_WORK", math.inf if request.param == "inline" else -1)


def calls(function, *arrays):
    """Count the handler calls of a compiled function."""
    return in_program(jax.jit(function).lower(*arrays))


def in_program(lowered):
    return lowered.as_text().count("meshflow_onednn")


def close(got, wanted, dtype, scale=None):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    scale = np.abs(wanted).max() + 1e-3 if scale is None else scale
    np.testing.assert_allclose(got / scale, wanted / scale, atol=TOLERANCE[dtype])


def conv(x, w, strides, padding, dilation=None, groups=1, transposed=None):
    spatial = "DHW"[-(x.ndim - 2) :]
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    return jax.lax.conv_general_dilated(
        x, w, strides, padding, lhs_dilation=transposed, rhs_dilation=dilation,
        dimension_numbers=numbers, feature_group_count=groups,
    )  # fmt: skip


CASES = {
    "1d": ((2, 17, 8), (3, 8, 16), {"strides": (1,), "padding": "SAME"}),
    "2d": ((2, 9, 9, 8), (3, 3, 8, 16), {"strides": (1, 1), "padding": "SAME"}),
    "3d": ((2, 5, 6, 7, 4), (3, 3, 3, 4, 8), {"strides": (1, 1, 1), "padding": "VALID"}),
    "strides": ((2, 9, 10, 8), (3, 3, 8, 16), {"strides": (2, 3), "padding": "SAME"}),
    "uneven": ((1, 10, 10, 3), (3, 3, 3, 5), {"strides": (4, 4), "padding": "VALID"}),
    "padding": ((1, 8, 8, 4), (3, 2, 4, 6), {"strides": (1, 2), "padding": ((2, 0), (1, 3))}),
    "dilation": (
        (2, 12, 12, 4),
        (3, 3, 4, 6),
        {"strides": (1, 1), "padding": "SAME", "dilation": (2, 3)},
    ),
    "groups": ((2, 8, 8, 8), (3, 3, 2, 12), {"strides": (1, 1), "padding": "SAME", "groups": 4}),
    "strided groups": (
        (2, 9, 9, 8),
        (3, 3, 4, 6),
        {"strides": (2, 2), "padding": "SAME", "groups": 2},
    ),
    "depthwise": (
        (2, 8, 8, 16),
        (3, 3, 1, 16),
        {"strides": (1, 1), "padding": "SAME", "groups": 16},
    ),
    "wide depthwise": (
        (2, 9, 21, 40),
        (5, 7, 1, 40),
        {"strides": (1, 1), "padding": "SAME", "groups": 40},
    ),
    "strided depthwise": (
        (3, 11, 20, 24),
        (5, 4, 1, 24),
        {"strides": (2, 1), "padding": "SAME", "groups": 24},
    ),
    # In bfloat16, oneDNN's gradient of this kernel is wrong.
    "dilated depthwise": (
        (2, 20, 33, 24),
        (3, 3, 1, 24),
        {"strides": (1, 1), "padding": "SAME", "dilation": (2, 2), "groups": 24},
    ),
    "depthwise row": (
        (2, 150, 16),
        (9, 1, 16),
        {"strides": (1,), "padding": "SAME", "dilation": (2,), "groups": 16},
    ),
    "transposed": (
        (2, 5, 5, 8),
        (3, 3, 8, 4),
        {"strides": (1, 1), "padding": ((1, 2), (1, 2)), "transposed": (2, 2)},
    ),
    "uneven transposed": (
        (2, 5, 4, 8),
        (4, 3, 8, 4),
        {"strides": (1, 1), "padding": ((2, 3), (0, 1)), "transposed": (3, 2)},
    ),
    "narrow result": ((2, 9, 11, 24), (5, 5, 24, 1), {"strides": (1, 1), "padding": "SAME"}),
    "narrow image": ((2, 9, 8, 3), (4, 6, 3, 40), {"strides": (2, 3), "padding": "SAME"}),
    "narrow row": (
        (2, 19, 48),
        (9, 48, 4),
        {"strides": (2,), "padding": ((7, 3),), "dilation": (2,)},
    ),
    # Without AVX-512, products of overlapping windows.
    "row of one channel": ((3, 1900, 1), (80, 1, 20), {"strides": (3,), "padding": "SAME"}),
    "dilated row of one channel": (
        (2, 70, 1),
        (9, 1, 33),
        {"strides": (2,), "padding": ((11, 2),), "dilation": (3,)},
    ),
    "pointwise": ((2, 8, 8, 16), (1, 1, 16, 32), {"strides": (1, 1), "padding": "VALID"}),
}


def all_of(case):
    """Return a new function of image, kernel and cotangent that computes a convolution and both
    gradients, and its arguments."""
    x_shape, w_shape, settings_ = CASES[case]
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=x_shape), rng.normal(size=w_shape)

    def function(x, w, g):
        y, pullback = jax.vjp(lambda x, w: conv(x, w, **settings_), x, w)
        return y, *pullback(g)

    y_shape = jax.eval_shape(lambda x, w: conv(x, w, **settings_), x, w).shape
    return function, (x, w, rng.normal(size=y_shape))


@functools.cache
def in_float64(case):
    """Return the same function compiled for float64, whose program does not depend on size
    thresholds."""
    function, arrays = all_of(case)
    lowered = jax.jit(function).lower(*arrays)
    assert in_program(lowered) == 0
    return lowered.compile()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients(case, dtype):
    function, arrays = all_of(case)
    # NumPy converts them without a program for each shape.
    low = [np.asarray(a, jnp.dtype(dtype)) for a in arrays]
    lowered = jax.jit(function).lower(*low)
    assert in_program(lowered) == 3
    exact = in_float64(case)(*[np.asarray(a, np.float64) for a in low])
    for got, wanted in zip(lowered.compile()(*low), exact, strict=True):
        assert got.dtype == dtype
        close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("left,right", list(itertools.product(("mk", "km"), ("kn", "nk"))))
@pytest.mark.parametrize("batch", ["", "b", "bc"])
def test_products_in_every_orientation(rng, batch, left, right, dtype):
    sizes = {"b": 3, "c": 2, "m": 7, "k": 24, "n": 10}
    equation = f"{batch}{left},{batch}{right}->{batch}mn"
    a, b = (
        jnp.asarray(rng.normal(size=[sizes[i] for i in batch + part]), dtype)
        for part in (left, right)
    )

    product = jax.jit(lambda a, b: jnp.einsum(equation, a, b)).lower(a, b)
    assert in_program(product) == 1
    exact = np.einsum(equation, np.asarray(a, np.float64), np.asarray(b, np.float64))
    close(product.compile()(a, b), exact, dtype)


@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,kn->mn", "bkm,bkn->bmn"])
@pytest.mark.parametrize("rows", [6, 83, 512])
def test_products_of_rows_in_the_same_sets_of_a_cache(rng, equation, rows):
    sizes = {"b": 2, "m": rows, "k": 400, "n": 512}
    left, right = equation.split("->")[0].split(",")
    a, b = (
        jnp.asarray(rng.normal(size=[sizes[i] for i in part]), "float32") for part in (left, right)
    )
    product = jax.jit(lambda a, b: jnp.einsum(equation, a, b))
    exact = np.einsum(equation, np.asarray(a, np.float64), np.asarray(b, np.float64))
    close(product(a, b), exact, "float32")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_general_product(data):
    """Test free, batch and contracted dimensions in any order; interleaved ones use XLA."""
    letters = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    other = data.draw(st.lists(st.sampled_from("cdefgh"), min_size=1, max_size=4, unique=True))
    out = [i for i in dict.fromkeys((*letters, *other)) if data.draw(st.booleans())]
    sizes = {i: data.draw(st.integers(1, 4), label=i) for i in "abcdefgh"}
    rng = np.random.default_rng(0)
    a = rng.normal(size=[sizes[i] for i in letters]).astype("float32")
    b = rng.normal(size=[sizes[i] for i in other]).astype("float32")
    equation = f"{''.join(letters)},{''.join(other)}->{''.join(out)}"
    got = jax.jit(lambda a, b: jnp.einsum(equation, a, b))(a, b)
    close(got, np.einsum(equation, a.astype("f8"), b.astype("f8")), "float32")


def test_second_derivatives(rng):
    x, w = rng.normal(size=(1, 6, 6, 3)), rng.normal(size=(3, 3, 3, 4))

    def twice(x, w):
        def loss(x, w):
            return (conv(x, w, (1, 1), "SAME") ** 3).sum()

        return jax.grad(lambda x, w: (jax.grad(loss, 1)(x, w) ** 2).sum())(x, w)

    low = [jnp.asarray(a, "float32") for a in (x, w)]
    assert calls(twice, *low) >= 4
    close(
        jax.jit(twice)(*low), jax.jit(twice)(*(np.asarray(a, np.float64) for a in low)), "float32"
    )


def test_under_vmap_and_forward_mode(rng):
    x = jnp.asarray(rng.normal(size=(3, 2, 6, 6, 4)), "float32")
    w = jnp.asarray(rng.normal(size=(3, 3, 3, 4, 8)), "float32")
    both = jax.jit(jax.vmap(lambda x, w: conv(x, w, (1, 1), "SAME")))(x, w)
    for i in range(3):
        close(both[i], conv(*(a[i].astype("float64") for a in (x, w)), (1, 1), "SAME"), "float32")
    one = x[0], w[0]

    def slope(x, w):
        return jax.jvp(lambda w: conv(x, w, (1, 1), "SAME"), (w,), (w,))[1]

    close(
        jax.jit(slope)(*one), jax.jit(slope)(*(np.asarray(a, np.float64) for a in one)), "float32"
    )


def test_sharded_programs_compute_on_local_shapes(rng):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("batch",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    x = jnp.asarray(rng.normal(size=(4, 6, 6, 4)), "float32")
    w = jnp.asarray(rng.normal(size=(3, 3, 4, 8)), "float32")

    def plain(x, w):
        return conv(x, w, (1, 1), "SAME")

    wanted = plain(x.astype("float64"), w.astype("float64"))
    close(jax.jit(plain)(jax.device_put(x, split), w), wanted, "float32")
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
        plain, mesh=mesh, in_specs=(spec("batch"), spec()), out_specs=spec("batch")
    )
    assert calls(mapped, x, w) == 1
    close(jax.jit(mapped)(x, w), wanted, "float32")


def test_sum_of_columns_is_a_product(rng):
    x = jnp.asarray(rng.normal(size=(4, 8, 8, 16)), "bfloat16")

    def sums(x):
        return jax.lax.reduce_sum_p.bind(x, axes=(0, 1, 2), out_sharding=None)

    assert calls(sums, x) == 1
    close(jax.jit(sums)(x), np.asarray(x, np.float64).sum((0, 1, 2)), "bfloat16")


def test_turning_a_kernel_round(rng):
    x = jnp.asarray(rng.normal(size=(3, 2, 4, 5)), "float32")
    got = jax.jit(lambda x: jax.lax.rev(x, (0, 1)))(x)
    np.testing.assert_array_equal(got, np.asarray(x)[::-1, ::-1])


def test_empty_arrays_use_xla():
    x, w = jnp.zeros((0, 6, 6, 3)), jnp.zeros((3, 3, 3, 4))
    assert jax.jit(lambda x, w: conv(x, w, (1, 1), "SAME"))(x, w).shape == (0, 6, 6, 4)
    assert jax.jit(jnp.matmul)(jnp.zeros((0, 4)), jnp.zeros((4, 5))).shape == (0, 5)


def test_a_descriptor_that_does_not_fit_is_an_error(rng):
    x = jnp.asarray(rng.normal(size=(4, 4)), "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match="the descriptor is too short"):
        lowerings.call_handler([3, 2, 4], (x, x), jax.ShapeDtypeStruct((4, 4), "float32"))
    descriptor = [3, 2, *(8, 4, 4, 1), *(4, 4, 4, 1), *(8, 4, 4, 1), 0, 0, 0]
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="operand 0 is smaller than its descriptor says"
    ):
        lowerings.call_handler(descriptor, (x, x), jax.ShapeDtypeStruct((8, 4), "float32"))


@needs("AVX-512")  # without it, oneDNN has no code for bfloat16
def test_depthwise_gradients_of_bfloat16_skip_slow_code():
    """Test strides of two, for which oneDNN's first choice took 50 times as long as float32 code."""
    image, result = (descriptors.make_view((16, side, side, 96), (0, 3, 1, 2)) for side in (32, 16))
    kernel = descriptors.split_groups(descriptors.make_view((3, 3, 1, 96), (3, 2, 0, 1)), 96)
    code = descriptors.describe_convolution(
        descriptors.INPUT_GRADIENT, 96, image, kernel, result, (2, 2), (1, 1), (0, 0)
    )
    name = library.load().find_implementation(code, ["bfloat16"] * 3)
    assert "_strided" not in name
