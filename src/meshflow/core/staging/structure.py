"""Nested values taken apart: tensors that XLA carries, and Python values that stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.tracing.trace import Slot
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor, from_python
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor


class Undefined:
    """Stands for a variable without a value; there is one instance, `undefined`."""

    def __repr__(self) -> str:
        return "<undefined>"


undefined = Undefined()


class _CompositeSlot:
    """The place of an object that is made of tensors, such as a `TensorArray`."""

    def __init__(self, template: Any, first: int, count: int) -> None:
        self.template = template
        self.first = first
        self.count = count


class Template:
    """A nested value taken apart.

    Objects with the methods `_state_parts() -> list` and `_with_state_parts(list)` count as
    containers of their parts.

    Attributes:
      leaves: the leaves in order: tensors and Python values.
    """

    def __init__(self, value: Any) -> None:
        self.leaves: list[Any] = []
        self._form = nest.map_structure(self._take, value)

    def _take(self, leaf: Any) -> Any:
        first = len(self.leaves)
        if hasattr(leaf, "_state_parts"):
            parts = leaf._state_parts()
            self.leaves.extend(parts)
            return _CompositeSlot(leaf, first, len(parts))
        self.leaves.append(leaf)
        return Slot(first)

    def build(self, leaves: Sequence[Any]) -> Any:
        """The value with other leaves."""

        def put(slot: Any) -> Any:
            if isinstance(slot, _CompositeSlot):
                return slot.template._with_state_parts(
                    list(leaves[slot.first : slot.first + slot.count])
                )
            return leaves[slot.index]

        return nest.map_structure(put, self._form)

    def grew(self) -> bool:
        """Whether a `TensorArray` in the value would be taken apart differently now."""
        for slot in nest.flatten(self._form):
            if isinstance(slot, _CompositeSlot):
                old = self.leaves[slot.first : slot.first + slot.count]
                new = slot.template._state_parts()
                if len(old) != len(new) or any(
                    tuple(a.shape) != tuple(b.shape) for a, b in zip(old, new, strict=True)
                ):
                    return True
        return False

    def difference(self, other: Template) -> str | None:
        """How another value's form differs from this one's, or None when they agree."""
        try:
            nest.assert_same_structure(self._form, other._form, check_types=False)
        except (ValueError, TypeError):
            return f"{describe(self)} and {describe(other)}"
        kinds = [_kind(slot) for slot in nest.flatten(self._form)]
        if kinds != [_kind(slot) for slot in nest.flatten(other._form)]:
            return f"{describe(self)} and {describe(other)}"
        return None


def _kind(slot: Any) -> Any:
    return (type(slot.template), slot.count) if isinstance(slot, _CompositeSlot) else None


def describe(template: Template) -> str:
    """A short text for error messages: `[float32[2], 'text']`."""
    return str(template.build([describe_leaf(leaf) for leaf in template.leaves])).replace("'", "")


def describe_leaf(leaf: Any) -> str:
    """A short text for one leaf."""
    if is_tensor_like(leaf):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return repr(leaf)


def is_tensor_like(leaf: Any) -> bool:
    """Whether a leaf is an array that XLA can carry: not a number, and not a string."""
    if isinstance(leaf, (Tensor, np.ndarray, np.generic, jax.Array)):
        return leaf.dtype.name not in ("object", "string") and leaf.dtype != object
    return False


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number, which becomes a tensor when it has to."""
    return isinstance(leaf, (bool, int, float, complex))


def same_static(a: Any, b: Any) -> bool:
    """Whether two Python leaves are interchangeable."""
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, (bool, int, float, complex, str, bytes)):
        return False
    return a == b


def to_tensor(leaf: Any, like: DType | None = None) -> Tensor:
    """The tensor for a leaf; numbers take the dtype `like` where they can.

    Raises:
      TypeError: for a value that is not numeric.
      ValueError: for None.
    """
    if like is not None and is_number(leaf):
        try:
            return from_python(leaf, like)
        except (TypeError, ValueError):
            return convert_to_tensor(leaf)
    return convert_to_tensor(leaf)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A nested value with `function` applied to each leaf."""
    template = Template(value)
    return template.build([function(leaf) for leaf in template.leaves])
