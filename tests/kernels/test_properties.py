"""Test that convolutions and products of any geometry equal XLA's (MESHFLOW_KERNELS=xla)."""

import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import capabilities
from helpers import combine
from kernels.beside_xla import needs
from meshflow.kernels import cross_entropy, library, sizes
from meshflow.ops.nn.cross_entropy import _compute_negative_log

pytestmark = capabilities.needs("oneDNN")
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
EXAMPLES = int(os.environ.get("MESHFLOW_TEST_EXAMPLES", "12"))
thorough = settings(max_examples=EXAMPLES, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def _every_size():
    """oneDNN for every size: the smaller ones by the calling thread, the others by a team."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "MIN_PRODUCT_WORK", 0)
        patch.setattr(sizes, "MIN_CONVOLUTION_WORK", 0)
        patch.setattr(sizes, "VECTOR_WORK", math.inf)
        patch.setattr(sizes, "MAX_INLINE_WORK", 1 << 14)
        yield


def by_xla(function, *arrays):
    """The function compiled as under MESHFLOW_KERNELS=xla."""
    loaded, library.load = library.load, lambda: None
    try:
        program = jax.jit(lambda *a: function(*a)).lower(*arrays)
        assert "meshflow_onednn" not in program.as_text()
        return program.compile()(*arrays)
    finally:
        library.load = loaded


def assert_equals_xla(function, *arrays):
    """Both ways of compiling a function agree."""
    found = jax.jit(lambda *a: function(*a))(*arrays)
    wanted = by_xla(function, *arrays)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        got, want = np.asarray(got, "f8"), np.asarray(want, "f8")
        scale = max(float(np.abs(want).max(initial=0)), 1.0)
        tolerance = TOLERANCE[str(jax.tree.leaves(wanted)[0].dtype)]
        np.testing.assert_allclose(got / scale, want / scale, atol=tolerance)


def numbers(seed, shape, dtype):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def with_gradients(function):
    """The function's value and its gradients for a fixed gradient of the value."""

    def run(x, w):
        y, pullback = jax.vjp(function, x, w)
        g = jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape).astype(y.dtype)
        return y, *pullback(g)

    return run


@st.composite
def convolutions(draw, empty=False):
    """A convolution's arrays and arguments: any layout, groups, strides, dilations and padding."""
    rank = draw(st.integers(1, 3))

    def per_dimension(low, high):
        return [draw(st.integers(low, high)) for _ in range(rank)]

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    batch_groups = draw(st.sampled_from([1, 1, 2])) if groups == 1 else 1
    least = 0 if empty else 1
    batch = batch_groups * draw(st.integers(least, 2))
    inside, outside = draw(st.integers(least, 5)), draw(st.integers(1, 4)) * batch_groups
    size, window = per_dimension(least, 7), per_dimension(1, 4)
    x_shape = [batch, groups * inside, *size]
    w_shape = [groups * outside, inside, *window]
    spatial = range(2, rank + 2)
    orders = [(0, *spatial, 1), (*spatial, 1, 0), (0, *spatial, 1)]
    if draw(st.integers(0, 3)) == 3:
        orders = [draw(st.permutations(range(rank + 2))) for _ in range(3)]
    transposed = draw(st.integers(0, 2)) == 2
    pad = st.sampled_from([0, 0, 1, 2, 3, -1])
    specs = [tuple(order.index(i) for i in range(rank + 2)) for order in orders]
    arguments = {
        "window_strides": [1] * rank if transposed else per_dimension(1, 3),
        "padding": [(draw(pad), draw(pad)) for _ in range(rank)],
        "lhs_dilation": per_dimension(1, 3) if transposed else [1] * rank,
        "rhs_dilation": per_dimension(1, 2),
        "dimension_numbers": jax.lax.ConvDimensionNumbers(*specs),
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
    }
    return [x_shape[i] for i in orders[0]], [w_shape[i] for i in orders[1]], arguments


def checked(drawn, dtype):
    x_shape, w_shape, arguments = drawn

    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, **arguments)

    try:
        jax.eval_shape(conv, *(jax.ShapeDtypeStruct(s, dtype) for s in (x_shape, w_shape)))
    except (ValueError, TypeError):
        assume(False)
    assert_equals_xla(with_gradients(conv), numbers(1, x_shape, dtype), numbers(2, w_shape, dtype))


@thorough
@given(convolutions(), st.sampled_from(["float32", "float32", "bfloat16", "float16"]))
def test_any_convolution(drawn, dtype):
    checked(drawn, dtype)


@pytest.mark.parametrize(
    ("padding", "groups"), combine([(-2, 2), (-2, 1), (-1, 3), (-3, -1), (-9, 9)], [1, 2])
)
def test_convolutions_that_crop_the_image(groups, padding):
    """XLA's code reads memory behind the image, also for the gradient of wide padding."""
    x, w = (
        np.random.default_rng(0).normal(size=s) for s in ((2, 9, 3 * groups), (3, 3, 2 * groups))
    )
    low, high = padding
    padded = np.pad(x, ((0, 0), (0, max(high, 0)), (0, 0)))[:, -low : 9 + high]
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, 1)
    parts = [
        np.einsum("bnck,kco->bno", a, b)
        for a, b in zip(np.split(windows, groups, 2), np.split(w, groups, 2), strict=True)
    ]

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            *(x, w, (1,), [padding]),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )

    for dtype in TOLERANCE:
        arrays = jnp.asarray(x, dtype), jnp.asarray(w, dtype)
        for result in (jax.jit(lambda *a: convolve(*a))(*arrays), by_xla(convolve, *arrays)):
            want = np.concatenate(parts, -1)
            np.testing.assert_allclose(np.asarray(result, "f8"), want, atol=10 * TOLERANCE[dtype])


