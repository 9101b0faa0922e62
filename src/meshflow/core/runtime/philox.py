"""TensorFlow's random numbers: what its kernels make of the words of a Philox generator.

Philox (Salmon et al. 2011, doi:10.1145/2063384.2063405) with four words of 32 bits and ten rounds makes four words of
a key and of each number of a counter. A *place* is where a generator stands, int64 [3] as TensorFlow keeps it: the low
and high halves of the counter, and the key. Each number of a result is computed from its own number alone, so devices
that hold parts of it need nothing of each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "COUNTS_PER_OUTPUT",
    "bits",
    "double",
    "folded",
    "integers",
    "normal",
    "normal_pair",
    "numbers_of",
    "passed",
    "place_of_seed",
    "rounds",
    "uniform",
    "uniform_pair",
    "word_pairs",
]

_ROUNDS = 10
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_SEED_KEY = 0x02461E293EC8F720
_LOW = 0xFFFFFFFF
# How many numbers of the counter TensorFlow keeps for each number that it gives.
COUNTS_PER_OUTPUT = 256
# For dtypes with a mantissa of so many bits: the bits of 1.
_MANTISSAS = {
    "float16": (10, 15 << 10, np.uint16),
    "bfloat16": (7, 127 << 7, np.uint16),
    "float32": (23, 127 << 23, np.uint32),
}
_ONE_DOUBLE = 1023 << 52
# What stands for 0 where a logarithm is taken.
TINY = 1e-7


def rounds(low: Any, high: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    """The four words for counters and keys: Python's integers, or NumPy's or JAX's arrays of uint64."""
    words = low & _LOW, low >> 32, high & _LOW, high >> 32
    first, second = key & _LOW, key >> 32
    for _ in range(_ROUNDS):
        left, right = words[0] * _FACTORS[0], words[2] * _FACTORS[1]
        words = (
            (right >> 32) ^ words[1] ^ first,
            right & _LOW,
            (left >> 32) ^ words[3] ^ second,
            left & _LOW,
        )
        first, second = (first + _KEY_STEPS[0]) & _LOW, (second + _KEY_STEPS[1]) & _LOW
    return words


def place_of_seed(first: Any, second: Any) -> tuple[Any, Any, Any]:
    """Where the generator of a stateless op stands for its seed, two integers as for `rounds`.

    Returns:
      The low and high halves of the counter, and the key.
    """
    a, b, c, d = rounds(first, second, _SEED_KEY)
    return a & 0, c | d << 32, a | b << 32


def passed(place: Any, counts: Any) -> Any:
    """A place after so many numbers of the counter."""
    unsigned = place.astype(jnp.uint64)
    low = unsigned[0] + jnp.asarray(counts).astype(jnp.uint64)
    high = unsigned[1] + (low < unsigned[0]).astype(jnp.uint64)
    return jnp.stack([low, high, unsigned[2]]).astype(jnp.int64)


def folded(place: Any, number: Any) -> Any:
    """A place with another key for each number, as of a replica or a part of an array."""
    unsigned = place.astype(jnp.uint64)
    a, b, _, _ = rounds(jnp.asarray(number).astype(jnp.uint64), unsigned[1], ~unsigned[2])
    return jnp.stack([unsigned[0], unsigned[1], a | b << 32]).astype(jnp.int64)


def words_at(place: Any, offsets: Any) -> tuple[Any, Any, Any, Any]:
    """The four words, in uint64, of the counters that are so far behind a place."""
    unsigned = place.astype(jnp.uint64)
    low = unsigned[0] + offsets
    high = unsigned[1] + (low < unsigned[0]).astype(jnp.uint64)
    return rounds(low, high, unsigned[2])


def numbers_of(shape: Sequence[Any]) -> Any:
    """The number of each element of an array, in uint64: of every axis by itself, which may be split."""
    found, stride = jnp.zeros(shape, jnp.uint64), 1
    for axis in reversed(range(len(shape))):
        found = found + jax.lax.broadcasted_iota(jnp.uint64, shape, axis) * stride
        stride = stride * shape[axis]
    return found


def _word(place: Any, shape: Sequence[Any]) -> Any:
    """One word for each element."""
    number = numbers_of(shape)
    a, b, c, d = words_at(place, number >> 2)
    return _chosen(number & 3, a, b, c, d)


