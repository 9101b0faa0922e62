"""Helpers for layers: names, shapes, masks and casts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.symbolic.call_signature import get_call_signature
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, get_shapes
from meshflow.ops.math import cast
from meshflow.ops.ragged import RaggedTensor

# A Keras object such as an initializer or activation function, its name, or its configuration.
Identifier: TypeAlias = Callable[..., Any] | Config | str | None

_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


def has_override(layer: object, method: str, base: type) -> bool:
    """Check whether the class of a layer overrides a method of a base class."""
    return getattr(type(layer), method) is not getattr(base, method)


def make_unique_layer_name(cls: type) -> str:
    """Return the class name in snake case, with an index if it is already in use."""
    return settings.make_unique_name(to_snake_case(cls.__name__))


def to_snake_case(name: str) -> str:
    """Convert a class name to snake case, for example `ConvLSTM2D` to `conv_lstm2d`."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    result = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return result if not result.startswith("_") else "private" + result


def remove_duplicates(items: list[Any]) -> list[Any]:
    """Return the items without later occurrences of the same object."""
    return list({id(item): item for item in items}.values())


def as_tuples(shape: PyTree) -> PyTree:
    """Convert shapes to tuples."""
    if isinstance(shape, TensorShape):
        return tuple(shape.as_list()) if shape.rank is not None else None
    if isinstance(shape, dict):
        return {key: as_tuples(value) for key, value in shape.items()}
    if isinstance(shape, (list, tuple)):
        return [as_tuples(value) for value in shape]
    return shape


def make_build_arguments(
    layer: Any, shape: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the keyword arguments of a `build` method with one shape for each argument of `call`.

    Keras 3 allows `build(self, x_shape, y_shape)` for `call(self, x, y)`. None for a single shape.
    """
    parameters = inspect.signature(layer.build).parameters.values()
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind is _POSITIONAL_OR_KEYWORD
    ]
    if len(required) < 2 or not all(name.endswith("_shape") for name in required):
        return None
    first, *others = get_call_signature(type(layer)).arg_names
    arguments = dict(zip(others, args, strict=False)) | kwargs
    shapes = {f"{name}_shape": get_shapes(value) for name, value in arguments.items()}
    return {f"{first}_shape": shape} | {name: shapes[name] for name in required if name in shapes}


def cast_floating(value: Any, dtype: dtypes.DType) -> Any:
    """Cast a floating-point tensor to `dtype`; return other values unchanged."""
    if not isinstance(value, (Tensor, SparseTensor, RaggedTensor)):
        return value
    if not value.dtype.is_floating or value.dtype is dtype:
        return value

    result = cast(value, dtype)
    mask = getattr(value, "_keras_mask", None)
    if mask is not None:
        result._keras_mask = mask
    return result


def get_masks(inputs: PyTree) -> PyTree:
    """Return the masks of a structure of tensors, or None if there is no mask."""
    if isinstance(inputs, Tensor):
        return getattr(inputs, "_keras_mask", None)
    masks = nest.map_structure(lambda t: getattr(t, "_keras_mask", None), inputs)
    return masks if any(m is not None for m in nest.flatten(masks)) else None


def as_tensor_like(value: Any) -> Any:
    """Convert numbers, arrays and variables to tensors; return other values unchanged."""
    if isinstance(value, (np.ndarray, float, int)) and not isinstance(value, bool):
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return convert_to_tensor(value, dtype=settings.floatx())
        return convert_to_tensor(value)
    if isinstance(value, Variable):
        return value.value()
    return value


def has_keras_tensor(inputs: PyTree, args: PyTree, kwargs: PyTree) -> bool:
    """Check whether an argument contains a symbolic tensor."""
    if type(inputs) is Tensor and not args and not kwargs:
        return False
    return any(isinstance(v, KerasTensor) for v in nest.flatten((inputs, args, kwargs)))


def get_declared_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Return the batch input shape that `input_shape` and related arguments declare, or None."""
    if kwargs.get("input_dim") is not None and kwargs.get("input_shape") is None:
        kwargs = {**kwargs, "input_shape": (kwargs["input_dim"],)}
    if kwargs.get("batch_input_shape") is not None:
        return tuple(kwargs["batch_input_shape"])
    if kwargs.get("input_shape") is not None:
        shape = kwargs["input_shape"]
        return (kwargs.get("batch_size"), *((shape,) if isinstance(shape, int) else tuple(shape)))
    return None
