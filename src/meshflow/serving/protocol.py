"""TensorFlow Serving's JSON: rows or columns to arrays, and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.specs import TensorSpec

__all__ = [
    "DEFAULT_SIGNATURE",
    "Specs",
    "check_names",
    "check_shape",
    "columns",
    "decoded_bytes",
    "described",
    "is_bytes",
    "parsed",
    "response",
    "shortest",
    "text_of",
]

Specs = Mapping[str, TensorSpec]

# What TensorFlow's messages call a dtype.
_NAMES = {
    "float16": "DT_HALF", "bfloat16": "DT_BFLOAT16", "float32": "DT_FLOAT", "float64": "DT_DOUBLE",
    "bool": "DT_BOOL", "string": "DT_STRING", "complex64": "DT_COMPLEX64", "complex128": "DT_COMPLEX128",
}  # fmt: skip

DEFAULT_SIGNATURE = "serving_default"
# Floats of fewer bits than JSON's numbers, and the digits that are tried.
_SHORT = {"float16", "bfloat16", "float32"}
_DIGITS = (3, 5, 6, 7, 8, 9)


def parsed(body: bytes) -> tuple[Mapping[str, Any], str]:
    """A request's JSON, which is an object, and the signature that it asks for.

    Args:
      body: the request.

    Raises:
      InvalidArgumentError: for anything else.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"JSON Parse error: {error}") from None
    if not isinstance(found, Mapping):
        raise InvalidArgumentError("JSON Parse error: the request must be an object.")
    name = found.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidArgumentError(f"'signature_name' key must be a string value, got {name!r}.")
    return found, name or DEFAULT_SIGNATURE


def columns(body: Mapping[str, Any], specs: Specs) -> tuple[dict[str, np.ndarray], bool]:
    """The arrays of a request by the names of inputs.

    Args:
      body: the request's JSON: {"instances": rows} or {"inputs": columns}.
      specs: of the signature's inputs.

    Returns:
      (arrays, whether the request came as rows).

    Raises:
      InvalidArgumentError: for what does not fit the specs.
    """
    if ("instances" in body) == ("inputs" in body):
        both = "Both 'inputs' and 'instances' keys are given" if "inputs" in body else "Missing 'inputs' or 'instances' key"  # fmt: skip
        raise InvalidArgumentError(both)
    if "inputs" in body:
        given = body["inputs"]
        if not isinstance(given, Mapping) or is_bytes(given):
            given = {_only(specs, "inputs"): given}
        # Values that the signature does not take are passed over, as TensorFlow Serving does.
        check_names({name: given[name] for name in specs if name in given}, specs, "inputs")
        return {name: _array(name, given[name], spec) for name, spec in specs.items()}, False
    rows = body["instances"]
    if not isinstance(rows, list) or not rows:
        raise InvalidArgumentError("Values in 'instances' key are expected to be a non-empty list.")
    objects = [isinstance(row, Mapping) and not is_bytes(row) for row in rows]
    if not any(objects):
        name = _only(specs, "instances")
        arrays = {name: _array(name, rows, specs[name])}
    elif not all(objects):
        raise InvalidArgumentError(
            "'instances' holds both objects with named values and plain values."
        )
    else:
        for i, row in enumerate(rows):
            check_names(row, specs, f"element {i} of 'instances'")
        arrays = {n: _array(n, [row[n] for row in rows], spec) for n, spec in specs.items()}
    return arrays, True


def _only(specs: Specs, where: str) -> str:
    if len(specs) != 1:
        raise InvalidArgumentError(
            f"The signature takes {sorted(specs)}: values in '{where}' must be named."
        )
    return next(iter(specs))


def check_names(given: Mapping[str, Any], specs: Specs, where: str) -> None:
    """Raises a `InvalidArgumentError` unless values are given for a signature's inputs, and for nothing else.

    Args:
      given: values by name.
      specs: of the inputs.
      where: where they stand, for the error.
    """
    missing, unknown = sorted(set(specs) - set(given)), sorted(set(given) - set(specs))
    if missing or unknown:
        raise InvalidArgumentError(
            f"Failed to process {where}: the signature takes {sorted(specs)}; missing {missing}, unknown {unknown}."
        )


def is_bytes(value: Any) -> bool:
    """Whether a value of JSON stands for bytes, as {"b64": "aGk="} does."""
    return isinstance(value, Mapping) and set(value) == {"b64"}


def decoded_bytes(value: Any) -> Any:
    """What a value of JSON is as bytes: a string's UTF-8, what {"b64": ...} stands for; of others itself.

    Raises:
      InvalidArgumentError: for what is not base 64.
    """
    if isinstance(value, str):
        return value.encode()
    if is_bytes(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"Unable to base64 decode: {error}.") from None
    return value


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value), *(_shape(value[0]) if value else ())) if isinstance(value, list) else ()


def _array(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    try:
        array = _texts(value) if spec.dtype.name == "string" else _numbers(value, spec)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"Failed to process the values of input '{name}': {error}."
        ) from None
    check_shape(name, array, spec)
    return array


