"""Which tokens go to which experts: pure functions of arrays.

Letters in shapes: S tokens of a group, E experts, k choices of a token, C slots of an expert. `live` says which
tokens count: the others are padding, go nowhere, and are in no statistic. Scores are float32 (float64 for a model of
it), as choices flip by rounding: `logits_of` computes them.
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

__all__ = [
    "Choices",
    "Router",
    "Slots",
    "Statistics",
    "choose",
    "in_slots",
    "in_turn",
    "of_experts",
]


@dataclasses.dataclass(frozen=True)
class Router:
    """How tokens and experts find each other.

    Attributes:
      experts: E, the number of experts.
      choices: k, how many experts a token goes to; 0 where experts choose tokens.
      capacity: slots of an expert in units of its even share of choices; None for as many as come.
      renormalize: whether the weights of a token's choices are divided by their sum.
      first_only: whether the balance is that of first choices alone.
      random_second: whether the second choice is taken by chance, the likelier the larger its weight.
    """

    experts: int
    choices: int
    capacity: Fraction | None
    renormalize: bool = True
    first_only: bool = True
    random_second: bool = False

    @classmethod
    def parse(cls, name: str, experts: int, capacity: float | None, second: str) -> Router:
        """The router that a text names.

        Args:
          name: "top1", "top2", "topk:<k>" or "expert_choice".
          experts: the number of experts.
          capacity: see `Router`; rounded to thousandths.
          second: "all" or "random", the policy of "top2" for second choices.

        Raises:
          ValueError: naming the argument that does not fit.
        """
        found = re.fullmatch(r"top([12])|topk:(\d+)|expert_choice", str(name))
        if found is None:
            raise ValueError(
                f'router={name!r} is not known: use "top1", "top2", "topk:<k>" such as "topk:8", or "expert_choice".'
            )
        choices = int(found[1] or found[2] or 0)
        if choices > experts or found[2] == "0":
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
        single = found[2] is None
        return cls(experts, choices, share, choices > 1, single, second == "random")

    def slots(self, tokens: Any) -> Any:
        """C of a group: `ceil(k * S * capacity / E)`, at most S; with expert choice k is 1.

        Args:
          tokens: S.
        """
        assert self.capacity is not None
        over = self.experts * self.capacity.denominator
        slots = (max(self.choices, 1) * tokens * self.capacity.numerator + over - 1) // over
        return min(slots, tokens) if isinstance(tokens, int) else slots


class Statistics(NamedTuple):
    """Sums over the tokens of a group, which add up over groups.

    Attributes:
      live: number of tokens that count.
      balance: the balance loss times `live`.
      z: the sum of squared logarithms of the gate's normalizers.
      asked: number of choices that want a slot.
      dropped: number of those that found none.
      load: [E], how many choices each expert was asked for.
    """

    live: Any
    balance: Any
    z: Any
    asked: Any
    dropped: Any
    load: Any


class Choices(NamedTuple):
    """What tokens chose: `experts` int32, `weights` float32, `taken` bool, each [S, k]; `statistics`."""

    experts: Any
    weights: Any
    taken: Any
    statistics: Statistics


class Slots(NamedTuple):
    """What experts compute: `tokens` int32 [E, C], S where a slot is empty; `weights` float32 [E, C]; `statistics`."""

    tokens: Any
    weights: Any
    statistics: Statistics


def logits_of(x: Any, gate: Any) -> Any:
    """The gate's numbers for tokens [..., D] and a kernel [D, E], in float32 at least."""
    kind = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.dot(x.astype(kind), gate.astype(kind))


def choose(router: Router, logits: Any, live: Any, chance: Any = None) -> Choices:
    """The experts of each token.

    With `p = softmax(logits)` a token goes to the k experts of the largest p. Its weights are those p, divided by
    their sum for k > 1 (Lepikhin et al. 2020, GShard, arXiv:2006.16668; Shazeer et al. 2017, arXiv:1701.06538), as
    they are for k = 1 (Fedus et al. 2021, Switch, arXiv:2101.03961). By chance, the second is taken when
    `2 * weight > chance` (GShard, algorithm 1). The balance is `E * sum_e f_e * P_e` with f the share of
    choices and P the mean of p (Switch, equation 4): 1 when all experts are alike, E when one has all. Statistic z is
    of `logsumexp(logits) ** 2` (Zoph et al. 2022, ST-MoE, arXiv:2202.08906).

    Args:
      router: the rules, with k > 0.
      logits: float32 [S, E].
      live: bool [S].
      chance: float32 [S] uniform in [0, 1), for `random_second`.

    Returns:
      `Choices`, whose statistics know of no drops yet.
    """
    scores = jax.nn.softmax(logits, axis=-1)
    weights, experts = lax.top_k(scores, router.choices)
    if router.renormalize:
        weights = weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)
    taken = jnp.broadcast_to(live[:, None], experts.shape)
    if router.random_second:
        taken = taken.at[:, 1].set(taken[:, 1] & (2 * weights[:, 1] > chance))
    counted = experts[:, :1] if router.first_only else experts
    hits = jax.nn.one_hot(counted, router.experts, dtype=logits.dtype).mean(1)
    count = live.sum().astype(logits.dtype)
    known = jnp.maximum(count, 1)
    mean = lambda per_token: jnp.where(live[:, None], per_token, 0).sum(0) / known
    balance = router.experts * (mean(hits) * mean(scores)).sum()
    asked = jnp.where(taken, experts, router.experts)
    load = jax.nn.one_hot(asked, router.experts, dtype=logits.dtype).sum((0, 1))
    statistics = Statistics(
        count, balance * count, _z(logits, live), load.sum(), jnp.zeros_like(count), load
    )
    return Choices(experts, weights, taken, statistics)


