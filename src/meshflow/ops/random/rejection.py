"""Rejection sampling that consumes random numbers in the order of TensorFlow's CPU kernels.

Each result has its own counters, so all results are computed in parallel: results that were
accepted wait until the others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from meshflow.core.runtime.philox import (
    COUNTS_PER_OUTPUT,
    draw_normals_per_counter,
    draw_uniforms_per_counter,
)

# A mask of the results that were drawn in advance, and their values.
_Reserve: TypeAlias = tuple[Array, Array]

# Counters that belong to each truncated normal number.
_COUNTERS_PER_TRUNCATED = 64
# Counters that belong to each binomial number with a small mean.
_COUNTERS_PER_GAPS = 42


def _repeat_until_accepted(step: Callable[..., Any], counts: Array, start: Any) -> Any:
    """Repeat `step(turn, is_pending, value) -> (is_accepted, value)` until all are accepted."""

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        turn, is_pending, value = state
        is_accepted, value = step(turn, is_pending, value)
        return turn + 1, is_pending & ~is_accepted, value

    first = jnp.zeros((), jnp.uint64), jnp.ones(counts.shape, bool), start
    return jax.lax.while_loop(lambda state: state[1].any(), body, first)[2]


def draw_truncated_normal(state: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Draw normal numbers in (-2, 2).

    Groups of four numbers (two in float64) share their counters and take the first accepted ones.
    """
    double = jnp.dtype(dtype) == jnp.float64
    group = 2 if double else 4
    size = math.prod(shape)
    count = -(-size // group)
    counts = jax.lax.iota(jnp.uint64, count) * (_COUNTERS_PER_TRUNCATED * group)

    def step(turn: Array, is_pending: Array, value: Any) -> tuple[Array, Any]:
        results, filled = value
        for drawn in draw_normals_per_counter(state, counts + turn, dtype):
            is_taken = (jnp.abs(drawn) < 2) & (filled < group)
            results = tuple(
                jnp.where(is_taken & (filled == n), drawn, r) for n, r in enumerate(results)
            )
            filled = filled + is_taken
        return filled >= group, (results, filled)

    zeros = jnp.zeros(count, jnp.float64 if double else jnp.float32)
    start = (zeros,) * group, jnp.zeros(count, jnp.int32)
    results, _ = _repeat_until_accepted(step, counts, start)
    return jnp.stack(results, -1).reshape(-1)[:size].reshape(tuple(shape)).astype(dtype)


def draw_poisson(state: Array, rate: Array, indices: Array) -> Array:
    """Draw Poisson-distributed numbers as float64.

    Args:
      state: State of the generator.
      rate: Means.
      indices: Flat index of each result, as uint64; it determines the counters of the result.
    """
    counts = indices * COUNTS_PER_OUTPUT
    is_valid = jnp.isfinite(rate) & (rate >= 0)
    # An invalid rate would never be accepted.
    rate = jnp.where(is_valid, rate, 0.0)
    is_small = rate < 10
    small = _draw_small_poisson(state, jnp.where(is_small, rate, 1.0), counts, is_small)
    large = _draw_large_poisson(state, jnp.where(is_small, 10.0, rate), counts, ~is_small)
    return jnp.where(is_valid, jnp.where(is_small, small, large), jnp.nan)


def _draw_small_poisson(state: Array, rate: Array, counts: Array, needed: Array) -> Array:
    """Count the uniform numbers until their product is below exp(-rate) (Knuth 1969)."""
    limit = jnp.exp(-rate)

    def step(turn: Array, is_pending: Array, value: Any) -> tuple[Array, Any]:
        product, number = value
        second, first = draw_uniforms_per_counter(state, counts + turn)
        product = product * first
        is_done = product <= limit
        next_product = product * second
        is_done_next = next_product <= limit
        increment = jnp.where(is_done, 0.0, jnp.where(is_done_next, 1.0, 2.0))
        number = jnp.where(is_pending, number + increment, number)
        return is_done | is_done_next | ~needed, (next_product, number)

    return _repeat_until_accepted(step, counts, (jnp.ones_like(rate), jnp.zeros_like(rate)))[1]


def _draw_large_poisson(state: Array, rate: Array, counts: Array, needed: Array) -> Array:
    """Draw by transformed rejection with squeeze (PTRS, Hormann 1993)."""
    b = 0.931 + 2.53 * jnp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)

    def step(turn: Array, is_pending: Array, value: Array) -> tuple[Array, ...]:
        v, u = draw_uniforms_per_counter(state, counts + turn)
        u = u - 0.5
        margin = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / margin + b) * u + rate + 0.43)
        is_in_squeeze = (margin >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        is_rejected = (k < 0) | ((margin < 0.013) & (v > margin))
        left = jnp.log(v * inverse / (a / (margin * margin) + b))
        right = -rate + k * jnp.log(rate) - jax.lax.lgamma(k + 1)
        is_accepted = is_in_squeeze | (~is_rejected & (left <= right))
        return is_accepted | ~needed, jnp.where(is_pending & is_accepted, k, value)

    return _repeat_until_accepted(step, counts, jnp.zeros_like(rate))


def draw_binomial(state: Array, trials: Array, probability: Array, indices: Array) -> Array:
    """Draw binomially distributed numbers as float64; see `draw_poisson` for the arguments."""
    is_flipped = probability > 0.5
    p = jnp.where(is_flipped, 1 - probability, probability)
    trials = jnp.floor(trials)
    is_valid = jnp.isfinite(trials) & ~jnp.isnan(p)
    is_zero = (p <= 0) | (trials <= 0)
    is_large = trials * p >= 10
    is_drawn = is_valid & ~is_zero
    small = _draw_small_binomial(
        state,
        jnp.where(is_large, 1.0, trials),
        jnp.where(is_drawn, p, 0.5),
        indices * _COUNTERS_PER_GAPS,
        is_drawn & ~is_large,
    )
    large = _draw_large_binomial(
        state,
        jnp.where(is_large, trials, 40.0),
        jnp.where(is_large, p, 0.5),
        indices * COUNTS_PER_OUTPUT,
        is_drawn & is_large,
    )
    result = jnp.where(is_zero, 0.0, jnp.where(is_large, large, small))
    return jnp.where(is_valid, jnp.where(is_flipped, trials - result, result), jnp.nan)


def _draw_small_binomial(
    state: Array, trials: Array, p: Array, counts: Array, needed: Array
) -> Array:
    """Count the geometric gaps between successes that fit into the trials (Kachitvichyanukul 1988)."""
    scale = jnp.log1p(-p)

    def step(turn: Array, is_pending: Array, value: Any) -> tuple[Array, Any]:
        total, number = value
        second, first = (
            jnp.ceil(jnp.log(u) / scale) for u in draw_uniforms_per_counter(state, counts + turn)
        )
        total = total + first
        is_done = total > trials
        next_total = total + second
        is_done_next = next_total > trials
        increment = jnp.where(is_done, 0.0, jnp.where(is_done_next, 1.0, 2.0))
        number = jnp.where(is_pending, number + increment, number)
        return is_done | is_done_next | ~needed, (next_total, number)

    return _repeat_until_accepted(step, counts, (jnp.zeros_like(trials), jnp.zeros_like(trials)))[1]


_STIRLING_TAILS = (
    *(0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509),
    *(0.0166446911898211, 0.0138761288230707, 0.0118967099458917, 0.0104112652619720),
    *(0.00925546218271273, 0.00833056343336287),
)


def _compute_stirling_tail(k: Array) -> Array:
    """Compute the error of Stirling's formula for log(k!)."""
    square = (k + 1) ** 2
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    exact = jnp.asarray(_STIRLING_TAILS)[jnp.clip(k, 0, 9).astype(jnp.int32)]
    return jnp.where(k <= 9, exact, series)


def _draw_large_binomial(
    state: Array, trials: Array, p: Array, counts: Array, needed: Array
) -> Array:
    """Draw by transformed rejection with squeeze (BTRS, Hormann 1993)."""
    deviation = jnp.sqrt(trials * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = trials * p + 0.5
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((trials + 1) * p)
    tails = _compute_stirling_tail(mode) + _compute_stirling_tail(trials - mode)

    def step(turn: Array, is_pending: Array, value: Array) -> tuple[Array, ...]:
        v, u = draw_uniforms_per_counter(state, counts + turn)
        u = u - 0.5
        margin = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / margin + b) * u + c)
        is_in_squeeze = (margin >= 0.07) & (v <= 0.92 - 4.2 / b)
        is_rejected = (k < 0) | (k > trials)
        left = jnp.log(v * alpha / (a / (margin * margin) + b))
        right = (
            (mode + 0.5) * jnp.log((mode + 1) / (odds * (trials - mode + 1)))
            + (trials + 1) * jnp.log((trials - mode + 1) / (trials - k + 1))
            + (k + 0.5) * jnp.log(odds * (trials - k + 1) / (k + 1))
            + tails
            - _compute_stirling_tail(k)
            - _compute_stirling_tail(trials - k)
        )
        is_accepted = is_in_squeeze | (~is_rejected & (left <= right))
        return is_accepted | ~needed, jnp.where(is_pending & is_accepted, k, value)

    return _repeat_until_accepted(step, counts, jnp.zeros_like(trials))


