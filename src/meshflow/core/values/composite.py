"""Composite tensors: values that consist of several tensors, such as ragged and sparse tensors.

A composite tensor splits into *parts* (tensors) and a hashable *static* part, and its class joins them
again. All code that passes values through programs uses these two methods: arguments, results and
captures of functions, loops, branches, keys of caches and nested structures. Every subclass is a JAX
pytree, so keys of `tf.function` contain the static part, and the shapes and dtypes of the parts. Sizes
of parts may be symbols (`trace_families.py`), so that one trace serves values of any size.

A composite tensor with strings is a constant of a trace, like a tensor of strings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self, TypeGuard

import jax

from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree

__all__ = [
    "BatchableSpec",
    "CompositeSpec",
    "CompositeTensor",
    "can_split",
    "find_spec_name",
    "get_batch_encoder",
    "is_composite_spec",
    "is_extension",
    "is_extension_spec",
    "list_components",
    "list_part_sizes",
    "named_spec_classes",
    "replace_components",
    "split_value",
]


class _Content:
    """The parts of a constant composite tensor, compared by their values."""

    __slots__ = ("key", "parts")

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = parts
        arrays = [part.require_value("a part of a composite tensor of strings") for part in parts]
        self.key = tuple([(a.shape, tuple(a.ravel().tolist())) for a in arrays])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CompositeTensor:
    """Base class of values that consist of tensors.

    A subclass defines `_type_spec`, or also `_split` and `_join` for speed; if its parts have gradients, also
    `_components` and `_with_components`.

    Example:
      >>> tf.nest.flatten(tf.ragged.constant([[1], []]), expand_composites=True)[1].numpy()
      array([0, 1, 1])
    """

    # Whether the class belongs to a user or a library; the types of TensorFlow have code of their own.
    _is_extension = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(
            cls, _flatten_pytree, lambda static, parts: _unflatten_pytree(cls, static, parts)
        )

    def _split(self) -> tuple[list[Tensor], Hashable]:
        """Return the parts and the static part, by default the spec and the structure of its components."""
        spec = self._type_spec
        parts, structure = spec.split_components(self)
        return parts, (spec, structure)

    @classmethod
    def _join(cls, parts: Sequence[Any], static: PyTree) -> Self:
        """Return a value from its parts and its static part, without checks."""
        spec, structure = static
        value: Self = spec.join_components(parts, structure)
        return value

    def join_parts(self, parts: Sequence[Any]) -> Self:
        """Return a value with the static part of this one and other parts."""
        return self._join(parts, self._split()[1])

    def split_parts(self) -> tuple[list[Tensor], Hashable]:
        """Return the parts and the static part, for `build_from_parts`."""
        return self._split()

    @classmethod
    def build_from_parts(cls, parts: Sequence[Any], static: Hashable) -> Self:
        """Return a value from the result of `split_parts`."""
        return cls._join(parts, static)

    @property
    def _type_spec(self) -> TypeSpec:
        raise NotImplementedError(f"{type(self).__name__} does not define _type_spec.")

    def _state_parts(self) -> list[Tensor]:
        """Return the parts that results of functions and variables of loops consist of."""
        return self._split()[0]

    def _get_state_builder(self) -> Callable[[Sequence[Any]], Self]:
        """Return a function that creates values from `_state_parts`, and holds none of these."""
        return functools.partial(self._join, static=self._split()[1])

    def _with_state_parts(self, parts: Sequence[Any]) -> Self:
        return self._get_state_builder()(parts)

    def _components(self) -> list[Tensor]:
        """Return the parts with gradients.

        Raises:
          ValueError: If the class has no gradients.
        """
        raise ValueError(
            f"Type {type(self).__name__} is not supported as a gradient source or gradient target."
        )

    def _with_components(self, components: Sequence[Any]) -> PyTree:
        """Return the gradient of a value from the gradients of its `_components`."""
        raise NotImplementedError(f"{type(self).__name__} does not define _with_components.")


# Classes of specs by their names in files, for extension types that have one.
named_spec_classes: dict[str, type[CompositeSpec]] = {}


def find_spec_name(spec_class: type) -> str | None:
    """Return the name in files of the class of a spec; None if it has no entry in `named_spec_classes`."""
    return next((n for n, cls in named_spec_classes.items() if cls is spec_class), None)


class CompositeSpec(TypeSpec):
    """Base class of the specs of our composite tensors; those of users derive from `TypeSpec`."""

    _is_element = True


class BatchableSpec(CompositeSpec):
    """Base class of specs of libraries with values that datasets can batch; methods are TensorFlow's private ones."""

    _is_element = False


