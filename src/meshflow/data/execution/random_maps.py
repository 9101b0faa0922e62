"""What the random ops of users' functions draw in one pass over a dataset."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.tracing.trace import Traced
from meshflow.core.variables.random import is_stream_state
from meshflow.core.variables.variable import Variable
from meshflow.data.execution import affine, chunks
from meshflow.data.execution.on_cpu import on_cpu


class RandomStates:
    """The states of random ops in one pass.

    Ops that have a seed, or run under a global one, begin every pass at the same place, as
    TensorFlow's do; within a pass they go on, also through `repeat`.
    """

    def __init__(self) -> None:
        # By function, by what an op begins with, and by how many begin alike before it: the function may be
        # traced for several shapes.
        self._states: dict[tuple[int, ...], Any] = {}
        self._calls: dict[int, Iterator[int]] = {}

    def captures(self, function: Any, traced: Traced) -> list[Any]:
        """The arrays that a traced form of a function captures, with the states of this pass."""
        streams = _streams(function, traced)
        found = []
        for captured in traced.captures:
            known = streams.get(id(captured))
            if known is None:
                found.append(captured._value)
            else:
                first = np.array(known[1:4], np.int64)
                found.append(self._states.get(known, first))
        return found

    def assign(self, function: Any, traced: Traced, values: Sequence[Any]) -> None:
        """Takes the new values of the variables that it writes."""
        streams = _streams(function, traced)
        for variable, value in zip(traced.writes, values, strict=True):
            known = streams.get(id(variable))
            if known is None:
                variable._value = value
            else:
                self._states[known] = value

    def numbers(self, function: Any) -> Iterator[int]:
        """The numbers of a function's calls, counted on from earlier rounds of this pass."""
        return self._calls.setdefault(id(function), itertools.count())


class RandomMap:
    """A function that draws random numbers, for many elements at once: each draws what it draws in turn.

    The states that its elements begin with are found first, by running what leads from one to the next.

    Args:
      traced: the function, for which `can_be_stacked`.
    """

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self._written = [id(v) for v in traced.writes]
        self._program = jax.jit(self._run)

    def _run(self, leaves: list[Any], captures: list[Any]) -> tuple[list[Any], list[Any]]:
        traced = self.traced
        places = [
            self._written.index(id(c)) if id(c) in self._written else None for c in traced.captures
        ]
        first = [leaf[0] for leaf in leaves]

        def given(states: list[Any]) -> list[Any]:
            return [c if at is None else states[at] for c, at in zip(captures, places, strict=True)]

        def following(states: list[Any], _: Any) -> tuple[list[Any], list[Any]]:
            return traced.arrays(first, given(states))[traced.count :], states

        start: list[Any] = [None] * len(self._written)
        for at, value in zip(places, captures, strict=True):
            if at is not None:
                start[at] = value
        last, states = jax.lax.scan(following, start, length=len(leaves[0]))
        one = lambda row, own: traced.arrays(row, given(own))[: traced.count]
        results = jax.vmap(one)(leaves, states)
        return results, [
            jax.numpy.concatenate([s, e[None]]) for s, e in zip(states, last, strict=True)
        ]

    def __call__(
        self, leaves: list[Any], size: int, function: Any, random_states: RandomStates
    ) -> list[Any]:
        """The results for consecutive elements, stacked; the pass goes on behind them.

        Args:
          leaves: the stacked leaves of the elements.
          size: for how many the program is made, at least as many.
          function: whose states the pass keeps.
          random_states: the states of the pass.
        """
        count = len(leaves[0])
        with on_cpu():
            captures = random_states.captures(function, self.traced)
            results, states = self._program(chunks.filled_up(leaves, size), captures)
            found = [np.asarray(r)[:count] for r in results]
            random_states.assign(function, self.traced, [s[count] for s in states])
        return found


def can_be_stacked(traced: Traced) -> bool:
    """Whether all that a function changes are states of random ops, whatever its arguments are."""
    results = range(traced.count, traced.count + len(traced.writes))
    return all(map(is_stream_state, traced.writes)) and not affine.arguments_of(traced, results)


def _streams(function: Any, traced: Traced) -> dict[int, tuple[int, ...]]:
    """What the states of a function's streams are kept by."""
    alike: collections.Counter[tuple[int, ...]] = collections.Counter()
    found: dict[int, tuple[int, ...]] = {}
    for captured in traced.captures:
        start = _start(captured)
        if start is not None:
            found[id(captured)] = (id(function), *start, alike[tuple(start)])
            alike[tuple(start)] += 1
    return found


def _start(captured: Any) -> list[int] | None:
    """What the stream of a captured variable begins every pass with; None for all others."""
    stream = getattr(captured, "_stream", None) if isinstance(captured, Variable) else None
    return None if stream is None else stream.start
