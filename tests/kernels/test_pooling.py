"""Test that the kernels' maxima of overlapping windows equal XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.beside_xla import needs
from meshflow.interpreter import build_plan
from meshflow.kernels import library, lowerings, pooling
from meshflow.ops.nn.windows import Windows, _gradient_primitive, max_windows

pytestmark = needs(library.POOLING)


@pytest.fixture(autouse=True, scope="module")
def _every_size():
    saved = pooling.MIN_ELEMENTS, pooling.MIN_CHANNELS
    pooling.MIN_ELEMENTS, pooling.MIN_CHANNELS = 0, 1
    yield
    pooling.MIN_ELEMENTS, pooling.MIN_CHANNELS = saved


def compute_maximum_and_gradient(x, windows):
    """A maximum and the gradient of its image for numbers that bfloat16 adds exactly."""
    y, pullback = jax.vjp(lambda x: max_windows(x, windows), x)
    g = (jnp.arange(y.size) % 5 - 2).astype(y.dtype).reshape(y.shape)
    return y, pullback(g)[0]


def calls(function, *arrays):
    return jax.jit(lambda *a: function(*a)).lower(*arrays).as_text().count("@meshflow_pooling")


def by_xla(function, *arrays):
    loaded, library.load = library.load, lambda: None
    try:
        program = jax.jit(lambda *a: function(*a)).lower(*arrays)
        assert "meshflow_pooling" not in program.as_text()
        return program.compile()(*arrays)
    finally:
        library.load = loaded


def assert_equals_xla(function, *arrays):
    """Check that compiled programs and the interpreter compute what XLA does."""
    compiled = jax.jit(lambda *a: function(*a))(*arrays)
    interpreted = build_plan(jax.make_jaxpr(function)(*arrays)).run([np.array(a) for a in arrays])
    for *found, expected in zip(compiled, interpreted, by_xla(function, *arrays), strict=True):
        for got in found:
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(got, "f4"), np.asarray(expected, "f4"))


def image(shape, dtype="float32"):
    # Few different numbers, so that windows have several maxima.
    return jnp.asarray(np.random.default_rng(1).integers(-3, 4, shape), dtype)


def spatial(size, strides, pads=None, dilations=None):
    rank = len(size)
    pads, dilations = pads or ((0, 0),) * rank, dilations or (1,) * rank
    return Windows((1, *size, 1), (1, *strides, 1), ((0, 0), *pads, (0, 0)), (1, *dilations, 1))


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(["float32", "bfloat16"]))
def test_any_windows(data, dtype):
    rank = data.draw(st.integers(1, 3))

    def each(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(rank))

    size, strides = each(1, 4 if rank < 3 else 3), each(1, 3)
    pads = tuple((data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(rank))
    windows = spatial(size, strides, pads, each(1, 2))
    shape = (data.draw(st.integers(1, 3)), *each(1, 8), data.draw(st.integers(1, 9)))
    assume(0 not in windows.compute_grid(shape))
    assert_equals_xla(lambda x: compute_maximum_and_gradient(x, windows), image(shape, dtype))


WINDOWS = spatial((3, 3), (2, 2), ((1, 1), (0, 1)))


@pytest.mark.parametrize("dtype,count", [("float32", 1), ("bfloat16", 2)])
def test_kernels_serve_overlapping_windows_and_16_bit_tiles(dtype, count):
    x = image((2, 7, 8, 16), dtype)
    assert calls(lambda x: compute_maximum_and_gradient(x, WINDOWS), x) == count
    tiles = 0 if dtype == "float32" else 2
    assert (
        calls(
            lambda x: compute_maximum_and_gradient(x, spatial((2, 2), (2, 2))),
            image((2, 8, 8, 16), dtype),
        )
        == tiles
    )
    assert calls(lambda x: compute_maximum_and_gradient(x, WINDOWS), x.astype("float16")) == 0
    assert calls(lambda x: compute_maximum_and_gradient(x, WINDOWS), x.astype("float64")) == 0


@pytest.mark.nan_expected
def test_tiles_of_16_bits():
    tiles = spatial((2, 2), (2, 2))
    x = image((2, 6, 8, 16), "bfloat16").at[0, 2, 3, :4].set(jnp.nan).at[1].set(-jnp.inf)
    assert_equals_xla(lambda x: compute_maximum_and_gradient(x, tiles), x)
    assert_equals_xla(
        jax.vmap(lambda x: compute_maximum_and_gradient(x, tiles)),
        image((3, 2, 6, 8, 9), "bfloat16"),
    )
    x = image((2, 6, 8, 16), "bfloat16")
    slopes = jax.grad(lambda x: jnp.sum(max_windows(x, tiles) ** 3))
    assert_equals_xla(lambda x: (jax.grad(lambda x: jnp.sum(slopes(x) ** 2))(x),), x)


def test_channels_first_and_windows_over_batches():
    x = image((2, 8, 7, 7), "bfloat16")
    assert_equals_xla(
        lambda x: compute_maximum_and_gradient(
            x, Windows((1, 1, 3, 3), (1, 1, 2, 2), ((0, 0),) * 4, (1,) * 4)
        ),
        x,
    )
    assert_equals_xla(
        lambda x: compute_maximum_and_gradient(
            x, Windows((2, 1, 3, 1), (1, 1, 2, 1), ((0, 0),) * 4, (1,) * 4)
        ),
        x,
    )


@pytest.mark.nan_expected
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_propagates_through_pooling(dtype):
    x = np.asarray(image((1, 7, 7, 8))).copy()
    x[0, 2, 3, :4] = np.nan
    x[0, 3:6, 3:6, 5] = -np.inf
    x[0, 5, 5, 6] = np.inf
    assert_equals_xla(lambda x: compute_maximum_and_gradient(x, WINDOWS), jnp.asarray(x, dtype))
    y = jax.jit(lambda x: max_windows(x, WINDOWS))(jnp.asarray(x, dtype))
    assert np.isnan(np.asarray(y, "f4")).any()


def test_under_vmap_and_in_second_derivatives():
    x = image((3, 2, 7, 6, 8))
    for axis in (0, 2):
        assert_equals_xla(
            jax.vmap(lambda x: compute_maximum_and_gradient(x, WINDOWS), axis),
            jnp.moveaxis(x, 0, axis),
        )

    def slopes(x):
        return jax.grad(lambda x: jnp.sum(max_windows(x, WINDOWS) ** 3))(x)

    assert_equals_xla(lambda x: (jax.grad(lambda x: jnp.sum(slopes(x) ** 2))(x),), x[0])
    assert_equals_xla(lambda g: jax.vmap(lambda g: jax.vjp(lambda x: max_windows(x, WINDOWS), x[0])[1](g))(g),
         image((4, *max_windows(x[0], WINDOWS).shape)))  # fmt: skip


def test_sharded_programs():
    spec = jax.sharding.PartitionSpec("batch")
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    x = image((4, 7, 6, 8))

    def run(x):
        y, pullback = jax.vjp(lambda x: max_windows(x, WINDOWS), x)
        return y, pullback(y)[0]

    mapped = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    assert calls(mapped, x) == 1
    placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    for function in (run, mapped):
        for got, wanted in zip(jax.jit(function)(placed), by_xla(run, x), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_shardings_in_types_are_preserved():
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = image((4, 7, 6, 8))
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.sharding.PartitionSpec("batch"))
        y, dx = jax.jit(jax.value_and_grad(lambda x: jnp.sum(max_windows(x, WINDOWS) ** 2)))(placed)
        assert jax.typeof(dx).sharding.spec[0] == "batch"
    wanted = by_xla(jax.value_and_grad(lambda x: jnp.sum(max_windows(x, WINDOWS) ** 2)), x)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(dx, wanted[1])


@pytest.mark.nan_expected
@pytest.mark.parametrize("windows", [WINDOWS, spatial((2, 2), (2, 2))])
def test_the_gradient_of_a_relu_in_front_is_taken_in(windows):
    gated = pooling.GATED_GRADIENTS[_gradient_primitive]
    x = image((2, 6, 8, 19), "bfloat16").at[0, 2, 3, :4].set(jnp.nan).at[0, 4, 4, 2].set(jnp.inf)
    y = max_windows(x, windows)
    g = (jnp.arange(y.size) % 5 - 2).astype(y.dtype).reshape(y.shape)
    run = lambda primitive: lambda *arrays: (primitive.bind(*arrays, windows=windows),)
    program = jax.jit(run(gated)).lower(x, y, g)
    assert "meshflow_gated_pooling" in program.as_text()
    (got,), (plain,) = program.compile()(x, y, g), run(_gradient_primitive)(x, y, g)
    np.testing.assert_array_equal(np.asarray(got, "f4"), np.where(x > 0, plain, 0).astype("f4"))


def test_a_descriptor_that_does_not_fit_is_an_error():
    x = image((2, 7, 8, 16), "bfloat16")
    good = pooling.describe_windows(x.shape, WINDOWS)
    out = jax.ShapeDtypeStruct(WINDOWS.compute_grid(x.shape), "bfloat16")

    def run(descriptor, *arrays):
        return lowerings.call_handler(descriptor, arrays, out, library.POOLING)

    run(good, x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the descriptor is too short"):
        run(good[:-1], x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand 0 is smaller"):
        run([4, *good[1:]], x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a size of nothing"):
        run([*good[:2], 0, *good[3:]], x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="different types"):
        run(good, x.astype("float32"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="another number of operands"):
        run(good, x, x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_gets_no_gradient_from_windows_of_negative_infinity(stride, dtype):
    places = -(-5 // stride)
    total = max((places - 1) * stride + 3 - 5, 0)
    pad = (total // 2, total - total // 2)
    windows = Windows((1, 3, 3, 1), (1, stride, stride, 1), ((0, 0), pad, pad, (0, 0)), (1,) * 4)
    x = jnp.full((2, 5, 5, 16), -jnp.inf, dtype)

    def gradient(x):
        y, pullback = jax.vjp(lambda x: max_windows(x, windows), x)
        return pullback(jnp.ones_like(y))[0]

    firsts = [max(i * stride - pad[0], 0) for i in range(places)]
    expected = np.zeros((5, 5))
    for row in firsts:
        for column in firsts:
            expected[row, column] += 1
    for found in (jax.jit(gradient)(x), by_xla(gradient, x)):
        assert (np.asarray(found, "f4") == expected[None, :, :, None]).all()
