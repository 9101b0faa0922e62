"""What the random ops of users' functions draw in one pass over a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.trace import Traced
from meshflow.core.variable import Variable


class Draws:
    """The states of random ops in one pass.

    Ops that have a seed, or run under a global one, begin every pass at the same place, as
    TensorFlow's do; within a pass they go on, also through `repeat`.
    """

    def __init__(self) -> None:
        # By function and by what an op begins with: the function may be traced for several shapes.
        self._states: dict[tuple[int, ...], Any] = {}
        self._calls: dict[int, Iterator[int]] = {}

    def captures(self, function: Any, traced: Traced) -> list[Any]:
        """The arrays that a traced form of a function captures, with the states of this pass."""
        found = []
        for captured in traced.captures:
            start = _start(captured)
            if start is None:
                found.append(captured._value)
            else:
                first = np.array([*start, 0], np.uint32)
                found.append(self._states.get((id(function), *start), first))
        return found

    def assign(self, function: Any, traced: Traced, values: Sequence[Any]) -> None:
        """Takes the new values of the variables that it writes."""
        for variable, value in zip(traced.writes, values, strict=True):
            start = _start(variable)
            if start is None:
                variable._value = value
            else:
                self._states[(id(function), *start)] = value

    def numbers(self, function: Any) -> Iterator[int]:
        """The numbers of a function's calls, counted on from earlier rounds of this pass."""
        return self._calls.setdefault(id(function), itertools.count())


def _start(captured: Any) -> list[int] | None:
    """What the stream of a captured variable begins every pass with; None for all others."""
    stream = getattr(captured, "_stream", None) if isinstance(captured, Variable) else None
    return None if stream is None else stream.start
