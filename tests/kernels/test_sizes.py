"""Test which code computes which sizes, and that small computations run on the calling thread."""

import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capabilities import needs
from meshflow.kernels import descriptors, sizes

pytestmark = needs("oneDNN")


def computations(function, *arrays):
    """The computations of the descriptors in a lowered program, with who runs them."""
    text = jax.jit(function).lower(*arrays).as_text()
    found = []
    for call in text.split("@meshflow_onednn(")[1:]:
        first = call.split("descriptor = ")[1].split(" : ")[0].removeprefix("dense<[").split(",")[0]
        found.append(int(first))
    return found


def array(rng, *shape, dtype="float32"):
    return jnp.asarray(rng.normal(size=shape), dtype)


TEAM, INLINE = descriptors.MATMUL, descriptors.MATMUL | descriptors.INLINE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape,wanted", [((32, 32, 32), []), ((64, 64, 64), [INLINE]), ((256, 256, 256), [TEAM])]
)
def test_a_products_size_decides(rng, shape, wanted, dtype):
    m, k, n = shape
    a, b = array(rng, m, k, dtype=dtype), array(rng, k, n, dtype=dtype)
    assert computations(jnp.matmul, a, b) == wanted

    def loop(a, b):
        return jax.lax.scan(lambda x, _: ((x @ b) * 0.1, None), a, None, length=3)[0]

    assert computations(loop, a, b) == wanted


def test_single_core_uses_one_thread(rng):
    a = array(rng, 256, 256)
    with sizes.single_core_scope():
        assert computations(lambda x, y: x @ y, a, a) == [INLINE]
    assert computations(lambda x, y: x @ y, a, a) == [TEAM]


def test_a_vectors_product_with_a_large_matrix_is_xlas(rng):
    matrix, narrow = array(rng, 512, 512), jnp.bfloat16
    vector = array(rng, 1, 512)
    assert computations(jnp.matmul, vector, matrix) == []
    assert computations(jnp.matmul, vector[:, :256], matrix[:256, :]) == [INLINE]
    assert computations(jnp.matmul, array(rng, 2, 512), matrix) == [INLINE]
    assert computations(jnp.matmul, vector.astype(narrow), matrix.astype(narrow)) == [INLINE]
    # The gradient of a matrix with few columns.
    turned = lambda x, g: jnp.einsum("km,kn->mn", x, g)
    assert computations(turned, matrix, array(rng, 512, 2)) == [INLINE]


@pytest.mark.parametrize(
    "size,channels,wanted",
    [
        (2, 4, []),
        (4, 4, [descriptors.FORWARD | descriptors.INLINE]),
        (64, 16, [descriptors.FORWARD]),
    ],
)
def test_a_convolutions_size_decides(rng, size, channels, wanted):
    x, w = array(rng, 1, size, size, channels), array(rng, 3, 3, channels, channels)
    assert computations(convolution, x, w) == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "rows,wanted",
    [
        (256, []),
        (512, [descriptors.SUMS | descriptors.INLINE]),
        (4096, [descriptors.SUMS]),
    ],
)
def test_a_sums_size_decides(rng, rows, wanted, dtype):
    total = lambda x: jax.lax.reduce_sum(x, (0,))
    assert computations(total, array(rng, rows, 256, dtype=dtype)) == wanted


def convolution(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)


@pytest.mark.optimized
def test_partitions_use_the_kernel_of_the_global_size(rng):
    """Test that computations above each threshold, cut into parts below it, keep their bits."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("a",))
    for size, channels, whole in ((8, 16, descriptors.INLINE), (32, 32, 0)):
        x, w = array(rng, 1, size, size, channels), array(rng, 3, 3, channels, channels)
        step = jax.jit(convolution)
        assert computations(convolution, x, w) == [descriptors.FORWARD | whole]
        split = jax.device_put(x, NamedSharding(mesh, P(None, "a")))
        text = step.lower(split, w).compile().as_text()
        assert "meshflow_onednn" in text
        assert np.asarray(step(split, w)).tobytes() == np.asarray(step(x, w)).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("most", [-1, math.inf])
def test_many_threads_call_at_once(rng, monkeypatch, dtype, most):
    """Test that threads have separate memory: results of different sizes do not mix, and no thread
    blocks."""
    monkeypatch.setattr(sizes, "MIN_PRODUCT_WORK", 0)
    monkeypatch.setattr(sizes, "MIN_CONVOLUTION_WORK", 0)
    monkeypatch.setattr(sizes, "MAX_INLINE_WORK", most)
    programs = []
    for n in (8, 24, 48, 96):
        a, b = array(rng, n, 64, dtype=dtype), array(rng, 64, n, dtype=dtype)
        x, w = array(rng, 1, 8, 8, n, dtype=dtype), array(rng, 3, 3, n, 8, dtype=dtype)
        function = jax.jit(lambda a, b, x, w: (a @ b, convolution(x, w)))
        wanted = [np.asarray(y) for y in function(a, b, x, w)]
        programs.append((function, (a, b, x, w), wanted))
    wrong = []

    def call(program):
        function, operands, wanted = program
        for _ in range(10):
            found = [np.asarray(y) for y in function(*operands)]
            if any(f.tobytes() != w.tobytes() for f, w in zip(found, wanted, strict=True)):
                wrong.append(operands[0].shape)

    threads = [threading.Thread(target=call, args=(p,), daemon=True) for p in programs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_four_devices_call_in_loops(rng):
    """Each device's loop calls handlers between exchanges with the others."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("a",))
    a, b = array(rng, 256, 64), array(rng, 64, 64) / 8

    def loop(a, b):
        def body(x, _):
            x = x @ b
            return x - jax.lax.pmean(x, "a"), None

        return jax.lax.scan(body, a, None, length=20)[0]

    divided = jax.shard_map(loop, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
    assert computations(divided, a, b) == [INLINE]
    expected, x = np.asarray(b, "f8"), np.asarray(a, "f8")
    for _ in range(20):
        x = x @ expected
        parts = x.reshape(4, 64, 64)
        x = (parts - parts.mean(0)).reshape(256, 64)
    np.testing.assert_allclose(jax.jit(divided)(a, b), x, atol=1e-4 * np.abs(x).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nan_and_infinity_propagate(rng, dtype):
    a, b = array(rng, 64, 64, dtype=dtype), array(rng, 64, 64, dtype=dtype)
    assert computations(jnp.matmul, a, b) == [INLINE]
    left = np.array(a)
    left[3, 5], left[7, 2] = np.nan, np.inf
    with jax.debug_nans(False):
        result = np.asarray(jax.jit(jnp.matmul)(left, b), "f4")
    assert np.isnan(result[3]).all() and np.isinf(result[7]).all()
    assert np.isfinite(np.delete(result, [3, 7], axis=0)).all()
