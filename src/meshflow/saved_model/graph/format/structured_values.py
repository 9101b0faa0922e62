"""Conversion of nested arguments and results to and from TensorFlow's `StructuredValue`s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.bounded_spec import BoundedTensorSpec
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree
from meshflow.io.tensors import make_ndarray, make_tensor_proto
from meshflow.saved_model.graph.format.messages import Message, StructuredValue
from meshflow.saved_model.graph.format.node_attributes import parse_shape
from meshflow.saved_model.graph.format.nodes import to_dtype_enum, write_shape
from meshflow.saved_model.manifest.composite_values import (
    UnsavableError,
    get_spec_name,
    get_spec_state,
    list_component_specs,
    make_spec,
)
from meshflow.saved_model.manifest.json_structures import get_sizes, make_named_tuple

__all__ = ["encode_structure", "read_structure", "write_argument_spec", "write_structure"]

# Names of the supported composite specs, and of unsupported types, by TensorFlow's enum of spec classes.
_SPEC_NAMES = {1: "SparseTensorSpec", 2: "IndexedSlicesSpec", 3: "RaggedTensorSpec"}
_EXTENSION_TYPE = 13
_UNSUPPORTED_TYPE_NAMES = {
    4: "tf.TensorArray",
    5: "tf.data.Dataset",
    6: "iterator of a dataset",
    7: "tf.experimental.Optional",
    9: "tf.Variable as an argument",
}


def write_structure(proto: Message, value: PyTree) -> None:
    """Write a nested structure into a `StructuredValue`.

    Args:
      proto: The message.
      value: Tuples, lists, dictionaries with string keys, specs, dtypes, shapes and plain Python values.

    Raises:
      UnsavableError: If it contains any other value.
    """
    if value is None:
        proto.none_value.SetInParent()
    elif isinstance(value, bool):
        proto.bool_value = value
    elif isinstance(value, int):
        proto.int64_value = value
    elif isinstance(value, float):
        proto.float64_value = value
    elif isinstance(value, str):
        proto.string_value = value
    elif isinstance(value, TensorSpec):
        spec = proto.tensor_spec_value
        if isinstance(value, BoundedTensorSpec):
            spec = proto.bounded_tensor_spec_value
            for field in ("minimum", "maximum"):
                text = make_tensor_proto(getattr(value, field)).SerializeToString()
                getattr(spec, field).ParseFromString(text)
        spec.dtype = to_dtype_enum(value.dtype)
        spec.name = value.name or ""
        write_shape(spec.shape, get_sizes(value.shape))
    elif isinstance(value, DType):
        proto.tensor_dtype_value = to_dtype_enum(value)
    elif isinstance(value, TensorShape):
        write_shape(proto.tensor_shape_value, get_sizes(value))
    elif is_composite_spec(value):
        spec, name = proto.type_spec_value, get_spec_name(value)
        kinds = {name: kind for kind, name in _SPEC_NAMES.items()}
        spec.type_spec_class = kinds.get(name, _EXTENSION_TYPE)
        spec.type_spec_class_name = name
        spec.num_flat_components = len(list_component_specs(value))
        write_structure(spec.type_state, get_spec_state(value))
    else:
        _write_container(proto, value)


def _write_container(proto: Message, value: PyTree) -> None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = proto.named_tuple_value
        named.name = type(value).__name__
        for key, part in zip(value._fields, value, strict=True):
            write_structure(named.values.add(key=key).value, part)
    elif isinstance(value, (tuple, list)):
        parts = proto.tuple_value if isinstance(value, tuple) else proto.list_value
        parts.SetInParent()
        for part in value:
            write_structure(parts.values.add(), part)
    elif isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        proto.dict_value.SetInParent()
        for key, part in value.items():
            write_structure(proto.dict_value.fields[key], part)
    else:
        raise UnsavableError(f"{value!r} of type {type(value).__name__}")


def encode_structure(nested_structure: PyTree) -> Message:
    """Return the `StructuredValue` of a nested structure; see `write_structure`."""
    proto: Message = StructuredValue()
    write_structure(proto, nested_structure)
    return proto


def write_argument_spec(
    proto: Message,
    positional: list[Any],
    keywords: Mapping[str, list[Any]],
    takes_more: bool = False,
) -> None:
    """Write the parameters of a function into a `FunctionSpec`.

    Args:
      proto: The message.
      positional: [name] or [name, default] of each parameter that may be passed by position.
      keywords: [] or [default] of each keyword-only parameter, by name.
      takes_more: Whether it takes further positional arguments (`*args`). Default False.
    """
    fields = proto.fullargspec.named_tuple_value
    fields.name = "FullArgSpec"
    defaults = tuple(p[1] for p in positional if len(p) > 1)
    for key, value in (
        ("args", [p[0] for p in positional]),
        ("varargs", "args" if takes_more else None),
        ("varkw", None),
        ("defaults", defaults or None),
        ("kwonlyargs", list(keywords)),
        ("kwonlydefaults", {k: d[0] for k, d in keywords.items() if d} or None),
        ("annotations", {}),
    ):
        write_structure(fields.values.add(key=key).value, value)
    proto.input_signature.none_value.SetInParent()


def read_structure(proto: Message) -> PyTree:
    """Read the structure of a `StructuredValue`. Named tuples get a new class with the same fields.

    Raises:
      DataLossError: If it contains a spec without an equivalent class, such as that of a dataset.
    """
    kind = proto.WhichOneof("kind")
    if kind in (None, "none_value"):
        return None
    value = getattr(proto, kind)
    if kind in ("bool_value", "int64_value", "float64_value", "string_value"):
        return value
    if kind in ("tensor_spec_value", "bounded_tensor_spec_value"):
        spec = TensorSpec(parse_shape(value.shape), as_dtype(value.dtype), value.name or None)
        if kind == "tensor_spec_value" or not value.HasField("minimum"):
            return spec
        low, high = make_ndarray(value.minimum), make_ndarray(value.maximum)
        return BoundedTensorSpec(spec.shape, spec.dtype, low, high, spec.name)
    if kind == "tensor_dtype_value":
        return as_dtype(value)
    if kind == "tensor_shape_value":
        return TensorShape(parse_shape(value))
    if kind == "list_value":
        return [read_structure(v) for v in value.values]
    if kind == "tuple_value":
        return tuple(read_structure(v) for v in value.values)
    if kind == "dict_value":
        return {k: read_structure(value.fields[k]) for k in value.fields}
    if kind == "named_tuple_value":
        make = make_named_tuple(value.name, tuple(pair.key for pair in value.values))
        return make(*(read_structure(pair.value) for pair in value.values))
    if kind == "type_spec_value":
        is_extension = value.type_spec_class == _EXTENSION_TYPE
        name = _SPEC_NAMES.get(value.type_spec_class, value.type_spec_class_name * is_extension)
        if name:
            return make_spec(name, read_structure(value.type_state))
    known = (
        _UNSUPPORTED_TYPE_NAMES.get(value.type_spec_class) if kind == "type_spec_value" else None
    )
    type_name = known or getattr(value, "type_spec_class_name", "") or kind
    raise DataLossError(f"it takes or returns a {type_name}, which Meshflow does not support")
