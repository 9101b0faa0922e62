"""`tf.experimental.ExtensionType`: classes of the user that consist of tensors and Python values.

Annotations of a class define its fields, like in a data class. Extension types are composite tensors
(`core/values/composite.py`): their tensors are parts, and their other values are static.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar, cast

from meshflow.core.dispatch.api_dispatch import get_origin
from meshflow.core.values.composite import (
    CompositeSpec,
    CompositeTensor,
    named_spec_classes,
    split_value,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.nest import sort_keys
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.tensor import Reference, Tensor, read_tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.experimental.extension_fields import (
    Annotation,
    AnyValue,
    ExtensionTypeField,
    ImmutableDict,
    convert_fields,
    convert_fields_for_spec,
    is_unresolved,
)
from meshflow.ops import array, math
from meshflow.ops.control_flow import cond

__all__ = [
    "BatchableExtensionType",
    "ExtensionType",
    "ExtensionTypeBatchEncoder",
    "ExtensionTypeSpec",
    "ImmutableDict",
    "as_dict",
]

_NO_DEFAULT = ExtensionTypeField.NO_DEFAULT

# ---- fields ------------------------------------------------------------------------------------


def _make_signature(fields: Sequence[ExtensionTypeField]) -> inspect.Signature:
    kind: Annotation = inspect.Parameter.POSITIONAL_OR_KEYWORD
    has_default, parameters = False, []
    for field in fields:
        # A field without a default after one with a default is a keyword.
        has_default = has_default or field.default is not _NO_DEFAULT
        if has_default and field.default is _NO_DEFAULT:
            kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(
                field.name,
                kind,
                default=inspect.Parameter.empty if field.default is _NO_DEFAULT else field.default,
                annotation=field.value_type,
            )
        )
    return inspect.Signature(parameters)


# ---- values ------------------------------------------------------------------------------------


class _Slot(typing.NamedTuple):
    """Placeholder of a tensor, or of the parts of a composite tensor, in the static part of a value."""

    num_parts: int
    cls: type | None = None
    static: Hashable = None


class _Constant(typing.NamedTuple):
    """A Python value in the static part of a value; equal numbers of different types differ."""

    kind: type
    value: PyTree


def _split_field(value: PyTree, parts: list[Any]) -> Hashable:
    if isinstance(value, CompositeTensor):
        inner, static = value._split()
        parts.extend(inner)
        return _Slot(len(inner), type(value), static)
    if isinstance(value, Variable):
        # The value refers to the variable itself, which has no hash.
        return _Constant(Reference, value.ref())
    if isinstance(value, Tensor | TensorSpec) or hasattr(value, "_as_tensor"):
        parts.append(read_tensor(value))
        return _Slot(1)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([_split_field(item, parts) for item in value])
    if isinstance(value, ImmutableDict):
        # The parts have the order of `tf.nest`, and the static part keeps that of the dictionary.
        fields = {key: _split_field(value[key], parts) for key in sort_keys(value)}
        return _Constant(ImmutableDict, tuple([(key, fields[key]) for key in value]))
    return _Constant(type(value), value)


def _join_field(static: PyTree, parts: Iterator[Any]) -> PyTree:
    if isinstance(static, _Slot):
        if static.cls is None:
            return next(parts)
        return static.cls._join([next(parts) for _ in range(static.num_parts)], static.static)  # type: ignore[attr-defined]
    if isinstance(static, _Constant):
        if static.kind is ImmutableDict:
            fields = dict(static.value)
            joined = {key: _join_field(fields[key], parts) for key in sort_keys(fields)}
            return ImmutableDict({key: joined[key] for key in fields})
        return static.value.deref() if static.kind is Reference else static.value
    return tuple([_join_field(item, parts) for item in static])


def _list_fields(cls: type[ExtensionType], scope: Mapping[str, Any]) -> list[ExtensionTypeField]:
    """List the fields of a class and of its base classes.

    Args:
      cls: The class.
      scope: Names that postponed annotations may refer to.
    """
    fields: dict[str, ExtensionTypeField] = {}
    for base in reversed(cls.__mro__[1:]):
        if issubclass(base, ExtensionType):
            fields |= {field.name: field for field in get_fields(base)}
    module = sys.modules.get(cls.__module__)
    for name, annotation in inspect.get_annotations(cls).items():
        kind = _evaluate(annotation, vars(module) if module else {}, {**scope, cls.__name__: cls})
        if get_origin(kind) is ClassVar or kind is ClassVar:
            continue
        default = next((vars(b)[name] for b in cls.__mro__ if name in vars(b)), _NO_DEFAULT)
        fields[name] = ExtensionTypeField(name, kind, default)
    return list(fields.values())


def _evaluate(
    annotation: Annotation, module_names: Mapping[str, Any], scope: Mapping[str, Any]
) -> Annotation:
    """Evaluate the strings in an annotation; return it as it is if it refers to an undefined name."""
    # Only classes may have annotations with ClassVar.
    holder = type("Holder", (), {"__annotations__": {"kind": annotation}})
    try:
        return typing.get_type_hints(holder, dict(module_names), dict(scope))["kind"]
    except (NameError, AttributeError):
        return annotation


def _check_class(cls: type[ExtensionType]) -> None:
    """Raise a ValueError for reserved names, attributes without an annotation, and invalid specs."""
    annotations = inspect.get_annotations(cls)
    for name in (*cls.__dict__, *annotations):
        is_spec = name == "Spec" and name not in annotations
        # A field with the name of a private attribute would replace it.
        is_private = name in annotations and name[0] == "_" and hasattr(ExtensionType, name)
        if is_private or (not is_spec and ExtensionTypeField.is_reserved_name(name)):
            raise ValueError(
                f"The field annotations for {cls.__name__} are invalid. Field {name!r} is reserved; rename it."
            )
    nested = cls.__dict__.get("Spec")
    if nested is not None and not isinstance(nested, type):
        raise ValueError(f"{cls.__qualname__}.Spec must be a nested class; got {nested}.")
    if nested is not None and nested.__bases__ not in ((object,), (TypeSpec,)):
        raise ValueError(f"{cls.__qualname__}.Spec must be directly subclassed from tf.TypeSpec.")
    for name, value in cls.__dict__.items():
        is_special = name.startswith(("__", "_abc_")) or isinstance(
            value, property | classmethod | staticmethod
        )
        if not (name in annotations or callable(value) or is_special):
            raise ValueError(
                f"{cls.__name__}: the field {name!r} is missing a type annotation. Add one, such as "
                f"`{name}: {type(value).__name__}`."
            )
    has_encoder = any("__batch_encoder__" in vars(c) for c in (cls, nested) if c is not None)
    if has_encoder and not issubclass(cls, BatchableExtensionType):
        raise ValueError(
            f"{cls.__qualname__} defines __batch_encoder__. Derive it from "
            "tf.experimental.BatchableExtensionType."
        )


def list_values(value: PyTree) -> list[Any]:
    """Return the values of the fields of an extension type, or of its spec."""
    owner = value.value_type if isinstance(value, ExtensionTypeSpec) else value
    return [vars(value)[field.name] for field in get_fields(owner)]


def as_dict(value: ExtensionType | ExtensionTypeSpec) -> dict[str, Any]:
    """Return the fields of an extension type as a dictionary.

    Example:
      >>> class Pair(tf.experimental.ExtensionType):
      ...     first: int
      ...     second: str
      >>> tf.experimental.extension_type.as_dict(Pair(1, "x"))
      {'first': 1, 'second': 'x'}
    """
    owner: PyTree = value.value_type if isinstance(value, ExtensionTypeSpec) else value
    return {field.name: getattr(value, field.name) for field in get_fields(owner)}


def get_fields(value: PyTree) -> list[ExtensionTypeField]:
    """Return the fields of an extension type or of a value of one."""
    cls: PyTree = value if isinstance(value, type) else type(value)
    scope = vars(cls).get("_unresolved_scope")
    if scope is not None:
        cls._set_fields(scope)
    return cls._extension_fields or []


class ExtensionType(CompositeTensor):
    """Base class of types that consist of tensors and Python values.

    The annotations of a subclass define its fields, and parameters of its constructor. Values are
    immutable. Functions, datasets and `tf.nest` accept them like tensors;
    `tf.experimental.dispatch_for_api` defines ops on them. SavedModels hold functions of values if the
    class has an attribute `__name__ = "package.Name"`, its name in files.

    Example:
      >>> class Interval(tf.experimental.ExtensionType):
      ...     low: tf.Tensor
      ...     high: tf.Tensor
      ...     def width(self):
      ...         return self.high - self.low
      >>> print(tf.function(lambda interval: interval.width())(Interval(1.0, 3.5)).numpy())
      2.5
    """

    Spec: ClassVar[type[ExtensionTypeSpec]]
    _extension_fields: ClassVar[list[ExtensionTypeField] | None] = None
    # Names for annotations that refer to classes which were not defined at the class statement.
    _unresolved_scope: ClassVar[Mapping[str, Any] | None] = None
    _is_initialized = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if (cls.__module__, cls.__name__) == (__name__, "BatchableExtensionType"):
            return
        # The names at the class statement; `__init_subclass__` is called by C code.
        frame = cast(FrameType, cast(FrameType, inspect.currentframe()).f_back)
        _check_class(cls)
        cls._set_fields({**frame.f_globals, **frame.f_locals})
        fields = get_fields(cls)
        own_init = cls.__dict__.get("__init__") or _make_constructor(
            _make_signature(fields).replace(return_annotation=cls)
        )
        cls.__init__ = _wrap_constructor(own_init)  # type: ignore[method-assign]
        nested: PyTree = cls.__dict__.get("Spec")
        members = {} if nested is None else dict(vars(nested))
        for name in members:
            if ExtensionTypeField.is_reserved_name(name) or any(
                field.name == name for field in fields
            ):
                raise ValueError(
                    f"{cls.__qualname__}.Spec defines {name!r}, which is a reserved name or a field."
                )
        # A spec has no default values, and specs in place of values.
        empty = inspect.Parameter.empty
        signature = _make_signature(
            [field._replace(default=_NO_DEFAULT, value_type=empty) for field in fields]
        )
        members = {
            "__init__": _make_constructor(signature),
            **{k: v for k, v in members.items() if k not in ("__dict__", "__weakref__")},
            "value_type": cls,
            "__module__": cls.__module__,
            "__qualname__": f"{cls.__qualname__}.Spec",
        }
        members["__init__"] = _wrap_constructor(members["__init__"])
        cls.Spec = type(f"{cls.__name__}.Spec", (ExtensionTypeSpec,), members)
        own_signature = inspect.signature(members["__init__"]).replace(return_annotation=cls.Spec)
        setattr(members["__init__"], "__signature__", own_signature)
        if "__name__" in cls.__dict__:
            named_spec_classes[f"{cls.__dict__['__name__']}.Spec"] = cls.Spec

    @classmethod
    def _set_fields(cls, scope: Mapping[str, Any]) -> None:
        """List the fields, again at the next use if an annotation refers to an undefined name."""
        fields = cls._extension_fields = _list_fields(cls, scope)
        is_incomplete = any(is_unresolved(field.value_type) for field in fields)
        cls._unresolved_scope = scope if is_incomplete else None

    def __init__(self) -> None:
        raise AssertionError(
            "Cannot create an instance of ExtensionType because ExtensionType is an abstract base class."
        )

    def __validate__(self) -> None:
        """Check the fields after construction; subclasses raise errors for invalid values."""

    @classmethod
    def _tf_extension_type_fields(cls) -> tuple[ExtensionTypeField, ...]:
        return tuple(get_fields(cls))

    @classmethod
    def _tf_extension_type_has_field(cls, name: str) -> bool:
        return any(field.name == name for field in get_fields(cls))

    def _finish_construction(self) -> None:
        convert_fields(get_fields(self), self.__dict__)
        self.__validate__()
        self.__dict__["_is_initialized"] = True

    def __setattr__(self, name: str, value: PyTree) -> None:
        if self._is_initialized or not self._tf_extension_type_has_field(name):
            raise AttributeError(
                f"Cannot mutate attribute `{name}` outside the custom constructor of ExtensionType."
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        if self._is_initialized:
            raise AttributeError(
                f"Cannot mutate attribute `{name}` outside the custom constructor of ExtensionType."
            )
        del self.__dict__[name]

    def _split(self) -> tuple[list[Tensor], Hashable]:
        parts: list[Any] = []
        return parts, tuple([_split_field(value, parts) for value in list_values(self)])

    @classmethod
    def _join(cls, parts: Sequence[Any], static: PyTree) -> PyTree:
        supply = iter(parts)
        value = cls.__new__(cls)
        for field, item in zip(get_fields(cls), static, strict=True):
            value.__dict__[field.name] = _join_field(item, supply)
        value.__dict__["_is_initialized"] = True
        return value

    @property
    def _type_spec(self) -> ExtensionTypeSpec:
        return type(self).Spec.from_value(self)

    def __eq__(self, other: object) -> PyTree:
        if type(self) is not type(other):
            return False
        spec: PyTree = self._type_spec
        if spec != type_spec_from_value(other):
            return False
        pairs = list(zip(split_value(self), split_value(cast(CompositeTensor, other)), strict=True))
        if not all(a.shape.is_compatible_with(b.shape) for a, b in pairs):
            return False
        checks = list(itertools.starmap(_are_equal, pairs))
        return math.reduce_all(array.stack(checks)) if checks else True

    def __ne__(self, other: object) -> PyTree:
        is_equal = self.__eq__(other)
        return not is_equal if isinstance(is_equal, bool) else math.logical_not(is_equal)

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {type(self).__name__!r}")

    def __repr__(self) -> str:
        names = [field.name for field in get_fields(self)]
        fields = ", ".join(f"{n}={v!r}" for n, v in zip(names, list_values(self), strict=True))
        return f"{type(self).__qualname__}({fields})"

    def _components(self) -> list[Tensor]:
        method = getattr(type(self), "__composite_gradient__", None)
        if method is None:
            return super()._components()
        return _flatten(method.get_gradient_components(self))

    def _with_components(self, components: Sequence[Any]) -> PyTree:
        method: PyTree = type(self).__composite_gradient__  # type: ignore[attr-defined]
        return method.replace_gradient_components(
            self, components[0] if len(components) == 1 else list(components)
        )


def _are_equal(a: Tensor, b: Tensor) -> PyTree:
    """Compare tensors of compatible shapes; those that only broadcast to each other are not equal."""
    compare = lambda: math.reduce_all(math.equal(a, b))
    if a.shape.is_fully_defined() and b.shape.is_fully_defined():
        return compare()
    have_one_shape = lambda: math.reduce_all(math.equal(array.shape(a), array.shape(b)))
    checks = [have_one_shape, compare]
    if a.shape.rank is None or b.shape.rank is None:
        checks.insert(0, lambda: math.equal(array.rank(a), array.rank(b)))
    never = lambda: convert_to_tensor(False)
    run = lambda first, *rest: cond(first(), lambda: run(*rest), never) if rest else first()
    return run(*checks)


def _flatten(value: PyTree) -> list[Any]:
    return [x for v in value for x in _flatten(v)] if isinstance(value, list | tuple) else [value]


def _make_constructor(signature: inspect.Signature) -> Callable[..., None]:
    def __init__(self: PyTree, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.__dict__.update(bound.arguments)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [first, *signature.parameters.values()]
    setattr(__init__, "__signature__", signature.replace(parameters=parameters))
    return __init__


def _wrap_constructor(constructor: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(constructor)
    def __init__(self: PyTree, *args: Any, **kwargs: Any) -> None:
        is_outermost = "_tf_extension_type_depth" not in self.__dict__
        self.__dict__["_tf_extension_type_depth"] = (
            self.__dict__.get("_tf_extension_type_depth", 0) + 1
        )
        constructor(self, *args, **kwargs)
        if is_outermost:
            del self.__dict__["_tf_extension_type_depth"]
            self._finish_construction()

    return __init__


# ---- specs -------------------------------------------------------------------------------------


def _to_field_spec(value: PyTree) -> PyTree:
    if isinstance(value, CompositeTensor):
        return type_spec_from_value(value)
    if isinstance(value, Variable):
        return value.ref()
    if isinstance(value, Tensor | TensorSpec) or hasattr(value, "_keras_history"):
        return type_spec_from_value(value)
    if type(value) is tuple:
        return tuple(_to_field_spec(item) for item in value)
    if isinstance(value, ImmutableDict):
        return ImmutableDict({k: _to_field_spec(v) for k, v in value.items()})
    return value


def _list_specs(spec: PyTree) -> list[Any]:
    """List the specs of the tensors in the spec of a field."""
    if isinstance(spec, TypeSpec):
        return [spec]
    if type(spec) is tuple:
        return [s for item in spec for s in _list_specs(item)]
    if isinstance(spec, ImmutableDict):
        return [s for key in sort_keys(spec) for s in _list_specs(spec[key])]
    return []


def _list_tensors(spec: PyTree, value: PyTree) -> list[Any]:
    if isinstance(spec, TypeSpec):
        return [value]
    if type(spec) is tuple:
        return [t for s, v in zip(spec, value, strict=True) for t in _list_tensors(s, v)]
    if isinstance(spec, ImmutableDict):
        return [t for key in sort_keys(spec) for t in _list_tensors(spec[key], value[key])]
    return []


def _build_field(spec: PyTree, components: Iterator[Any]) -> PyTree:
    if isinstance(spec, TypeSpec):
        return next(components)
    if type(spec) is tuple:
        return tuple([_build_field(item, components) for item in spec])
    if isinstance(spec, ImmutableDict):
        built = {key: _build_field(spec[key], components) for key in sort_keys(spec)}
        return ImmutableDict({key: built[key] for key in spec})
    return spec.deref() if isinstance(spec, Reference) else spec


def _are_compatible(spec: PyTree, other: PyTree) -> bool:
    if isinstance(spec, TypeSpec):
        return spec.is_compatible_with(other)
    if type(spec) is tuple:
        return (
            type(other) is tuple
            and len(spec) == len(other)
            and all(map(_are_compatible, spec, other))
        )
    if isinstance(spec, ImmutableDict):
        return (
            isinstance(other, ImmutableDict)
            and spec.keys() == other.keys()
            and all(_are_compatible(spec[k], other[k]) for k in spec)
        )
    return bool(spec == other)


class ExtensionTypeSpec(CompositeSpec):
    """Base class of the specs of extension types: `MyType.Spec(field=spec, ...)`."""

    value_type: ClassVar[type[ExtensionType]]

    def __validate__(self) -> None:
        """Check the fields after construction; nested `Spec` classes raise errors for invalid values."""

    def _finish_construction(self) -> None:
        convert_fields_for_spec(get_fields(self.value_type), self.__dict__)
        self.__validate__()
        self.__dict__["_is_initialized"] = True

    @classmethod
    def from_value(cls, value: ExtensionType) -> PyTree:
        """Return the spec of a value."""
        spec = cls.__new__(cls)
        for field in get_fields(cls.value_type):
            spec.__dict__[field.name] = _to_field_spec(getattr(value, field.name))
        vars(spec)["_is_initialized"] = True
        return spec

    def __setattr__(self, name: str, value: PyTree) -> None:
        if self.__dict__.get("_is_initialized"):
            raise AttributeError(
                f"Cannot mutate attribute `{name}` outside the custom constructor of ExtensionTypeSpec."
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"Cannot mutate attribute `{name}` outside the custom constructor of ExtensionTypeSpec."
        )

    @property
    def _component_specs(self) -> tuple[Any, ...]:
        return tuple(s for value in list_values(self) for s in _list_specs(value))

    def _to_components(self, value: ExtensionType) -> tuple[Any, ...]:
        pairs = zip(list_values(self), list_values(value), strict=True)
        return tuple(t for spec, item in pairs for t in _list_tensors(spec, item))

    def _from_components(self, components: Sequence[Any]) -> PyTree:
        supply = iter(components)
        value = self.value_type.__new__(self.value_type)
        for field, spec in zip(get_fields(self.value_type), list_values(self), strict=True):
            value.__dict__[field.name] = _build_field(spec, supply)
        value.__dict__["_is_initialized"] = True
        return value

    def _serialize(self) -> tuple[Any, ...]:
        names = [field.name for field in get_fields(self.value_type)]
        return tuple(zip(names, map(_thaw, list_values(self)), strict=True))

    @classmethod
    def _deserialize(cls, serialization: tuple[Any, ...]) -> PyTree:
        spec, fields = cls.__new__(cls), dict(serialization)
        names = [field.name for field in get_fields(cls.value_type)]
        if list(fields) != names:
            raise ValueError(
                f"{cls.__qualname__} has the fields {names}, and the file {list(fields)}"
            )
        spec.__dict__.update({name: _freeze(value) for name, value in fields.items()})
        vars(spec)["_is_initialized"] = True
        return spec

    def is_compatible_with(self, spec_or_value: PyTree) -> bool:
        """Check whether a value, or a spec, has the same type and compatible fields."""
        other = spec_or_value
        if isinstance(other, self.value_type):
            other = type_spec_from_value(other)
        return type(other) is type(self) and all(
            map(_are_compatible, list_values(self), list_values(other))
        )

    def __reduce__(self) -> PyTree:
        return _make_spec, (self.value_type, self._serialize())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._serialize())
        return f"{type(self).__qualname__}({fields})"


def _thaw(value: PyTree) -> PyTree:
    """Return a field with dictionaries, in which the containers of a spec are written."""
    if type(value) is tuple:
        return tuple(map(_thaw, value))
    return {k: _thaw(v) for k, v in value.items()} if isinstance(value, ImmutableDict) else value


def _freeze(value: PyTree) -> PyTree:
    """Return a field from a file with immutable containers."""
    if type(value) in (list, tuple):
        return tuple(map(_freeze, value))
    is_mapping = isinstance(value, Mapping)
    return ImmutableDict({k: _freeze(v) for k, v in value.items()}) if is_mapping else value


class AnonymousExtensionType(ExtensionType):
    """A value of an extension type that is not defined, with the fields in a SavedModel.

    Args:
      **fields: Python values, tensors, and tuples and mappings of these.
    """

    def __new__(cls, **fields: Any) -> PyTree:
        """Create a value of a class with these fields."""
        for name in fields:
            if ExtensionTypeField.is_reserved_name(name):
                raise ValueError(f"Reserved field name {name!r} in AnonymousExtensionType.")
        return super().__new__(cls if get_fields(cls) else make_anonymous_class(tuple(fields)))


def reinterpret(value: ExtensionType, new_type: type[ExtensionType]) -> PyTree:
    """Return a value of another extension type with the fields of a value.

    Raises:
      TypeError: If an argument is no extension type, or a field has another type.
      ValueError: If the types have different fields.
    """
    if not isinstance(value, ExtensionType):
        raise TypeError(
            f"reinterpret expects `value` to be a tf.ExtensionType instance; got {value!r}"
        )
    if not (isinstance(new_type, type) and issubclass(new_type, ExtensionType)):
        raise TypeError(
            f"reinterpret expects `new_type` to be a subclass of tf.ExtensionType; got {new_type!r}"
        )
    fields = as_dict(value)
    if new_type is AnonymousExtensionType:
        return AnonymousExtensionType(**fields)
    result = object.__new__(new_type)
    vars(result).update(fields)
    result._finish_construction()
    return result


@functools.cache
def make_anonymous_class(names: tuple[str, ...]) -> type[ExtensionType]:
    """Return a class for values of an extension type in a SavedModel that is not defined.

    Args:
      names: Names of the fields.
    """
    fields = {"__annotations__": dict.fromkeys(names, AnyValue)}
    return type("AnonymousExtensionType", (AnonymousExtensionType,), fields)


def _make_spec(value_type: type[ExtensionType], fields: tuple[Any, ...]) -> ExtensionTypeSpec:
    return value_type.Spec._deserialize(fields)


# ---- batches -----------------------------------------------------------------------------------


def _change_rank(spec: PyTree, size: int | None, is_batch: bool) -> PyTree:
    if isinstance(spec, TensorSpec):
        if spec.shape.rank is None:
            return spec
        return TensorSpec([size, *spec.shape] if is_batch else spec.shape[1:], spec.dtype)
    if isinstance(spec, ExtensionTypeSpec):
        encoder: PyTree = getattr(spec.value_type, "__batch_encoder__", ExtensionTypeBatchEncoder())
        return encoder.batch(spec, size) if is_batch else encoder.unbatch(spec)
    if isinstance(spec, TypeSpec):
        change = getattr(spec, "to_batch_spec" if is_batch else "to_row_spec", None)
        if change is not None:
            return change(size) if is_batch else change()
        raise TypeError(f"{type(spec).__name__} cannot be batched.")
    if isinstance(spec, TensorShape):
        # A field of this type has the shape of a batch in front, like the tensors.
        if spec.rank is None:
            return spec
        return TensorShape([size, *spec] if is_batch else spec[1:])
    if type(spec) is tuple:
        return tuple(_change_rank(item, size, is_batch) for item in spec)
    if isinstance(spec, ImmutableDict):
        return ImmutableDict({k: _change_rank(v, size, is_batch) for k, v in spec.items()})
    return spec


class ExtensionTypeBatchEncoder:
    """Encoder of the values of extension types in batches; by default, each field is batched."""

    def batch(self, spec: ExtensionTypeSpec, batch_size: int | None) -> ExtensionTypeSpec:
        """Return the spec of a batch of values."""
        return self._change_fields(spec, batch_size, True)

    def unbatch(self, spec: ExtensionTypeSpec) -> ExtensionTypeSpec:
        """Return the spec of the values in a batch."""
        return self._change_fields(spec, None, False)

    def encode(
        self, spec: ExtensionTypeSpec, value: ExtensionType, minimum_rank: int = 0
    ) -> PyTree:
        """Return a nested structure of tensors that can be batched."""
        return spec._to_components(value)

    def decode(self, spec: ExtensionTypeSpec, encoding: PyTree) -> PyTree:
        """Return a value from an encoding."""
        return spec._from_components(encoding)

    def encoding_specs(self, spec: ExtensionTypeSpec) -> PyTree:
        """Return specs of the encoding."""
        return spec._component_specs

    @staticmethod
    def _change_fields(spec: ExtensionTypeSpec, size: int | None, is_batch: bool) -> PyTree:
        result = type(spec).__new__(type(spec))
        for name, value in as_dict(spec).items():
            result.__dict__[name] = _change_rank(value, size, is_batch)
        vars(result)["_is_initialized"] = True
        return result


class BatchableExtensionType(ExtensionType):
    """An extension type that datasets can batch and `tf.map_fn` can map over.

    Its attribute `__batch_encoder__` defines how.
    """

    __batch_encoder__: ClassVar[ExtensionTypeBatchEncoder] = ExtensionTypeBatchEncoder()
