"""Numbers that are drawn until one is accepted, in the order in which TensorFlow's CPU kernels draw them.

Each result has counters of its own, so all are computed side by side: those that have theirs wait for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.runtime.philox import COUNTS_PER_OUTPUT, normal_pair, uniform_pair

__all__ = ["binomial", "gamma", "poisson", "truncated_normal"]

# How many numbers of the counter belong to each truncated normal number.
_COUNTS_PER_TRUNCATED = 64
# And to each small binomial number.
_COUNTS_PER_GAPS = 42


def _until_all(step: Callable[..., Any], counts: Any, start: Any) -> Any:
    """Repeats `step(turn, open, value) -> (closed, value)`, in which `open` says whose turn it still is."""

    def body(state: Any) -> Any:
        turn, still, value = state
        closed, value = step(turn, still, value)
        return turn + 1, still & ~closed, value

    first = jnp.zeros((), jnp.uint64), jnp.ones(counts.shape, bool), start
    return jax.lax.while_loop(lambda state: state[1].any(), body, first)[2]


def truncated_normal(place: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Normal numbers between -2 and 2: of each four (two doubles), the first within that their words give."""
    double = jnp.dtype(dtype) == jnp.float64
    group = 2 if double else 4
    size = math.prod(shape)
    count = -(-size // group)
    counts = jax.lax.iota(jnp.uint64, count) * (_COUNTS_PER_TRUNCATED * group)

    def step(turn: Any, still: Any, value: Any) -> Any:
        found, held = value
        for drawn in normal_pair(place, counts + turn, dtype):
            taken = (jnp.abs(drawn) < 2) & (held < group)
            found = tuple(jnp.where(taken & (held == n), drawn, f) for n, f in enumerate(found))
            held = held + taken
        return held >= group, (found, held)

    zeros = jnp.zeros(count, jnp.float64 if double else jnp.float32)
    start = (zeros,) * group, jnp.zeros(count, jnp.int32)
    found, _ = _until_all(step, counts, start)
    return jnp.stack(found, -1).reshape(-1)[:size].reshape(tuple(shape)).astype(dtype)


def poisson(place: Any, rate: Any, numbers: Any) -> Any:
    """Poisson numbers as doubles.

    Args:
      place: where the generator stands.
      rate: their means.
      numbers: the number of each result among all, in uint64, which its counters begin at.
    """
    counts = numbers * COUNTS_PER_OUTPUT
    small = rate < 10
    few = _poisson_by_products(place, jnp.where(small, rate, 1.0), counts, small)
    many = _poisson_by_ratio(place, jnp.where(small, 10.0, rate), counts, ~small)
    sane = jnp.isfinite(rate) & (rate >= 0)
    return jnp.where(sane, jnp.where(small, few, many), jnp.nan)


def _poisson_by_products(place: Any, rate: Any, counts: Any, wanted: Any) -> Any:
    """How many uniform numbers it takes to bring their product to exp(-rate) (Knuth 1969)."""
    limit = jnp.exp(-rate)

    def step(turn: Any, still: Any, value: Any) -> Any:
        product, number = value
        second, first = uniform_pair(place, counts + turn)
        product = product * first
        done = product <= limit
        more = product * second
        done_too = more <= limit
        gained = jnp.where(done, 0.0, jnp.where(done_too, 1.0, 2.0))
        closed = done | done_too
        return closed | ~wanted, (more, jnp.where(still, number + gained, number))

    return _until_all(step, counts, (jnp.ones_like(rate), jnp.zeros_like(rate)))[1]


def _poisson_by_ratio(place: Any, rate: Any, counts: Any, wanted: Any) -> Any:
    """Transformed rejection with squeeze (Hormann 1993, PTRS)."""
    b = 0.931 + 2.53 * jnp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)

    def step(turn: Any, still: Any, value: Any) -> Any:
        v, u = uniform_pair(place, counts + turn)
        u = u - 0.5
        room = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / room + b) * u + rate + 0.43)
        at_once = (room >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        refused = (k < 0) | ((room < 0.013) & (v > room))
        left = jnp.log(v * inverse / (a / (room * room) + b))
        right = -rate + k * jnp.log(rate) - jax.lax.lgamma(k + 1)
        closed = at_once | (~refused & (left <= right))
        return closed | ~wanted, jnp.where(still & closed, k, value)

    return _until_all(step, counts, jnp.zeros_like(rate))


def binomial(place: Any, trials: Any, chance: Any, numbers: Any) -> Any:
    """Binomial numbers as doubles; arguments as in `poisson`."""
    flipped = chance > 0.5
    p = jnp.where(flipped, 1 - chance, chance)
    trials = jnp.floor(trials)
    sane = jnp.isfinite(trials) & ~jnp.isnan(p)
    empty = (p <= 0) | (trials <= 0)
    large = trials * p >= 10
    drawn = sane & ~empty
    few = _binomial_by_gaps(
        place,
        jnp.where(large, 1.0, trials),
        jnp.where(drawn, p, 0.5),
        numbers * _COUNTS_PER_GAPS,
        drawn & ~large,
    )
    many = _binomial_by_ratio(
        place,
        jnp.where(large, trials, 40.0),
        jnp.where(large, p, 0.5),
        numbers * COUNTS_PER_OUTPUT,
        drawn & large,
    )
    found = jnp.where(empty, 0.0, jnp.where(large, many, few))
    return jnp.where(sane, jnp.where(flipped, trials - found, found), jnp.nan)


def _binomial_by_gaps(place: Any, trials: Any, p: Any, counts: Any, wanted: Any) -> Any:
    """How many gaps between successes, geometric numbers, fit into the trials (Kachitvichyanukul 1988)."""
    scale = jnp.log1p(-p)

    def step(turn: Any, still: Any, value: Any) -> Any:
        total, number = value
        second, first = (jnp.ceil(jnp.log(u) / scale) for u in uniform_pair(place, counts + turn))
        total = total + first
        done = total > trials
        more = total + second
        done_too = more > trials
        gained = jnp.where(done, 0.0, jnp.where(done_too, 1.0, 2.0))
        closed = done | done_too
        return closed | ~wanted, (more, jnp.where(still, number + gained, number))

    return _until_all(step, counts, (jnp.zeros_like(trials), jnp.zeros_like(trials)))[1]


_TAILS = (
    *(0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509),
    *(0.0166446911898211, 0.0138761288230707, 0.0118967099458917, 0.0104112652619720),
    *(0.00925546218271273, 0.00833056343336287),
)


def _stirling_tail(k: Any) -> Any:
    """What Stirling's formula for log(k!) leaves out."""
    square = (k + 1) ** 2
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    known = jnp.asarray(_TAILS)[jnp.clip(k, 0, 9).astype(jnp.int32)]
    return jnp.where(k <= 9, known, series)


def _binomial_by_ratio(place: Any, trials: Any, p: Any, counts: Any, wanted: Any) -> Any:
    """Transformed rejection with squeeze (Hormann 1993, BTRS)."""
    deviation = jnp.sqrt(trials * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = trials * p + 0.5
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((trials + 1) * p)
    tails = _stirling_tail(mode) + _stirling_tail(trials - mode)

    def step(turn: Any, still: Any, value: Any) -> Any:
        v, u = uniform_pair(place, counts + turn)
        u = u - 0.5
        room = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / room + b) * u + c)
        at_once = (room >= 0.07) & (v <= 0.92 - 4.2 / b)
        refused = (k < 0) | (k > trials)
        left = jnp.log(v * alpha / (a / (room * room) + b))
        right = (
            (mode + 0.5) * jnp.log((mode + 1) / (odds * (trials - mode + 1)))
            + (trials + 1) * jnp.log((trials - mode + 1) / (trials - k + 1))
            + (k + 0.5) * jnp.log(odds * (trials - k + 1) / (k + 1))
            + tails
            - _stirling_tail(k)
            - _stirling_tail(trials - k)
        )
        closed = at_once | (~refused & (left <= right))
        return closed | ~wanted, jnp.where(still & closed, k, value)

    return _until_all(step, counts, jnp.zeros_like(trials))


