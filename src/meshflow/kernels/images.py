"""Loading of images in input pipelines: one compiled call reads, decodes, resizes and scales them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.limits import get_image_limit
from meshflow.kernels import jpeg, library, row_gather

# Bits of `mirrored`.
LEFT_RIGHT, UP_DOWN = 1, 2


class ImageLoadingOptions(NamedTuple):
    """Options for loading files as images of one size.

    Attributes:
      are_paths: Whether files are given as paths instead of contents.
      channels: 1 or 3.
      ratio: 1, 2, 4 or 8: divisor of the size while decoding.
      fast: Whether the inverse transform may be inexact.
      fancy: Whether subsampled chroma is interpolated.
      height: Height after bilinear resizing.
      width: Width after bilinear resizing.
      steps: Operations with constants before resizing, in float32.
      crop_fraction: Fraction of height and width that is cropped from the center before resizing.
    """

    are_paths: bool
    channels: int
    ratio: int
    fast: bool
    fancy: bool
    height: int
    width: int
    steps: tuple[row_gather.RowStep, ...] = ()
    crop_fraction: float = 1.0


class _DecoderOptions(ctypes.Structure):
    """Options of the decoder, as in jpeg.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("channels", "ratio", "fast", "fancy")),
        ("limit", ctypes.c_int64),
    ]


@functools.cache
def _find_compiled_loop() -> Callable[..., None] | None:
    """Return the compiled loop, or None if it or libjpeg is missing."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_images", None) if loaded else None
    if function is None or not jpeg.is_available():
        return None
    address, integer, steps = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.POINTER(row_gather.PackedSteps),
    )
    function.argtypes = [
        *(address, address, integer, ctypes.c_int, ctypes.POINTER(_DecoderOptions)),
        *(ctypes.c_double, integer, integer, address, steps, steps, address, address, address),
    ]
    function.restype = None
    _find_png_decoder()
    return function


@functools.cache
def _find_png_decoder() -> Callable[..., int] | None:
    """Return the compiled decoder with the libpng of Pillow's wheel, or None if one is missing."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_png", None) if loaded else None
    for path in jpeg.find_pillow_libraries("libpng16-*.so.16.*") if function is not None else ():
        if loaded is not None and loaded.compiled.meshflow_png_library(str(path).encode()) == 0:
            integer, address = ctypes.c_int, ctypes.c_void_p
            size = ctypes.c_int64
            function.argtypes = [ctypes.c_char_p, size, integer, size, address, address]
            return function
    return None


def decode_png(contents: bytes, channels: int) -> np.ndarray | None:
    """Decode a PNG image.

    Args:
      contents: Bytes of the file.
      channels: 1 or 3.

    Returns:
      uint8 [height, width, channels], or None if the file does not contain such pixels of 8 bits.
    """
    decode = _find_png_decoder()
    shape = np.zeros(3, np.int32)
    options = contents, len(contents), channels, get_image_limit(), shape.ctypes.data
    if decode is None or decode(*options, None):
        return None
    pixels = np.empty(shape.tolist(), np.uint8)
    return None if decode(*options, pixels.ctypes.data) else pixels


def load_images(
    files: Sequence[bytes],
    options: ImageLoadingOptions,
    windows: np.ndarray,
    steps: Sequence[Sequence[row_gather.RowStep]],
    mirrored: np.ndarray,
    out: Sequence[np.ndarray],
) -> np.ndarray:
    """Load JPEG and PNG images while Python's global interpreter lock is released.

    Args:
      files: Paths or contents of files.
      options: Loading options.
      windows: int64 [count, 4]: top, left, height and width of each crop after resizing.
      steps: Operations on each image's crop.
      mirrored: uint8 [count]: the bits `LEFT_RIGHT` and `UP_DOWN` mirror images at the end.
      out: A float32 array for each image, with the size of its crop and the channels.

    Returns:
      bool [count]: images that could not be loaded, because of damage, the format or a missing
      file.
    """
    failed = np.ones(len(files), np.bool_)
    loop = _find_compiled_loop()
    if loop is not None:
        count = len(files)
        sizes = np.array([len(text) for text in files], np.int64)
        windows = np.ascontiguousarray(windows, np.int64)
        mirrored = np.ascontiguousarray(mirrored, np.uint8)
        # Equal sequences of operations are packed only once.
        packed = {id(s): row_gather.PackedSteps(s) for s in steps}
        loop(
            (ctypes.c_char_p * count)(*files),
            sizes.ctypes.data,
            count,
            options.are_paths,
            _DecoderOptions(
                options.channels, options.ratio, options.fast, options.fancy, get_image_limit()
            ),
            options.crop_fraction,
            options.height,
            options.width,
            windows.ctypes.data,
            row_gather.PackedSteps(options.steps),
            (row_gather.PackedSteps * count)(*[packed[id(s)] for s in steps]),
            mirrored.ctypes.data,
            (ctypes.c_void_p * count)(*[image.ctypes.data for image in out]),
            failed.ctypes.data,
        )
    return failed
