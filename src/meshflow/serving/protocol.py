"""TensorFlow Serving's JSON: rows or columns to arrays, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.core.values.specs import TensorSpec

__all__ = [
    "BadRequest",
    "NotFound",
    "Specs",
    "check_names",
    "check_shape",
    "columns",
    "described",
    "response",
]

Specs = Mapping[str, TensorSpec]

# What TensorFlow's messages call a dtype.
_NAMES = {
    "float16": "DT_HALF", "bfloat16": "DT_BFLOAT16", "float32": "DT_FLOAT", "float64": "DT_DOUBLE",
    "bool": "DT_BOOL", "string": "DT_STRING", "complex64": "DT_COMPLEX64", "complex128": "DT_COMPLEX128",
}  # fmt: skip


class BadRequest(Exception):
    """A request that cannot be answered; the message says why. Status 400."""


class NotFound(Exception):
    """A model or a version that is not served. Status 404."""


def columns(body: Any, specs: Specs) -> tuple[dict[str, np.ndarray], bool]:
    """The arrays of a request by the names of inputs.

    Args:
      body: the request's JSON: {"instances": rows} or {"inputs": columns}.
      specs: of the signature's inputs.

    Returns:
      (arrays, whether the request came as rows).

    Raises:
      BadRequest: for what does not fit the specs.
    """
    if not isinstance(body, Mapping):
        raise BadRequest("JSON Parse error: the request must be an object.")
    if ("instances" in body) == ("inputs" in body):
        both = "Both 'inputs' and 'instances' keys are given" if "inputs" in body else "Missing 'inputs' or 'instances' key"  # fmt: skip
        raise BadRequest(both)
    if "inputs" in body:
        given = body["inputs"]
        named = isinstance(given, Mapping) and not _is_bytes(given)
        if not named:
            given = {_only(specs, "inputs"): given}
        check_names(given, specs, "inputs")
        return {name: _array(name, given[name], spec) for name, spec in specs.items()}, False
    rows = body["instances"]
    if not isinstance(rows, list) or not rows:
        raise BadRequest("Values in 'instances' key are expected to be a non-empty list.")
    objects = [isinstance(row, Mapping) and not _is_bytes(row) for row in rows]
    if not any(objects):
        name = _only(specs, "instances")
        arrays = {name: _array(name, rows, specs[name])}
    elif not all(objects):
        raise BadRequest("'instances' holds both objects with named values and plain values.")
    else:
        for i, row in enumerate(rows):
            check_names(row, specs, f"element {i} of 'instances'")
        arrays = {n: _array(n, [row[n] for row in rows], spec) for n, spec in specs.items()}
    return arrays, True


def _only(specs: Specs, where: str) -> str:
    if len(specs) != 1:
        raise BadRequest(f"The signature takes {sorted(specs)}: values in '{where}' must be named.")
    return next(iter(specs))


def check_names(given: Mapping[str, Any], specs: Specs, where: str) -> None:
    """Raises a `BadRequest` unless values are given for a signature's inputs, and for nothing else.

    Args:
      given: values by name.
      specs: of the inputs.
      where: where they stand, for the error.
    """
    missing, unknown = sorted(set(specs) - set(given)), sorted(set(given) - set(specs))
    if missing or unknown:
        raise BadRequest(
            f"Failed to process {where}: the signature takes {sorted(specs)}; missing {missing}, unknown {unknown}."
        )


def _is_bytes(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"b64"}


def _decoded(value: Any) -> Any:
    """Nested lists with the bytes of {"b64": ...} in place of them."""
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if _is_bytes(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise BadRequest(f"Unable to base64 decode: {error}.") from None
    return value


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value), *(_shape(value[0]) if value else ())) if isinstance(value, list) else ()


def _array(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    kind = spec.dtype.name
    try:
        if kind == "string":
            decoded = _decoded(value)
            array = np.empty(_shape(decoded), object)
            flat = np.asarray(decoded, object)
            if flat.shape != array.shape:
                raise ValueError("rows differ in length")
            for place in np.ndindex(*array.shape):
                one = flat[place]
                if not isinstance(one, (str, bytes)):
                    raise ValueError(f"{one!r} is no string")
                array[place] = one.encode() if isinstance(one, str) else one
        else:
            plain = np.asarray(value)
            if plain.dtype.kind not in "biuf" and plain.size:
                raise ValueError("the values are no numbers of a regular shape")
            if np.dtype(spec.dtype.dtype).kind in "iu" and plain.dtype.kind == "f" and plain.size:
                raise ValueError(f"the values are no integers of type {kind}")
            array = plain.astype(spec.dtype.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"Failed to process the values of input '{name}': {error}.") from None
    check_shape(name, array, spec)
    return array


def check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> None:
    """Raises a `BadRequest` unless an input has the shape that the signature takes.

    Args:
      name: the input's name.
      array: its value.
      spec: what the signature takes.
    """
    if not spec.shape.is_compatible_with(array.shape):
        raise BadRequest(
            f"Input '{name}' has shape {list(array.shape)}, expected {spec.shape.as_list()} of {spec.dtype.name}."
        )


def response(outputs: Mapping[str, np.ndarray], rows: bool) -> dict[str, Any]:
    """The JSON of results.

    Args:
      outputs: arrays by name.
      rows: whether the request came as rows.

    Raises:
      BadRequest: when rows were asked for and results have different numbers of them.
    """
    values = {name: _plain(name, array) for name, array in outputs.items()}
    one = next(iter(values)) if len(values) == 1 else None
    if not rows:
        return {"outputs": values if one is None else values[one]}
    counts = {name: array.shape[0] if array.ndim else -1 for name, array in outputs.items()}
    if len(set(counts.values())) != 1 or -1 in counts.values():
        raise BadRequest(f"Tensors {counts} have no common number of rows: ask with 'inputs'.")
    if one is not None:
        return {"predictions": values[one]}
    return {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}  # fmt: skip


def _plain(name: str, array: np.ndarray) -> Any:
    """Nested lists; strings as text, or as {"b64": ...} for names that end in _bytes."""
    if array.dtype != object:
        return array.astype(np.float32).tolist() if array.dtype.name == "bfloat16" else array.tolist()  # fmt: skip

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(v) for v in value]
        data = value.encode() if isinstance(value, str) else bytes(value)
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(data).decode()}
        return data.decode(errors="replace")

    return one(array.tolist())


def described(specs: Specs) -> dict[str, Any]:
    """Specs as the JSON of TensorFlow's TensorInfo messages."""
    found = {}
    for name, spec in specs.items():
        sizes = spec.shape.as_list() if spec.shape.rank is not None else []
        dims = [{"size": str(-1 if d is None else d), "name": ""} for d in sizes]
        kind = _NAMES.get(spec.dtype.name, f"DT_{spec.dtype.name.upper()}")
        shape = {"dim": dims, "unknown_rank": spec.shape.rank is None}
        found[name] = {"dtype": kind, "tensor_shape": shape, "name": name}
    return found
