"""Images of input pipelines, read, decoded, resized and scaled by one compiled call."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.limits import image_limit
from meshflow.kernels import jpeg, library, row_gather

__all__ = ["LEFT_RIGHT", "UP_DOWN", "Loading", "load"]

# Bits of `mirrored`.
LEFT_RIGHT, UP_DOWN = 1, 2


class Loading(NamedTuple):
    """How files become images of one size.

    Attributes:
      paths: whether files are given by their paths, not by their contents.
      channels: 1 or 3.
      ratio: 1, 2, 4 or 8: how much smaller images are decoded.
      fast: whether the transform may be inexact.
      fancy: whether halved colours are interpolated.
      height: the height after bilinear resizing.
      width: the width, likewise.
      before: operations with scalars that come before resizing, in float32.
      share: how much of height and width is taken before resizing, from the middle.
    """

    paths: bool
    channels: int
    ratio: int
    fast: bool
    fancy: bool
    height: int
    width: int
    before: tuple[row_gather.Step, ...] = ()
    share: float = 1.0


class _Options(ctypes.Structure):
    """Options of the decoder, as jpeg.h has them."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("channels", "ratio", "fast", "fancy")),
        ("limit", ctypes.c_int64),
    ]


@functools.cache
def _loop() -> Callable[..., None] | None:
    """The compiled loop; None where it, or libjpeg, is missing."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_images", None) if loaded else None
    if function is None or not jpeg.available():
        return None
    address, number, steps = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(row_gather.Packed)
    function.argtypes = [
        *(address, address, number, ctypes.c_int, ctypes.POINTER(_Options)),
        *(ctypes.c_double, number, number, address, steps, steps, address, address, address),
    ]
    function.restype = None
    for path in jpeg.libraries("libpng16-*.so.16.*"):
        if loaded is not None and loaded.compiled.meshflow_png_library(str(path).encode()) == 0:
            break
    return function


def load(
    texts: Sequence[bytes],
    how: Loading,
    windows: np.ndarray,
    after: Sequence[Sequence[row_gather.Step]],
    mirrored: np.ndarray,
    out: Sequence[np.ndarray],
) -> np.ndarray:
    """Loads JPEG and PNG images, without the interpreter's lock.

    Args:
      texts: paths or contents of files.
      how: what is done to them.
      windows: int64 [count, 4], top, left, height and width of the part that is taken after resizing.
      after: operations on each image's part.
      mirrored: uint8 [count], `LEFT_RIGHT` and `UP_DOWN` where images are mirrored in the end.
      out: an array for each image, float32, of the size of its window and with the channels.

    Returns:
      bool [count]: which could not be loaded here, as they are damaged, of another kind, or no files.
    """
    failed = np.ones(len(texts), np.bool_)
    loop = _loop()
    if loop is not None:
        count = len(texts)
        sizes = np.array([len(text) for text in texts], np.int64)
        windows = np.ascontiguousarray(windows, np.int64)
        mirrored = np.ascontiguousarray(mirrored, np.uint8)
        # The same operations are packed once.
        packed = {id(steps): row_gather.Packed(steps) for steps in after}
        loop(
            (ctypes.c_char_p * count)(*texts),
            sizes.ctypes.data,
            count,
            how.paths,
            _Options(how.channels, how.ratio, how.fast, how.fancy, image_limit()),
            how.share,
            how.height,
            how.width,
            windows.ctypes.data,
            row_gather.Packed(how.before),
            (row_gather.Packed * count)(*[packed[id(steps)] for steps in after]),
            mirrored.ctypes.data,
            (ctypes.c_void_p * count)(*[image.ctypes.data for image in out]),
            failed.ctypes.data,
        )
    return failed
