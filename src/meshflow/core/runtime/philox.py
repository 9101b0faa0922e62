"""TensorFlow's random numbers on devices, drawn from the Philox generator.

Philox (Salmon et al. 2011, doi:10.1145/2063384.2063405), with four words of 32 bits and ten rounds,
maps a key and a 128-bit counter to a block of four words. The state of a generator is int64 [3],
like in TensorFlow: the low and high halves of the counter, and the key. Each element of a result
depends only on the state and its own index, so devices that hold shards of the result need not
communicate.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from meshflow.core.runtime.broadcasting import combine, select, take

# Words of a counter or key: Python integers, or arrays of uint64.
Words: TypeAlias = int | np.unsignedinteger | np.ndarray | jax.Array

ROUNDS = 10
FACTORS = 0xD2511F53, 0xCD9E8D57
KEY_INCREMENTS = 0x9E3779B9, 0xBB67AE85
SEED_KEY = 0x02461E293EC8F720
WORD_MASK = 0xFFFFFFFF
# TensorFlow advances the counter by this number for each element that it draws.
COUNTS_PER_OUTPUT = 256
# For floating dtypes narrower than 64 bits: the width of the mantissa, the bit pattern of 1, and
# the unsigned dtype of the same size.
MANTISSAS = {
    "float16": (10, 15 << 10, np.uint16),
    "bfloat16": (7, 127 << 7, np.uint16),
    "float32": (23, 127 << 23, np.uint32),
}
_FLOAT64_ONE_BITS = 1023 << 52
# Replaces a zero before the logarithm of the Box-Muller transform.
MIN_UNIFORM = 1e-7


class _Word:
    """An array of words, with operators that JAX traces twice as fast as those of the array."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    @staticmethod
    def _make_operator(function: Callable[..., jax.Array]) -> Callable[[_Word, Any], _Word]:
        def operate(left: _Word, right: Any) -> _Word:
            is_word = isinstance(right, _Word)
            return _Word(function(left.array, right.array if is_word else np.uint64(right)))

        return operate

    __and__ = _make_operator(lax.bitwise_and)
    __xor__ = _make_operator(lax.bitwise_xor)
    __add__ = _make_operator(lax.add)
    __mul__ = _make_operator(lax.mul)
    __rshift__ = _make_operator(lax.shift_right_logical)


def generate_block(low: Words, high: Words, key: Words) -> tuple[Any, Any, Any, Any]:
    """Compute the block of four words for each counter and key.

    Args:
      low: Low half of the counter.
      high: High half of the counter.
      key: The key, 64 bits.

    Returns:
      Four words of 32 bits, of the type and shape of the arguments.
    """
    wrap = lambda word: _Word(word) if isinstance(word, jax.Array) else word
    words = [part for word in (wrap(low), wrap(high)) for part in (word & WORD_MASK, word >> 32)]
    first, second = wrap(key) & WORD_MASK, wrap(key) >> 32
    for _ in range(ROUNDS):
        left, right = words[0] * FACTORS[0], words[2] * FACTORS[1]
        words = [
            (right >> 32) ^ words[1] ^ first,
            right & WORD_MASK,
            (left >> 32) ^ words[3] ^ second,
            left & WORD_MASK,
        ]
        first, second = (
            (first + KEY_INCREMENTS[0]) & WORD_MASK,
            (second + KEY_INCREMENTS[1]) & WORD_MASK,
        )
    a, b, c, d = (w.array if isinstance(w, _Word) else w for w in words)
    return a, b, c, d


def derive_state(first: Words, second: Words) -> tuple[Any, Any, Any]:
    """Derive the state of a stateless op's generator from its seed.

    Args:
      first: First element of the seed.
      second: Second element of the seed.

    Returns:
      The low and high halves of the counter, and the key.
    """
    a, b, c, d = generate_block(first, second, SEED_KEY)
    return a & 0, c | d << 32, a | b << 32


