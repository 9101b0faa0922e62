"""JSON of TensorFlow Serving's REST protocol: conversion of rows or columns to arrays and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import Json

Specs = Mapping[str, TensorSpec]

# Dtype names in TensorFlow's messages.
_DTYPE_NAMES = {
    "float16": "DT_HALF", "bfloat16": "DT_BFLOAT16", "float32": "DT_FLOAT", "float64": "DT_DOUBLE",
    "bool": "DT_BOOL", "string": "DT_STRING", "complex64": "DT_COMPLEX64", "complex128": "DT_COMPLEX128",
}  # fmt: skip

DEFAULT_SIGNATURE = "serving_default"
# NumPy's limit.
_MAX_DIMENSIONS = 64
# Python needs up to 100 ns for a string in each step, and meanwhile answers no other request.
MAX_STRINGS = 1 << 19
# Dtypes with fewer bits than JSON's doubles, and the numbers of decimal digits to try.
_SHORT_FLOATS = {"float16", "bfloat16", "float32"}
_DIGITS = (3, 5, 6, 7, 8, 9)


def parse_request(body: bytes | bytearray) -> tuple[Mapping[str, Json], str]:
    """Parse a request, and return its JSON object and the name of its signature.

    Raises:
      InvalidArgumentError: The body is not a JSON object.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"JSON Parse error: {error}") from None
    if not isinstance(request, Mapping):
        raise InvalidArgumentError("JSON Parse error: the request must be an object.")
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidArgumentError(f"'signature_name' key must be a string value, got {name!r}.")
    return request, name or DEFAULT_SIGNATURE


def parse_inputs(body: Mapping[str, Json], specs: Specs) -> tuple[dict[str, np.ndarray], bool]:
    """Convert the inputs of a request to arrays.

    Args:
      body: JSON of the request: {"instances": rows} or {"inputs": columns}.
      specs: Specs of the signature's inputs.

    Returns:
      Arrays by name, and whether the request contains rows.

    Raises:
      InvalidArgumentError: The inputs do not match the specs.
    """
    if ("instances" in body) == ("inputs" in body):
        problem = "Both 'inputs' and 'instances' keys are given" if "inputs" in body else "Missing 'inputs' or 'instances' key"  # fmt: skip
        raise InvalidArgumentError(problem)
    if "inputs" in body:
        inputs = body["inputs"]
        if not isinstance(inputs, Mapping) or is_base64(inputs):
            inputs = {_get_single_name(specs, "inputs"): inputs}
        # Like TensorFlow Serving, ignore values that the signature does not take.
        check_names({name: inputs[name] for name in specs if name in inputs}, specs, "inputs")
        return {name: _parse_array(name, inputs[name], spec) for name, spec in specs.items()}, False
    rows = body["instances"]
    if not isinstance(rows, list) or not rows:
        raise InvalidArgumentError("Values in 'instances' key are expected to be a non-empty list.")
    objects = [isinstance(row, Mapping) and not is_base64(row) for row in rows]
    if not any(objects):
        name = _get_single_name(specs, "instances")
        arrays = {name: _parse_array(name, rows, specs[name])}
    elif not all(objects):
        raise InvalidArgumentError(
            "'instances' holds both objects with named values and plain values."
        )
    else:
        for i, row in enumerate(rows):
            check_names(row, specs, f"element {i} of 'instances'")
        arrays = {n: _parse_array(n, [row[n] for row in rows], spec) for n, spec in specs.items()}
    return arrays, True


def _get_single_name(specs: Specs, where: str) -> str:
    if len(specs) != 1:
        raise InvalidArgumentError(
            f"The signature takes {sorted(specs)}, so values in '{where}' must be named."
        )
    return next(iter(specs))


