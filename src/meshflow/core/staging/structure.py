"""Templates that split nested values into tensors, which XLA carries, and constant Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import TensorSlot
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_python_value, convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import can_have_unknown_sizes
from meshflow.environment.types import PyTree


class Undefined:
    """Placeholder of a variable without a value; its only instance is `undefined`."""

    def __repr__(self) -> str:
        return "<undefined>"


undefined = Undefined()


class _CompositeSlot:
    """Placeholder of an object that consists of tensors, such as a `TensorArray`."""

    def __init__(self, template: Any, first: int, count: int) -> None:
        self.template = template
        self.first = first
        self.count = count


class NestedTemplate:
    """A nested value, split into a structure and leaves.

    Objects with the methods `_state_parts() -> list` and `_with_state_parts(list)` are containers.

    Attributes:
      leaves: The leaves in order: tensors and Python values.
    """

    def __init__(self, value: PyTree) -> None:
        self.leaves: list[Any] = []
        self._structure = nest.map_structure(self._add_leaf, value)

    def _add_leaf(self, leaf: Any) -> TensorSlot | _CompositeSlot:
        first = len(self.leaves)
        if hasattr(leaf, "_state_parts"):
            parts = leaf._state_parts()
            self.leaves.extend(parts)
            return _CompositeSlot(leaf, first, len(parts))
        self.leaves.append(leaf)
        return TensorSlot(first)

    def build(self, leaves: Sequence[Any]) -> PyTree:
        """Return the value with other leaves."""

        def get_leaf(slot: TensorSlot | _CompositeSlot) -> Any:
            if isinstance(slot, _CompositeSlot):
                return slot.template._with_state_parts(
                    list(leaves[slot.first : slot.first + slot.count])
                )
            return leaves[slot.index]

        return nest.map_structure(get_leaf, self._structure)

    def has_grown(self) -> bool:
        """Check whether a `TensorArray` in the value would now be split differently."""
        for slot in nest.flatten(self._structure):
            if isinstance(slot, _CompositeSlot):
                old = self.leaves[slot.first : slot.first + slot.count]
                new = slot.template._state_parts()
                if len(old) != len(new) or any(
                    tuple(a.shape) != tuple(b.shape) for a, b in zip(old, new, strict=True)
                ):
                    return True
        return False

    def list_growing_leaves(self) -> set[int]:
        """List the indices of the leaves that belong to a `TensorArray` of dynamic size."""
        return {
            i
            for slot in nest.flatten(self._structure)
            if isinstance(slot, _CompositeSlot) and getattr(slot.template, "dynamic_size", False)
            for i in range(slot.first, slot.first + slot.count)
        }

    def _list_resized(self, other: NestedTemplate) -> list[Any]:
        """List the objects with parts that have other sizes in `other`, which has the same structure."""
        slots = zip(nest.flatten(self._structure), nest.flatten(other._structure), strict=False)
        resized = []
        for a, b in slots:
            if isinstance(a, _CompositeSlot) and isinstance(b, _CompositeSlot):
                shapes = [
                    [tuple(leaf.shape) for leaf in t.leaves[s.first : s.first + s.count]]
                    for t, s in ((self, a), (other, b))
                ]
                if can_have_unknown_sizes() and len(shapes[0]) == len(shapes[1]):
                    continue
                has_length = hasattr(a.template, "__len__") and hasattr(b.template, "__len__")
                if shapes[0] != shapes[1] or (has_length and len(a.template) != len(b.template)):
                    resized.append(a.template)
        return resized

    def check_array_sizes(self, other: NestedTemplate) -> None:
        """Raise a ValueNeededError if a `TensorArray` of dynamic size has another size in `other`."""
        if any(getattr(value, "dynamic_size", False) for value in self._list_resized(other)):
            raise ValueNeededError(
                "The size of a TensorArray with dynamic_size=True depends on values. Pass `size=` "
                "without dynamic_size to keep the function compiled."
            )

    def check_composite_sizes(self, other: NestedTemplate) -> None:
        """Raise a ValueNeededError if a composite tensor has parts of other sizes in `other`."""
        for value in self._list_resized(other):
            if isinstance(value, CompositeTensor):
                raise ValueNeededError(
                    f"The number of values of a {type(value).__name__} in a branch or loop depends on values."
                )

    def describe(self, describe_leaf: Callable[[Any], str]) -> str:
        """Describe the value for error messages, such as `[float32[2], 'text']`."""

        def describe_slot(slot: TensorSlot | _CompositeSlot) -> str:
            if isinstance(slot, _CompositeSlot):
                return repr(slot.template)
            return describe_leaf(self.leaves[slot.index])

        return str(nest.map_structure(describe_slot, self._structure)).replace("'", "")

    def describe_difference(self, other: NestedTemplate) -> str | None:
        """Describe the structural difference from another value; None if the structures agree."""
        try:
            nest.assert_same_structure(self._structure, other._structure, check_types=False)
        except (ValueError, TypeError):
            return f"{describe_template(self)} and {describe_template(other)}"
        slot_types = [_get_slot_type(slot) for slot in nest.flatten(self._structure)]
        if slot_types != [_get_slot_type(slot) for slot in nest.flatten(other._structure)]:
            return f"{describe_template(self)} and {describe_template(other)}"
        return None


def _get_slot_type(slot: object) -> tuple[type, int] | None:
    return (type(slot.template), slot.count) if isinstance(slot, _CompositeSlot) else None


def describe_template(template: NestedTemplate) -> str:
    """Describe a value for error messages, such as `[float32[2], 'text']`."""
    return template.describe(describe_leaf)


def describe_leaf(leaf: Any) -> str:
    """Describe one leaf for error messages."""
    if is_tensor_like(leaf):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return repr(leaf)


def is_tensor_like(leaf: object) -> bool:
    """Check whether a leaf is an array that XLA can carry: no Python number and no string."""
    if isinstance(leaf, (Tensor, np.ndarray, np.generic, jax.Array)):
        return leaf.dtype.name not in ("object", "string") and leaf.dtype != object
    return False


def is_number(leaf: object) -> bool:
    """Check whether a leaf is a Python number, which can become a tensor."""
    return isinstance(leaf, (bool, int, float, complex))


def are_interchangeable(a: object, b: object) -> bool:
    """Check whether two Python leaves are interchangeable."""
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, (bool, int, float, complex, str, bytes)):
        return False
    return a == b


def to_tensor(leaf: Any, dtype: DType | None = None) -> Tensor:
    """Convert a leaf to a tensor; numbers get `dtype` if it can represent them.

    Raises:
      TypeError: If the value is not numeric.
      ValueError: If the value is None.
    """
    if dtype is not None and is_number(leaf):
        try:
            return convert_python_value(leaf, dtype)
        except (TypeError, ValueError):
            return convert_to_tensor(leaf)
    return convert_to_tensor(leaf)
