"""Specs of objects that contain elements: datasets, iterators and optionals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TypeSpec
from meshflow.data import structure
from meshflow.environment.types import PyTree

_Class = TypeVar("_Class", bound=type)


def register_value_type(spec: type[ElementsSpec]) -> Callable[[_Class], _Class]:
    """Return a class decorator that registers the class of the values of a spec.

    Args:
      spec: Class of the spec.
    """

    def decorate(cls: _Class) -> _Class:
        spec.value_type = cls
        return cls

    return decorate


class ElementsSpec(TypeSpec):
    """Base class of the specs of datasets, iterators and optionals.

    Attributes:
      value_type: Class of the described values.

    Args:
      element_spec: Spec of the elements.
    """

    value_type: ClassVar[type]
    _has_components, _is_element = False, True

    def __init__(self, element_spec: PyTree) -> None:
        self.element_spec = element_spec

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Return the spec of a value.

        Args:
          value: Dataset, iterator or optional.
        """
        return cls(value.element_spec)

    def is_compatible_with(self, value: Any) -> bool:
        """Check whether the elements of a value, or of the spec of a value, have a compatible spec."""
        known = isinstance(value, (self.value_type, type(self)))
        return known and structure.are_compatible(self.element_spec, value.element_spec)

    def _serialize(self) -> tuple[Any, ...]:
        """Return the arguments of the constructor."""
        return (self.element_spec,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._serialize() == other._serialize()

    def __hash__(self) -> int:
        return hash((type(self), str(self.element_spec)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.element_spec})"


class DatasetSpec(ElementsSpec):
    """Spec of a dataset, which may be an element of another dataset or an argument of a function.

    Args:
      element_spec: Spec of the elements.
      dataset_shape: Shape of the tensor of datasets; only comparisons of specs use it.

    Example:
      >>> @tf.function(input_signature=[tf.data.DatasetSpec(tf.TensorSpec([], tf.int64))])
      ... def total(dataset):
      ...     return dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)
      >>> int(total(tf.data.Dataset.range(5)))
      10
    """

    def __init__(self, element_spec: PyTree, dataset_shape: ShapeLike = ()) -> None:
        super().__init__(element_spec)
        self._dataset_shape = TensorShape(dataset_shape)

    def _serialize(self) -> tuple[Any, ...]:
        return self.element_spec, self._dataset_shape

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec}, {self._dataset_shape!r})"


class IteratorSpec(ElementsSpec):
    """Spec of an iterator over a dataset, for functions that take elements from an iterator argument.

    Args:
      element_spec: Spec of the elements.

    Example:
      >>> @tf.function(input_signature=[tf.data.IteratorSpec(tf.TensorSpec([], tf.int64))])
      ... def doubled(iterator):
      ...     return 2 * next(iterator)
      >>> iterator = iter(tf.data.Dataset.range(5, 7))
      >>> int(doubled(iterator)), int(doubled(iterator))
      (10, 12)
    """
