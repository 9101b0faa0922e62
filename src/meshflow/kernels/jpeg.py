"""JPEG images by libjpeg, without Pillow's detours; what it cannot decode is left to Pillow."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.limits import image_limit
from meshflow.kernels import library

__all__ = ["available", "decoded", "libraries"]


class _Decoder(NamedTuple):
    size: Callable[..., int]
    pixels: Callable[..., int]


def libraries(pattern: str) -> list[Path]:
    """Shared libraries that Pillow's wheel brings along.

    Args:
      pattern: of their names.
    """
    try:
        import PIL  # noqa: PLC0415 - optional: without it other code decodes
    except ImportError:
        return []
    return sorted((Path(PIL.__path__[0]).parent / "pillow.libs").glob(pattern))


@functools.cache
def _decoder() -> _Decoder | None:
    """The compiled decoder with the libjpeg in Pillow's wheel; None where one of them is missing."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_jpeg", None) if loaded else None
    if loaded is None or function is None:
        return None
    # Version 6.2 of the interface, as file names have it.
    for path in libraries("libjpeg-*.so.62.*"):
        if loaded.compiled.meshflow_jpeg_library(str(path).encode()) == 0:
            number, address = ctypes.c_int, ctypes.c_void_p
            # The size is found in less time than the interpreter's lock takes to come back.
            quick = ctypes.PyDLL(loaded.compiled._name).meshflow_jpeg
            for each in (function, quick):
                each.argtypes = [
                    *(ctypes.c_char_p, ctypes.c_int64, number, number, number, number),
                    *(address, address),
                ]
            return _Decoder(quick, function)
    return None


def available() -> bool:
    """Whether there is a compiled decoder."""
    return _decoder() is not None


def decoded(
    contents: bytes, channels: int, ratio: int, fast: bool, fancy: bool
) -> np.ndarray | None:
    """The pixels of a JPEG image.

    Args:
      contents: the file's bytes.
      channels: 1 or 3; 0 for as many as it has.
      ratio: 1, 2, 4 or 8: how much smaller the result is.
      fast: whether the transform may be inexact.
      fancy: whether halved colours are interpolated.

    Returns:
      uint8 [height, width, channels]; None when it cannot be decoded here.
    """
    decoder = _decoder()
    if decoder is None:
        return None
    options = len(contents), channels, ratio, int(fast), int(fancy)
    shape = np.zeros(3, np.int32)
    place = shape.ctypes.data
    if decoder.size(contents, *options, place, None):
        return None
    # Whole, as progressive images are held; Pillow's part says what is wrong with larger ones.
    if math.prod(shape.tolist()) * ratio**2 > image_limit():
        return None
    pixels = np.empty(shape.tolist(), np.uint8)
    failed = decoder.pixels(contents, *options, place, pixels.ctypes.data)
    return None if failed else pixels