# The interpreter recognizes calls of this function by its name.
@jax.jit
def philox_seed_key(seed: jax.Array) -> jax.Array:
    """Return the key of a stateless op, int64 [3], for its seed of two integers."""
    words = seed.astype(jnp.int64).astype(jnp.uint64)
    return jnp.stack(derive_state(words[0], words[1])).astype(jnp.int64)


def advance_state(state: jax.Array, counts: ArrayLike) -> jax.Array:
    """Return the state after `counts` steps of the counter."""
    low, high, key = _advance(state, lax.convert_element_type(counts, np.uint64))
    return lax.convert_element_type(jnp.stack([low, high, key]), np.int64)


def _advance(state: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the words of the state after some steps, in uint64."""
    unsigned = lax.convert_element_type(state, np.uint64)
    low, high, key = (take(unsigned, i) for i in range(3))
    advanced = combine(lax.add, low, counts)
    carry = lax.convert_element_type(combine(lax.lt, advanced, low), np.uint64)
    return advanced, combine(lax.add, high, carry), key


def fold_in(state: jax.Array, data: ArrayLike) -> jax.Array:
    """Return a state with another key for each `data`, for example the index of a replica or shard."""
    unsigned = state.astype(jnp.uint64)
    a, b, _, _ = generate_block(jnp.asarray(data).astype(jnp.uint64), unsigned[1], ~unsigned[2])
    return jnp.stack([unsigned[0], unsigned[1], a | b << 32]).astype(jnp.int64)


def generate_words(state: jax.Array, offsets: ArrayLike) -> tuple[jax.Array, ...]:
    """Return the four words, in uint64, of the counters at some offsets from a state."""
    return generate_block(*_advance(state, lax.convert_element_type(offsets, np.uint64)))


class ShareDraws(Protocol):
    """Random numbers for a share of a batch, which are some of the numbers for the batch."""

    def count(self, used: int | jax.Array) -> int | jax.Array:
        """Return the number of counters of the batch, given that of the share."""

    def make_indices(self, shape: tuple[int, ...]) -> jax.Array:
        """Return the index of each element among those of the batch, in uint64, given the share's shape."""


class _CurrentDraws(threading.local):
    draws: ShareDraws | None = None


# Draws numbers of a share of a batch in this thread, or None.
current_draws = _CurrentDraws()


@contextlib.contextmanager
def share_draws_scope(draws: ShareDraws | None) -> Iterator[None]:
    """Draw the numbers of a share of a batch in this thread."""
    saved, current_draws.draws = current_draws.draws, draws
    try:
        yield
    finally:
        current_draws.draws = saved


def count_for_batch(used: int | jax.Array) -> int | jax.Array:
    """Return the number of counters that a draw of a batch uses, given that of the share that is traced."""
    return used if current_draws.draws is None else current_draws.draws.count(used)


def make_flat_indices(shape: Sequence[Any]) -> jax.Array:
    """Return the row-major index of each element of an array, in uint64.

    The index is a sum over the axes, so XLA can compute any sharding of it locally.
    """
    if current_draws.draws is not None:
        return current_draws.draws.make_indices(tuple(shape))
    return _compute_flat_indices(shape)


def _compute_flat_indices(shape: Sequence[Any]) -> jax.Array:
    indices, stride = lax.full(shape, 0, np.uint64), 1
    for axis in reversed(range(len(shape))):
        index = lax.broadcasted_iota(np.uint64, shape, axis)
        indices = lax.add(indices, lax.mul(index, lax.convert_element_type(stride, np.uint64)))
        stride = stride * shape[axis]
    return indices


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def make_indices(
    shape: tuple[int, ...], share: ArrayLike = 0, rows: int = 1, num_shares: int = 1
) -> jax.Array:
    """Return the row-major indices of the elements of a share among those of all shares.

    Args:
      shape: Shape of the share. Its first axis has the rows of the share, or those of several arrays one
        after the other.
      share: Index of the share.
      rows: Number of rows of a share.
      num_shares: Number of shares.
    """
    indices = _compute_flat_indices(shape)
    if num_shares == 1:
        return indices
    row_size = math.prod(shape[1:])
    row, column = indices // row_size, indices % row_size
    first = jnp.asarray(share).astype(jnp.uint64) * rows
    row = row // rows * (rows * num_shares) + first + row % rows
    return row * row_size + column


def _draw_words(state: jax.Array, index: jax.Array) -> jax.Array:
    """Return the word of each element, given its index."""
    a, b, c, d = generate_words(state, lax.shift_right_logical(index, np.uint64(2)))
    return _select_word(lax.bitwise_and(index, np.uint64(3)), a, b, c, d)


def _select_word(
    word_index: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> jax.Array:
    is_first, is_third = (lax.eq(word_index, np.uint64(i)) for i in (0, 2))
    is_early = lax.lt(word_index, np.uint64(2))
    return select(is_early, select(is_first, a, b), select(is_third, c, d))


def draw_word_pairs(state: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two words, in uint64, for each element index."""
    a, b, c, d = generate_words(state, index >> 1)
    is_first = index & 1 == 0
    return jnp.where(is_first, a, c), jnp.where(is_first, b, d)


def words_to_float64(first: jax.Array, second: jax.Array) -> jax.Array:
    """Convert pairs of words to float64 in [0, 1)."""
    pattern = (first & 0xFFFFF) << 32 | second | _FLOAT64_ONE_BITS
    return jax.lax.bitcast_convert_type(pattern, jnp.float64) - 1


def _word_to_float(word: jax.Array, name: str = "float32") -> jax.Array:
    """Convert words to a float dtype of at most 32 bits, in [0, 1)."""
    width, one, unsigned = MANTISSAS[name]
    mantissa = lax.bitwise_and(word, np.uint64((1 << width) - 1))
    pattern = lax.convert_element_type(lax.bitwise_or(mantissa, np.uint64(one)), unsigned)
    dtype = jnp.dtype(name)
    return lax.sub(lax.bitcast_convert_type(pattern, dtype), dtype.type(1))


def draw_uniform(state: jax.Array, shape: Sequence[Any], dtype: DTypeLike) -> jax.Array:
    """Draw floats from [0, 1).

    Args:
      state: State of the generator, int64 [3].
      shape: Shape of the result; sizes may be symbolic.
      dtype: A floating dtype.
    """
    return _skip_cache(philox_uniform)(state, tuple(shape), jnp.dtype(dtype))


def _skip_cache(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a compiled function, or the original one if its cached program has other indices."""
    return function if current_draws.draws is None else inspect.unwrap(function)


# The names of this function and of `philox_normal` appear in jaxprs. Exports to runtimes with their
# own generators recognize the calls by these names.
@functools.partial(jax.jit, static_argnums=(1, 2))
def philox_uniform(state: jax.Array, shape: tuple[Any, ...], dtype: DTypeLike) -> jax.Array:
    """Draw floats from [0, 1), as one call of a named function."""
    name = jnp.dtype(dtype).name
    if name == "float64":
        return words_to_float64(*draw_word_pairs(state, make_flat_indices(shape)))
    if name in MANTISSAS:
        return _word_to_float(_draw_words(state, make_flat_indices(shape)), name)
    return _word_to_float(_draw_words(state, make_flat_indices(shape))).astype(dtype)


def draw_uniform_at(state: jax.Array, index: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Draw the elements of an array from `draw_uniform` by their row-major indices.

    Args:
      state: State of the generator, int64 [3].
      index: Indices, uint64 of any shape.
      dtype: A floating dtype of at most 32 bits.
    """
    return _word_to_float(_draw_words(state, index), jnp.dtype(dtype).name)


def draw_bits(state: jax.Array, shape: Sequence[Any], dtype: DTypeLike) -> jax.Array:
    """Draw integers from the full range of a dtype.

    Args:
      state: State of the generator, int64 [3].
      shape: Shape of the result; sizes may be symbolic.
      dtype: An integer dtype.
    """
    if jnp.dtype(dtype).itemsize < 8:
        return _draw_words(state, make_flat_indices(shape)).astype(dtype)
    first, second = draw_word_pairs(state, make_flat_indices(shape))
    return (first | second << 32).astype(dtype)


def draw_integers(
    state: jax.Array, shape: Sequence[Any], low: ArrayLike, high: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Draw integers from `low` to `high - 1`.

    Args:
      state: State of the generator, int64 [3].
      shape: Shape of the result; sizes may be symbolic.
      low: Smallest value.
      high: Upper bound, exclusive.
      dtype: An integer dtype.
    """
    is_wide = jnp.dtype(dtype).itemsize == 8
    unsigned = jnp.uint64 if is_wide else jnp.uint32
    low, high = (jnp.asarray(v).astype(dtype) for v in (low, high))
    if not is_wide:
        low, high = (
            v.astype(jnp.uint32 if v.dtype.kind == "u" else jnp.int32) for v in (low, high)
        )
    span = high.astype(unsigned) - low.astype(unsigned)
    return (low.astype(unsigned) + draw_bits(state, shape, unsigned) % span).astype(dtype)


def _apply_box_muller(
    radius: jax.Array, turn: jax.Array, min_uniform: float
) -> tuple[jax.Array, jax.Array]:
    """Transform two uniform samples to two standard normal ones (Box and Muller 1958).

    Args:
      radius: Uniform samples that determine the distance from the origin.
      turn: Uniform samples that determine the angle.
      min_uniform: Lower bound of `radius`, which avoids the logarithm of zero.
    """
    angle = turn * jnp.asarray(2 * math.pi, turn.dtype)
    length = jnp.sqrt(-2 * jnp.log(jnp.maximum(radius, jnp.asarray(min_uniform, radius.dtype))))
    return jnp.sin(angle) * length, jnp.cos(angle) * length


def draw_normal(state: jax.Array, shape: Sequence[Any], dtype: DTypeLike) -> jax.Array:
    """Draw standard normal numbers.

    Args:
      state: State of the generator, int64 [3].
      shape: Shape of the result; sizes may be symbolic.
      dtype: A floating dtype.
    """
    return _skip_cache(philox_normal)(state, tuple(shape), jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2))
def philox_normal(state: jax.Array, shape: tuple[Any, ...], dtype: DTypeLike) -> jax.Array:
    """Draw standard normal numbers, as one call of a named function."""
    index = make_flat_indices(shape)
    if jnp.dtype(dtype) == jnp.float64:
        a, b, c, d = generate_words(state, index >> 1)
        uniforms = words_to_float64(a, b), words_to_float64(c, d)
    else:
        a, b, c, d = generate_words(state, index >> 2)
        is_first = index & 2 == 0
        uniforms = (
            _word_to_float(jnp.where(is_first, a, c)),
            _word_to_float(jnp.where(is_first, b, d)),
        )
    even, odd = _apply_box_muller(*uniforms, MIN_UNIFORM)
    return jnp.where(index & 1 == 0, even, odd).astype(dtype)


def draw_normals_per_counter(
    state: jax.Array, offsets: ArrayLike, dtype: DTypeLike
) -> tuple[jax.Array, ...]:
    """Draw the standard normal numbers of each counter.

    A counter yields two float64, or four float32 for any other dtype.

    Args:
      state: State of the generator, int64 [3].
      offsets: Offsets of the counters, uint64 of any shape.
      dtype: Dtype of the final result.

    Returns:
      Two or four arrays with the shape of `offsets`.
    """
    a, b, c, d = generate_words(state, offsets)
    if jnp.dtype(dtype) == jnp.float64:
        return _apply_box_muller(words_to_float64(a, b), words_to_float64(c, d), MIN_UNIFORM)
    return (
        *_apply_box_muller(_word_to_float(a), _word_to_float(b), MIN_UNIFORM),
        *_apply_box_muller(_word_to_float(c), _word_to_float(d), MIN_UNIFORM),
    )


def draw_uniforms_per_counter(state: jax.Array, offsets: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Draw two float64 numbers in [0, 1) from each counter."""
    a, b, c, d = generate_words(state, offsets)
    return words_to_float64(a, b), words_to_float64(c, d)
