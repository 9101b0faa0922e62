"""Convolutions divided among devices, with all their gradients, against one device."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capabilities import needs
from helpers import combine
from meshflow.kernels.partitioning import ImageWindow

CASES = {
    "same": {},
    "strided": {"strides": (2, 2)},
    "valid": {"padding": "VALID", "size": 5},
    "dilated": {"dilation": (2, 1)},
    "wide kernel": {"size": 7, "shape": (4, 8, 8, 4)},
    "one to one": {"size": 1, "strides": (2, 1)},
    "explicit": {"padding": ((2, 1), (0, 3))},
    "transposed": {"spread": (2, 2)},
    "odd transposed": {"spread": (2, 3), "size": 2, "padding": ((1, 1), (1, 2))},
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4, "strides": (2, 2)},
    "odd result": {"shape": (4, 6, 10, 4), "strides": (2, 2)},
}
SPLITS = [
    (P("a", "b"), P()),
    (P(None, "a", "b"), P()),
    (P(None, "a"), P(None, None, None, "b")),
    (P("a", None, None, "b"), P(None, None, "b")),
    (P(None, ("a", "b")), P()),
    (P(None, None, None, "a"), P(None, None, None, "a")),
]


def convolution(x, k, strides=(1, 1), padding="SAME", dilation=(1, 1), spread=(1, 1), groups=1):
    if padding == "SAME" and spread != (1, 1):
        padding = ((1, 2), (1, 2))
    return jax.lax.conv_general_dilated(
        x,
        k,
        strides,
        padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


@pytest.mark.parametrize("name", CASES)
def test_division_changes_no_result(name):
    options = dict(CASES[name])
    size, shape = options.pop("size", 3), options.pop("shape", (4, 8, 12, 4))
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype("float32")
    k = rng.normal(size=(size, size, 4 // options.get("groups", 1), 8)).astype("float32") / size
    weight = rng.normal(size=jax.eval_shape(lambda: convolution(x, k, **options)).shape)

    @jax.jit
    def step(x, k):
        y, pullback = jax.vjp(lambda x, k: convolution(x, k, **options), x, k)
        return (y, *pullback(jnp.asarray(weight, "float32") * jnp.cos(y)))

    expected = step(x, k)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    for left, right in SPLITS:
        sizes = dict(mesh.shape)
        parts = [np.prod([sizes[a] for a in np.atleast_1d(e) if a]) for e in left]
        if any(n % p for n, p in zip(shape, parts, strict=False)):
            continue
        if options.get("groups", 1) > 1 and right == P(None, None, "b"):
            continue
        found = step(
            jax.device_put(x, NamedSharding(mesh, left)),
            jax.device_put(k, NamedSharding(mesh, right)),
        )
        for f, e, what in zip(found, expected, ("result", "image", "kernel"), strict=True):
            np.testing.assert_allclose(f, e, rtol=2e-5, atol=5e-5, err_msg=f"{what} {left} {right}")


@needs("oneDNN")
@pytest.mark.parametrize(("channels", "dtype"), combine([8, 64], ["float32", "bfloat16"]))
@pytest.mark.parametrize(
    "size",
    [
        *((16, 16), (10, 6)),
        pytest.param((6, 14), marks=pytest.mark.optimized),
        pytest.param((4, 4), marks=pytest.mark.isa),
    ],
    ids=str,
)
def test_split_images_are_bitwise_equal(size, channels, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, *size, channels)), dtype)
    k = jnp.asarray(rng.normal(size=(3, 3, channels, 2 * channels)), dtype)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    step = jax.jit(convolution)
    expected = np.asarray(step(x, k))
    for spec in (P(None, "a", "b"), P(None, "a"), P("a", None, "b")):
        split = jax.device_put(x, NamedSharding(mesh, spec))
        compiled = step.lower(split, k).compile()
        result = compiled(split, k)
        assert np.asarray(result).tobytes() == expected.tobytes(), spec
        if min(size) > 4:
            assert result.sharding.is_equivalent_to(split.sharding, 4)
            text = compiled.as_text()
            assert "collective-permute" in text and "all-gather" not in text


@needs("oneDNN")
@pytest.mark.isa
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("padding", [(4, 4), (3, 3), (0, 4)], ids=str)
def test_split_images_are_bitwise_equal_with_wide_padding(padding, channels):
    """Test wide padding, beside which oneDNN sums in another order, or has other code for the
    parts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 12, 16, channels)).astype("float32")
    k = rng.normal(size=(5, 5, channels, 24)).astype("float32")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    step = jax.jit(lambda x, k: convolution(x, k, padding=(padding, padding)))
    expected = np.asarray(step(x, k))
    for spec in (P(None, "a", "b"), P(None, None, "b"), P("a", "b")):
        found = np.asarray(step(jax.device_put(x, NamedSharding(mesh, spec)), k))
        assert found.tobytes() == expected.tobytes(), spec