def in_slots(choices: Choices, experts: int, slots: Any) -> Slots:
    """The choices in the experts' slots; what finds none is dropped.

    All first choices come before all second ones, and earlier tokens before later ones (GShard, algorithm 1).

    Args:
      choices: what tokens chose.
      experts: E.
      slots: C.
    """
    tokens, k = choices.experts.shape
    # [k * S]: the first choices of all tokens, then the second ones.
    wanted = jnp.where(choices.taken, choices.experts, experts).T.reshape(-1)
    hot = jax.nn.one_hot(wanted, experts, dtype=jnp.int32)
    place = ((jnp.cumsum(hot, 0) - hot) * hot).sum(-1)
    kept = (wanted < experts) & (place < slots)
    total = experts * slots
    slot = jnp.where(kept, wanted * slots + place, total)
    source = (
        jnp.full((total + 1,), tokens * k, jnp.int32)
        .at[slot]
        .set(jnp.arange(tokens * k, dtype=jnp.int32))
    )
    source = source[:-1].reshape(experts, slots)
    weights = choices.weights.T.reshape(-1).at[source].get(mode="fill", fill_value=0)
    statistics = choices.statistics._replace(
        dropped=choices.statistics.asked - kept.sum().astype(choices.weights.dtype)
    )
    return Slots(jnp.where(source < tokens * k, source % tokens, tokens), weights, statistics)


def in_turn(choices: Choices, experts: int) -> tuple[Any, Any, Any]:
    """The choices sorted by expert, all of them.

    Args:
      choices: what tokens chose.
      experts: E.

    Returns:
      Tokens int32 [S * k], S behind the last that goes anywhere; their weights; how many each expert has, int32 [E].
    """
    tokens, k = choices.experts.shape
    wanted = jnp.where(choices.taken, choices.experts, experts).reshape(-1)
    order = jnp.argsort(wanted, stable=True)
    sizes = jnp.bincount(wanted, length=experts + 1)[:-1].astype(jnp.int32)
    goes = wanted[order] < experts
    weights = jnp.where(goes, choices.weights.reshape(-1)[order], 0)
    return jnp.where(goes, order // k, tokens).astype(jnp.int32), weights, sizes


def of_experts(router: Router, logits: Any, live: Any) -> Slots:
    """The tokens that each expert chooses (Zhou et al. 2022, expert choice, arXiv:2202.09368).

    With `p = softmax(logits)` over the experts, an expert takes its `C = ceil(S * capacity / E)` tokens of the largest p,
    with p as their weights. All experts are equally busy, so there is nothing to balance; a token that no expert
    takes counts as dropped. A token's experts depend on all tokens of its group, later ones too.

    Args:
      router: the rules.
      logits: float32 [S, E].
      live: bool [S].
    """
    tokens = logits.shape[0]
    scores = jax.nn.softmax(logits, axis=-1)
    weights, chosen = lax.top_k(jnp.where(live[:, None], scores, -1).T, router.slots(tokens))
    filled = weights >= 0
    places = jnp.where(filled, chosen, tokens)
    found = jnp.zeros((tokens,), bool).at[places.reshape(-1)].set(True, mode="drop")
    count = live.sum().astype(logits.dtype)
    missed = (live & ~found).sum().astype(logits.dtype)
    load = filled.sum(1).astype(logits.dtype)
    statistics = Statistics(count, jnp.zeros_like(count), _z(logits, live), count, missed, load)
    return Slots(places.astype(jnp.int32), jnp.where(filled, weights, 0), statistics)


def _z(logits: Any, live: Any) -> Any:
    return jnp.where(live, jax.nn.logsumexp(logits, axis=-1) ** 2, 0).sum()
