"""State of a loop while it is staged: the carried values and the invariants.

The state is a list of nested values. Values with old content that the body needs are *carried*.
Values that every iteration recomputes (`needed` is False) are results only, so before the loop they
may be missing or have another structure; if the loop might not run at all, zeros replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from meshflow.core.staging.growing_accumulators import ArrayGrew
from meshflow.core.staging.structure import (
    Template,
    Undefined,
    describe,
    describe_leaf,
    is_number,
    is_tensor_like,
    same_static,
    to_tensor,
    undefined,
)
from meshflow.core.values.tensor import Tensor

Values = list[Any]


class Invariants:
    """The properties that the state of a loop must keep; subclasses create the errors."""

    def undefined_before(self, position: int) -> Exception:
        """Create the error for a value that the body needs but that does not exist before the loop."""
        raise NotImplementedError

    def changed(self, position: int, aspect: str, before: str, after: str) -> Exception:
        """Create the error for a value that changes in "structure", "dtype", "shape" or "value"."""
        raise NotImplementedError

    def write_in_test(self, variable: Any) -> Exception:
        """Create the error for a condition that assigns a variable."""
        return ValueError(
            f"The condition of a loop may not assign a variable, but it assigns {variable.name}."
        )


@dataclass
class Carried:
    """One value of the state, split into a template and tensors.

    Attributes:
      template: Template of the value.
      needed: Whether the body uses the old content.
      dynamic: Indices of the leaves that are tensors.
    """

    template: Template
    needed: bool
    dynamic: list[int]

    @classmethod
    def before(cls, value: Any, needed: bool) -> Carried:
        """Split a value; its numbers become tensors if the body needs them."""
        template = Template(value)
        dynamic = []
        for i, leaf in enumerate(template.leaves):
            if is_tensor_like(leaf) or (is_number(leaf) and needed):
                template.leaves[i] = to_tensor(leaf)
                dynamic.append(i)
        return cls(template, needed, dynamic)

    def tensors(self) -> list[Tensor]:
        return [self.template.leaves[i] for i in self.dynamic]

    def with_tensors(self, tensors: list[Any]) -> Any:
        """Return the value with other tensors."""
        leaves = list(self.template.leaves)
        for i, tensor in zip(self.dynamic, tensors, strict=True):
            leaves[i] = tensor
        return self.template.build(leaves)


class LoopState:
    """The state of one loop while it is staged."""

    def __init__(self, init: Values, needed: Sequence[bool], invariants: Invariants) -> None:
        self.init = init
        self.invariants = invariants
        self.needed = list(needed)
        for position, value in enumerate(init):
            if needed[position] and isinstance(value, Undefined):
                raise invariants.undefined_before(position)
        self.carried = [Carried.before(v, n) for v, n in zip(init, needed, strict=True)]
        self.results: list[Carried] = []

    def inputs(self) -> list[Tensor]:
        """List the tensors that the body takes: those of carried values."""
        return [t for c in self.carried if c.needed for t in c.tensors()]

    def values(self, tensors: Sequence[Any]) -> Values:
        """Return the state inside the body, from its inputs."""
        remaining = iter(tensors)
        return [
            c.with_tensors([next(remaining) for _ in c.dynamic]) if c.needed else undefined
            for c in self.carried
        ]

    def collect(self, values: Values) -> list[Tensor]:
        """Return the tensors of the state at the end of the body, those of carried values first."""
        self.results = []
        collected: dict[int, list[Tensor]] = {}
        for position, (value, carried) in enumerate(zip(values, self.carried, strict=True)):
            if carried.needed:
                collected[position] = self._same_form(position, carried, value)
                self.results.append(carried)
            else:
                result = Carried.before(value, False)
                self._weaken(result, self.init[position])
                collected[position] = result.tensors()
                self.results.append(result)
        order = sorted(collected, key=lambda p: not self.carried[p].needed)
        return [t for p in order for t in collected[p]]

    @staticmethod
    def _weaken(result: Carried, init: Any) -> None:
        """Convert Python numbers that differ from those before the loop to tensors."""
        before = Template(init)
        if before.difference(result.template) is not None:
            return
        for i, leaf in enumerate(result.template.leaves):
            if (
                is_number(leaf)
                and not same_static(leaf, before.leaves[i])
                and before.leaves[i] is not None
            ):
                dtype = before.leaves[i].dtype if isinstance(before.leaves[i], Tensor) else None
                if not isinstance(before.leaves[i], Undefined):
                    result.template.leaves[i] = to_tensor(leaf, dtype)
                    result.dynamic = sorted({*result.dynamic, i})

    def _same_form(self, position: int, carried: Carried, value: Any) -> list[Tensor]:
        after = Template(value)
        if carried.template.grew():
            raise ArrayGrew
        if isinstance(value, Undefined) or carried.template.difference(after) is not None:
            raise self.invariants.changed(
                position, "structure", describe(carried.template), describe(after)
            )
        tensors = []
        for i, (old, new) in enumerate(zip(carried.template.leaves, after.leaves, strict=True)):
            if i not in carried.dynamic:
                if not same_static(old, new):
                    raise self._mismatch(position, "value", old, new)
                continue
            if not is_tensor_like(new) and not is_number(new) and not hasattr(new, "_as_tensor"):
                raise self._mismatch(position, "value", old, new)
            tensor = to_tensor(new, old.dtype)
            for aspect in ("dtype", "shape"):
                if getattr(old, aspect) != getattr(tensor, aspect):
                    raise self._mismatch(position, aspect, old, tensor)
            tensors.append(tensor)
        return tensors

    def _mismatch(self, position: int, aspect: str, before: object, after: object) -> Exception:
        texts = describe_leaf(before), describe_leaf(after)
        return self.invariants.changed(position, aspect, *texts)

    def starting(self, may_not_run: bool) -> list[Tensor]:
        """List the initial tensors in the order of `collect`, after the body was traced."""
        tensors = self.inputs()
        for position, result in enumerate(self.results):
            if not result.needed:
                tensors += self._start(position, result, may_not_run)
        return tensors

    def _start(self, position: int, result: Carried, may_not_run: bool) -> list[Tensor]:
        zeros = [_zeros(t) for t in result.tensors()]
        value = self.init[position]
        if not may_not_run or value is None or isinstance(value, Undefined):
            return zeros
        before = Template(value)
        if result.template.difference(before) is not None:
            raise self.invariants.changed(
                position, "structure", describe(before), describe(result.template)
            )
        tensors = []
        for i, (old, new) in enumerate(zip(before.leaves, result.template.leaves, strict=True)):
            if i not in result.dynamic:
                if not same_static(old, new):
                    raise self._mismatch(position, "value", old, new)
                continue
            if old is None or isinstance(old, Undefined):
                tensors.append(_zeros(new))
                continue
            if not is_tensor_like(old) and not is_number(old):
                raise self._mismatch(position, "value", old, new)
            tensor = to_tensor(old, new.dtype)
            for aspect in ("dtype", "shape"):
                if getattr(tensor, aspect) != getattr(new, aspect):
                    raise self._mismatch(position, aspect, tensor, new)
            tensors.append(tensor)
        return tensors

    def final(self, tensors: Sequence[Tensor]) -> Values:
        """Return the state after the loop, from tensors in the order of `collect`."""
        remaining = iter(tensors)
        values: Values = [None] * len(self.results)
        for is_needed in (True, False):
            for position, result in enumerate(self.results):
                if result.needed is is_needed:
                    values[position] = result.with_tensors(
                        [next(remaining) for _ in result.dynamic]
                    )
        return values


def _zeros(tensor: Tensor) -> Tensor:
    return Tensor(jnp.zeros(tuple(tensor.shape), tensor.dtype.dtype))