def gamma(place: Any, alpha: Any, numbers: Any) -> Any:
    """Gamma numbers of rate 1 as doubles (Marsaglia and Tsang 2000); arguments as in `poisson`."""
    counts = numbers * COUNTS_PER_OUTPUT
    below = alpha < 1
    d = alpha + jnp.where(below, 2 / 3, -1 / 3)
    c = 1 / 3 / jnp.sqrt(d)
    exponential = alpha == 1
    zeros = jnp.zeros_like(alpha)
    used = jnp.zeros(alpha.shape, jnp.uint64)
    nothing = jnp.zeros(alpha.shape, bool)

    def step(_: Any, still: Any, value: Any) -> Any:
        used, normals, uniforms, result = value
        used, normals, x = _next_of(
            lambda at: normal_pair(place, at, jnp.float64), counts, used, normals, still
        )
        v = 1 + c * x
        tried = still & (v > 0)
        v = v * v * v
        used, uniforms, u = _next_of(
            lambda at: uniform_pair(place, at), counts, used, uniforms, tried
        )
        surely = u < 1 - 0.0331 * (x * x) * (x * x)
        closed = tried & (surely | (jnp.log(u) < 0.5 * x * x + d * (1 - v + jnp.log(v))))
        return closed | exponential, (used, normals, uniforms, jnp.where(closed, d * v, result))

    start = used, (nothing, zeros), (nothing, zeros), zeros
    used, _, uniforms, result = _until_all(step, counts, start)
    _, _, u = _next_of(lambda at: uniform_pair(place, at), counts, used, uniforms, below)
    result = jnp.where(below, result * jnp.power(u, 1 / alpha), result)
    _, first = uniform_pair(place, counts)
    return jnp.where(exponential, -jnp.log1p(-first), result)


def _next_of(draw: Callable[[Any], Any], counts: Any, used: Any, kept: Any, wanted: Any) -> Any:
    """The next of the numbers that come in pairs, the second one first.

    Returns:
      How many counters are used, what is kept of the last pair, and the number.
    """
    held, other = kept
    first, second = draw(counts + used)
    fresh = wanted & ~held
    value = jnp.where(held, other, second)
    kept = held ^ wanted, jnp.where(fresh, first, other)
    return used + fresh.astype(jnp.uint64), kept, value