def draw_gamma(state: Array, alpha: Array, indices: Array) -> Array:
    """Draw gamma-distributed numbers of rate 1 as float64 (Marsaglia and Tsang 2000).

    The arguments are explained in `draw_poisson`.
    """
    counts = indices * COUNTS_PER_OUTPUT
    is_valid = alpha >= 0
    # An invalid alpha would never be accepted.
    alpha = jnp.where(is_valid, alpha, 1.0)
    is_below_one = alpha < 1
    d = alpha + jnp.where(is_below_one, 2 / 3, -1 / 3)
    c = 1 / 3 / jnp.sqrt(d)
    is_exponential = alpha == 1
    zeros = jnp.zeros_like(alpha)
    used = jnp.zeros(alpha.shape, jnp.uint64)
    empty = jnp.zeros(alpha.shape, bool)

    def draw_normals(offsets: Array) -> tuple[Array, ...]:
        return draw_normals_per_counter(state, offsets, jnp.float64)

    def draw_uniforms(offsets: Array) -> tuple[Array, ...]:
        return draw_uniforms_per_counter(state, offsets)

    def step(_: Array, is_pending: Array, value: Any) -> tuple[Array, Any]:
        used, normals, uniforms, result = value
        used, normals, x = _draw_next(draw_normals, counts, used, normals, is_pending)
        v = 1 + c * x
        is_tried = is_pending & (v > 0)
        v = v * v * v
        used, uniforms, u = _draw_next(draw_uniforms, counts, used, uniforms, is_tried)
        is_in_squeeze = u < 1 - 0.0331 * (x * x) * (x * x)
        is_in_region = jnp.log(u) < 0.5 * x * x + d * (1 - v + jnp.log(v))
        is_accepted = is_tried & (is_in_squeeze | is_in_region)
        result = jnp.where(is_accepted, d * v, result)
        return is_accepted | is_exponential, (used, normals, uniforms, result)

    start = used, (empty, zeros), (empty, zeros), zeros
    used, _, uniforms, result = _repeat_until_accepted(step, counts, start)
    _, _, u = _draw_next(draw_uniforms, counts, used, uniforms, is_below_one)
    result = jnp.where(is_below_one, result * jnp.power(u, 1 / alpha), result)
    _, first = draw_uniforms_per_counter(state, counts)
    result = jnp.where(is_exponential, -jnp.log1p(-first), result)
    return jnp.where(is_valid, result, jnp.nan)


def _draw_next(
    draw: Callable[[Array], tuple[Array, ...]],
    counts: Array,
    used: Array,
    reserve: _Reserve,
    needed: Array,
) -> tuple[Array, _Reserve, Array]:
    """Draw the next number of pairs of which the second is used first.

    Returns:
      (number of used counters, the unused numbers of the last pairs, the numbers).
    """
    has_reserve, reserved = reserve
    first, second = draw(counts + used)
    is_new = needed & ~has_reserve
    value = jnp.where(has_reserve, reserved, second)
    reserve = has_reserve ^ needed, jnp.where(is_new, first, reserved)
    return used + is_new.astype(jnp.uint64), reserve, value
