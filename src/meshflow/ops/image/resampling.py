"""Weights for resizing: how much each old pixel counts for each new one, along one dimension.

A new pixel i has its centre at (i + 1/2) * old / new in the old image. Old pixels within the
kernel's radius count by their distance, and the weights are scaled to add up to 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.kernels import resize

__all__ = ["METHODS", "resized", "weights"]

# Cubic interpolation without antialiasing takes its weights at 1024 places between two pixels.
_CUBIC_STEPS = 1024


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: np.ndarray, b: float, c: float) -> np.ndarray:
    """The cubics of Mitchell and Netravali, 'Reconstruction Filters in Computer Graphics' (1988)."""
    x = np.abs(x)
    near = (12 - 9 * b - 6 * c) * x**3 + (-18 + 12 * b + 6 * c) * x**2 + 6 - 2 * b
    far = (-b - 6 * c) * x**3 + (6 * b + 30 * c) * x**2 + (-12 * b - 48 * c) * x + 8 * b + 24 * c
    return np.where(x < 1, near, np.where(x < 2, far, 0.0)) / 6


def _lanczos(x: np.ndarray, radius: float) -> np.ndarray:
    return np.where(np.abs(x) <= radius, np.sinc(x) * np.sinc(x / radius), 0.0)


def _gaussian(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1.5, np.exp(-2.0 * x * x), 0.0)


_KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bilinear": _triangle,
    "bicubic": lambda x: _cubic(x, 0.0, 0.5),
    "mitchellcubic": lambda x: _cubic(x, 1 / 3, 1 / 3),
    "lanczos3": lambda x: _lanczos(x, 3.0),
    "lanczos5": lambda x: _lanczos(x, 5.0),
    "gaussian": _gaussian,
}
METHODS = (*_KERNELS, "area", "nearest")


@functools.cache
def weights(new: int, old: int, method: str, antialias: bool) -> np.ndarray:
    """The weights, an array [new, old].

    Args:
      new: number of new pixels.
      old: number of old pixels.
      method: one of `METHODS` except 'nearest'.
      antialias: whether the kernel widens when there are fewer new pixels than old ones.

    Returns:
      float64 array whose rows add up to 1.
    """
    scale = old / new
    if method == "area":
        low = np.arange(new)[:, None] * scale
        pixels: np.ndarray = np.arange(old)[None, :]
        covered = np.minimum(low + scale, pixels + 1) - np.maximum(low, pixels)
        found = np.maximum(covered, 0.0)
    elif method == "bicubic" and not antialias:
        place = (np.arange(new) + 0.5) * scale - 0.5
        first = np.floor(place)
        fraction = np.rint((place - first) * _CUBIC_STEPS) / _CUBIC_STEPS
        found = _cubic(np.arange(old)[None, :] - (first + fraction)[:, None], 0.0, 0.5)
    else:
        # In float32 like TensorFlow, as rounding decides which pixel at a kernel's edge counts.
        step = np.float32(scale)
        if antialias or method != "bilinear":
            step = np.float32(1) / np.float32(new / old)
        narrow = np.float32(1) / max(step, np.float32(1)) if antialias else np.float32(1)
        centres = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * step
        pixels = np.arange(old, dtype=np.float32) + np.float32(0.5)
        found = _KERNELS[method]((pixels[None, :] - centres[:, None]) * narrow).astype(np.float64)
    total = found.sum(1, keepdims=True)
    return found / np.where(np.abs(total) < math.ulp(1000.0), 1.0, total)


def resized(image: np.ndarray, height: int, width: int, method: str) -> np.ndarray:
    """An image in another size, computed by NumPy; what pipelines use, whose images have all sizes.

    Args:
      image: array [height, width, channels].
      height: the new height.
      width: the new width.
      method: one of `METHODS`.

    Returns:
      float32 array; of the image's dtype for 'nearest'.

    Raises:
      InvalidArgumentError: for an image without pixels.
    """
    if not image.size:
        raise InvalidArgumentError(
            f"input image must be of non-zero size, got shape {list(image.shape)}."
        )
    if method == "nearest":
        rows, columns = (_nearest(n, o) for n, o in zip((height, width), image.shape, strict=False))
        return image[rows[:, None], columns]
    if (height, width) == image.shape[:2] and method in ("bilinear", "area"):
        return np.ascontiguousarray(image, np.float32)
    if method == "bilinear":
        return resize.bilinear(image, height, width)
    found = np.ascontiguousarray(image, np.float32)
    found = np.tensordot(weights(height, len(found), method, False).astype(np.float32), found, 1)
    across = weights(width, found.shape[1], method, False).astype(np.float32)
    return np.ascontiguousarray(np.moveaxis(np.tensordot(across, found, (1, 1)), 0, 1))


def _nearest(new: int, old: int) -> np.ndarray:
    places = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    return np.minimum(places.astype(np.int64), old - 1)
