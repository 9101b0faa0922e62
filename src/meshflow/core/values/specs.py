"""Type specifications, which describe values by shape, dtype and name."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree


class TypeSpec:
    """Base class of the descriptions of values: `TensorSpec`, those of composite tensors, and Keras' symbolic ones.

    A subclass for values that consist of tensors defines `value_type`, `_component_specs`, `_to_components`,
    `_from_components` and `_serialize`, like in TensorFlow.

    Example:
      >>> isinstance(tf.TensorSpec([2], tf.float32), tf.TypeSpec)
      True
    """

    __slots__ = ()
    # Whether values consist of components; a program takes these in place of a value.
    _has_components: ClassVar[bool] = True
    # Whether datasets hold a value as it is, and not as the list of its tensors.
    _is_element: ClassVar[bool] = False

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

    @property
    def value_type(self) -> type:
        """Return the class that the spec describes."""
        raise NotImplementedError(f"{type(self).__name__} does not define value_type.")

    @property
    def _component_specs(self) -> PyTree:
        """Return a nested structure of specs."""
        raise NotImplementedError(f"{type(self).__name__} does not define _component_specs.")

    def _to_components(self, value: PyTree) -> PyTree:
        """Return the components of a value, in the structure of `_component_specs`."""
        raise NotImplementedError(f"{type(self).__name__} does not define _to_components.")

    def _from_components(self, components: PyTree) -> PyTree:
        """Return a value from its components."""
        raise NotImplementedError(f"{type(self).__name__} does not define _from_components.")

    def _serialize(self) -> PyTree:
        """Return the arguments of the constructor."""
        raise NotImplementedError(f"{type(self).__name__} does not define _serialize.")

    @classmethod
    def _deserialize(cls, serialization: PyTree) -> Self:
        """Return a spec from the result of `_serialize`."""
        return cls(*serialization)

    def split_components(self, value: PyTree) -> tuple[list[Tensor], Hashable]:
        """Return the tensors in the components of a value, and the structure of the components."""
        components = self._to_components(value)
        return jax.tree_util.tree_flatten(components, lambda v: isinstance(v, Tensor))

    def join_components(self, parts: Sequence[Any], structure: PyTree) -> PyTree:
        """Return a value from the results of `split_components`."""
        return self._from_components(jax.tree_util.tree_unflatten(structure, parts))

    def list_component_specs(self) -> list[TypeSpec]:
        """List the specs of the components."""
        return jax.tree_util.tree_leaves(self._component_specs)

    def list_part_sizes(self) -> list[list[int | None] | None]:
        """List the shapes of the parts of values, with None for unknown sizes and shapes of unknown rank."""
        if not self._has_components:
            return []
        return [sizes for leaf in self.list_component_specs() for sizes in leaf.list_part_sizes()]

    def fill_components(self, fill: Callable[[TypeSpec], PyTree]) -> PyTree:
        """Return a value with the results of a function of the specs of its components."""
        return self._from_components(jax.tree_util.tree_map(fill, self._component_specs))

    def map_specs(self, change: Callable[[TypeSpec], TypeSpec]) -> Self:
        """Return a spec with changed specs among the arguments of its constructor."""

        def apply(value: PyTree) -> PyTree:
            if isinstance(value, TypeSpec):
                return change(value)
            if isinstance(value, (list, tuple)):
                items = map(apply, value)
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            is_mapping = isinstance(value, Mapping)
            return {k: apply(v) for k, v in value.items()} if is_mapping else value

        return self._deserialize(apply(self._serialize()))

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Check whether a value, or a spec, has the same type and compatible components."""
        other = type_spec_from_value(spec_or_value)
        return type(other) is type(self) and _are_compatible(self._serialize(), other._serialize())

    def most_specific_compatible_type(self, other: TypeSpec) -> Self:
        """Return the most specific spec that covers both.

        Raises:
          ValueError: If there is none.
        """
        if type(other) is not type(self):
            raise ValueError(f"No TypeSpec is compatible with both {self} and {other}")
        return self._deserialize(generalize(self._serialize(), other._serialize()))

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
        if self._is_element:
            return [self]
        return [s for spec in self.list_component_specs() for s in spec._flat_tensor_specs]

    def _to_tensor_list(self, value: Any) -> list[Any]:
        return self._list_tensors(value, "_to_tensor_list")

    def _to_batched_tensor_list(self, value: Any) -> list[Any]:
        return self._list_tensors(value, "_to_batched_tensor_list")

    def _list_tensors(self, value: PyTree, method: str) -> list[Any]:
        if self._is_element:
            return [value]
        specs = self._component_specs
        structure: PyTree = jax.tree_util.tree_structure(specs)
        components = structure.flatten_up_to(self._to_components(value))
        pairs = zip(jax.tree_util.tree_leaves(specs), components, strict=True)
        return [tensor for spec, part in pairs for tensor in getattr(spec, method)(part)]

    def _from_compatible_tensor_list(self, tensor_list: Sequence[Any]) -> PyTree:
        if self._is_element:
            return tensor_list[0]
        supply = iter(tensor_list)

        def fill(spec: PyTree) -> PyTree:
            count = len(spec._flat_tensor_specs)
            return spec._from_compatible_tensor_list(list(itertools.islice(supply, count)))

        return self.fill_components(fill)

    def _from_tensor_list(self, tensor_list: Sequence[Any]) -> PyTree:
        for spec, tensor in zip(self._flat_tensor_specs, tensor_list, strict=True):
            if not spec.is_compatible_with(tensor):
                raise ValueError(f"The tensor {tensor!r} is not compatible with {spec!r}.")
        return self._from_compatible_tensor_list(tensor_list)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return _make_key(self._serialize()) == _make_key(other._serialize())

    def __hash__(self) -> int:
        return hash((type(self), str(self._serialize())))

    def __reduce__(self) -> Any:
        return type(self)._deserialize, (self._serialize(),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._serialize()!r}"


