"""What a compiled function keeps from call to call: casts and rearrangements of weights that stayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.constant_hoisting import hoist_constants


class PrepackedWeights:
    """The part of a program that reads only variables which the program does not write.

    It runs when one of them holds another array than before: arrays never change, variables
    change their array.

    Args:
      run: that part, compiled.
      reads: the numbers of the captures that it takes.
    """

    def __init__(self, run: Callable[..., list[Any]], reads: Sequence[int]) -> None:
        self.run, self.reads = run, reads
        # What was read, without holding it, and what was made of it.
        self._last: tuple[list[Any], list[Any]] = [], []

    def __call__(self, captured: Sequence[Any]) -> list[Any]:
        """What is made of the captures' arrays."""
        arrays = [captured[i] for i in self.reads]
        seen, made = self._last
        if len(seen) != len(arrays) or any(
            ref() is not array for ref, array in zip(seen, arrays, strict=True)
        ):
            # Both at once would be twice the memory.
            self._last, made = ([], []), []
            made = self.run(*arrays)
            self._last = [weakref.ref(array) for array in arrays], made
        return made


def divided(
    closed: jex_core.ClosedJaxpr, captures: Sequence[Any], written: set[int], name: str
) -> tuple[jex_core.ClosedJaxpr, PrepackedWeights | None]:
    """A program that takes what a keeper gives behind its operands, and the keeper if there is one.

    Args:
      closed: the program, whose last operands are the captures.
      captures: tensors, variables and elements of iterators.
      written: identities of those that the program writes.
      name: the program's name; the part that is kept has it in profiles.
    """
    offset = len(closed.in_avals) - len(captures)
    # Other captures give another value whenever they are asked: the next element of an iterator.
    stays = [
        i
        for i, c in enumerate(captures)
        if isinstance(c, Variable | Tensor) and id(c) not in written
    ]
    if not all(_on_one_device(captures[i]._value) for i in stays):
        return closed, None
    parts = hoist_constants(closed, [offset + i for i in stays])
    if parts is None:
        return closed, None
    run = _compiled(parts.early, f"{name}_weights")
    return parts.rest, PrepackedWeights(run, [i - offset for i in parts.reads])


def _compiled(early: jex_core.ClosedJaxpr, name: str) -> Any:
    run = jex_core.jaxpr_as_fun(early)

    def weights(*arrays: Any) -> list[Any]:
        return run(*arrays)

    weights.__name__ = weights.__qualname__ = name
    return jax.jit(weights)


def _on_one_device(array: Any) -> bool:
    return not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1
