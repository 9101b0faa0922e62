"""Random ops of users' functions: their states in a pass, and vectorized random maps."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.variables.random_streams import is_stream_state
from meshflow.core.variables.variable import Variable
from meshflow.data.execution import affine
from meshflow.data.execution.chunks import ProgramSizes
from meshflow.data.execution.cpu_programs import cpu_scope


class RandomStates:
    """The states of random ops in one pass.

    Ops with a seed, or under a global seed, start every pass in the same state, as in TensorFlow.
    Within a pass, the states advance, also through `repeat`.
    """

    def __init__(self) -> None:
        # A key consists of the id of the function, the initial state of the op, and the number of
        # earlier ops with that state. It does not contain the capture, because the function may be
        # traced for several shapes.
        self._states: dict[tuple[int, ...], Any] = {}
        self._call_indices: dict[int, Iterator[int]] = {}

    def get_captures(self, function: object, traced: TracedFunction) -> list[Any]:
        """Return the values that a traced function captures, with the random states of this pass."""
        streams = _make_keys(function, traced)
        values = []
        for captured in traced.captures:
            key = streams.get(id(captured))
            if key is None:
                values.append(captured._value)
            else:
                initial_state = np.array(key[1:4], np.int64)
                values.append(self._states.get(key, initial_state))
        return values

    def assign(self, function: object, traced: TracedFunction, values: Sequence[Any]) -> None:
        """Store the new values of the variables that a traced function writes."""
        streams = _make_keys(function, traced)
        for variable, value in zip(traced.writes, values, strict=True):
            key = streams.get(id(variable))
            if key is None:
                variable._value = value
            else:
                self._states[key] = value

    def count_calls(self, function: object) -> Iterator[int]:
        """Return the iterator over the indices of a function's calls in this pass."""
        return self._call_indices.setdefault(id(function), itertools.count())


class RandomMap:
    """A vectorized function with random ops.

    Each element draws the same numbers as in a loop over the elements. The random states of the
    elements are computed first, by a scan that advances the states; then the function is mapped
    over elements and states.

    Args:
      traced: The function, for which `is_stackable` is true.
    """

    def __init__(self, traced: TracedFunction) -> None:
        self.traced = traced
        self._written = [id(v) for v in traced.writes]
        self._program = jax.jit(self._run)
        self._sizes = ProgramSizes()

    def _run(self, leaves: list[Any], captures: list[Any]) -> tuple[list[Any], list[Any]]:
        traced = self.traced
        state_indices = [
            self._written.index(id(c)) if id(c) in self._written else None for c in traced.captures
        ]
        first = [leaf[0] for leaf in leaves]

        def insert_states(states: list[Any]) -> list[Any]:
            return [
                c if index is None else states[index]
                for c, index in zip(captures, state_indices, strict=True)
            ]

        def advance(states: list[Any], _: None) -> tuple[list[Any], list[Any]]:
            return traced.run_on_arrays(first, insert_states(states))[traced.num_results :], states

        initial_states: list[Any] = [None] * len(self._written)
        for index, value in zip(state_indices, captures, strict=True):
            if index is not None:
                initial_states[index] = value
        last, states = jax.lax.scan(advance, initial_states, length=len(leaves[0]))
        compute = lambda row, own: traced.run_row(row, insert_states(own))[: traced.num_results]
        results = jax.vmap(compute)(leaves, states)
        return results, [
            jax.numpy.concatenate([s, e[None]]) for s, e in zip(states, last, strict=True)
        ]

    def __call__(
        self, leaves: list[Any], function: object, random_states: RandomStates
    ) -> list[Any]:
        """Compute the stacked results for consecutive elements, and advance the states of the pass.

        Args:
          leaves: Stacked leaves of the elements.
          function: The function that the states belong to.
          random_states: States of the pass.
        """
        count = len(leaves[0])
        with cpu_scope():
            captures = random_states.get_captures(function, self.traced)
            results, states = self._program(self._sizes.pad_chunk(leaves), captures)
            arrays = [np.asarray(r)[:count] for r in results]
            random_states.assign(function, self.traced, [s[count] for s in states])
        return arrays


def is_stackable(traced: TracedFunction) -> bool:
    """Check whether a function writes only states of random ops.

    They must advance independently of the arguments of the function.
    """
    results = range(traced.num_results, traced.num_results + len(traced.writes))
    return all(map(is_stream_state, traced.writes)) and not affine.find_used_arguments(
        traced, results
    )


def _make_keys(function: object, traced: TracedFunction) -> dict[int, tuple[int, ...]]:
    """Return the keys of the random states that a function captures, by the id of the capture."""
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    keys: dict[int, tuple[int, ...]] = {}
    for captured in traced.captures:
        start = _get_initial_state(captured)
        if start is not None:
            keys[id(captured)] = (id(function), *start, counts[tuple(start)])
            counts[tuple(start)] += 1
    return keys


def _get_initial_state(captured: object) -> list[int] | None:
    """Return the state that the stream of a captured variable has at the start of a pass.

    Returns:
      None for captures that are not random states.
    """
    stream = getattr(captured, "_stream", None) if isinstance(captured, Variable) else None
    return None if stream is None else stream.initial_state
