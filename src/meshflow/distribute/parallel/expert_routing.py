"""Routing of tokens to experts: pure functions of arrays.

Letters in shapes: S tokens of a group, E experts, k choices of a token, C slots of an expert.
`live` marks the tokens that count. Other tokens are padding: they are not routed and do not
contribute to statistics. Scores are float32 (float64 for a float64 model), because rounding changes
choices; `compute_logits` computes them.
"""

from __future__ import annotations

import dataclasses
import numbers
import re
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Router:
    """Rules that assign tokens to experts.

    Attributes:
      experts: E, the number of experts.
      choices: k, the number of experts of a token; 0 if experts choose tokens.
      capacity: Slots of an expert as a multiple of its even share of choices; None for no limit.
      renormalize: Whether the weights of a token's choices are divided by their sum.
      first_only: Whether the balance loss counts only first choices.
      random_second: Whether the second choice is dropped at random, with a higher probability for
        smaller weights.
    """

    experts: int
    choices: int
    capacity: Fraction | None
    renormalize: bool = True
    first_only: bool = True
    random_second: bool = False

    @classmethod
    def parse(cls, name: str, experts: int, capacity: float | None, second: str) -> Router:
        """Parse the description of a router.

        Args:
          name: "top1", "top2", "topk:<k>" or "expert_choice".
          experts: Number of experts.
          capacity: See `Router`; rounded to thousandths.
          second: "all" or "random", the policy of "top2" for second choices.

        Returns:
          The router.

        Raises:
          ValueError: If an argument is invalid.
        """
        match = re.fullmatch(r"top([12])|topk:(\d+)|expert_choice", str(name))
        if match is None:
            raise ValueError(
                f'router={name!r} is not known: use "top1", "top2", "topk:<k>" such as "topk:8", or "expert_choice".'
            )
        choices = int(match[1] or match[2] or 0)
        if choices > experts or match[2] == "0":
            raise ValueError(
                f"router={name!r} needs a k from 1 to the number of experts, {experts}."
            )
        if second not in ("all", "random"):
            raise ValueError(f'second={second!r} is not known: use "all" or "random".')
        if second == "random" and name != "top2":
            raise ValueError(f'second="random" is a policy of router="top2", not of {name!r}.')
        if capacity is not None and not (isinstance(capacity, numbers.Real) and capacity > 0):
            raise ValueError(f"capacity must be positive, or None for no limit; got {capacity!r}.")
        if capacity is None and not choices:
            raise ValueError(
                'router="expert_choice" needs a capacity: each expert takes `capacity` times its even share of tokens.'
            )
        share = None if capacity is None else Fraction(capacity).limit_denominator(1000)
        single = match[2] is None
        return cls(experts, choices, share, choices > 1, single, second == "random")

    def count_slots(self, tokens: int) -> int:
        """Return C of a group: `ceil(k * S * capacity / E)`, at most S; k is 1 for expert choice.

        Args:
          tokens: S, an integer or a symbolic dimension.

        Returns:
          The number of slots of an expert.
        """
        assert self.capacity is not None
        over = self.experts * self.capacity.denominator
        slots = (max(self.choices, 1) * tokens * self.capacity.numerator + over - 1) // over
        return min(slots, tokens) if isinstance(tokens, int) else slots


class RoutingStatistics(NamedTuple):
    """Sums over the tokens of a group; they can be added over groups.

    Attributes:
      live: Number of tokens that count.
      balance: Balance loss times `live`.
      z: Sum of the squared logarithms of the softmax normalizers.
      requested: Number of choices that need a slot.
      dropped: Number of choices without a slot.
      load: [E], number of choices of each expert.
    """

    live: Any
    balance: Any
    z: Any
    requested: Any
    dropped: Any
    load: Any


class ExpertChoices(NamedTuple):
    """Experts that tokens chose.

    Attributes:
      experts: int32 [S, k].
      weights: float32 [S, k].
      taken: bool [S, k], False for choices that are not used.
      statistics: Statistics of the group.
    """

    experts: Any
    weights: Any
    taken: Any
    statistics: RoutingStatistics


class ExpertSlots(NamedTuple):
    """Tokens in the slots of experts.

    Attributes:
      tokens: int32 [E, C], S for an empty slot.
      weights: float32 [E, C].
      statistics: Statistics of the group.
    """

    tokens: Any
    weights: Any
    statistics: RoutingStatistics


def compute_logits(x: jax.Array, gate: jax.Array) -> jax.Array:
    """Compute the gate's logits for tokens [..., D] and a kernel [D, E], in float32 or wider."""
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.dot(x.astype(dtype), gate.astype(dtype))


