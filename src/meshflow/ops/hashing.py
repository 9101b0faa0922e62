"""Portable hashes of strings: FarmHash's fingerprint, MurmurHash and SipHash.

All are defined on unsigned 64-bit integers, so Python's integers are truncated to 64 bits after
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshflow.core.dispatch.operands import static_value
from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import waits_for_text

__all__ = ["fingerprint", "to_hash_bucket", "to_hash_bucket_fast", "to_hash_bucket_strong"]

_ALL = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _rotated(x: int, bits: int) -> int:
    x &= _ALL
    return (x >> bits | x << (64 - bits)) & _ALL


def _mixed(x: int) -> int:
    x &= _ALL
    return x ^ x >> 47


def _pair(u: int, v: int, factor: int) -> int:
    a = _mixed((u ^ v & _ALL) * factor)
    return _mixed((v ^ a) * factor) * factor & _ALL


def _weak(words: Sequence[int], a: int, b: int) -> tuple[int, int]:
    w, x, y, z = words
    a += w
    b = _rotated(b + a + z, 21)
    first = a
    a += x + y
    b += _rotated(a, 44)
    return (a + z) & _ALL, (b + first) & _ALL


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
        return _mixed(y * _K2 ^ z * _K0) * _K2 & _ALL
    if size < 8:
        first = int.from_bytes(text[:4], "little")
        return _pair(size + (first << 3), int.from_bytes(text[-4:], "little"), factor)
    if size <= 16:
        a, b = load_word(0) + _K2, load_word(-8)
        return _pair(
            _rotated(b, 37) * factor + a & _ALL, (_rotated(a, 25) + b) * factor & _ALL, factor
        )
    if size <= 64:
        a = load_word(0) * (_K1 if size <= 32 else _K2) & _ALL
        b = load_word(8)
        c, d = load_word(-8) * factor & _ALL, load_word(-16) * _K2 & _ALL
        y = (_rotated(a + b, 43) + _rotated(c, 30) + d) & _ALL
        z = _pair(y, (a + _rotated(b + _K2, 18) + c) & _ALL, factor)
        if size <= 32:
            return z
        e, f = load_word(16) * factor & _ALL, load_word(24)
        g, h = (y + load_word(-32)) * factor & _ALL, (z + load_word(-24)) * factor & _ALL
        left = (_rotated(e + f, 43) + _rotated(g, 30) + h) & _ALL
        return _pair(left, (e + _rotated(f + a, 18) + g) & _ALL, factor)
    return _long_fingerprint(load_word, size)


def _long_fingerprint(load_word: Callable[[int], int], size: int) -> int:
    """Compute `farm_fingerprint` of more than 64 bytes, in blocks of which the last overlaps."""
    x, y = 81, (81 * _K1 + 113) & _ALL
    z = _mixed(y * _K2 + 113) * _K2 & _ALL
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + load_word(0)) & _ALL

    def add_block(start: int, factor: int, last: bool) -> None:
        nonlocal x, y, z, v, w
        words = [load_word(start + 8 * i) for i in range(8)]
        x = _rotated(x + y + v[0] + words[1], 37) * factor & _ALL
        y = _rotated(y + v[1] + words[6], 42) * factor & _ALL
        x ^= w[1] * (9 if last else 1) & _ALL
        y = (y + v[0] * (9 if last else 1) + words[5]) & _ALL
        z = _rotated(z + w[0], 33) * factor & _ALL
        v = _weak(words[:4], v[1] * factor, x + w[0])
        w = _weak(words[4:], z + w[1], y + words[2])
        x, z = z, x

    for start in range(0, (size - 1) // 64 * 64, 64):
        add_block(start, _K1, False)
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + ((size - 1) & 63)) & _ALL, w[1]
    v = (v[0] + w[0]) & _ALL, v[1]
    w = (w[0] + v[0]) & _ALL, w[1]
    add_block(size - 64, factor, True)
    left = (_pair(v[0], w[0], factor) + _mixed(y) * _K0 + z) & _ALL
    return _pair(left, (_pair(v[1], w[1], factor) + x) & _ALL, factor)


def murmur(text: bytes, seed: int = 0xDECAFCAFFE) -> int:
    """Compute MurmurHash64A, by default with TensorFlow's seed."""
    factor, size = 0xC6A4A7935BD1E995, len(text)
    h = seed ^ size * factor & _ALL
    for offset in range(0, size - 7, 8):
        k = int.from_bytes(text[offset : offset + 8], "little") * factor & _ALL
        h = (h ^ (k ^ k >> 47) * factor & _ALL) * factor & _ALL
    if size % 8:
        h = (h ^ int.from_bytes(text[size // 8 * 8 :], "little")) * factor & _ALL
    return _mixed(_mixed(h) * factor)


# Crosses of features without a key start with this hash.
CROSSING = 0xDECAFCAFFE


def crossed(prints: Sequence[int]) -> int:
    """Combine fingerprints into one hash, as TensorFlow crosses features."""
    return crossed_from(CROSSING, prints)


def crossed_from(start: int, prints: Sequence[int]) -> int:
    """Combine fingerprints into one hash, with a key as the start value."""
    factor, result = 0xC6A4A7935BD1E995, start
    for fingerprint in prints:
        result = (result ^ factor ^ _mixed(fingerprint * factor) * factor & _ALL) * factor
        result = _mixed(_mixed(result) * factor)
    return result


def siphash(text: bytes, key: Sequence[int]) -> int:
    """Compute SipHash-2-4 with a key of two 64-bit integers."""
    starts = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [start ^ key[i % 2] for i, start in enumerate(starts)]

    def rotate_left(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & _ALL

    def run_rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & _ALL
            v[2] = (v[2] + v[3]) & _ALL
            v[1], v[3] = rotate_left(v[1], 13) ^ v[0], rotate_left(v[3], 16) ^ v[2]
            v[0] = rotate_left(v[0], 32)
            v[2] = (v[2] + v[1]) & _ALL
            v[0] = (v[0] + v[3]) & _ALL
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


def _buckets(input: TensorLike, num_buckets: int, function: Callable[[bytes], int]) -> Tensor:
    count = static_value(num_buckets, "num_buckets")
    if count < 1:
        raise InvalidValueError(f"num_buckets must be at least 1, got {count}.")
    words = convert_to_tensor(input)._concrete("text to hash (XLA has no strings)")
    if words.dtype != object:
        raise InvalidValueError(f"Only strings can be hashed to buckets, got {words.dtype}.")
    buckets = [function(word) % count for word in words.reshape(-1)]
    return convert_to_tensor(np.asarray(buckets, np.int64).reshape(words.shape))


@also_symbolic
@waits_for_text(int64)
@also_symbolic
def to_hash_bucket(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Hash strings to integers below `num_buckets` by MurmurHash; prefer `to_hash_bucket_fast`.

    Args:
      input: Strings.
      num_buckets: Number of buckets.
      name: Ignored.

    Returns:
      int64 tensor with the shape of `input`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.to_hash_bucket(["tea", "coffee", "tea"], 10).numpy())
      [7 2 7]
    """
    return _buckets(input, num_buckets, murmur)


@waits_for_text(int64)
@also_symbolic
def to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Hash strings to integers below `num_buckets` by FarmHash.

    Returns:
      int64 tensor with the shape of `input`.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.to_hash_bucket_fast(["Hello", "TensorFlow", "2.x"], 3).numpy()
      array([0, 2, 2])
    """
    return _buckets(input, num_buckets, farm_fingerprint)


@also_symbolic
@waits_for_text(int64)
@also_symbolic
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
      >>> import meshflow as tf
      >>> print(tf.strings.to_hash_bucket_strong(["tea", "coffee", "tea"], 10, key=[1, 2]).numpy())
      [1 3 1]
    """
    words = [int(k) for k in static_value(key, "key")]
    if len(words) != 2:
        raise ValueError(f"to_hash_bucket_strong: key must have 2 numbers, got {len(words)}.")
    return _buckets(input, num_buckets, lambda text: siphash(text, words))


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
      >>> import meshflow as tf
      >>> tf.fingerprint(["tea", "coffee"]).shape
      TensorShape([2, 8])
    """
    if method != "farmhash64":
        raise InvalidValueError(f"fingerprint: method must be 'farmhash64', got {method!r}.")
    rows = np.asarray(convert_to_tensor(data)._concrete("data of tf.fingerprint"))
    if not rows.ndim:
        raise InvalidValueError("fingerprint: data must have at least one dimension.")
    texts = [_bytes_of(row) for row in rows]
    hashes = np.asarray([farm_fingerprint(text) for text in texts], "<u8")
    return convert_to_tensor(hashes.view(np.uint8).reshape(len(texts), 8))


def _bytes_of(row: bytes | np.ndarray) -> bytes:
    if isinstance(row, bytes):
        return row
    if row.dtype == object:
        return b"".join(farm_fingerprint(t).to_bytes(8, "little") for t in row.reshape(-1))
    return row.tobytes()