def _texts(value: Any) -> np.ndarray:
    """Nested lists of strings as an array of bytes."""
    array = np.empty(_shape(value), object)

    def fill(part: Any, place: tuple[int, ...]) -> None:
        whole = array.shape[len(place) :]
        if isinstance(part, list) != bool(whole) or (whole and len(part) != whole[0]):
            raise ValueError("rows differ in length")
        if whole:
            for i, inner in enumerate(part):
                fill(inner, (*place, i))
            return
        array[place] = decoded_bytes(part)
        if not isinstance(array[place], bytes):
            raise ValueError(f"{part!r} is no string")

    fill(value, ())
    return array


def _numbers(value: Any, spec: TensorSpec) -> np.ndarray:
    """Nested lists of numbers, or of truth values, as an array of a spec's dtype."""
    try:
        plain = np.asarray(value)
    except ValueError:
        raise ValueError("rows differ in length, or there are too many dimensions") from None
    wanted = np.dtype(spec.dtype.dtype)
    if not plain.size:
        return plain.astype(wanted)
    if plain.dtype.kind == "O" and all(type(v) is int for v in plain.flat):
        raise ValueError("there are integers of more than 64 bits")
    if plain.dtype.kind not in "biuf":
        raise ValueError("the values are no numbers of a regular shape")
    if (plain.dtype.kind == "b") != (wanted.kind == "b"):
        raise ValueError(f"the values are not of type {spec.dtype.name}")
    if wanted.kind in "iu":
        if plain.dtype.kind == "f":
            raise ValueError(f"the values are no integers of type {spec.dtype.name}")
        bounds = np.iinfo(wanted)
        if plain.min() < bounds.min or plain.max() > bounds.max:
            raise ValueError(
                f"there are values outside of {spec.dtype.name}, {bounds.min} to {bounds.max}"
            )
    return plain.astype(wanted)


def check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> None:
    """Raises a `InvalidArgumentError` unless an input has the shape that the signature takes.

    Args:
      name: the input's name.
      array: its value.
      spec: what the signature takes.
    """
    if not spec.shape.is_compatible_with(array.shape):
        raise InvalidArgumentError(
            f"Input '{name}' has shape {list(array.shape)}, expected {spec.shape.as_list()} of {spec.dtype.name}."
        )


def response(outputs: Mapping[str, np.ndarray], rows: bool) -> dict[str, Any]:
    """The JSON of results.

    Args:
      outputs: arrays by name.
      rows: whether the request came as rows.

    Raises:
      InvalidArgumentError: when rows were asked for and results have different numbers of them.
    """
    values = {name: _plain(name, array) for name, array in outputs.items()}
    one = next(iter(values)) if len(values) == 1 else None
    if not rows:
        return {"outputs": values if one is None else values[one]}
    counts = {name: array.shape[0] if array.ndim else -1 for name, array in outputs.items()}
    if len(set(counts.values())) != 1 or -1 in counts.values():
        raise InvalidArgumentError(
            f"Tensors {counts} have no common number of rows: ask with 'inputs'."
        )
    if one is not None:
        return {"predictions": values[one]}
    return {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}  # fmt: skip


def shortest(array: np.ndarray) -> np.ndarray:
    """Floats of fewer than 64 bits as doubles that are written in as few digits as tell them apart, very large ones in nine.

    Args:
      array: of any dtype of floats.

    Example:
      >>> from meshflow.serving.protocol import shortest
      >>> shortest(np.array([0.1, 1e20, np.inf], np.float32)).tolist()
      [0.1, 1e+20, inf]
    """
    exact = np.asarray(array, np.float64).reshape(-1)
    found = exact.copy()
    left = np.flatnonzero(np.isfinite(exact) & (exact != 0))
    for digits in _DIGITS:
        values = exact[left]
        places = digits - 1 - np.floor(np.log10(np.abs(values)))
        # Powers of ten up to 22 are exact, so that the quotient is the double next to the decimal.
        up, down = 10.0 ** np.clip(places, 0, 22), 10.0 ** np.clip(-places, 0, 22)
        short = np.round(values * up / down) / up * down
        with np.errstate(over="ignore", under="ignore"):
            fits = short.astype(array.dtype).astype(np.float64) == values
        found[left[fits]] = short[fits]
        left = left[~fits]
    return found.reshape(np.shape(array))


def _plain(name: str, array: np.ndarray) -> Any:
    """Nested lists; strings as text, or as {"b64": ...} for names that end in _bytes."""
    if array.dtype != object:
        return shortest(array).tolist() if array.dtype.name in _SHORT else array.tolist()

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(v) for v in value]
        if not name.endswith("_bytes"):
            return text_of(value)
        data = value.encode() if isinstance(value, str) else bytes(value)
        return {"b64": base64.b64encode(data).decode()}

    return one(array.tolist())


def text_of(value: str | bytes) -> str:
    """A string of a tensor as text; bytes that are no UTF-8 are replaced."""
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


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
