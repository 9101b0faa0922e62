"""Bilinear resizing of host images, by a compiled loop or by NumPy with equal results."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.kernels import library


class _Positions(NamedTuple):
    """Indices of the old pixels before and after each new one, and the fraction between them."""

    low: np.ndarray
    high: np.ndarray
    fraction: np.ndarray
    addresses: tuple[int, int, int]


@functools.lru_cache(1024)
def _compute_positions(new: int, old: int, channels: int) -> _Positions:
    """Compute the positions along one axis, for each channel of each pixel."""
    position = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    position -= np.float32(0.5)
    first = np.floor(position)
    pixels = (np.clip(p, 0, old - 1).astype(np.int32) for p in (first, np.ceil(position)))
    low, high = (
        (p[:, None] * np.int32(channels) + np.arange(channels, dtype=np.int32)).reshape(-1)
        for p in pixels
    )
    fraction = np.repeat(position - first, channels)
    return _Positions(
        low, high, fraction, (low.ctypes.data, high.ctypes.data, fraction.ctypes.data)
    )


@functools.cache
def _find_compiled_loop() -> Callable[..., int] | None:
    """Return the compiled loop, or None."""
    loaded = library.load()
    function: Any = getattr(loaded.compiled, "meshflow_bilinear", None) if loaded else None
    if function is not None:
        address, integer = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [
            *(address, ctypes.c_int, integer, address, address, address, integer, integer),
            *(address, address, address, integer, address),
        ]
    return function


def resize_bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an image with bilinear interpolation.

    Args:
      image: Array [height, width, channels], without empty dimensions.
      height: New height.
      width: New width.

    Returns:
      float32 [height, width, channels].
    """
    channels = image.shape[2]
    across = _compute_positions(width, image.shape[1], channels)
    down = _compute_positions(height, image.shape[0], 1)
    loop = _find_compiled_loop()
    if image.dtype != np.uint8 or loop is None:
        image = image.astype(np.float32, copy=False)
    image = np.ascontiguousarray(image).reshape(len(image), -1)
    out = np.empty((height, width * channels), np.float32)
    if loop is None:
        left, right = (image.take(i, 1) for i in across[:2])
        # In place, because allocating these arrays would take most of the time.
        right -= left
        right *= across.fraction
        right += left
        upper, lower = (right.take(i, 0) for i in down[:2])
        lower -= upper
        lower *= down.fraction[:, None]
        np.add(upper, lower, out=out)
    else:
        failed = loop(
            image.ctypes.data,
            image.dtype == np.uint8,
            image.shape[1],
            *across.addresses,
            out.shape[1],
            channels,
            *down.addresses,
            height,
            out.ctypes.data,
        )
        if failed:
            raise MemoryError("Not enough memory to resize an image.")
    return out.reshape(height, width, channels)
