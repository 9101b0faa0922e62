"""Fields of extension types: their annotations, and the conversion of their values."""

from __future__ import annotations

import enum
import types as python_types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from meshflow.core.dispatch.api_dispatch import get_origin
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.specs import ElementLeaf, TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

# A type annotation: a class, or a generic alias of `typing`.
Annotation: TypeAlias = Any

__all__ = [
    "Annotation",
    "AnyValue",
    "ConversionContext",
    "ExtensionTypeField",
    "ImmutableDict",
    "convert_fields",
    "convert_fields_for_spec",
    "convert_value",
    "is_unresolved",
    "validate_field_value_type",
]

_SCALARS = (bool, int, float, str, bytes, type(None), None, DType)
_TENSORS = (Tensor, CompositeTensor, ElementLeaf, TensorShape, Variable)
_UNIONS = (typing.Union, python_types.UnionType)
_MAPPINGS = (Mapping, typing.Mapping)
# TensorFlow's base classes define these names.
_RESERVED = frozenset(
    [
        *("self", "Spec", "value_type", "is_compatible_with", "most_specific_compatible_type"),
        *("_type_spec", "_shape_invariant_to_type_spec", "_consumers", "_with_tensor_ranks_only"),
        *("_to_components", "_from_components", "_component_specs", "_flat_tensor_specs"),
        *("_to_tensor_list", "_from_tensor_list", "_from_compatible_tensor_list"),
        *("_serialize", "_deserialize", "_keras_mask", "_to_legacy_output_types"),
        *("_to_legacy_output_shapes", "_to_legacy_output_classes"),
    ]
)


class AnyValue:
    """Type of the fields of anonymous extension types: Python values, tensors, and tuples and mappings of these."""


