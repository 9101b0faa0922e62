"""Portable hashes of strings: FarmHash's fingerprint, MurmurHash and SipHash.

All are defined on unsigned 64-bit integers, so Python's integers are truncated to 64 bits after
each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import defer_strings

__all__ = ["fingerprint", "to_hash_bucket", "to_hash_bucket_fast", "to_hash_bucket_strong"]

_MASK64 = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _rotate_right(x: int, bits: int) -> int:
    x &= _MASK64
    return (x >> bits | x << (64 - bits)) & _MASK64


def _shift_mix(x: int) -> int:
    x &= _MASK64
    return x ^ x >> 47


def _hash_pair(u: int, v: int, factor: int) -> int:
    a = _shift_mix((u ^ v & _MASK64) * factor)
    return _shift_mix((v ^ a) * factor) * factor & _MASK64


def _hash_32_bytes(words: Sequence[int], a: int, b: int) -> tuple[int, int]:
    w, x, y, z = words
    a += w
    b = _rotate_right(b + a + z, 21)
    first = a
    a += x + y
    b += _rotate_right(a, 44)
    return (a + z) & _MASK64, (b + first) & _MASK64


def farm_fingerprint(text: bytes) -> int:
    """Compute FarmHash's 64-bit fingerprint."""

    def load_word(offset: int) -> int:
        start = offset if offset >= 0 else size + offset
        return int.from_bytes(text[start : start + 8], "little")

    size = len(text)
    factor = _K2 + 2 * size
    if size == 0:
        return _K2
    if size < 4:
        y = text[0] + (text[size >> 1] << 8)
        z = size + (text[-1] << 2)
        return _shift_mix(y * _K2 ^ z * _K0) * _K2 & _MASK64
    if size < 8:
        first = int.from_bytes(text[:4], "little")
        return _hash_pair(size + (first << 3), int.from_bytes(text[-4:], "little"), factor)
    if size <= 16:
        a, b = load_word(0) + _K2, load_word(-8)
        return _hash_pair(
            _rotate_right(b, 37) * factor + a & _MASK64,
            (_rotate_right(a, 25) + b) * factor & _MASK64,
            factor,
        )
    if size <= 64:
        a = load_word(0) * (_K1 if size <= 32 else _K2) & _MASK64
        b = load_word(8)
        c, d = load_word(-8) * factor & _MASK64, load_word(-16) * _K2 & _MASK64
        y = (_rotate_right(a + b, 43) + _rotate_right(c, 30) + d) & _MASK64
        z = _hash_pair(y, (a + _rotate_right(b + _K2, 18) + c) & _MASK64, factor)
        if size <= 32:
            return z
        e, f = load_word(16) * factor & _MASK64, load_word(24)
        g, h = (y + load_word(-32)) * factor & _MASK64, (z + load_word(-24)) * factor & _MASK64
        left = (_rotate_right(e + f, 43) + _rotate_right(g, 30) + h) & _MASK64
        return _hash_pair(left, (e + _rotate_right(f + a, 18) + g) & _MASK64, factor)
    return _hash_blocks(load_word, size)


# Categories and words of texts repeat.
_fingerprint_short_text = functools.lru_cache(1 << 14)(farm_fingerprint)


def fingerprint_word(text: bytes) -> int:
    """Compute `farm_fingerprint`, and remember that of short texts."""
    return _fingerprint_short_text(text) if len(text) <= 64 else farm_fingerprint(text)


def _hash_blocks(load_word: Callable[[int], int], size: int) -> int:
    """Compute `farm_fingerprint` of more than 64 bytes, in blocks of which the last overlaps."""
    x, y = 81, (81 * _K1 + 113) & _MASK64
    z = _shift_mix(y * _K2 + 113) * _K2 & _MASK64
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + load_word(0)) & _MASK64

    def add_block(start: int, factor: int, last: bool) -> None:
        nonlocal x, y, z, v, w
        words = [load_word(start + 8 * i) for i in range(8)]
        x = _rotate_right(x + y + v[0] + words[1], 37) * factor & _MASK64
        y = _rotate_right(y + v[1] + words[6], 42) * factor & _MASK64
        x ^= w[1] * (9 if last else 1) & _MASK64
        y = (y + v[0] * (9 if last else 1) + words[5]) & _MASK64
        z = _rotate_right(z + w[0], 33) * factor & _MASK64
        v = _hash_32_bytes(words[:4], v[1] * factor, x + w[0])
        w = _hash_32_bytes(words[4:], z + w[1], y + words[2])
        x, z = z, x

    for start in range(0, (size - 1) // 64 * 64, 64):
        add_block(start, _K1, False)
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + ((size - 1) & 63)) & _MASK64, w[1]
    v = (v[0] + w[0]) & _MASK64, v[1]
    w = (w[0] + v[0]) & _MASK64, w[1]
    add_block(size - 64, factor, True)
    left = (_hash_pair(v[0], w[0], factor) + _shift_mix(y) * _K0 + z) & _MASK64
    return _hash_pair(left, (_hash_pair(v[1], w[1], factor) + x) & _MASK64, factor)


