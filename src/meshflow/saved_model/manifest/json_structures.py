"""Nested arguments and results as JSON: containers, specs, slots of tensors, and plain values."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from typing import Any

from meshflow.core.tracing.trace import CompositeResultSlot, TensorSlot
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import Json, PyTree
from meshflow.saved_model.manifest.composite_values import (
    UnsavableError,
    get_spec_name,
    get_spec_state,
    make_result_slot,
    make_spec,
)

_PLAIN_TYPES = (bool, int, float, str, type(None))


def get_sizes(shape: TensorShape) -> list[int | None] | None:
    """Return sizes, with None for symbolic dimensions, or None if the rank is unknown."""
    if shape.rank is None:
        return None
    return [size if isinstance(size, int) else None for size in shape]


def pack_structure(value: PyTree) -> Json:
    """Convert a structure to JSON.

    Args:
      value: Tuples, lists, dictionaries, specs, slots of tensors and composite tensors, dtypes, shapes,
        and plain Python values.

    Raises:
      UnsavableError: If the structure contains another value.

    Example:
      >>> from meshflow.saved_model.manifest.json_structures import pack_structure, unpack_structure
      >>> unpack_structure(pack_structure(({"training": False}, [None])))
      ({'training': False}, [None])
    """
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, TensorSlot):
        return {"slot": value.index}
    if isinstance(value, TensorSpec):
        return {"spec": [get_sizes(value.shape), value.dtype.name, value.name]}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, TensorShape):
        return {"shape": get_sizes(value)}
    if is_composite_spec(value):
        return {"composite": get_spec_name(value), "state": pack_structure(get_spec_state(value))}
    if isinstance(value, CompositeResultSlot) and value.spec is not None:
        return {"result": pack_structure(value.spec), "parts": pack_structure(value.parts)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = [pack_structure(v) for v in value]
        return {"tuple": parts, "fields": list(value._fields), "name": type(value).__name__}
    if isinstance(value, tuple):
        return {"tuple": [pack_structure(v) for v in value]}
    if isinstance(value, list):
        return {"list": [pack_structure(v) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack_structure(k), pack_structure(v)] for k, v in value.items()]}
    raise UnsavableError(f"{value!r} of type {type(value).__name__}")


def unpack_structure(data: Json) -> PyTree:
    """Convert JSON of `pack_structure` back to a structure.

    Named tuples get a class with the saved name and fields.

    Args:
      data: Result of `pack_structure`.
    """
    if isinstance(data, _PLAIN_TYPES):
        return data
    if "slot" in data:
        return TensorSlot(data["slot"])
    if "spec" in data:
        return TensorSpec(*data["spec"])
    if "dtype" in data:
        return as_dtype(data["dtype"])
    if "shape" in data:
        return TensorShape(data["shape"])
    if "composite" in data:
        return make_spec(data["composite"], unpack_structure(data["state"]))
    if "result" in data:
        return make_result_slot(unpack_structure(data["result"]), unpack_structure(data["parts"]))
    if "fields" in data:
        tuple_class = make_named_tuple(data.get("name", "NamedTuple"), tuple(data["fields"]))
        return tuple_class(*(unpack_structure(v) for v in data["tuple"]))
    if "tuple" in data:
        return tuple(unpack_structure(v) for v in data["tuple"])
    if "list" in data:
        return [unpack_structure(v) for v in data["list"]]
    return {unpack_structure(k): unpack_structure(v) for k, v in data["dict"]}


@functools.cache
def make_named_tuple(name: str, fields: tuple[str, ...]) -> type[Any]:
    """Return the named-tuple class with a name and fields; equal arguments return the same class.

    Args:
      name: Name of the class.
      fields: Names of its fields.

    Raises:
      TypeError: If a name is not valid, as in damaged files.
    """
    try:
        return collections.namedtuple(name, fields)
    except ValueError as error:
        raise TypeError(f"a named tuple {name!r} with the fields {fields}: {error}") from error
