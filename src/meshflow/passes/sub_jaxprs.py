"""Equations that contain programs: the values that enter and leave the inner programs.

A `Region` has, for each input of an inner jaxpr, the operand of the equation that provides it, and
for each inner output the result that it becomes. A *pinned* value must keep its dtype: the carry of
a loop has the same type as input and output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

from meshflow.environment.inner_jaxprs import AnyJaxpr
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Jaxpr, JaxprEqn

# Calls that run their program as part of the caller.
INLINED_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "call"})
# All calls on the same devices: also those with derivatives of their own.
CALLS = INLINED_CALLS | {"checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"}


@dataclasses.dataclass
class Region:
    """A program inside an equation.

    Attributes:
      key: Distinguishes the programs of one equation.
      jaxpr: The inner jaxpr, open.
      consts: Values of the inner jaxpr's constants.
      feeds: For each inner input, (operand index, pinned).
      results: For each inner output, (result index or None, pinned).
    """

    key: Hashable
    jaxpr: Jaxpr
    consts: list[Any]
    feeds: list[tuple[int, bool]]
    results: list[tuple[int | None, bool]]


def find_call_body(eqn: JaxprEqn) -> AnyJaxpr | None:
    """Return the program of a call, or None if it has none."""
    return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))


def find_regions(eqn: JaxprEqn) -> list[Region]:
    """Return the programs inside an equation, in order; empty for ordinary and unknown equations."""
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS or name == "shard_map":
        body = find_call_body(eqn)
        if body is None:
            return []
        inputs = [(i, False) for i in range(len(eqn.invars))]
        return [_make_region("body", body, inputs, [(i, False) for i in range(len(eqn.outvars))])]
    if name == "scan":
        consts, carry = count_scan_operands(params)
        carried = range(consts, consts + carry)
        feeds = [(i, i in carried) for i in range(len(eqn.invars))]
        results: list[Any] = [(i, i < carry) for i in range(len(eqn.outvars))]
        return [_make_region("body", params["jaxpr"], feeds, results)]
    if name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        carried_feeds = [(i, True) for i in range(first + second, len(eqn.invars))]
        test = [(i, False) for i in range(first)] + carried_feeds
        body_feeds = [(first + i, False) for i in range(second)] + carried_feeds
        results = [(i, True) for i in range(len(eqn.outvars))]
        return [
            _make_region("cond", params["cond_jaxpr"], test, [(None, True)]),
            _make_region("body", params["body_jaxpr"], body_feeds, results),
        ]
    if name == "cond":
        feeds = [(i, False) for i in range(1, len(eqn.invars))]
        results = [(i, False) for i in range(len(eqn.outvars))]
        return [_make_region(k, b, feeds, results) for k, b in enumerate(params["branches"])]
    return []


def _make_region(key: Hashable, body: AnyJaxpr, feeds: list[Any], results: list[Any]) -> Region:
    if isinstance(body, jex_core.ClosedJaxpr):
        return Region(key, body.jaxpr, list(body.consts), feeds, results)
    return Region(key, body, [], feeds, results)
