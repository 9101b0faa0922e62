"""What users say about padding: shapes and values, for each component of an element."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core import dtypes, nest
from meshflow.data import structure


def flat_up_to(spec: Any, shapes: Any) -> list[Any]:
    """Shapes, one for each leaf of a spec; a shape may be a list, a TensorShape or a tensor."""
    if isinstance(spec, tuple):
        if not isinstance(shapes, (tuple, list)) or len(shapes) != len(spec):
            raise ValueError(f"padded_shapes {shapes} does not have the structure of {spec}.")
        return [x for s, v in zip(spec, shapes, strict=True) for x in flat_up_to(s, v)]
    if isinstance(spec, dict):
        return [x for k in sorted(spec) for x in flat_up_to(spec[k], shapes[k])]
    return [shapes]


def sizes(shape: Any) -> list[Any] | None:
    if shape is None:
        return None
    if hasattr(shape, "as_list"):
        return None if shape.rank is None else shape.as_list()
    if hasattr(shape, "numpy"):
        shape = shape.numpy().tolist()
    return [shape] if isinstance(shape, int) else [None if n is None else int(n) for n in shape]


def flat_values(spec: Any, values: Any) -> list[Any]:
    if not isinstance(values, (tuple, dict)):
        return [values] * len(nest.flatten(spec))
    return flat_up_to(spec, values)


def padding_value(value: Any, spec: Any) -> Any:
    if value is None:
        return b"" if spec.dtype is dtypes.string else spec.dtype.as_numpy_dtype(0)
    array = np.asarray(structure.to_array(value))
    if spec.dtype is dtypes.string:
        return array[()]
    if array.dtype.kind != spec.dtype.dtype.kind and array.dtype.kind not in "bi":
        raise TypeError(
            f"Mismatched type between padding value {value!r} and input dataset's component of type {spec.dtype.name}."
        )
    return array.astype(spec.dtype.as_numpy_dtype)[()]
