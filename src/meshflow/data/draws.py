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
        self._states: dict[int, Any] = {}
        self._calls: dict[int, Iterator[int]] = {}

    def captures(self, traced: Traced) -> list[Any]:
        """The arrays that a traced function captures, with the states of this pass."""
        return [self._states.get(id(c), _start(c)) for c in traced.captures]

    def assign(self, traced: Traced, values: Sequence[Any]) -> None:
        """Takes the new values of the variables that a traced function writes."""
        for variable, value in zip(traced.writes, values, strict=True):
            if _begins_again(variable):
                self._states[id(variable)] = value
            else:
                variable._value = value

    def numbers(self, function: Any) -> Iterator[int]:
        """The numbers of a function's calls, counted on from earlier rounds of this pass."""
        return self._calls.setdefault(id(function), itertools.count())


def _begins_again(captured: Any) -> bool:
    stream = getattr(captured, "_stream", None) if isinstance(captured, Variable) else None
    return stream is not None and stream.start is not None


def _start(captured: Any) -> Any:
    if _begins_again(captured):
        return np.array([*captured._stream.start, 0], np.uint32)
    return captured._value
