"""Decoding of JPEG images by libjpeg, without Pillow's overhead; Pillow decodes unsupported files."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.limits import get_image_limit
from meshflow.kernels import library


class _JpegDecoder(NamedTuple):
    read_size: Callable[..., int]
    read_pixels: Callable[..., int]


def find_pillow_libraries(pattern: str) -> list[Path]:
    """Return the shared libraries in Pillow's wheel with names that match a glob pattern."""
    try:
        import PIL  # noqa: PLC0415 - optional; without it, other code decodes images
    except ImportError:
        return []
    return sorted((Path(PIL.__path__[0]).parent / "pillow.libs").glob(pattern))


@functools.cache
def _find_decoder() -> _JpegDecoder | None:
    """Return the compiled decoder with the libjpeg of Pillow's wheel, or None if one is missing."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_jpeg", None) if loaded else None
    if loaded is None or function is None:
        return None
    # File names contain the version of the interface, 6.2.
    for path in find_pillow_libraries("libjpeg-*.so.62.*"):
        if loaded.compiled.meshflow_jpeg_library(str(path).encode()) == 0:
            integer, address = ctypes.c_int, ctypes.c_void_p
            # Reading the size takes less time than releasing and acquiring the interpreter lock
            # again.
            locked = ctypes.PyDLL(loaded.compiled._name).meshflow_jpeg
            for f in (function, locked):
                f.argtypes = [
                    *(ctypes.c_char_p, ctypes.c_int64, integer, integer, integer, integer),
                    *(address, address),
                ]
            return _JpegDecoder(locked, function)
    return None


def is_available() -> bool:
    """Check whether there is a compiled decoder."""
    return _find_decoder() is not None


def decode(
    contents: bytes, channels: int, ratio: int, fast: bool, fancy: bool
) -> np.ndarray | None:
    """Decode a JPEG image.

    Args:
      contents: Bytes of the file.
      channels: 1 or 3; 0 for those of the file.
      ratio: 1, 2, 4 or 8: divisor of the size.
      fast: Whether the inverse transform may be inexact.
      fancy: Whether subsampled chroma is interpolated.

    Returns:
      uint8 [height, width, channels], or None if the file is not supported.
    """
    decoder = _find_decoder()
    if decoder is None:
        return None
    options = len(contents), channels, ratio, int(fast), int(fancy)
    shape = np.zeros(3, np.int32)
    address = shape.ctypes.data
    if decoder.read_size(contents, *options, address, None):
        return None
    # The limit applies to the full size, in which progressive images are buffered. Pillow reports
    # the error.
    if math.prod(shape.tolist()) * ratio**2 > get_image_limit():
        return None
    pixels = np.empty(shape.tolist(), np.uint8)
    failed = decoder.read_pixels(contents, *options, address, pixels.ctypes.data)
    return None if failed else pixels
