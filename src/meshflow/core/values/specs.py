"""Type specifications, which describe values by shape, dtype and name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.tensor import Tensor, TensorLike


class TypeSpec:
    """Base class of the descriptions of values: `TensorSpec`, and Keras' symbolic ones.

    Example:
      >>> isinstance(tf.TensorSpec([2], tf.float32), tf.TypeSpec)
      True
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # All specs except those of datasets and of None have these attributes.
        @property
        def shape(self) -> TensorShape:
            """Return the static shape."""

        @property
        def dtype(self) -> dtypes.DType:
            """Return the dtype of the elements."""

        @property
        def name(self) -> str | None:
            """Return the optional name of the argument."""

    def is_compatible_with(self, value: Any) -> bool:
        """Check whether `value`, or another spec, satisfies this description."""
        raise NotImplementedError(f"{type(self).__name__} does not define is_compatible_with.")

    def most_specific_compatible_type(self, other: TypeSpec) -> TypeSpec:
        """Return the most specific spec that covers both; by default, equal specs only.

        Raises:
          ValueError: If there is none.
        """
        if self != other:
            raise ValueError(f"No TypeSpec is compatible with both {self} and {other}")
        return self

    def most_specific_common_supertype(self, others: Sequence[TypeSpec]) -> TypeSpec | None:
        """Return the most specific spec that covers this and others, or None.

        Example:
          >>> spec = tf.TensorSpec([2, 3], tf.float32)
          >>> spec.most_specific_common_supertype([tf.TensorSpec([2, 4], tf.float32)]).shape
          TensorShape([2, None])
        """
        try:
            merge = lambda first, second: first.most_specific_compatible_type(second)
            return functools.reduce(merge, others, self)
        except (TypeError, ValueError):
            return None

    def _check_subtype(self, other: TypeSpec) -> bool:
        """Check whether `other` describes every value that this spec describes."""
        return self.most_specific_common_supertype([other]) == other

    is_subtype_of = _check_subtype

    # Specs of libraries call these private methods of the specs of their components.

    @property
    def _flat_tensor_specs(self) -> list[Any]:
        return [self]

    def _to_tensor_list(self, value: Any) -> list[Any]:
        return [value]

    def _to_batched_tensor_list(self, value: Any) -> list[Any]:
        return self._to_tensor_list(value)

    def _from_compatible_tensor_list(self, tensor_list: Sequence[Any]) -> Any:
        return tensor_list[0]


class TensorSpec(TypeSpec):
    """Shape and dtype of a tensor, for `tf.function(input_signature=...)` and `element_spec`.

    Args:
      shape: A shape; sizes may be None.
      dtype: Dtype of the elements.
      name: An optional name for the argument.

    Example:
      >>> spec = tf.TensorSpec([None, 2])
      >>> spec.is_compatible_with(tf.zeros([5, 2]))
      True
    """

    __slots__ = ("_dtype", "_name", "_shape")

    def __init__(
        self,
        shape: ShapeLike | Iterable[Any],
        dtype: DTypeLike | None = dtypes.float32,
        name: str | None = None,
    ) -> None:
        self._shape = as_shape(shape)
        self._dtype = dtypes.as_dtype(dtype)
        self._name = name

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        """Return the dtype of the elements."""
        return self._dtype

    @property
    def name(self) -> str | None:
        """Return the name, or None."""
        return self._name

    @classmethod
    def from_tensor(cls, tensor: TensorLike, name: str | None = None) -> TensorSpec:
        """Return the spec of a tensor."""
        return cls(tensor.shape, tensor.dtype, name)

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        """Return a copy of `spec`, optionally with another name."""
        return cls(spec.shape, spec.dtype, name or spec.name)

    def is_compatible_with(self, spec_or_tensor: TensorSpec | TensorLike) -> bool:
        """Check whether a tensor or spec has this dtype and a compatible shape."""
        dtype = getattr(spec_or_tensor, "dtype", None)
        return self._dtype == dtype and self._shape.is_compatible_with(spec_or_tensor.shape)

    def is_subtype_of(self, other: TypeSpec) -> bool:
        """Check whether `other` describes every value that this spec describes."""
        if not isinstance(other, TensorSpec):
            return False
        return self._dtype == other.dtype and self._shape.is_subtype_of(other.shape)

    @property
    def value_type(self) -> type:
        """Return the class that the spec describes, `tf.Tensor`."""
        return Tensor

    def _batch(self, batch_size: int | None) -> TensorSpec:
        return TensorSpec([batch_size, *self._shape.as_list()], self._dtype)

    def _unbatch(self) -> TensorSpec:
        return TensorSpec(self._shape.as_list()[1:], self._dtype)

    def most_specific_compatible_type(self, other: TypeSpec) -> TensorSpec:
        """Return the most specific spec that covers both.

        Raises:
          ValueError: If the dtypes differ.
        """
        if not isinstance(other, TensorSpec) or other.dtype is not self._dtype:
            raise ValueError(f"No TensorSpec is compatible with both {self} and {other}.")
        return TensorSpec(self._shape.most_specific_compatible_shape(other.shape), self._dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and (self._shape, self._dtype, self._name) == (
            other.shape,
            other.dtype,
            other.name,
        )

    def __hash__(self) -> int:
        return hash((self._shape, self._dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self._shape}, dtype={self._dtype!r}, name={self._name!r})"

    def __reduce__(self) -> Any:
        return TensorSpec, (self._shape, self._dtype, self._name)


def type_spec_from_value(value: Any) -> TypeSpec:
    """Return the spec of a value.

    Args:
      value: A tensor, variable, NumPy array, Python number or string, a dataset, an iterator over
        one, or a `tf.experimental.Optional`.

    Raises:
      TypeError: For any other value.

    Example:
      >>> tf.type_spec_from_value(tf.zeros([2]))
      TensorSpec(shape=(2,), dtype=tf.float32, name=None)
    """
    if isinstance(value, TypeSpec):
        return value
    spec: TypeSpec | None = getattr(value, "_type_spec", None)
    if spec is not None:
        return spec
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return TensorSpec(value.shape, value.dtype)
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return TensorSpec((), convert_to_tensor(value).dtype)
    for cls, convert, allow_subclass in reversed(_converters):
        if type(value) is cls or (allow_subclass and isinstance(value, cls)):
            return convert(value)
    raise TypeError(f"Could not build a TypeSpec for {value!r} with type {type(value).__name__}")


_converters: list[tuple[type, Callable[[Any], TypeSpec], bool]] = []


def register_type_spec_from_value_converter(
    type_object: type, converter_fn: Callable[[Any], TypeSpec], allow_subclass: bool = False
) -> None:
    """Register a function that returns the spec of a value of a class, or also of its subclasses."""
    _converters.append((type_object, converter_fn, allow_subclass))


class ElementLeaf:
    """Marker base class of objects that are leaves of the elements of datasets.

    Datasets, iterators, optionals and tensor arrays belong to it.
    """

    @property
    def _type_spec(self) -> TypeSpec:
        raise NotImplementedError