@settings(thorough, max_examples=max(EXAMPLES // 2, 1))
@given(convolutions(empty=True))
def test_convolutions_of_empty_arrays(drawn):
    checked(drawn, "float32")


@thorough
@given(st.data(), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_any_batched_product(data, dtype):
    """Batches, transpositions, vectors and empty dimensions."""
    size = st.integers(0, 6)
    batch = data.draw(st.lists(size, max_size=2))
    m, k, n = (data.draw(size) for _ in range(3))
    left, right = data.draw(st.booleans()), data.draw(st.booleans())

    def product(a, b):
        a, b = (jnp.swapaxes(v, -1, -2) if t else v for v, t in ((a, left), (b, right)))
        return a @ b

    a = numbers(1, [*batch, *((k, m) if left else (m, k))], dtype)
    b = numbers(2, [*batch, *((n, k) if right else (k, n))], dtype)
    assert_equals_xla(with_gradients(product), a, b)


def conv_2d(x, w):
    return jax.lax.conv_general_dilated(
        x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def product(x, w):
    return jnp.einsum("bhwc,xyck->bhwyk", x, w)


@pytest.mark.parametrize("function", [conv_2d, product])
@pytest.mark.parametrize("batched", [(0, 0), (0, None), (None, 0), (3, 1)])
def test_under_vmap(function, batched):
    x, w = ([*s] for s in ((2, 5, 7, 3), (3, 2, 3, 4)))
    for shape, axis in zip((x, w), batched, strict=True):
        if axis is not None:
            shape.insert(axis, 3)
    mapped = jax.vmap(with_gradients(function), batched)
    assert_equals_xla(mapped, numbers(1, x, "float32"), numbers(2, w, "float32"))


@pytest.mark.parametrize("function", [conv_2d, product])
def test_gradients_of_gradients(function):
    def second(x, w):
        def loss(x, w):
            return jnp.sum(jnp.tanh(function(x, w)) ** 2)

        def slopes(x, w):
            return sum(jnp.sum(g**2) for g in jax.grad(loss, (0, 1))(x, w))

        return jax.grad(slopes, (0, 1))(x, w)

    assert_equals_xla(
        second, numbers(1, (2, 4, 5, 3), "float32"), numbers(2, (3, 2, 3, 4), "float32")
    )


@pytest.mark.parametrize("function", [conv_2d, product])
@pytest.mark.parametrize("axes", [("batch",), ("batch", "channels")])
def test_in_sharded_programs(function, axes):
    """Programs that XLA partitions, and shard_map over some or all axes of a mesh."""
    spec = jax.sharding.PartitionSpec
    mesh = jax.make_mesh(
        (2, 2), ("batch", "channels"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    x, w = numbers(1, (4, 5, 6, 3), "float32"), numbers(2, (3, 2, 3, 4), "float32")
    specs = spec("batch"), spec(None, None, None, "channels") if len(axes) == 2 else spec()
    out = spec(
        "batch", *(None,) * (2 if function is conv_2d else 3), specs[1][3] if specs[1] else None
    )
    placed = [
        jax.device_put(a, jax.sharding.NamedSharding(mesh, s))
        for a, s in zip((x, w), specs, strict=True)
    ]
    wanted = by_xla(with_gradients(function), x, w)

    def close(found):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5 * float(jnp.abs(want).max()))

    close(jax.jit(with_gradients(function))(*placed))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out)
    close(jax.jit(with_gradients(mapped))(*placed))
    close(with_gradients(mapped)(*placed))
    some = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(spec("batch"), spec()),
        out_specs=spec("batch"),
        axis_names={"batch"},
    )
    close(jax.jit(with_gradients(some))(*placed))


@needs(library.CROSS_ENTROPY)
@thorough
@given(st.data(), st.sampled_from(["float32", "float32", "bfloat16"]))
def test_any_cross_entropy(data, dtype):
    rows, classes = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 70))
    spread = data.draw(st.sampled_from([1.0, 30.0]))
    x = jnp.asarray(spread * np.asarray(numbers(3, (rows, classes), dtype), "f4"), dtype)
    index = jnp.asarray(np.random.default_rng(4).integers(0, classes, rows))

    def run(x):
        y, pullback = jax.vjp(lambda x: _compute_negative_log(x, index), x)
        return y, pullback(jnp.cos(jnp.arange(rows, dtype="float32")).astype(y.dtype))[0]

    saved, cross_entropy.MIN_ELEMENTS = cross_entropy.MIN_ELEMENTS, 0
    try:
        assert_equals_xla(run, x)
    finally:
        cross_entropy.MIN_ELEMENTS = saved
    compute = jax.jit(lambda x: -jax.nn.log_softmax(x)[np.arange(rows), index])
    wanted, found = compute(np.asarray(x, "f4")), np.asarray(jax.jit(run)(x)[0], "f4")
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * spread)
