"""A model in NumPy of matrix tiles and of how kernels are packed for them, against the compiled code."""

import ctypes

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from capabilities import needs
from meshflow.kernels import descriptors, library, lowerings

pytestmark = needs("AMX tiles")


def tile_product(sums, left, right):
    """sums [16, 16] += left [16 rows, 16 pairs, 2] right [16 pairs, 16 columns, 2], in the tiles' order of sums."""
    parts = np.zeros((2, 16, 16), np.float32)
    for k in range(16):
        for half in (0, 1):
            a, b = (np.asarray(v, np.float64) for v in (left[:, k, half], right[k, :, half]))
            # Rounded once: a product of two bfloat16 has 16 digits, and float64 has room for the sum.
            parts[half] = (parts[half].astype(np.float64) + a[:, None] * b).astype(np.float32)
    return sums + (parts[0] + parts[1])


def pack_kernel(kernel):
    """A kernel [y, x, in, out] as it is read: for 32 features, 32 channels and a tap two tiles of pairs of channels."""
    height, width, channels, features = kernel.shape
    whole = np.zeros(
        (height, width, -(-channels // 32) * 32, -(-features // 32) * 32), kernel.dtype
    )
    whole[:, :, :channels, :features] = kernel
    blocks = whole.reshape(height, width, whole.shape[2] // 32, 16, 2, whole.shape[3] // 32, 2, 16)
    # Panels of features, blocks of channels, taps, halves of the features, pairs, features, of the pair.
    return blocks.transpose(5, 2, 0, 1, 6, 3, 7, 4)


def draw(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def compute_compiled_product(sums, left, right):
    """The same by the compiled code."""
    memory = np.zeros(3 * 1024 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    parts = [memory[start + i * 1024 : start + (i + 1) * 1024] for i in range(3)]
    for part, values in zip(parts, (left, right, sums), strict=True):
        part[:] = values.reshape(-1).view(np.uint8)
    call = library.load().compiled.meshflow_tile_product
    assert call(*(ctypes.c_void_p(part.ctypes.data) for part in parts)) == 1
    return parts[2].view(np.float32).reshape(16, 16)


def test_a_product_of_tiles():
    left, right = draw(0, (16, 16, 2)), draw(1, (16, 16, 2))
    sums = np.random.default_rng(2).standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_array_equal(
        compute_compiled_product(sums, left, right), tile_product(sums, left, right)
    )


# Exponents of the operands, and of the sums: all; products below the normal numbers; about 1; to infinity.
EXPONENTS = [((0, 256), (0, 256)), ((60, 70), (0, 12)), ((120, 135), (110, 140)), ((180, 255), (0, 255))]  # fmt: skip


@pytest.mark.skipif(
    library.load() is None or library.load().level != "AMX" or library.emulates_tiles(),
    reason="AMX tiles",
)
@pytest.mark.parametrize("exponents, of_sums", EXPONENTS, ids=str)
def test_the_processor_and_its_emulation_have_the_same_bits(exponents, of_sums):
    rng = np.random.default_rng(0)
    emulate = library.load().compiled.meshflow_limit

    def drawn(exponents, digits, dtype, count):
        sign, digit = rng.integers(0, 2, count), rng.integers(0, 2**digits, count)
        bits = sign << (digits + 8) | rng.integers(*exponents, count) << digits | digit
        return bits.astype(dtype)

    for _ in range(100):
        left, right = (drawn(exponents, 7, np.uint16, 512) for _ in range(2))
        operands = drawn(of_sums, 23, np.uint32, 256), left, right
        on_tiles = compute_compiled_product(*operands)
        emulate(-1, 1)
        try:
            emulated = compute_compiled_product(*operands)
        finally:
            emulate(-1, 0)
        # NaN equals NaN, with any payload.
        np.testing.assert_array_equal(on_tiles, emulated)
        numbers = ~np.isnan(emulated)
        np.testing.assert_array_equal(np.signbit(on_tiles)[numbers], np.signbit(emulated)[numbers])


@pytest.mark.parametrize("layout", ["HWIO", "HWOI"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels, features", [(64, 96), (100, 41)])
def test_kernels_are_packed_as_the_model_does(channels, features, dtype, layout):
    kernel = np.random.default_rng(0).standard_normal((3, 2, channels, features)).astype(dtype)
    x = descriptors.make_view((2, 9, 9, channels), (0, 3, 1, 2))
    y = descriptors.make_view((2, 9, 9, features), (0, 3, 1, 2))
    order = (3, 2, 0, 1) if layout == "HWIO" else (2, 3, 0, 1)
    lying = kernel if layout == "HWIO" else np.swapaxes(kernel, 2, 3).copy()
    w = descriptors.make_view(lying.shape, order)
    descriptor = descriptors.describe_convolution(
        descriptors.FORWARD, 1, x, w, y, (1, 1), (1, 1), (1, 1)
    )
    descriptor = descriptors.with_epilogue(descriptor, ("relu",))
    types = ("bfloat16", dtype, "bfloat16")
    loaded = library.load()
    assert loaded.find_implementation(descriptor, types).startswith("meshflow:amx")
    size = loaded.count_packed_bytes(descriptor, types)
    codes = "".join(library.TYPE_CODES[t] for t in types)
    call = lambda w: lowerings.call_handler(
        descriptors.describe_packing(descriptor, codes),
        [w],
        jax.ShapeDtypeStruct((size,), np.uint8),
    )
    got = np.asarray(jax.jit(call)(jnp.asarray(lying)))
    wanted = pack_kernel(kernel.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(got.view(np.uint16), wanted.reshape(-1).view(np.uint16))
