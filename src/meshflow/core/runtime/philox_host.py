"""TensorFlow's stateless random numbers, computed on the host.

A seed produces the same initial weights as in TensorFlow.

The counter is processed in blocks, so that the arrays fit in the processor's cache.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from meshflow.core.runtime import philox
from meshflow.interpreter.table import Equation, UnsupportedPrimitive, call_rule
from meshflow.kernels import host_math

_BLOCK_COUNTERS = 1 << 13
# Four truncated normal numbers may need up to this many counters.
_COUNTS_PER_GROUP = 256
_MIN_UNIFORM = np.float32(philox.MIN_UNIFORM)


def _generate_blocks(low: np.ndarray, high: int | np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """Return the four words of each counter, uint32 [..., 4].

    Args:
      low: Low halves of the counters, uint64.
      high: High halves, which broadcast to the shape of `low`.
      key: Keys, which broadcast to the shape of `low`.
    """
    generate = host_math.find_philox()
    if generate is not None:
        columns: np.ndarray = np.empty((3, *low.shape), np.uint64)
        columns[0], columns[1], columns[2] = low, high, key
        return generate(*columns).reshape(*low.shape, 4)
    # Words 0 and 2 are multiplied, then words 1 and 3 are combined with the products.
    split = lambda word: (word & np.uint64(philox.WORD_MASK), word >> np.uint64(32))
    pairs: np.ndarray = np.empty((2, 2, *low.shape), np.uint32)
    (pairs[0, 0], pairs[1, 0]) = split(low)
    (pairs[0, 1], pairs[1, 1]) = split(np.asarray(high, np.uint64))
    multiplied, combined = pairs
    column = (2,) + (1,) * low.ndim
    factors = np.array(philox.FACTORS, np.uint64).reshape(column)
    increments = np.array(philox.KEY_INCREMENTS, np.uint32).reshape(column)
    keys = np.stack(split(np.asarray(key, np.uint64))).astype(np.uint32)
    keys = keys.reshape(2, *(1,) * (low.ndim + 1 - keys.ndim), *keys.shape[1:])
    products: np.ndarray = np.empty((2, *low.shape), np.uint64)
    halves = products.view(np.uint32).reshape(2, *low.shape, 2)
    first = int(sys.byteorder == "big")
    low_halves, high_halves = halves[::-1, ..., first], halves[::-1, ..., 1 - first]
    for _ in range(philox.ROUNDS):
        np.multiply(multiplied, factors, out=products)
        np.bitwise_xor(high_halves, combined, out=multiplied)
        multiplied ^= keys
        combined[...] = low_halves
        keys = keys + increments
    return np.moveaxis(pairs, (1, 0), (-2, -1)).reshape(*low.shape, 4)


class PhiloxWordStream:
    """The sequence of words of a Philox generator.

    Args:
      state: State of the generator: the low and high halves of the counter, and the key.

    Attributes:
      num_taken: Number of words taken so far. Assign to it to skip words.

    Example:
      >>> from meshflow.core.runtime.philox_host import PhiloxWordStream
      >>> PhiloxWordStream([0, 1, 7]).take(3).tolist()
      [2126179728, 737597871, 1336687403]
    """

    def __init__(self, state: Sequence[int]) -> None:
        self._low, self._high, self._key = (int(w) & 0xFFFFFFFFFFFFFFFF for w in state)
        self.num_taken = 0

    def take(self, count: int) -> np.ndarray:
        """Return the next words, uint32 [count]."""
        first, offset = divmod(self.num_taken, 4)
        counters = np.arange(first, -(-(self.num_taken + count) // 4), dtype=np.uint64)
        self.num_taken += count
        words = _generate_blocks(counters + np.uint64(self._low), self._high, self._key)
        return words.reshape(-1)[offset : offset + count]

    @property
    def state(self) -> list[int]:
        """Return the state after all blocks that were used, including a partly used one."""
        return [self._low + -(-self.num_taken // 4), self._high, self._key]


def _to_unit_interval(words: np.ndarray) -> np.ndarray:
    """Convert the lowest 23 bits of words to float32 in [0, 1)."""
    bits = (words & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return bits.view(np.float32) - np.float32(1)


def _to_normal(words: np.ndarray) -> np.ndarray:
    """Convert each pair of words to two standard normal numbers (Box and Muller 1958)."""
    pairs = _to_unit_interval(words).reshape(*words.shape[:-1], -1, 2)
    angle = np.float32(2 * math.pi) * pairs[..., 1]
    length = np.sqrt(np.float32(-2) * np.log(np.maximum(pairs[..., 0], _MIN_UNIFORM)))
    return np.stack([np.sin(angle) * length, np.cos(angle) * length], -1).reshape(words.shape)


class StatelessRandom:
    """The numbers that TensorFlow's stateless ops draw for the seed `[seed, 0]`, in float32.

    Args:
      seed: An integer.

    Example:
      >>> from meshflow.core.runtime.philox_host import StatelessRandom
      >>> [f"{x:.4f}" for x in StatelessRandom(3).uniform(0.0, 1.0, (2,))]
      ['0.1959', '0.9393']
    """

    def __init__(self, seed: int) -> None:
        _, self._high, self._key = philox.derive_state(seed & 0xFFFFFFFFFFFFFFFF, 0)

    def _draw(
        self, convert: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: type
    ) -> np.ndarray:
        """Draw an array by a function that converts words [n, 4] to elements [n, 4]."""
        size = math.prod(shape)
        count = -(-size // 4)
        groups: np.ndarray = np.empty((count, 4), dtype)
        for start in range(0, count, _BLOCK_COUNTERS):
            counters = np.arange(start, min(start + _BLOCK_COUNTERS, count), dtype=np.uint64)
            groups[start : start + _BLOCK_COUNTERS] = convert(
                _generate_blocks(counters, self._high, self._key)
            )
        return groups.reshape(-1)[:size].reshape(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        """Draw floats from `low` (inclusive) to `high` (exclusive)."""
        width, start = np.float32(high - low), np.float32(low)
        return self._draw(lambda words: _to_unit_interval(words) * width + start, shape, np.float32)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        """Draw integers from `low` to `high - 1`."""
        return self._draw(lambda words: words % np.int64(high - low) + low, shape, np.int64)

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw standard normal numbers."""
        return self._draw(_to_normal, shape, np.float32)

    def truncated_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw standard normal numbers between -2 and 2.

        Each group of four elements takes the first four numbers in that range from its own part of
        the counter.
        """
        size = math.prod(shape)
        count = -(-size // 4)
        groups = np.empty((count, 4), np.float32)
        for start in range(0, count, _BLOCK_COUNTERS):
            groups[start : start + _BLOCK_COUNTERS] = self._draw_truncated_groups(
                start, min(start + _BLOCK_COUNTERS, count)
            )
        return groups.reshape(-1)[:size].reshape(shape)

    def _draw_truncated_groups(self, start: int, stop: int) -> np.ndarray:
        """Draw the groups of four truncated normal numbers from `start` to `stop`."""
        first_counters = np.arange(start, stop, dtype=np.uint64) * np.uint64(_COUNTS_PER_GROUP)
        # In most groups, all four numbers of the first counter are in the range.
        groups = _to_normal(_generate_blocks(first_counters, self._high, self._key))
        num_filled = np.where((np.abs(groups) < 2).all(axis=1), 4, 0)
        # Two counters yield eight numbers, of which nearly always at least four are in the range;
        # few groups need more.
        for step in range(0, _COUNTS_PER_GROUP, 2):
            unfilled = np.flatnonzero(num_filled < 4)
            if not unfilled.size:
                break
            counts = first_counters[unfilled] + np.uint64(step)
            blocks = (
                _generate_blocks(c, self._high, self._key) for c in (counts, counts + np.uint64(1))
            )
            normal = _to_normal(np.concatenate([*blocks], -1))
            in_range = np.abs(normal) < 2
            positions = num_filled[unfilled, None] + np.cumsum(in_range, axis=1) - 1
            selected = in_range & (positions < 4)
            rows = np.broadcast_to(unfilled[:, None], selected.shape)
            groups[rows[selected], positions[selected]] = normal[selected]
            num_filled[unfilled] = np.minimum(num_filled[unfilled] + in_range.sum(axis=1), 4)
        return groups


def _draw_words(states: np.ndarray, count: int) -> np.ndarray:
    """Return the words of the first blocks of states, uint32 [n, count / 4, 4], rounded up.

    Args:
      states: int64 [n, 3].
      count: Number of words.
    """
    low, high, key = states.astype(np.uint64).T[:, :, None]
    words: np.ndarray = np.empty((len(states), -(-count // 4), 4), np.uint32)
    step = max(_BLOCK_COUNTERS // max(len(states), 1), 1)
    for start in range(0, words.shape[1], step):
        stop = min(start + step, words.shape[1])
        counters = np.arange(start, stop, dtype=np.uint64) + low
        # The high half of a counter that overflows is larger by 1.
        words[:, start:stop] = _generate_blocks(counters, high + (counters < low), key)
    return words


def _to_float64(words: np.ndarray) -> np.ndarray:
    """Convert each pair of words to a float64 in [0, 1)."""
    pairs = words.reshape(-1, 2).astype(np.uint64)
    bits = (pairs[:, 0] & np.uint64(0xFFFFF)) << np.uint64(32) | pairs[:, 1] | np.uint64(1023 << 52)
    return bits.view(np.float64) - 1


def _register_draw(name: str, draw: Callable[[np.ndarray, int, np.dtype], np.ndarray]) -> None:
    """Register the rule of a function that draws an array, which `vmap` may have mapped over states.

    Args:
      name: Name of the function.
      draw: Function from the states [n, 3], a number of values, and their dtype to at least so many
        values for each state.
    """

    @call_rule(name)
    def build(equation: Equation) -> Callable[[np.ndarray], list[np.ndarray]]:
        shape, dtype = equation.outputs[0]
        states = equation.inputs[0].shape
        # `vmap` may add its axis before or after that of the three integers.
        is_transposed = states[-1] != 3
        batch = states[1:] if is_transposed else states[:-1]
        if 3 not in (states[0], states[-1]) or batch == (3,) or shape[: len(batch)] != batch:
            raise UnsupportedPrimitive([f"{name} of states of shape {states}"])
        size, count = math.prod(shape[len(batch) :]), math.prod(batch)

        def run(state: np.ndarray) -> list[np.ndarray]:
            rows = (np.moveaxis(state, 0, -1) if is_transposed else state).reshape(-1, 3)
            values = draw(rows, size, dtype).reshape(count, -1)[:, :size]
            return [values.astype(dtype, copy=False).reshape(shape)]

        return run


def draw_words(state: np.ndarray, count: int, dtype: DTypeLike = np.uint32) -> np.ndarray:
    """Return the first words of a state, int64 [3], as uint32 [count], or as float32 in [0, 1)."""
    generate, num_blocks = host_math.find_philox(), -(-count // 4)
    words = np.ascontiguousarray(state).view(np.uint64)
    if generate is not None and int(words[0]) + num_blocks < 1 << 64:
        drawn = generate(words, words[1:], words[2:], num_blocks, dtype)
    else:
        drawn = _draw_words(state[None], count)
        drawn = _to_unit_interval(drawn) if np.dtype(dtype) == np.float32 else drawn
    return drawn.reshape(-1)[:count]


def draw_unit_uniform(state: np.ndarray, count: int) -> np.ndarray:
    """Draw float32 numbers in [0, 1), like `philox.philox_uniform`.

    Args:
      state: State of the generator, int64 [3].
      count: How many numbers.
    """
    return draw_words(state, count, np.float32)


def _draw_uniform(states: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
    """Draw the numbers of `philox.philox_uniform` in a program that runs op by op."""
    if dtype == np.float64:
        return _to_float64(_draw_words(states, 2 * size))
    if dtype == np.float32:
        if len(states) == 1:
            return draw_unit_uniform(states[0], size)
        return _to_unit_interval(_draw_words(states, size))
    width, one = philox.MANTISSAS[dtype.name][:2]
    words = _draw_words(states, size) & np.uint32((1 << width) - 1)
    return (words | np.uint32(one)).astype(np.uint16).view(dtype).astype(np.float32) - 1


def _draw_normal(states: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
    """Draw the numbers of `philox.philox_normal` in a program that runs op by op."""
    if dtype != np.float64:
        return _to_normal(_draw_words(states, max(size, 1)))
    uniforms = _to_float64(_draw_words(states, 2 * (size + 1))).reshape(-1, 2)
    angle = 2 * math.pi * uniforms[:, 1]
    length = np.sqrt(-2 * np.log(np.maximum(uniforms[:, 0], philox.MIN_UNIFORM)))
    return np.stack([np.sin(angle) * length, np.cos(angle) * length], -1)


_register_draw("philox_uniform", _draw_uniform)
_register_draw("philox_normal", _draw_normal)


@call_rule("philox_seed_key")
def _derive_keys(equation: Equation) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return the function of a seed, or of seeds that `vmap` stacked along the first or last axis."""
    shape, result = equation.inputs[0].shape, equation.outputs[0].shape
    batch = () if len(shape) == 1 else shape[:-1] if shape[-1] == 2 else shape[1:]
    is_ambiguous = len(shape) > 1 and (shape[0] == shape[-1] or result[0] == result[-1])
    if is_ambiguous or result not in ((*batch, 3), (3, *batch)):
        raise UnsupportedPrimitive([f"philox_seed_key of seeds of shape {shape}"])
    is_transposed, is_last = batch != shape[:-1], result == (3, *batch) and batch != ()

    def run(seeds: np.ndarray) -> list[np.ndarray]:
        rows = np.moveaxis(seeds, 0, -1) if is_transposed else seeds
        words = rows.reshape(-1, 2).astype(np.int64).astype(np.uint64)
        blocks = _generate_blocks(words[:, 0], words[:, 1], philox.SEED_KEY).astype(np.uint64)
        high = blocks[:, 2] | blocks[:, 3] << np.uint64(32)
        key = blocks[:, 0] | blocks[:, 1] << np.uint64(32)
        states = np.stack([np.zeros_like(key), high, key], -1).astype(np.int64)
        states = states.reshape(*batch, 3)
        return [np.moveaxis(states, -1, 0) if is_last else states]

    return run
