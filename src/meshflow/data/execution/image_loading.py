"""Recognition of the loading of image files in map functions.

Reading, decoding, cropping, scaling and resizing are executed by one compiled call
(`kernels/images.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshflow.core.values import dtypes
from meshflow.kernels import images, row_gather
from meshflow.ops import casting
from meshflow.ops import image as image_ops
from meshflow.ops import math as math_ops
from meshflow.ops.deferred_host_values import (
    Argument,
    CallResult,
    DeferredValue,
    KeyDraw,
    RecordedHostCall,
)
from meshflow.ops.files import read_file

_FLOAT32 = np.dtype(np.float32)


# The origin of an input of a recorded function.
Source: TypeAlias = Argument | KeyDraw | CallResult


class ImageLoader(NamedTuple):
    """The loading of one input of a map function from image files.

    Attributes:
      text: Source of the paths or the contents of the files.
      options: Arguments of the compiled call.
    """

    text: Any
    options: images.ImageLoadingOptions


def _bind_arguments(call: RecordedHostCall) -> dict[str, Any]:
    """Return the arguments of a call by parameter name, including defaults."""
    bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    return bound.arguments


def _get_call(value: object) -> RecordedHostCall | None:
    """Return the call that produced a deferred value, None for other values."""
    if isinstance(value, DeferredValue) and isinstance(value.source, CallResult):
        return value.source.call
    return None


def find_image_loader(source: Source) -> ImageLoader | None:
    """Recognize an input that is loaded from image files.

    Args:
      source: Source of the input.

    Returns:
      The loader, or None if the input is computed in another way.
    """
    if not isinstance(source, CallResult) or source.call.function is not image_ops.resize:
        return None
    resize = _bind_arguments(source.call)
    if resize["method"] != "bilinear" or resize["antialias"] or resize["preserve_aspect_ratio"]:
        return None
    steps: list[row_gather.RowStep] = []
    value, fraction = resize["images"], 1.0
    while (call := _get_call(value)) is not None:
        if call.function is image_ops.central_crop and fraction == 1:
            arguments = _bind_arguments(call)
            value, fraction = arguments["image"], float(arguments["central_fraction"])
            continue
        scaling = _parse_scaling(call)
        if scaling is None:
            break
        value, earlier_steps = scaling
        steps[:0] = earlier_steps
    options = None if call is None else _parse_decoding(call)
    if call is None or options is None:
        return None
    contents = _bind_arguments(call)["contents"]
    height, width = (int(n) for n in np.asarray(resize["size"]))
    reading = _get_call(contents)
    are_paths = reading is not None and reading.function is read_file
    text = _bind_arguments(reading)["filename"] if are_paths else contents  # type: ignore[arg-type]
    if not isinstance(text, DeferredValue):
        return None
    loading = images.ImageLoadingOptions(are_paths, *options, height, width, tuple(steps), fraction)
    return ImageLoader(text.source, loading)


def _parse_decoding(call: RecordedHostCall) -> tuple[int, int, bool, bool] | None:
    """Return the options of a call that decodes an image to uint8, None for other calls.

    Returns:
      Channels, ratio, whether the DCT is fast, whether upscaling is fancy.
    """
    options = _bind_arguments(call) if call.function in _DECODERS else {}
    if options.get("channels") not in (1, 3) or options.get("dtype", dtypes.uint8) != dtypes.uint8:
        return None
    fast = options.get("dct_method", "") != "INTEGER_ACCURATE"
    fancy = bool(options.get("fancy_upscaling", True))
    return options["channels"], options.get("ratio", 1), fast, fancy


def _parse_scaling(call: RecordedHostCall) -> tuple[Any, list[row_gather.RowStep]] | None:
    """Return the operand and the steps of a call that scales by constants.

    Returns:
      The operand and its operations in float32, or None for other calls.
    """
    options = _bind_arguments(call)
    if call.function is image_ops.convert_image_dtype:
        value, dtype = options["image"], dtypes.as_dtype(options["dtype"])
        if isinstance(value, DeferredValue) and (value.dtype.name, dtype.name) == (
            "uint8",
            "float32",
        ):
            return value, [_make_step("mul", 1.0 / 255)]
    elif call.function is casting.cast_tensor:
        value, dtype = options["x"], dtypes.as_dtype(options["dtype"])
        if isinstance(value, DeferredValue) and (value.dtype.name, dtype.name) == (
            "uint8",
            "float32",
        ):
            return value, []
    elif call.function in _OPERATIONS:
        value, constant = options["x"], options["y"]
        is_float = isinstance(value, DeferredValue) and value.dtype.name == "float32"
        if is_float and type(constant) in (int, float):
            return value, [_make_step(_OPERATIONS[call.function], constant)]
    return None


def _make_step(operation: str, value: float) -> row_gather.RowStep:
    return row_gather.RowStep(operation, np.array(value, _FLOAT32))


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