@pytest.mark.isa
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size, stride", [(3, 2), (4, 2), (5, 3)])
def test_split_images_are_bitwise_equal_with_dilation(size, stride, dtype):
    """Test dilation: oneDNN's order of sums depends on the padding at the ends, which differs
    between a part and the full image."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 16, 12, 3)), dtype)
    k = jnp.asarray(rng.normal(size=(size, size, 3, 8)), dtype)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    numbers = ("NHWC", "HWIO", "NHWC")
    step = jax.jit(
        lambda x, k: jax.lax.conv_transpose(x, k, (stride,) * 2, "SAME", dimension_numbers=numbers)
    )
    expected = np.asarray(step(x, k))
    for spec in (P(None, "a", "b"), P("a", "b")):
        found = np.asarray(step(jax.device_put(x, NamedSharding(mesh, spec)), k))
        assert found.tobytes() == expected.tobytes(), spec


@pytest.mark.optimized
@pytest.mark.parametrize("size", [12, 16, 20])
def test_stacked_convolutions_of_indivisible_sizes_are_bitwise_equal(size):
    """Strides and missing padding lead to parts of odd sizes, and to sizes that 4 does not divide."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, size, 8, 64)).astype("float32")
    k = rng.normal(size=(3, 3, 64, 64)).astype("float32") / 24
    mesh = Mesh(np.array(jax.devices()), ("a",))

    @jax.jit
    def step(x, k):
        y = convolution(x, k)
        y = convolution(jax.nn.relu(y), k, padding="VALID")
        y = convolution(jax.nn.relu(y), k, strides=(2, 2))
        return convolution(jax.nn.relu(y), k)

    split = jax.device_put(x, NamedSharding(mesh, P(None, "a")))
    np.testing.assert_array_equal(step(split, k), step(x, k))


@pytest.mark.parametrize("features", [8, 16])
@pytest.mark.parametrize("groups", [4, 8])
def test_groups_are_divided_among_devices(groups, features):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8, 8, 8)).astype("float32")
    k = rng.normal(size=(3, 3, 8 // groups, features)).astype("float32")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))

    @jax.jit
    def step(x, k):
        y, pullback = jax.vjp(lambda x, k: convolution(x, k, groups=groups), x, k)
        return (y, *pullback(jnp.cos(y)))

    for spec in (P(None, None, None, ("a", "b")), P("a", None, None, "b"), P(None, "a", None, "b")):
        parts = (
            jax.device_put(x, NamedSharding(mesh, spec)),
            jax.device_put(k, NamedSharding(mesh, P(None, None, None, spec[3]))),
        )
        found = step(*parts)
        for f, e in zip(found, step(x, k), strict=True):
            np.testing.assert_allclose(f, e, rtol=2e-5, atol=5e-5)
        assert "all-gather" not in step.lower(*parts).compile().as_text()


@pytest.mark.parametrize("size", [8, 12])
def test_windows_contain_the_inputs_of_the_plain_sum(size):
    for parts, kernel, step, gap, pad, spread in itertools.product(
        (2, 4), (1, 2, 3, 5), (1, 2), (1, 2), (-1, 0, 1, 2), (1, 2)
    ):
        length = (size - 1) * spread + 1
        result = (length + 2 * pad - (kernel - 1) * gap - 1) // step + 1
        if result < 1 or result % parts:
            continue
        window = ImageWindow(size, parts, (result, step), (kernel, gap), pad, spread)
        if window.halos is None:
            continue
        before, after = window.halos
        own = size // parts
        for part in range(parts):
            first = window.find_start(part)
            places = range(first, first + window.length)
            rows = [p // spread for p in places if p % spread == 0 and 0 <= p < length]
            assert all(part * own - before <= r < (part + 1) * own + after for r in rows)
