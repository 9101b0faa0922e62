"""`tf.experimental.Optional`: a value, or nothing; what `get_next_as_optional` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.specs import ElementsSpec, described_by


class OptionalSpec(ElementsSpec):
    """Spec of an `Optional`.

    Args:
      element_spec: the spec of its value.
    """


@described_by(OptionalSpec)
class Optional:
    """An element, or nothing.

    In a compiled function whether there is one is known when it runs: ask in an `if` or `while`.

    Args:
      value: a nested structure of tensors; without a value zeros that stand for it, or None.
      present: whether there is a value, a bool or a scalar tensor.
      spec: the structure of `TensorSpec`s that describes a value; default that of `value`.

    Example:
      >>> import meshflow as tf
      >>> iterator = iter(tf.data.Dataset.range(1))
      >>> [bool(iterator.get_next_as_optional().has_value()) for _ in range(2)]
      [True, False]
      >>> some = tf.experimental.Optional.from_value(3)
      >>> int(some.get_value()), some.element_spec
      (3, TensorSpec(shape=(), dtype=tf.int32, name=None))
    """

    def __init__(self, value: Any, present: Any = True, spec: Any = None) -> None:
        self._value, self._present, self._spec = value, present, spec

    @staticmethod
    def from_value(value: Any) -> Optional:
        """An optional that has the value given: a tensor, or what converts to one, or nested ones."""
        return Optional(structure.normalize(value, structure.to_tensor))

    @staticmethod
    def empty(element_spec: Any) -> Optional:
        """An optional without a value, which would be described by `element_spec`."""
        return Optional(None, False, element_spec)

    @property
    def element_spec(self) -> Any:
        """The structure of `TensorSpec`s that describes the value."""
        if self._spec is not None:
            return self._spec
        return structure.spec_of(self._value)

    @property
    def _type_spec(self) -> OptionalSpec:
        return OptionalSpec.from_value(self)

    def has_value(self, name: str | None = None) -> Tensor:
        """Whether there is an element, a bool scalar."""
        return convert_to_tensor(self._present)

    def get_value(self, name: str | None = None) -> Any:
        """The element; zeros when there is none and that is known only as a compiled function runs.

        Raises:
          InvalidArgumentError: when there is none.
        """
        present = self.has_value()
        if not isinstance(present._value, jax.core.Tracer) and not bool(present):
            raise InvalidArgumentError("The given optional does not have a value.")
        return self._value

    def __repr__(self) -> str:
        return f"<Optional element_spec={self.element_spec}>"

    # Loops and branches that are compiled carry it as these tensors.

    def _state_parts(self) -> list[Tensor]:
        return [self.has_value(), *jax.tree.leaves(self._value, is_leaf=_is_tensor)]

    def _with_state_parts(self, parts: Sequence[Tensor]) -> Optional:
        tree = jax.tree.structure(self._value, is_leaf=_is_tensor)
        return Optional(jax.tree.unflatten(tree, parts[1:]), parts[0], self._spec)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