def choose_experts(
    router: Router, logits: jax.Array, live: jax.Array, chance: jax.Array | None = None
) -> ExpertChoices:
    """Choose the experts of each token.

    With `p = softmax(logits)` a token chooses the k experts with the largest p. Their weights are
    these p, divided by their sum for k > 1 (Lepikhin et al. 2020, GShard, arXiv:2006.16668; Shazeer
    et al. 2017, arXiv:1701.06538), and unchanged for k = 1 (Fedus et al. 2021, Switch,
    arXiv:2101.03961). A random second choice is used if `2 * weight > chance` (GShard, algorithm
    1). The balance loss is `E * sum_e f_e * P_e`, where f is the fraction of choices and P the mean
    of p (Switch, equation 4): 1 for equal experts, E if one expert has all choices. The statistic z
    sums `logsumexp(logits) ** 2` (Zoph et al. 2022, ST-MoE, arXiv:2202.08906).

    Args:
      router: Rules with k > 0.
      logits: float32 [S, E].
      live: bool [S].
      chance: float32 [S], uniform in [0, 1), for `random_second`.

    Returns:
      The choices; their statistics do not count drops yet.
    """
    scores = jax.nn.softmax(logits, axis=-1)
    weights, experts = lax.top_k(scores, router.choices)
    if router.renormalize:
        weights = weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)
    taken = jnp.broadcast_to(live[:, None], experts.shape)
    if router.random_second:
        assert chance is not None
        taken = taken.at[:, 1].set(taken[:, 1] & (2 * weights[:, 1] > chance))
    counted = experts[:, :1] if router.first_only else experts
    hits = jax.nn.one_hot(counted, router.experts, dtype=logits.dtype).mean(1)
    count = live.sum().astype(logits.dtype)
    divisor = jnp.maximum(count, 1)
    mean = lambda per_token: jnp.where(live[:, None], per_token, 0).sum(0) / divisor
    balance = router.experts * (mean(hits) * mean(scores)).sum()
    requested = jnp.where(taken, experts, router.experts)
    load = jax.nn.one_hot(requested, router.experts, dtype=logits.dtype).sum((0, 1))
    statistics = RoutingStatistics(
        count, balance * count, _compute_z(logits, live), load.sum(), jnp.zeros_like(count), load
    )
    return ExpertChoices(experts, weights, taken, statistics)


def assign_slots(choices: ExpertChoices, experts: int, slots: int) -> ExpertSlots:
    """Assign choices to the slots of experts; choices without a free slot are dropped.

    First choices have priority over second ones, and earlier tokens over later ones (GShard,
    algorithm 1).

    Args:
      choices: Choices of tokens.
      experts: E.
      slots: C.

    Returns:
      The slots.
    """
    tokens, k = choices.experts.shape
    # Shape [k * S]: the first choices of all tokens precede the second ones.
    requested = jnp.where(choices.taken, choices.experts, experts).T.reshape(-1)
    hot = jax.nn.one_hot(requested, experts, dtype=jnp.int32)
    position = ((jnp.cumsum(hot, 0) - hot) * hot).sum(-1)
    is_kept = (requested < experts) & (position < slots)
    total = experts * slots
    slot = jnp.where(is_kept, requested * slots + position, total)
    source = (
        jnp.full((total + 1,), tokens * k, jnp.int32)
        .at[slot]
        .set(jnp.arange(tokens * k, dtype=jnp.int32))
    )
    source = source[:-1].reshape(experts, slots)
    weights = choices.weights.T.reshape(-1).at[source].get(mode="fill", fill_value=0)
    statistics = choices.statistics._replace(
        dropped=choices.statistics.requested - is_kept.sum().astype(choices.weights.dtype)
    )
    return ExpertSlots(jnp.where(source < tokens * k, source % tokens, tokens), weights, statistics)


def sort_choices(choices: ExpertChoices, experts: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sort all choices by expert, without a limit of capacity.

    Args:
      choices: Choices of tokens.
      experts: E.

    Returns:
      Tokens int32 [S * k], with S after the last used choice; their weights; the number of choices
      of each expert, int32 [E].
    """
    tokens, k = choices.experts.shape
    requested = jnp.where(choices.taken, choices.experts, experts).reshape(-1)
    order = jnp.argsort(requested, stable=True)
    sizes = jnp.bincount(requested, length=experts + 1)[:-1].astype(jnp.int32)
    is_used = requested[order] < experts
    weights = jnp.where(is_used, choices.weights.reshape(-1)[order], 0)
    return jnp.where(is_used, order // k, tokens).astype(jnp.int32), weights, sizes


def choose_tokens(router: Router, logits: jax.Array, live: jax.Array) -> ExpertSlots:
    """Choose the tokens of each expert (Zhou et al. 2022, expert choice, arXiv:2202.09368).

    With `p = softmax(logits)` over the experts, an expert takes the `C = ceil(S * capacity / E)`
    tokens with the largest p, with p as their weights. All experts have the same load, so there is
    no balance loss. A token that no expert takes counts as dropped. The experts of a token depend
    on all tokens of its group, including later ones.

    Args:
      router: The rules.
      logits: float32 [S, E].
      live: bool [S].

    Returns:
      The slots.
    """
    tokens = logits.shape[0]
    scores = jax.nn.softmax(logits, axis=-1)
    weights, chosen = lax.top_k(jnp.where(live[:, None], scores, -1).T, router.count_slots(tokens))
    filled = weights >= 0
    slot_tokens = jnp.where(filled, chosen, tokens)
    is_taken = jnp.zeros((tokens,), bool).at[slot_tokens.reshape(-1)].set(True, mode="drop")
    count = live.sum().astype(logits.dtype)
    missed = (live & ~is_taken).sum().astype(logits.dtype)
    load = filled.sum(1).astype(logits.dtype)
    statistics = RoutingStatistics(
        count, jnp.zeros_like(count), _compute_z(logits, live), count, missed, load
    )
    return ExpertSlots(slot_tokens.astype(jnp.int32), jnp.where(filled, weights, 0), statistics)


def _compute_z(logits: jax.Array, live: jax.Array) -> jax.Array:
    return jnp.where(live, jax.nn.logsumexp(logits, axis=-1) ** 2, 0).sum()
