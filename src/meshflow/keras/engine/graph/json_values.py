"""Values in the configurations of tf.keras's files: tuples, shapes and specs in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.values.composite import (
    find_spec_name,
    is_composite_spec,
    is_extension_spec,
    named_spec_classes,
)
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import Json, PyTree
from meshflow.ops.ragged import RaggedTensorSpec

_SPEC_CLASSES = {f"tf.{c.__name__}": c for c in (TensorSpec, SparseTensorSpec, RaggedTensorSpec)}


def serialize_tuple(items: Sequence[Any]) -> dict[str, Any]:
    """Convert a tuple to tf.keras's JSON form."""
    return {"class_name": "__tuple__", "items": list(items)}


def serialize_shapes(value: PyTree) -> Json:
    """Convert a shape, or a nested structure of shapes, to tf.keras's JSON form."""
    if isinstance(value, dict):
        return {key: serialize_shapes(v) for key, v in value.items()}
    if isinstance(value, TensorShape) or all(s is None or isinstance(s, int) for s in value):
        # Layers that were first called while the model is saved have symbols as sizes.
        shape = TensorShape(value)
        has_rank = shape.rank is not None
        sizes = [n if isinstance(n, int) else None for n in shape] if has_rank else None
        return {"class_name": "TensorShape", "items": sizes}
    items = [serialize_shapes(v) for v in value]
    return serialize_tuple(items) if isinstance(value, tuple) else items


def serialize_value(value: PyTree) -> Json:
    """Convert tuples, shapes and tensor specs to tf.keras's JSON form."""
    if isinstance(value, TensorSpec):
        shape = serialize_shapes(value.shape)
        return {
            "class_name": "TypeSpec",
            "type_spec": "tf.TensorSpec",
            "serialized": [shape, value.dtype.name, value.name],
        }
    if is_composite_spec(value):
        is_own = not is_extension_spec(value)
        name = f"tf.{type(value).__name__}" if is_own else find_spec_name(type(value))
        if name is None:
            return None
        parts = [serialize_value(part) for part in value._serialize()]
        return {"class_name": "TypeSpec", "type_spec": name, "serialized": parts}
    if isinstance(value, DType):
        return value.name
    if isinstance(value, TensorShape):
        return serialize_shapes(value)
    if isinstance(value, tuple):
        return serialize_tuple([serialize_value(v) for v in value])
    if isinstance(value, list):
        return [serialize_value(v) for v in value]
    if isinstance(value, dict):
        return {k: serialize_value(v) for k, v in value.items()}
    return value


def deserialize_value(value: Json) -> PyTree:
    """Undo `serialize_value`, also where tuples are restored already; dtypes remain names."""
    if isinstance(value, list | tuple):
        return type(value)([deserialize_value(v) for v in value])
    if not isinstance(value, dict):
        return value
    if value.get("class_name") == "__tuple__":
        return tuple(deserialize_value(v) for v in value["items"])
    if value.get("class_name") == "TensorShape":
        return TensorShape(value["items"])
    if value.get("class_name") != "TypeSpec":
        return {k: deserialize_value(v) for k, v in value.items()}
    name, parts = value["type_spec"], deserialize_value(value["serialized"])
    if name in _SPEC_CLASSES:
        return _SPEC_CLASSES[name](*parts)
    if name not in named_spec_classes:
        raise ValueError(
            f"No TypeSpec has been registered with name {name!r}. Import the module that defines it."
        )
    return named_spec_classes[name]._deserialize(tuple(parts))
