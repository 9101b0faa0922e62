"""Rules of JAX's random keys: the Threefry generator (Salmon et al. 2011, doi:10.1145/2063384.2063405).

A key is an array of uint32 with a last axis of two words.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from meshflow.interpreter.table import Compute, Equation, HostArray, UnsupportedPrimitive, rule

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Primitives that read or make keys; others do not support them.
KEY_PRIMITIVES = frozenset(
    ["random_seed", "random_wrap", "random_unwrap", "random_clone", "random_bits", "random_split"]
    + ["random_fold_in"]
)


def is_key(dtype: object) -> bool:
    """Check whether a dtype is that of Threefry's keys."""
    return getattr(getattr(dtype, "_impl", None), "name", "") == "threefry2x32"


def hash_words(
    first: HostArray, second: HostArray, x: HostArray, y: HostArray
) -> tuple[HostArray, HostArray]:
    """Apply the Threefry-2x32 hash to two arrays of words, with two words of a key."""
    keys = [first, second, first ^ second ^ np.uint32(0x1BD11BDA)]
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(i + 1) % 3]
        y = y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


@rule("threefry2x32", uses_shapes=False)
def _hash(equation: Equation) -> Compute:
    return lambda first, second, x, y: list(hash_words(first, second, x, y))


@rule("random_wrap", "random_unwrap", "random_clone", is_view=True, uses_shapes=False)
def _pass(equation: Equation) -> Compute:
    return lambda x: x


def _seed(x: HostArray) -> HostArray:
    words = np.asarray(x).astype(np.int64).view(np.uint64)
    high = words >> np.uint64(32) if x.dtype.itemsize == 8 else np.zeros_like(words)
    return np.stack([high, words & np.uint64(0xFFFFFFFF)], -1).astype(np.uint32)


@rule("random_seed")
def _make_key(equation: Equation) -> Compute:
    return _seed


@rule("random_fold_in")
def _fold_in(equation: Equation) -> Compute:
    def run(key: HostArray, data: HostArray) -> HostArray:
        words = _seed(data.astype(np.uint32))
        hashed = hash_words(key[..., 0], key[..., 1], words[..., 0], words[..., 1])
        return np.stack(hashed, -1)

    return run


def _hash_positions(key: HostArray, shape: tuple[int, ...]) -> tuple[HostArray, HostArray]:
    """Hash the row-major index of each element of an array, for each key."""
    index = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    words = [(index >> np.uint64(32)).astype(np.uint32), index.astype(np.uint32)]
    parts = [key[..., i].reshape(key.shape[:-1] + (1,) * len(shape)) for i in (0, 1)]
    return hash_words(parts[0], parts[1], words[0], words[1])


@rule("random_bits", "random_split")
def _draw_bits(equation: Equation) -> Compute:
    shape = tuple(equation.params["shape"])
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise UnsupportedPrimitive([equation.name])
    if equation.name == "random_split":
        return lambda key: np.stack(_hash_positions(key, shape), -1)
    bits = equation.params["bit_width"]
    dtype = np.dtype(f"u{bits // 8}")

    def run(key: HostArray) -> HostArray:
        high, low = _hash_positions(key, shape)
        if bits < 64:
            return (high ^ low).astype(dtype)
        return high.astype(dtype) << np.uint64(32) | low

    return run
