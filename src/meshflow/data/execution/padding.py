"""Parsing of padded shapes and padding values, for each component of an element."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.data import structure
from meshflow.environment.types import PyTree


def flatten_shapes(spec: PyTree, shapes: PyTree) -> list[Any]:
    """Return a shape for each leaf of a spec; a shape may be a list, a TensorShape or a tensor.

    Raises:
      ValueError: If the structures differ.
    """
    if isinstance(spec, tuple):
        if not isinstance(shapes, (tuple, list)) or len(shapes) != len(spec):
            raise ValueError(f"padded_shapes {shapes} does not have the structure of {spec}.")
        return [x for s, v in zip(spec, shapes, strict=True) for x in flatten_shapes(s, v)]
    if isinstance(spec, dict):
        if not isinstance(shapes, dict) or set(shapes) != set(spec):
            raise ValueError(f"padded_shapes {shapes} does not have the structure of {spec}.")
        return [x for k in sorted(spec) for x in flatten_shapes(spec[k], shapes[k])]
    return [shapes]


def parse_shape(shape: Any, spec: TensorSpec | None = None) -> list[Any] | None:
    """Convert a shape to a list, in which None means the largest size in a batch.

    Args:
      shape: List, TensorShape, tensor or array of integers; -1 means None.
      spec: Spec of the component that is padded.

    Raises:
      ValueError: If the shape is not a vector, or not compatible with the spec.
      TypeError: If a tensor does not contain integers.
    """
    if shape is None:
        return None
    if hasattr(shape, "as_list"):
        sizes = None if shape.rank is None else shape.as_list()
    elif isinstance(shape, int):
        sizes = [shape]
    else:
        sizes = _shape_to_list(shape)
    if sizes is not None:
        sizes = [None if n in (None, -1) else int(n) for n in sizes]
        if spec is not None and spec.shape.rank is not None:
            _check_shape(sizes, spec)
    return sizes


def _shape_to_list(shape: TensorLike) -> list[Any]:
    if hasattr(shape, "numpy") or isinstance(shape, np.ndarray):
        array = np.asarray(structure.to_array(shape))
    else:
        array = np.array([-1 if n is None else n for n in shape])
    if array.ndim != 1:
        raise ValueError(
            f"Padded shape {shape} must be a `tf.int64` vector tensor, but its shape was {array.shape}."
        )
    if array.size and array.dtype.kind != "i":
        raise TypeError(
            f"Padded shape {shape} must be a `tf.int64` vector tensor, but its element type was {array.dtype}."
        )
    return array.tolist()


def _check_shape(shape: list[Any], spec: TensorSpec) -> None:
    """Raise an error if elements cannot be padded to a shape."""
    spec_shape = spec.shape.as_list()
    is_compatible = len(spec_shape) == len(shape) and all(
        n is None or m is None or m <= n for n, m in zip(shape, spec_shape, strict=True)
    )
    if not is_compatible:
        raise ValueError(
            f"The padded shape {tuple(shape)} is not compatible with the shape {tuple(spec_shape)} of the "
            "corresponding input component."
        )


def flatten_values(spec: PyTree, values: PyTree) -> list[Any]:
    """Return a padding value for each leaf of a spec; a single value applies to all leaves."""
    if isinstance(spec, tuple) and isinstance(values, tuple) and len(values) == len(spec):
        return [x for s, v in zip(spec, values, strict=True) for x in flatten_values(s, v)]
    if isinstance(spec, dict) and isinstance(values, dict) and set(values) == set(spec):
        return [x for k in sorted(spec) for x in flatten_values(spec[k], values[k])]
    if isinstance(values, (tuple, dict)):
        raise ValueError(f"padding_values {values} does not have the structure of {spec}.")
    return [values] * len(nest.flatten(spec))


def parse_padding_value(value: TensorLike, spec: TensorSpec) -> bytes | np.generic:
    """Return the value that a component is padded with, by default 0 or an empty string.

    Raises:
      ValueError: If the value is not a scalar.
      TypeError: If its dtype differs from that of the component.
    """
    if value is None:
        return b"" if spec.dtype is dtypes.string else spec.dtype.as_numpy_dtype(0)
    tensor = convert_to_tensor(value)
    if tensor.shape.rank != 0:
        raise ValueError(
            f"Invalid `padding_values`. `padding_values` values should be scalars, but got {tuple(tensor.shape)}."
        )
    if tensor.dtype is not spec.dtype:
        raise TypeError(
            f"Invalid `padding_values`. `padding_values` values type {tensor.dtype.name} does not match type "
            f"{spec.dtype.name} of the corresponding input component: {value!r}."
        )
    return structure.to_array(tensor)[()]
