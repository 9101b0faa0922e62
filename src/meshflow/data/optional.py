"""`tf.experimental.Optional`: a value that may be absent, as `get_next_as_optional` returns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.specs import ElementsSpec, register_value_type
from meshflow.environment.types import PyTree


class OptionalSpec(ElementsSpec):
    """Spec of an `Optional`.

    Args:
      element_spec: Spec of the value.
    """


@register_value_type(OptionalSpec)
class Optional(structure.ElementLeaf):
    """A value that may be absent.

    In a compiled function, only the running program knows whether there is a value: check
    `has_value()` in an `if` or `while` statement.

    Args:
      value: Nested structure of tensors; if the value is absent, zeros of the same structure, or
        None.
      present: Whether there is a value, a bool or a scalar tensor.
      spec: Spec of the value, by default that of `value`.

    Example:
      >>> iterator = iter(tf.data.Dataset.range(1))
      >>> [bool(iterator.get_next_as_optional().has_value()) for _ in range(2)]
      [True, False]
      >>> some = tf.experimental.Optional.from_value(3)
      >>> int(some.get_value()), some.element_spec
      (3, TensorSpec(shape=(), dtype=tf.int32, name=None))
    """

    def __init__(self, value: PyTree, present: bool | Tensor = True, spec: PyTree = None) -> None:
        self._value, self._present, self._spec = value, present, spec

    @staticmethod
    def from_value(value: PyTree) -> Optional:
        """Create an optional that contains a value.

        Args:
          value: Nested structure of tensors, or of values that can be converted to tensors.
        """
        return Optional(structure.map_leaves(value, structure.to_tensor))

    @staticmethod
    def empty(element_spec: PyTree) -> Optional:
        """Create an optional without a value.

        Args:
          element_spec: Spec that the value would have.
        """
        return Optional(None, False, element_spec)

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the value, a structure of `TensorSpec`s."""
        if self._spec is not None:
            return self._spec
        return structure.infer_spec(self._value)

    @property
    def _type_spec(self) -> OptionalSpec:
        return OptionalSpec.from_value(self)

    def has_value(self, name: str | None = None) -> Tensor:
        """Check whether there is a value.

        Args:
          name: Ignored.

        Returns:
          A bool scalar.
        """
        return convert_to_tensor(self._present)

    def get_value(self, name: str | None = None) -> PyTree:
        """Return the value.

        If only the running program knows that there is no value, the result consists of zeros.

        Args:
          name: Ignored.

        Raises:
          InvalidArgumentError: If there is no value.
        """
        present = self.has_value()
        if not isinstance(present.array, jax.core.Tracer) and not bool(present):
            raise InvalidArgumentError("The given optional does not have a value.")
        return self._value

    def __repr__(self) -> str:
        return f"<Optional element_spec={self.element_spec}>"

    # Compiled loops and branches carry an optional as these tensors, and functions return them.

    def _state_parts(self) -> list[Tensor]:
        return [self.has_value(), *jax.tree.leaves(self._value, is_leaf=_is_tensor)]

    def _get_state_builder(self) -> Callable[[Sequence[Tensor]], Optional]:
        tree, spec = jax.tree.structure(self._value, is_leaf=_is_tensor), self._spec
        return lambda parts: Optional(jax.tree.unflatten(tree, parts[1:]), parts[0], spec)

    def _with_state_parts(self, parts: Sequence[Tensor]) -> Optional:
        return self._get_state_builder()(parts)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