def check_names(values: Mapping[str, object], specs: Specs, where: str) -> None:
    """Check that the inputs of a signature, and no others, have values.

    Args:
      values: Values by name.
      specs: Specs of the inputs.
      where: Location of the values for the error message.

    Raises:
      InvalidArgumentError: Values are missing or unknown.
    """
    missing, unknown = sorted(set(specs) - set(values)), sorted(set(values) - set(specs))
    if missing or unknown:
        raise InvalidArgumentError(
            f"Failed to process {where}: the signature takes {sorted(specs)}; missing {missing}, unknown {unknown}."
        )


def is_base64(value: Json) -> bool:
    """Check whether a JSON value represents bytes, like {"b64": "aGk="}."""
    return isinstance(value, Mapping) and set(value) == {"b64"}


def decode_bytes(value: Json) -> Json | bytes:
    """Encode a string as UTF-8 and decode {"b64": ...}; return other JSON values unchanged.

    Raises:
      InvalidArgumentError: The base64 text is invalid.
    """
    if isinstance(value, str):
        return value.encode()
    if is_base64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"Unable to base64 decode: {error}.") from None
    return value


def _flatten(value: Json) -> tuple[tuple[int, ...], list[Json]]:
    """Return the shape of nested lists and their values, in time linear in their number.

    Raises:
      ValueError: The lists are not regular.
    """
    shape: list[int] = []
    values = [value]
    while values and isinstance(values[0], list):
        lists = [v for v in values if isinstance(v, list)]
        lengths = set(map(len, lists))
        if len(lists) < len(values) or len(lengths) > 1:
            raise ValueError("rows differ in length")
        shape.append(lengths.pop())
        if len(shape) > _MAX_DIMENSIONS:
            raise ValueError(f"there are more than {_MAX_DIMENSIONS} dimensions")
        values = list(chain.from_iterable(lists))
    if list in set(map(type, values)):
        raise ValueError("rows differ in length")
    return tuple(shape), values


def _parse_array(name: str, value: Json, spec: TensorSpec) -> np.ndarray:
    try:
        array = (
            _parse_strings(value) if spec.dtype.name == "string" else _parse_numbers(value, spec)
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"Failed to process the values of input '{name}': {error}."
        ) from None
    check_shape(name, array, spec)
    return array


def _parse_strings(value: Json) -> np.ndarray:
    """Convert nested lists of strings to an array of bytes."""
    shape, values = _flatten(value)
    if len(values) > MAX_STRINGS:
        raise ValueError(
            f"there are {len(values)} strings, but a request may have {MAX_STRINGS}: split it"
        )
    array = np.empty(len(values), object)
    for i, v in enumerate(values):
        array[i] = decode_bytes(v)
        if not isinstance(array[i], bytes):
            raise ValueError(f"{v!r:.100} is not a string")
    return array.reshape(shape)


def _parse_numbers(value: Json, spec: TensorSpec) -> np.ndarray:
    """Convert nested lists of numbers or Booleans to an array with the dtype of a spec."""
    shape, values = _flatten(value)
    types = set(map(type, values))
    dtype = np.dtype(spec.dtype.dtype)
    if not types:
        return np.empty(shape, dtype)
    if not types <= {bool, int, float}:
        raise ValueError("the values are not numbers of a regular shape")
    if (types == {bool}) != (dtype.kind == "b"):
        raise ValueError(f"the values are not of type {spec.dtype.name}")
    if dtype.kind not in "biu":
        return np.array(values, np.float64).astype(dtype).reshape(shape)
    if float in types:
        raise ValueError(f"the values are not integers of type {spec.dtype.name}")
    try:
        return np.array(values, dtype).reshape(shape)
    except OverflowError:
        bounds = np.iinfo(dtype)
        raise ValueError(
            f"some values are outside of {spec.dtype.name}, {bounds.min} to {bounds.max}"
        ) from None


