"""`tf.experimental.Optional`: a value, or nothing."""

from __future__ import annotations

from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.core.errors import InvalidArgumentError
from meshflow.core.specs import TypeSpec
from meshflow.core.tensor import Tensor
from meshflow.data import structure


class Optional:
    """A value, or nothing; `iterator.get_next_as_optional()` gives nothing at the end.

    Args:
      value: a structure of tensors.
      spec: its spec.
      present: whether there is a value.

    Example:
      >>> import meshflow as tf
      >>> some = tf.experimental.Optional.from_value(3)
      >>> bool(some.has_value()), int(some.get_value())
      (True, 3)
      >>> bool(tf.experimental.Optional.empty(tf.TensorSpec([])).has_value())
      False
    """

    def __init__(self, value: Any, spec: Any, present: bool = True) -> None:
        self._value, self._spec, self._present = value, spec, present

    @staticmethod
    def from_value(value: Any) -> Optional:
        """One with a value.

        Args:
          value: a structure of what becomes tensors.
        """
        tensors = structure.normalize(value, structure.to_tensor)
        return Optional(tensors, structure.spec_of(tensors))

    @staticmethod
    def empty(element_spec: Any) -> Optional:
        """One without a value.

        Args:
          element_spec: the spec of the value that it does not have.
        """
        return Optional(None, element_spec, False)

    @property
    def element_spec(self) -> Any:
        """The spec of the value."""
        return self._spec

    def has_value(self, name: str | None = None) -> Tensor:
        """Whether there is a value, a bool scalar.

        Args:
          name: ignored.
        """
        return convert_to_tensor(self._present)

    def get_value(self, name: str | None = None) -> Any:
        """The value.

        Args:
          name: ignored.

        Raises:
          InvalidArgumentError: when there is none.
        """
        if not self._present:
            raise InvalidArgumentError("The given optional does not have a value.")
        return self._value

    def __repr__(self) -> str:
        return f"<Optional element_spec={self._spec}>"


class OptionalSpec(TypeSpec):
    """Spec of an `Optional`.

    Args:
      element_spec: the spec of its value.
    """

    def __init__(self, element_spec: Any) -> None:
        self.element_spec = element_spec

    @classmethod
    def from_value(cls, value: Optional) -> OptionalSpec:
        """The spec of an optional.

        Args:
          value: the optional.
        """
        return cls(value.element_spec)

    def is_compatible_with(self, value: Any) -> bool:
        """Whether an optional, or the spec of one, has values that fit."""
        return isinstance(value, (Optional, OptionalSpec)) and structure.compatible(
            self.element_spec, value.element_spec
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalSpec) and self.element_spec == other.element_spec

    def __hash__(self) -> int:
        return hash(str(self.element_spec))

    def __repr__(self) -> str:
        return f"OptionalSpec({self.element_spec})"
