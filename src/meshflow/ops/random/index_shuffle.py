"""Pseudorandom permutations of large ranges, computed for single elements.

A block cipher permutes the numbers of an even count of bits, at least 16: Simon, with keys and halves of any width and few
rounds. An element outside of the range is encrypted again, which leads back to the range.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.joining import concat

__all__ = ["index_shuffle", "random_index_shuffle"]

# Constants of the key schedule: the complement of 3, and a bit sequence of period 62.
_COMPLEMENT, _SEQUENCE = 0xFFFFFFFC, 0x7369F885192C0EF5
# The first number of the seed of `index_shuffle`, which has three.
_FIRST_SEED = 498247692
_SEED_DTYPES = ("int32", "int64", "uint32", "uint64")


@op(same=(), differentiable=False, name="RandomIndexShuffle")
def random_index_shuffle(
    index: TensorLike, seed: TensorLike, max_index: TensorLike, rounds: int = 4
) -> Tensor:
    """Return the positions of elements in a permutation of [0, max_index]; see `index_shuffle`.

    Args:
      index: Elements, a scalar or a vector of integers.
      seed: [3] or [n, 3].
      max_index: Last element of the range, a scalar or a vector.
      rounds: Number of rounds of the cipher, even and at least 4.

    Raises:
      InvalidArgumentError: If the number of rounds is odd or below 4, or the seed has another shape.
    """
    if rounds < 4 or rounds % 2 or seed.ndim not in (1, 2) or seed.shape[-1] != 3:
        raise InvalidValueError(
            "RandomIndexShuffle: rounds must be even and at least 4, and seed must have the shape [3] or [n, 3], got "
            f"{rounds} and {seed.shape}."
        )
    last = max_index.astype(jnp.uint64)
    bits = 64 - lax.clz(jnp.maximum(last, 1) - 1)
    # The halves have equal widths.
    width = jnp.maximum((bits + 1) // 2, 8).astype(jnp.uint64)
    keys = _derive_keys(seed.astype(jnp.uint32).astype(jnp.uint64), width, rounds)
    result = lax.while_loop(
        lambda found: jnp.any(found > last),
        lambda found: jnp.where(found > last, _encrypt(found, keys, width), found),
        _encrypt(index.astype(jnp.uint64), keys, width),
    )
    return result.astype(index.dtype)


def _get_mask(width: Array) -> Array:
    return (jnp.uint64(1) << width) - jnp.uint64(1)


def _rotate_left(x: Array, count: Array | int, width: Array) -> Array:
    count = jnp.asarray(count, jnp.uint64)
    return (x << count | x >> (width - count)) & _get_mask(width)


def _derive_keys(seed: Array, width: Array, rounds: int) -> list[Array]:
    """Return a key for each round, from the three numbers in the last dimension of a seed."""
    mask = _get_mask(width)
    keys = [seed[..., i] & mask for i in range(3)]
    sequence = jnp.uint64(_SEQUENCE) & mask
    for i in range(rounds - 3):
        bit = sequence >> jnp.uint64(i) & jnp.uint64(1)
        turned = _rotate_left(keys[-1], width - 3, width) ^ _rotate_left(keys[-1], width - 4, width)
        keys.append(jnp.uint64(_COMPLEMENT) & mask ^ bit ^ keys[-3] ^ turned)
    return keys


def _encrypt(x: Array, keys: list[Array], width: Array) -> Array:
    mask = _get_mask(width)
    left, right = x >> width & mask, x & mask
    for key in keys:
        both = _rotate_left(right, 1, width) & _rotate_left(right, 8, width)
        left, right = right, left ^ both ^ _rotate_left(right, 2, width) ^ key
    return left << width | right


def index_shuffle(index: TensorLike, seed: TensorLike, max_index: TensorLike) -> Tensor:
    """Return the positions of elements in a pseudorandom permutation of [0, max_index], without computing it.

    The results are those of TensorFlow.

    Args:
      index: Elements of the range, a scalar or a vector of integers.
      seed: Two integers, or [n, 2]; each seed determines a permutation.
      max_index: Last element of the range, a scalar or a vector.

    Returns:
      Positions with the dtype of `index`, of the common shape of the arguments.

    Example:
      >>> tf.random.experimental.index_shuffle(tf.range(10), [5, 8], 9).numpy()
      array([3, 8, 0, 1, 2, 7, 6, 9, 4, 5], dtype=int32)
    """
    index, seed = convert_to_tensor(index), convert_to_tensor(seed)
    if seed.dtype.name not in _SEED_DTYPES:
        raise TypeError(
            f"index_shuffle: seed must have one of the dtypes {', '.join(_SEED_DTYPES)}, got {seed.dtype.name}."
        )
    first = jnp.full((*seed.shape[:-1], 1), _FIRST_SEED, seed.dtype.dtype)
    seeds = concat([Tensor(first), seed], -1)
    return random_index_shuffle(index, seeds, convert_to_tensor(max_index, index.dtype))