class ImmutableDict(Mapping[Any, Any]):
    """A dictionary in a field of an extension type, which cannot change."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._dict = dict(*args, **kwargs)

    def __getitem__(self, key: Any) -> PyTree:
        return self._dict[key]

    def __contains__(self, key: object) -> bool:
        return key in self._dict

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __hash__(self) -> int:
        return hash(frozenset(self._dict.items()))

    def __repr__(self) -> str:
        return f"ImmutableDict({self._dict!r})"


class ConversionContext(enum.Enum):
    """The purpose of a converted value: a field, the field of a spec, or the default of a field."""

    VALUE = 1
    SPEC = 2
    DEFAULT = 3


class _NoDefault:
    def __repr__(self) -> str:
        return "ExtensionTypeField.NO_DEFAULT"


class _FieldParts(typing.NamedTuple):
    name: str
    value_type: Annotation
    default: PyTree


class ExtensionTypeField(_FieldParts):
    """A field: its name, the type of its values, and its default.

    Raises:
      TypeError: If extension types do not support the annotation, or the default does not have the type.
    """

    __slots__ = ()
    NO_DEFAULT: ClassVar[Any] = _NoDefault()

    def __new__(
        cls, name: str, value_type: Annotation, default: PyTree = NO_DEFAULT
    ) -> ExtensionTypeField:
        """Create a field after checks of its annotation and its default."""
        try:
            validate_field_value_type(value_type, allow_forward_references=True)
        except TypeError as error:
            raise TypeError(f"In field {name!r}: {error}") from error
        if default is not cls.NO_DEFAULT and not is_unresolved(value_type):
            path = (f"default value for {name}",)
            default = convert_value(default, value_type, path, ConversionContext.DEFAULT)
        return super().__new__(cls, name, value_type, default)

    @staticmethod
    def is_reserved_name(name: str) -> bool:
        """Check whether a class of TensorFlow defines the name."""
        return name in _RESERVED or name.lower().startswith("_tf_extension_type")


def is_unresolved(kind: Annotation) -> bool:
    """Check whether an annotation refers to a class that was not defined yet."""
    if isinstance(kind, str | typing.ForwardRef):
        return True
    return any(map(is_unresolved, typing.get_args(kind)))


def validate_field_value_type(
    value_type: Annotation, in_mapping_key: bool = False, allow_forward_references: bool = False
) -> None:
    """Raise a TypeError for annotations that extension types do not support.

    Args:
      value_type: The annotation.
      in_mapping_key: Whether it describes keys of a mapping, which cannot contain tensors.
      allow_forward_references: Whether it may refer to a class that is not defined yet.
    """
    origin, arguments = get_origin(value_type), typing.get_args(value_type)
    if isinstance(value_type, str | typing.ForwardRef):
        if not allow_forward_references:
            raise TypeError(f"Unresolved forward reference {value_type!r}")
    elif value_type in _SCALARS or value_type is AnyValue:
        return
    elif origin in _UNIONS or (origin is tuple and value_type is not typing.Tuple):  # noqa: UP006
        for part in arguments:
            if part is not Ellipsis:
                validate_field_value_type(part, in_mapping_key, allow_forward_references)
    elif origin in _MAPPINGS and arguments:
        validate_field_value_type(arguments[0], True, allow_forward_references)
        validate_field_value_type(arguments[1], in_mapping_key, allow_forward_references)
    elif not isinstance(value_type, type) or not issubclass(value_type, _TENSORS):
        is_class = isinstance(value_type, type)
        name = value_type.__name__ if is_class else value_type
        raise TypeError(f"Unsupported type annotation {name!r}")
    elif in_mapping_key:
        raise TypeError(
            f"Mapping had a key {value_type.__name__!r} with type {type(value_type).__name__!r}"
        )


def _fail(path: tuple[str, ...], expected: str, value: object) -> PyTree:
    raise TypeError(f"{''.join(path)}: expected {expected}, got {type(value).__name__!r}")


def convert_value(
    value: PyTree,
    kind: Annotation,
    path: tuple[str, ...],
    context: ConversionContext = ConversionContext.VALUE,
) -> PyTree:
    """Convert a value to the type of a field, or the spec of one.

    Args:
      value: The value.
      kind: The annotation of the field.
      path: Parts of the name of the value, for errors.
      context: The purpose of the result.

    Raises:
      TypeError: If the value does not have the type.
    """
    origin, arguments = get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        for option in arguments:
            try:
                return convert_value(value, option, path, context)
            except (TypeError, ValueError):
                continue
        return _fail(path, repr(kind), value)
    if isinstance(kind, str | typing.ForwardRef):
        raise TypeError(f"{''.join(path)}: the class of its annotation, {kind!r}, is not defined.")
    if origin is tuple:
        if not isinstance(value, Sequence):
            return _fail(path, "tuple", value)
        is_repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        kinds = [arguments[0]] * len(value) if is_repeated else arguments
        if len(kinds) != len(value):
            return _fail(path, f"tuple with length {len(kinds)}", value)
        items = enumerate(zip(value, kinds, strict=True))
        return tuple(convert_value(v, k, (*path, f"[{i}]"), context) for i, (v, k) in items)
    if origin in _MAPPINGS:
        if not isinstance(value, Mapping):
            return _fail(path, "mapping", value)
        key_kind, value_kind = arguments
        return ImmutableDict(
            {
                convert_value(k, key_kind, (*path, "[<key>]"), context): convert_value(
                    v, value_kind, (*path, f"[{k!r}]"), context
                )
                for k, v in value.items()
            }
        )
    if kind is None:
        kind = type(None)
    if kind is AnyValue:
        return _freeze_any(value)
    if kind in (TensorShape, DType):
        try:
            return as_shape(value) if kind is TensorShape else as_dtype(value)
        except (TypeError, ValueError):
            return _fail(path, f"'tf.{kind.__name__}'", value)
    if issubclass(kind, Tensor):
        return _convert_tensor(value, path, context)
    if context is ConversionContext.SPEC and issubclass(kind, CompositeTensor):
        if isinstance(value, TypeSpec) and issubclass(value.value_type, kind):
            return value
        return _fail(path, f"a TypeSpec for {kind.__name__!r}", value)
    return value if isinstance(value, kind) else _fail(path, repr(kind.__name__), value)


def _convert_tensor(value: PyTree, path: tuple[str, ...], context: ConversionContext) -> PyTree:
    if context is ConversionContext.SPEC:
        return value if isinstance(value, TensorSpec) else _fail(path, "a TensorSpec", value)
    if isinstance(value, Tensor | TensorSpec) or hasattr(value, "_keras_history"):
        return value
    if context is ConversionContext.DEFAULT:
        # The constructor converts it, in the graph of each value.
        return value
    if isinstance(value, CompositeTensor):
        return _fail(path, "a Tensor", value)
    try:
        return convert_to_tensor(value)
    except (TypeError, ValueError):
        return _fail(path, "a Tensor", value)


def _freeze_any(value: PyTree) -> PyTree:
    if type(value) is tuple:
        return tuple(map(_freeze_any, value))
    if isinstance(value, Mapping):
        return ImmutableDict({k: _freeze_any(v) for k, v in value.items()})
    if isinstance(value, (*_SCALARS[:6], DType, TypeSpec, *_TENSORS)):
        return value
    raise ValueError(f"AnonymousExtensionType: unsupported `value` argument {value!r}")


def convert_fields(
    fields: Sequence[ExtensionTypeField],
    field_values: dict[str, Any],
    context: ConversionContext = ConversionContext.VALUE,
) -> None:
    """Convert the values of fields in a dictionary in place.

    Raises:
      ValueError: If a field is missing, or a key is no field.
      TypeError: If a value does not have the type of its field.
    """
    names = {field.name for field in fields}
    unexpected, missing = field_values.keys() - names, names - field_values.keys()
    if unexpected:
        raise ValueError(f"Got unexpected fields: {unexpected}")
    if missing:
        raise ValueError(f"Missing required fields: {missing}")
    for field in fields:
        value = field_values[field.name]
        field_values[field.name] = convert_value(value, field.value_type, (field.name,), context)


def convert_fields_for_spec(
    fields: Sequence[ExtensionTypeField], field_values: dict[str, Any]
) -> None:
    """Check the values of the fields of a spec in a dictionary, and convert its containers in place."""
    convert_fields(fields, field_values, ConversionContext.SPEC)