class _TensorListEncoder:
    """Encoder of values by the private methods of their specs."""

    def batch(self, spec: PyTree, batch_size: int | None) -> PyTree:
        """Return the spec of a batch of values."""
        return spec._batch(batch_size)

    def unbatch(self, spec: PyTree) -> PyTree:
        """Return the spec of the values in a batch."""
        return spec._unbatch()

    def encode(self, spec: PyTree, value: PyTree, minimum_rank: int = 0) -> PyTree:
        """Return tensors that can be batched."""
        return spec._to_batched_tensor_list(value) if minimum_rank else spec._to_tensor_list(value)

    def decode(self, spec: PyTree, encoding: PyTree) -> PyTree:
        """Return a value from its tensors."""
        return spec._from_compatible_tensor_list(encoding)

    def encoding_specs(self, spec: PyTree) -> PyTree:
        """Return the specs of the tensors."""
        return spec._flat_tensor_specs


_TENSOR_LISTS = _TensorListEncoder()


def is_composite_spec(value: object) -> TypeGuard[CompositeSpec]:
    """Check whether a value is the spec of values that consist of components."""
    return isinstance(value, TypeSpec) and value._has_components


def list_part_sizes(leaf: PyTree) -> list[list[int | None] | None]:
    """List the shapes of the parts that a spec describes; none for other values."""
    return leaf.list_part_sizes() if isinstance(leaf, TypeSpec) else []


def _is_constant(parts: Sequence[Any]) -> bool:
    return any(type(p) is Tensor and p.array.dtype == object for p in parts)


def is_extension(value: object) -> TypeGuard[CompositeTensor]:
    """Check whether a value belongs to an extension type of the user."""
    return getattr(value, "_is_extension", False)


def is_extension_spec(spec: object) -> TypeGuard[CompositeSpec]:
    """Check whether a spec describes an extension type."""
    return is_composite_spec(spec) and is_extension(spec.value_type)


def get_batch_encoder(spec: CompositeSpec) -> PyTree:
    """Return the encoder of an extension type.

    Raises:
      TypeError: If the type is not batchable.
    """
    encoder = getattr(spec.value_type, "__batch_encoder__", None)
    if encoder is None and hasattr(spec, "_batch"):
        return _TENSOR_LISTS
    if encoder is None:
        raise TypeError(
            f"{spec.value_type.__qualname__} cannot be batched. Derive it from "
            "tf.experimental.BatchableExtensionType, or define _batch and _unbatch in its spec."
        )
    return encoder


def split_value(value: CompositeTensor) -> list[Tensor]:
    """Return the parts of a composite tensor."""
    return value._split()[0]


def list_components(value: CompositeTensor) -> list[Tensor]:
    """Return the parts with gradients of a composite tensor."""
    return value._components()


def replace_components(value: CompositeTensor, components: Sequence[Any]) -> PyTree:
    """Return a composite tensor with other parts in place of those with gradients."""
    return value._with_components(components)


def can_split(leaf: object) -> bool:
    """Check whether a leaf of the arguments of a program is split into parts."""
    if isinstance(leaf, CompositeTensor):
        return not _is_constant(split_value(leaf))
    return is_composite_spec(leaf)


def _flatten_pytree(value: CompositeTensor) -> tuple[Sequence[Any], Hashable]:
    parts, static = value._split()
    return ((), (static, _Content(parts))) if _is_constant(parts) else (parts, (static, None))


def _unflatten_pytree(
    cls: type[CompositeTensor], static: PyTree, parts: Sequence[Any]
) -> CompositeTensor:
    return cls._join(list(parts if static[1] is None else static[1].parts), static[0])
