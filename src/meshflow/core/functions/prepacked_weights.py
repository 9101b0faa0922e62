"""Prepacked weights: casts and layout changes of weights that a compiled function caches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr
from meshflow.passes.constant_hoisting import hoist_constants


class PrepackedWeights:
    """The part of a program that reads only variables that the program does not write.

    It runs again if one of the variables has a new array: arrays are immutable, and a variable is
    updated by replacing its array.

    Args:
      run: The compiled part.
      reads: Indices of the captures that it takes.
    """

    def __init__(self, run: Callable[..., list[Any]], reads: Sequence[int]) -> None:
        self.run, self.reads = run, reads
        # The arrays that were read, by weak references, and the results.
        self._last: tuple[list[Any], list[Any]] = [], []

    def __call__(self, captured: Sequence[Any]) -> list[jax.Array]:
        """Return the results for the arrays of the captures."""
        arrays = [captured[i] for i in self.reads]
        refs, results = self._last
        if len(refs) != len(arrays) or any(
            ref() is not array for ref, array in zip(refs, arrays, strict=True)
        ):
            # The old results are freed first, because both together would need twice the memory.
            self._last, results = ([], []), []
            results = self.run(*arrays)
            self._last = [weakref.ref(array) for array in arrays], results
        return results


def split_prepacking(
    closed: ClosedJaxpr, captures: Sequence[Any], written: set[int], name: str
) -> tuple[ClosedJaxpr, PrepackedWeights | None]:
    """Split a program into prepacked weights and a program that takes these as its last operands.

    Args:
      closed: The program; its last operands are the captures.
      captures: Tensors, variables and elements of iterators.
      written: The ids of the captures that the program writes.
      name: Name of the program, which is used for the name of the prepacking program in profiles.

    Returns:
      The remaining program, and the prepacked weights or None.
    """
    offset = len(closed.in_avals) - len(captures)
    # Other captures have a new value in each call, such as the next element of an iterator.
    constant_indices = [
        i
        for i, c in enumerate(captures)
        if isinstance(c, Variable | Tensor) and id(c) not in written
    ]
    if not all(_is_on_one_device(captures[i]._value) for i in constant_indices):
        return closed, None
    parts = hoist_constants(closed, [offset + i for i in constant_indices])
    if parts is None:
        return closed, None
    run = _jit_named(parts.hoisted, f"{name}_weights")
    return parts.remainder, PrepackedWeights(run, [i - offset for i in parts.operand_indices])


def _jit_named(early: ClosedJaxpr, name: str) -> Callable[..., list[jax.Array]]:
    run = jex_core.jaxpr_as_fun(early)

    def weights(*arrays: jax.Array) -> list[jax.Array]:
        return run(*arrays)

    weights.__name__ = weights.__qualname__ = name
    return jax.jit(weights)


def _is_on_one_device(array: object) -> bool:
    return not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1