def _chosen(which: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return jnp.where(which < 2, jnp.where(which == 0, a, b), jnp.where(which == 2, c, d))


def word_pairs(place: Any, number: Any) -> tuple[Any, Any]:
    """The two words, in uint64, of each number of a pair."""
    a, b, c, d = words_at(place, number >> 1)
    first = number & 1 == 0
    return jnp.where(first, a, c), jnp.where(first, b, d)


def double(first: Any, second: Any) -> Any:
    """Doubles in [0, 1) of two words each."""
    pattern = (first & 0xFFFFF) << 32 | second | _ONE_DOUBLE
    return jax.lax.bitcast_convert_type(pattern, jnp.float64) - 1


def _single(word: Any, name: str = "float32") -> Any:
    """Shorter floats in [0, 1) of one word each."""
    width, one, unsigned = _MANTISSAS[name]
    pattern = (word & ((1 << width) - 1) | one).astype(unsigned)
    kind = jnp.dtype(name)
    return jax.lax.bitcast_convert_type(pattern, kind) - jnp.ones((), kind)


def uniform(place: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Floats in [0, 1)."""
    return philox_uniform(place, tuple(shape), jnp.dtype(dtype))


# Calls in programs: what other runtimes draw themselves is known by these names.
@functools.partial(jax.jit, static_argnums=(1, 2))
def philox_uniform(place: Any, shape: tuple[Any, ...], dtype: Any) -> Any:
    name = jnp.dtype(dtype).name
    if name == "float64":
        return double(*word_pairs(place, numbers_of(shape)))
    if name in _MANTISSAS:
        return _single(_word(place, shape), name)
    return _single(_word(place, shape)).astype(dtype)


def bits(place: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Integers over the whole range of a dtype."""
    if jnp.dtype(dtype).itemsize < 8:
        return _word(place, shape).astype(dtype)
    first, second = word_pairs(place, numbers_of(shape))
    return (first | second << 32).astype(dtype)


def integers(place: Any, shape: Sequence[Any], low: Any, high: Any, dtype: Any) -> Any:
    """Integers from `low` to `high - 1`."""
    wide = jnp.dtype(dtype).itemsize == 8
    unsigned = jnp.uint64 if wide else jnp.uint32
    low, high = (jnp.asarray(v).astype(dtype) for v in (low, high))
    if not wide:
        low, high = (
            v.astype(jnp.uint32 if v.dtype.kind == "u" else jnp.int32) for v in (low, high)
        )
    span = high.astype(unsigned) - low.astype(unsigned)
    return (low.astype(unsigned) + bits(place, shape, unsigned) % span).astype(dtype)


def _box_muller(share: Any, turn: Any, tiny: float) -> tuple[Any, Any]:
    """Two normal numbers of two uniform ones (Box and Muller 1958)."""
    angle = turn * jnp.asarray(2 * math.pi, turn.dtype)
    length = jnp.sqrt(-2 * jnp.log(jnp.maximum(share, jnp.asarray(tiny, share.dtype))))
    return jnp.sin(angle) * length, jnp.cos(angle) * length


def normal(place: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Normal numbers."""
    return philox_normal(place, tuple(shape), jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2))
def philox_normal(place: Any, shape: tuple[Any, ...], dtype: Any) -> Any:
    number = numbers_of(shape)
    if jnp.dtype(dtype) == jnp.float64:
        a, b, c, d = words_at(place, number >> 1)
        shares = double(a, b), double(c, d)
    else:
        a, b, c, d = words_at(place, number >> 2)
        first = number & 2 == 0
        shares = _single(jnp.where(first, a, c)), _single(jnp.where(first, b, d))
    even, odd = _box_muller(*shares, TINY)
    return jnp.where(number & 1 == 0, even, odd).astype(dtype)


def normal_pair(place: Any, offsets: Any, dtype: Any) -> tuple[Any, ...]:
    """The normal numbers of each counter: two doubles, or four of any other dtype, as float32."""
    a, b, c, d = words_at(place, offsets)
    if jnp.dtype(dtype) == jnp.float64:
        return _box_muller(double(a, b), double(c, d), TINY)
    return (
        *_box_muller(_single(a), _single(b), TINY),
        *_box_muller(_single(c), _single(d), TINY),
    )


def uniform_pair(place: Any, offsets: Any) -> tuple[Any, Any]:
    """The two doubles in [0, 1) of each counter."""
    a, b, c, d = words_at(place, offsets)
    return double(a, b), double(c, d)
