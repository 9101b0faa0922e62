"""Small functions around layers: names, shapes, masks and casts."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras import settings
from meshflow.keras.engine.symbolic.call_signature import call_signature
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, shape_of
from meshflow.ops.math import cast

_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD


def overrides(layer: Any, method: str, base: type) -> bool:
    return getattr(type(layer), method) is not getattr(base, method)


def unique_layer_name(cls: type) -> str:
    """The class name in snake case, numbered when used before."""
    return settings.unique_name(snake_case(cls.__name__))


def snake_case(name: str) -> str:
    """`BatchNormalization` -> `batch_normalization`, `ConvLSTM2D` -> `conv_lstm2d`."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    result = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return result if not result.startswith("_") else "private" + result


def unique(items: list[Any]) -> list[Any]:
    """Items without later repetitions of the same object."""
    return list({id(item): item for item in items}.values())


def as_tuples(shape: Any) -> Any:
    """Shapes as plain tuples."""
    if isinstance(shape, TensorShape):
        return tuple(shape.as_list()) if shape.rank is not None else None
    if isinstance(shape, dict):
        return {key: as_tuples(value) for key, value in shape.items()}
    if isinstance(shape, (list, tuple)):
        return [as_tuples(value) for value in shape]
    return shape


def shapes_by_name(
    layer: Any, shape: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """What a layer's `build` takes that asks for the shapes of several arguments of `call`, else None.

    Args:
      layer: the layer, with `build(self, x_shape, y_shape)` for `call(self, x, y)`, as Keras 3's may have.
      shape: of the first argument.
      args, kwargs: the other arguments.
    """
    parameters = inspect.signature(layer.build).parameters.values()
    wanted = [p.name for p in parameters if p.default is p.empty and p.kind is _NAMED]
    if len(wanted) < 2 or not all(name.endswith("_shape") for name in wanted):
        return None
    first, *others = call_signature(type(layer)).names
    given = dict(zip(others, args, strict=False)) | kwargs
    found = {f"{name}_shape": shape_of(value) for name, value in given.items()}
    return {f"{first}_shape": shape} | {name: found[name] for name in wanted if name in found}


def cast_floating(value: Any, dtype: dtypes.DType) -> Any:
    """A floating tensor cast to `dtype`; anything else unchanged."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating or value.dtype is dtype:
        return value

    result = cast(value, dtype)
    mask = getattr(value, "_keras_mask", None)
    if mask is not None:
        result._keras_mask = mask
    return result


def masks_of(inputs: Any) -> Any:
    """Masks of a structure of tensors, or None when none has a mask."""
    if isinstance(inputs, Tensor):
        return getattr(inputs, "_keras_mask", None)
    masks = nest.map_structure(lambda t: getattr(t, "_keras_mask", None), inputs)
    return masks if any(m is not None for m in nest.flatten(masks)) else None


def as_tensor_like(value: Any) -> Any:
    if isinstance(value, (np.ndarray, float, int)) and not isinstance(value, bool):
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return convert_to_tensor(value, dtype=settings.floatx())
        return convert_to_tensor(value)
    if isinstance(value, Variable):
        return value._as_tensor()
    return value


def has_keras_tensor(inputs: Any, args: Any, kwargs: Any) -> bool:
    if type(inputs) is Tensor and not args and not kwargs:
        return False
    return any(isinstance(v, KerasTensor) for v in nest.flatten((inputs, args, kwargs)))


def declared_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """The batch input shape from `input_shape` and its relatives."""
    if kwargs.get("input_dim") is not None and kwargs.get("input_shape") is None:
        kwargs = {**kwargs, "input_shape": (kwargs["input_dim"],)}
    if kwargs.get("batch_input_shape") is not None:
        return tuple(kwargs["batch_input_shape"])
    if kwargs.get("input_shape") is not None:
        shape = kwargs["input_shape"]
        return (kwargs.get("batch_size"), *((shape,) if isinstance(shape, int) else tuple(shape)))
    return None