def check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> None:
    """Check that an input has the shape that the signature takes.

    Raises:
      InvalidArgumentError: The shape is incompatible.
    """
    if not spec.shape.is_compatible_with(array.shape):
        raise InvalidArgumentError(
            f"Input '{name}' has shape {list(array.shape)}, expected {spec.shape.as_list()} of {spec.dtype.name}."
        )


def make_response(outputs: Mapping[str, np.ndarray], rows: bool) -> dict[str, Json]:
    """Convert results to the JSON of a response.

    Args:
      outputs: Arrays by name.
      rows: Whether the request contained rows.

    Raises:
      InvalidArgumentError: The request contained rows, but the outputs have different numbers of
        rows.
    """
    values = {name: _to_json(name, array) for name, array in outputs.items()}
    single_name = next(iter(values)) if len(values) == 1 else None
    if not rows:
        return {"outputs": values if single_name is None else values[single_name]}
    counts = {name: array.shape[0] if array.ndim else -1 for name, array in outputs.items()}
    if len(set(counts.values())) != 1 or -1 in counts.values():
        raise InvalidArgumentError(
            f"Tensors {counts} have no common number of rows: send the request with 'inputs'."
        )
    if single_name is not None:
        return {"predictions": values[single_name]}
    return {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}  # fmt: skip


def shorten_floats(array: np.ndarray) -> np.ndarray:
    """Convert floats to doubles with the fewest digits that identify them, so that JSON is short.

    Args:
      array: Floats of fewer than 64 bits. Very large and very small ones keep nine digits.

    Example:
      >>> from meshflow.serving.protocol import shorten_floats
      >>> shorten_floats(np.array([0.1, 1e20, np.inf], np.float32)).tolist()
      [0.1, 1e+20, inf]
    """
    exact = np.asarray(array, np.float64).reshape(-1)
    result = exact.copy()
    remaining = np.flatnonzero(np.isfinite(exact) & (exact != 0))
    for digits in _DIGITS:
        values = exact[remaining]
        decimals = digits - 1 - np.floor(np.log10(np.abs(values)))
        # Powers of ten up to 22 are exact doubles, so the quotient is the double nearest to the
        # decimal number.
        up, down = 10.0 ** np.clip(decimals, 0, 22), 10.0 ** np.clip(-decimals, 0, 22)
        short = np.round(values * up / down) / up * down
        with np.errstate(over="ignore", under="ignore"):
            fits = short.astype(array.dtype).astype(np.float64) == values
        result[remaining[fits]] = short[fits]
        remaining = remaining[~fits]
    return result.reshape(np.shape(array))


def _to_json(name: str, array: np.ndarray) -> Json:
    """Convert an array to JSON; names that end in _bytes use {"b64": ...}."""
    if array.dtype != object:
        return (
            shorten_floats(array).tolist() if array.dtype.name in _SHORT_FLOATS else array.tolist()
        )

    def convert(value: list[Any] | str | bytes) -> Json:
        if isinstance(value, list):
            return [convert(v) for v in value]
        if not name.endswith("_bytes"):
            return decode_text(value)
        data = value.encode() if isinstance(value, str) else bytes(value)
        return {"b64": base64.b64encode(data).decode()}

    return convert(array.tolist())


def decode_text(value: str | bytes) -> str:
    """Decode a string of a tensor as UTF-8, with replacement of invalid bytes."""
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


def describe_specs(specs: Specs) -> dict[str, Json]:
    """Describe specs as the JSON of TensorFlow's TensorInfo messages."""
    infos = {}
    for name, spec in specs.items():
        sizes = spec.shape.as_list() if spec.shape.rank is not None else []
        dims = [{"size": str(-1 if d is None else d), "name": ""} for d in sizes]
        kind = _DTYPE_NAMES.get(spec.dtype.name, f"DT_{spec.dtype.name.upper()}")
        shape = {"dim": dims, "unknown_rank": spec.shape.rank is None}
        infos[name] = {"dtype": kind, "tensor_shape": shape, "name": name}
    return infos
