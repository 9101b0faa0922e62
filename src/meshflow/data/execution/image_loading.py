"""Inputs of map functions that are made of image files: found in what the functions do on the host.

Files that are read, decoded, cut, scaled by constants and resized become images by one compiled call
(`kernels/images.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.values import dtypes
from meshflow.kernels import images, row_gather
from meshflow.ops import casting
from meshflow.ops import image as image_ops
from meshflow.ops import math as math_ops
from meshflow.ops.deferred_host_values import Call, Part, Pending
from meshflow.ops.files import read_file

__all__ = ["Loader", "find"]

_FLOAT = np.dtype(np.float32)


class Loader(NamedTuple):
    """An input that is made of image files.

    Attributes:
      text: where their paths or contents come from.
      how: how they become images.
    """

    text: Any
    how: images.Loading


def _bound(call: Call) -> dict[str, Any]:
    bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    return bound.arguments


def _called(value: Any) -> Call | None:
    """The call that a pending value comes from."""
    known = isinstance(value, Pending) and isinstance(value.source, Part)
    return value.source.call if known else None


def find(source: Any) -> Loader | None:
    """How an input is made of image files; None when it is not."""
    if not isinstance(source, Part) or source.call.function is not image_ops.resize:
        return None
    resize = _bound(source.call)
    if resize["method"] != "bilinear" or resize["antialias"] or resize["preserve_aspect_ratio"]:
        return None
    before: list[row_gather.Step] = []
    value, share = resize["images"], 1.0
    while (call := _called(value)) is not None:
        if call.function is image_ops.central_crop and share == 1:
            cropped = _bound(call)
            value, share = cropped["image"], float(cropped["central_fraction"])
            continue
        found = _scaled(call)
        if found is None:
            break
        value, steps = found
        before[:0] = steps
    how = None if call is None else _decoding(call)
    if call is None or how is None:
        return None
    contents = _bound(call)["contents"]
    height, width = (int(n) for n in np.asarray(resize["size"]))
    reading = _called(contents)
    paths = reading is not None and reading.function is read_file
    text = _bound(reading)["filename"] if paths else contents  # type: ignore[arg-type]
    if not isinstance(text, Pending):
        return None
    return Loader(text.source, images.Loading(paths, *how, height, width, tuple(before), share))


def _decoding(call: Call) -> tuple[int, int, bool, bool] | None:
    """Channels, ratio, speed and interpolation of a call that decodes an image to bytes."""
    options = _bound(call) if call.function in _DECODERS else {}
    if options.get("channels") not in (1, 3) or options.get("dtype", dtypes.uint8) != dtypes.uint8:
        return None
    fast = options.get("dct_method", "") != "INTEGER_ACCURATE"
    fancy = bool(options.get("fancy_upscaling", True))
    return options["channels"], options.get("ratio", 1), fast, fancy


def _scaled(call: Call) -> tuple[Any, list[row_gather.Step]] | None:
    """What a call scales by constants, in float32, and how."""
    options = _bound(call)
    if call.function is image_ops.convert_image_dtype:
        value, wanted = options["image"], dtypes.as_dtype(options["dtype"])
        if isinstance(value, Pending) and (value.dtype.name, wanted.name) == ("uint8", "float32"):
            return value, [_step("mul", 1.0 / 255)]
    elif call.function is casting._cast:
        value, wanted = options["x"], dtypes.as_dtype(options["dtype"])
        if isinstance(value, Pending) and (value.dtype.name, wanted.name) == ("uint8", "float32"):
            return value, []
    elif call.function in _OPERATIONS:
        value, constant = options["x"], options["y"]
        scales = isinstance(value, Pending) and value.dtype.name == "float32"
        if scales and type(constant) in (int, float):
            return value, [_step(_OPERATIONS[call.function], constant)]
    return None


def _step(operation: str, value: float) -> row_gather.Step:
    return row_gather.Step(operation, np.array(value, _FLOAT))


_DECODERS = (
    image_ops.decode_jpeg,
    image_ops.decode_png,
    image_ops.decode_image,
    image_ops.decode_bmp,
)
_OPERATIONS: dict[Callable[..., Any], str] = {
    math_ops.add: "add",
    math_ops.subtract: "sub",
    math_ops.multiply: "mul",
    math_ops.truediv: "div",
}
