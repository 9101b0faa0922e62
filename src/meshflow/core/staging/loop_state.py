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

from meshflow.core.runtime.errors import ShapeGrowthError
from meshflow.core.staging.growing_accumulators import ArrayGrowth
from meshflow.core.staging.structure import (
    NestedTemplate,
    Undefined,
    are_interchangeable,
    describe_leaf,
    describe_template,
    is_number,
    is_tensor_like,
    to_tensor,
    undefined,
)
from meshflow.core.staging.varying_sizes import (
    renew_sizes,
    replace_sizes,
    vary_sizes,
)
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import (
    can_have_unknown_sizes,
    is_same_size,
    is_unknown_size,
    is_varying,
)

Values = list[Any]


class ShapeVariation(Exception):
    """Signal that values of a loop change their shapes, which the loop allows.

    Attributes:
      axes: For each position and index of a leaf, which of its axes change.
    """

    def __init__(self, axes: dict[tuple[int, int], list[bool]]) -> None:
        super().__init__("the shape of a loop variable changes")
        self.axes = axes

    def vary_sizes(self, values: Values) -> None:
        """Use symbols for the sizes that change in the values before the loop."""
        for (position, index), axes in self.axes.items():
            template = NestedTemplate(values[position])
            template.leaves[index] = vary_sizes(to_tensor(template.leaves[index]), axes)
            values[position] = template.build(template.leaves)


class LoopInvariants:
    """The properties that the state of a loop must keep; subclasses create the errors.

    Attributes:
      allows_shape_changes: Whether values may change their shapes; a compiled program then runs op by op.
    """

    allows_shape_changes = False

    def make_undefined_error(self, position: int) -> Exception:
        """Create the error for a value that the body needs but that does not exist before the loop."""
        raise NotImplementedError

    def make_change_error(self, position: int, aspect: str, before: str, after: str) -> Exception:
        """Create the error for a value that changes in "structure", "dtype", "shape" or "value"."""
        raise NotImplementedError

    def make_test_write_error(self, variable: Any) -> Exception:
        """Create the error for a condition that assigns a variable."""
        return ValueError(
            f"The condition of a loop may not assign a variable, but it assigns {variable.name}."
        )


@dataclass
class LoopValue:
    """One value of the state, split into a template and tensors.

    Attributes:
      template: Template of the value.
      needed: Whether the body uses the old content.
      dynamic: Indices of the leaves that are tensors.
    """

    template: NestedTemplate
    needed: bool
    dynamic: list[int]

    @classmethod
    def from_value(cls, value: Any, needed: bool) -> LoopValue:
        """Split a value; its numbers become tensors if the body needs them."""
        template = NestedTemplate(value)
        dynamic = []
        for i, leaf in enumerate(template.leaves):
            if is_tensor_like(leaf) or (is_number(leaf) and needed):
                template.leaves[i] = to_tensor(leaf)
                dynamic.append(i)
        return cls(template, needed, dynamic)

    def list_tensors(self) -> list[Tensor]:
        """List the leaves that are tensors, in the order of `dynamic`."""
        return [self.template.leaves[i] for i in self.dynamic]

    def replace_tensors(self, tensors: list[Any]) -> Any:
        """Return the value with other tensors."""
        leaves = list(self.template.leaves)
        for i, tensor in zip(self.dynamic, tensors, strict=True):
            leaves[i] = tensor
        return self.template.build(leaves)