def murmur_hash(text: bytes, seed: int = 0xDECAFCAFFE) -> int:
    """Compute MurmurHash64A, by default with TensorFlow's seed."""
    factor, size = 0xC6A4A7935BD1E995, len(text)
    h = seed ^ size * factor & _MASK64
    for offset in range(0, size - 7, 8):
        k = int.from_bytes(text[offset : offset + 8], "little") * factor & _MASK64
        h = (h ^ (k ^ k >> 47) * factor & _MASK64) * factor & _MASK64
    if size % 8:
        h = (h ^ int.from_bytes(text[size // 8 * 8 :], "little")) * factor & _MASK64
    return _shift_mix(_shift_mix(h) * factor)


# Crosses of features without a key start with this hash.
DEFAULT_CROSS_KEY = 0xDECAFCAFFE


def cross_fingerprints(prints: Sequence[int]) -> int:
    """Combine fingerprints into one hash, as TensorFlow crosses features."""
    return cross_fingerprints_from(DEFAULT_CROSS_KEY, prints)


def cross_fingerprints_from(start: int, prints: Sequence[int]) -> int:
    """Combine fingerprints into one hash, with a key as the start value."""
    factor, result = 0xC6A4A7935BD1E995, start
    for fingerprint in prints:
        result = (result ^ factor ^ _shift_mix(fingerprint * factor) * factor & _MASK64) * factor
        result = _shift_mix(_shift_mix(result) * factor)
    return result


def siphash(text: bytes, key: Sequence[int]) -> int:
    """Compute SipHash-2-4 with a key of two 64-bit integers."""
    starts = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [start ^ key[i % 2] for i, start in enumerate(starts)]

    def rotate_left(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & _MASK64

    def run_rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & _MASK64
            v[2] = (v[2] + v[3]) & _MASK64
            v[1], v[3] = rotate_left(v[1], 13) ^ v[0], rotate_left(v[3], 16) ^ v[2]
            v[0] = rotate_left(v[0], 32)
            v[2] = (v[2] + v[1]) & _MASK64
            v[0] = (v[0] + v[3]) & _MASK64
            v[1], v[3] = rotate_left(v[1], 17) ^ v[2], rotate_left(v[3], 21) ^ v[0]
            v[2] = rotate_left(v[2], 32)

    padded = text + bytes(7 - len(text) % 8) + bytes([len(text) & 0xFF])
    for offset in range(0, len(padded), 8):
        word = int.from_bytes(padded[offset : offset + 8], "little")
        v[3] ^= word
        run_rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    run_rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _hash_to_buckets(
    input: TensorLike, num_buckets: int, function: Callable[[bytes], int]
) -> Tensor:
    count = to_static_value(num_buckets, "num_buckets")
    if count < 1:
        raise InvalidValueError(f"num_buckets must be at least 1, got {count}.")
    words = convert_to_tensor(input).require_value("text to hash (XLA has no strings)")
    if words.dtype != object:
        raise InvalidValueError(f"Only strings can be hashed to buckets, got {words.dtype}.")
    buckets = [function(word) % count for word in words.reshape(-1)]
    return convert_to_tensor(np.asarray(buckets, np.int64).reshape(words.shape))


@accept_symbolic
@defer_strings(int64)
@accept_symbolic
def to_hash_bucket(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Hash strings to integers below `num_buckets` by MurmurHash; prefer `to_hash_bucket_fast`.

    Args:
      input: Strings.
      num_buckets: Number of buckets.
      name: Ignored.

    Returns:
      int64 tensor with the shape of `input`.

    Example:
      >>> print(tf.strings.to_hash_bucket(["tea", "coffee", "tea"], 10).numpy())
      [7 2 7]
    """
    return _hash_to_buckets(input, num_buckets, murmur_hash)


@defer_strings(int64)
@accept_symbolic
def to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Hash strings to integers below `num_buckets` by FarmHash.

    Returns:
      int64 tensor with the shape of `input`.

    Example:
      >>> tf.strings.to_hash_bucket_fast(["Hello", "TensorFlow", "2.x"], 3).numpy()
      array([0, 2, 2])
    """
    return _hash_to_buckets(input, num_buckets, fingerprint_word)


@accept_symbolic
@defer_strings(int64)
@accept_symbolic
def to_hash_bucket_strong(
    input: TensorLike, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """Hash strings to integers below `num_buckets` by SipHash, which is unpredictable without the key.

    Args:
      input: Strings.
      num_buckets: Number of buckets.
      key: Two integers.
      name: Ignored.

    Returns:
      int64 tensor with the shape of `input`.

    Raises:
      ValueError: If the key does not consist of two integers.

    Example:
      >>> print(tf.strings.to_hash_bucket_strong(["tea", "coffee", "tea"], 10, key=[1, 2]).numpy())
      [1 3 1]
    """
    words = [int(k) for k in to_static_value(key, "key")]
    if len(words) != 2:
        raise ValueError(f"to_hash_bucket_strong: key must have 2 numbers, got {len(words)}.")
    return _hash_to_buckets(input, num_buckets, lambda text: siphash(text, words))


@accept_symbolic
def fingerprint(data: TensorLike, method: str = "farmhash64", name: str | None = None) -> Tensor:
    """Compute fingerprints of the rows of a tensor.

    Args:
      data: A tensor of at least one dimension.
      method: 'farmhash64'.
      name: Ignored.

    Returns:
      uint8 tensor [rows, 8].

    Raises:
      InvalidArgumentError: For another method, or a scalar.

    Example:
      >>> tf.fingerprint(["tea", "coffee"]).shape
      TensorShape([2, 8])
    """
    if method != "farmhash64":
        raise InvalidValueError(f"fingerprint: method must be 'farmhash64', got {method!r}.")
    rows = np.asarray(convert_to_tensor(data).require_value("data of tf.fingerprint"))
    if not rows.ndim:
        raise InvalidValueError("fingerprint: data must have at least one dimension.")
    texts = [_to_bytes(row) for row in rows]
    hashes = np.asarray([farm_fingerprint(text) for text in texts], "<u8")
    return convert_to_tensor(hashes.view(np.uint8).reshape(len(texts), 8))


def _to_bytes(row: bytes | np.ndarray) -> bytes:
    if isinstance(row, bytes):
        return row
    if row.dtype == object:
        return b"".join(farm_fingerprint(t).to_bytes(8, "little") for t in row.reshape(-1))
    return row.tobytes()