def _make_key(value: PyTree) -> PyTree:
    """Return the serialization of a spec in a form that `==` compares, with NumPy arrays as lists."""
    if isinstance(value, np.ndarray):
        return np.ndarray, value.shape, value.tolist()
    if isinstance(value, (list, tuple)):
        kind = type(value).__name__ if hasattr(value, "_fields") else type(value)
        return kind, [_make_key(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _make_key(item) for key, item in value.items()}
    return value


def _have_same_type(first: PyTree, second: PyTree) -> bool:
    """Check whether two values have the same class, or classes of named tuples with equal definitions."""
    if type(first) is type(second):
        return True
    fields = getattr(first, "_fields", None)
    is_same = fields is not None and fields == getattr(second, "_fields", None)
    return is_same and type(first).__name__ == type(second).__name__


def generalize(first: PyTree, second: PyTree) -> PyTree:
    """Return the most specific structure of specs, shapes and other values that covers two such structures.

    Raises:
      ValueError: If there is none.
    """
    if isinstance(first, TypeSpec) and isinstance(second, TypeSpec):
        return first.most_specific_compatible_type(second)
    if isinstance(first, TensorShape) and isinstance(second, TensorShape):
        return first.most_specific_compatible_shape(second)
    is_same = _have_same_type(first, second)
    if isinstance(first, (list, tuple)) and is_same and len(first) == len(second):
        items = map(generalize, first, second)
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys():
        return {key: generalize(value, second[key]) for key, value in first.items()}
    if not is_same or _make_key(first) != _make_key(second):
        raise ValueError(f"No TypeSpec is compatible with both {first!r} and {second!r}")
    return first


def _are_compatible(first: PyTree, second: PyTree) -> bool:
    """Compare the serializations of two specs."""
    check = getattr(first, "is_compatible_with", None)
    # A shape that users' code reads has a class of its own.
    if isinstance(first, TypeSpec) or (
        isinstance(first, TensorShape) and isinstance(second, TensorShape)
    ):
        return first.is_compatible_with(second)
    if not _have_same_type(first, second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_are_compatible, first, second))
    if isinstance(first, Mapping):
        is_same = first.keys() == second.keys()
        return is_same and all(_are_compatible(v, second[key]) for key, v in first.items())
    return check(second) if check else _make_key(first) == _make_key(second)


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
    _has_components, _is_element = False, True

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

    def list_part_sizes(self) -> list[list[int | None] | None]:
        """List the shape; nothing for strings, which are constants of a trace."""
        if self._dtype is dtypes.string:
            return []
        return [None if self._shape.rank is None else [*self._shape.as_list()]]

    def _batch(self, batch_size: int | None) -> TensorSpec:
        if self._shape.rank is None:
            return TensorSpec(None, self._dtype)
        return TensorSpec([batch_size, *self._shape.as_list()], self._dtype)

    def _unbatch(self) -> TensorSpec:
        if self._shape.rank is None:
            return TensorSpec(None, self._dtype)
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