class LoopState:
    """The state of one loop while it is staged."""

    def __init__(self, init: Values, needed: Sequence[bool], invariants: LoopInvariants) -> None:
        self.init = init
        self.invariants = invariants
        self.needed = list(needed)
        for position, value in enumerate(init):
            if needed[position] and isinstance(value, Undefined):
                raise invariants.make_undefined_error(position)
        self.carried = [LoopValue.from_value(v, n) for v, n in zip(init, needed, strict=True)]
        self.results: list[LoopValue] = []

    def list_inputs(self) -> list[Tensor]:
        """List the tensors that the body takes: those of carried values."""
        return [t for c in self.carried if c.needed for t in c.list_tensors()]

    def values(self, tensors: Sequence[Any]) -> Values:
        """Return the state inside the body, from its inputs."""
        remaining = iter(tensors)
        return [
            c.replace_tensors([next(remaining) for _ in c.dynamic]) if c.needed else undefined
            for c in self.carried
        ]

    def collect(self, values: Values) -> list[Tensor]:
        """Return the tensors of the state at the end of the body, those of carried values first."""
        self.results = []
        self._varying: dict[tuple[int, int], list[bool]] = {}
        collected: dict[int, list[Tensor]] = {}
        for position, (value, carried) in enumerate(zip(values, self.carried, strict=True)):
            if carried.needed:
                collected[position] = self._check_unchanged(position, carried, value)
                self.results.append(carried)
            else:
                result = LoopValue.from_value(value, False)
                self._convert_changed_numbers(result, self.init[position])
                for i in result.dynamic:
                    leaf = result.template.leaves[i]
                    result.template.leaves[i] = vary_sizes(leaf, map(is_unknown_size, leaf.shape))
                collected[position] = result.list_tensors()
                self.results.append(result)
        if self._varying:
            raise ShapeVariation(self._varying)
        order = sorted(collected, key=lambda p: not self.carried[p].needed)
        return [t for p in order for t in collected[p]]

    @staticmethod
    def _convert_changed_numbers(result: LoopValue, init: Any) -> None:
        """Convert Python numbers that differ from those before the loop to tensors."""
        before = NestedTemplate(init)
        if before.describe_difference(result.template) is not None:
            return
        for i, leaf in enumerate(result.template.leaves):
            if (
                is_number(leaf)
                and not are_interchangeable(leaf, before.leaves[i])
                and before.leaves[i] is not None
            ):
                dtype = before.leaves[i].dtype if isinstance(before.leaves[i], Tensor) else None
                if not isinstance(before.leaves[i], Undefined):
                    result.template.leaves[i] = to_tensor(leaf, dtype)
                    result.dynamic = sorted({*result.dynamic, i})

    def _check_unchanged(self, position: int, carried: LoopValue, value: Any) -> list[Tensor]:
        after = NestedTemplate(value)
        if carried.template.has_grown():
            raise ArrayGrowth
        if not isinstance(value, Undefined):
            carried.template.check_array_sizes(after)
        if isinstance(value, Undefined) or carried.template.describe_difference(after) is not None:
            raise self.invariants.make_change_error(
                position, "structure", describe_template(carried.template), describe_template(after)
            )
        tensors = []
        for i, (old, new) in enumerate(zip(carried.template.leaves, after.leaves, strict=True)):
            if i not in carried.dynamic:
                if not are_interchangeable(old, new):
                    raise self._mismatch(position, "value", old, new)
                continue
            if not is_tensor_like(new) and not is_number(new) and not hasattr(new, "_as_tensor"):
                raise self._mismatch(position, "value", old, new)
            tensor = to_tensor(new, old.dtype)
            self._check_dtype(position, old, tensor)
            grows = i in carried.template.list_growing_leaves()
            axes = self._find_changes(position, old, tensor, grows)
            if not all(
                is_varying(size) for size, changes in zip(old.shape, axes, strict=True) if changes
            ):
                self._varying[position, i] = axes
            tensors.append(replace_sizes(tensor, old.shape))
        return tensors

    def _check_dtype(self, position: int, before: Tensor, after: Tensor) -> None:
        if before.dtype != after.dtype:
            raise self._mismatch(position, "dtype", before, after)

    def _find_changes(
        self, position: int, before: Tensor, after: Tensor, grows: bool = False
    ) -> list[bool]:
        """Return for each axis whether its size changes.

        Raises:
          Exception: If it must not change.
        """
        if before.ndim != after.ndim:
            raise self._mismatch(position, "shape", before, after)
        pairs = list(zip(before.shape, after.shape, strict=True))
        changes = [not is_same_size(a, b) for a, b in pairs]
        allows = grows or self.invariants.allows_shape_changes
        for (a, b), is_changed in zip(pairs, changes, strict=True):
            if not is_changed or (can_have_unknown_sizes() and (allows or is_unknown_size(a - b))):
                continue
            error = self._mismatch(position, "shape", before, after)
            raise ShapeGrowthError(str(error)) if allows else error
        return changes

    def _mismatch(self, position: int, aspect: str, before: object, after: object) -> Exception:
        texts = describe_leaf(before), describe_leaf(after)
        return self.invariants.make_change_error(position, aspect, *texts)

    def list_initial_tensors(self, may_not_run: bool) -> list[Tensor]:
        """List the initial tensors in the order of `collect`, after the body was traced."""
        tensors = self.list_inputs()
        for position, result in enumerate(self.results):
            if not result.needed:
                tensors += self._list_initial(position, result, may_not_run)
        return tensors

    def _list_initial(self, position: int, result: LoopValue, may_not_run: bool) -> list[Tensor]:
        zeros = [_zeros(t) for t in result.list_tensors()]
        value = self.init[position]
        if not may_not_run or value is None or isinstance(value, Undefined):
            return zeros
        before = NestedTemplate(value)
        result.template.check_array_sizes(before)
        if result.template.describe_difference(before) is not None:
            raise self.invariants.make_change_error(
                position, "structure", describe_template(before), describe_template(result.template)
            )
        tensors = []
        for i, (old, new) in enumerate(zip(before.leaves, result.template.leaves, strict=True)):
            if i not in result.dynamic:
                if not are_interchangeable(old, new):
                    raise self._mismatch(position, "value", old, new)
                continue
            if old is None or isinstance(old, Undefined):
                tensors.append(_zeros(new))
                continue
            if not is_tensor_like(old) and not is_number(old):
                raise self._mismatch(position, "value", old, new)
            tensor = to_tensor(old, new.dtype)
            self._check_dtype(position, tensor, new)
            self._find_changes(position, tensor, new)
            tensors.append(replace_sizes(tensor, new.shape))
        return tensors

    def build_final_values(self, tensors: Sequence[Tensor]) -> Values:
        """Return the state after the loop, from tensors in the order of `collect`."""
        remaining = iter(tensors)
        values: Values = [None] * len(self.results)
        for is_needed in (True, False):
            for position, result in enumerate(self.results):
                if result.needed is is_needed:
                    values[position] = result.replace_tensors(
                        [renew_sizes(next(remaining)) for _ in result.dynamic]
                    )
        return values


def _zeros(tensor: Tensor) -> Tensor:
    shape = tuple([0 if is_varying(n) else n for n in tensor.shape])
    return replace_sizes(Tensor(jnp.zeros(shape, tensor.dtype.dtype)), tensor.shape)
