"""Resize weights along one dimension: the weight of each input pixel for each output pixel.

The center of output pixel i is at (i + 1/2) * old / new in the input. Input pixels within the
radius of the kernel are weighted by
their distance, and the weights of an output pixel are scaled to sum to 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.kernels import resize

__all__ = ["METHODS", "compute_weights", "resize_array"]

# Cubic interpolation without antialiasing rounds positions to 1/1024 of a pixel.
_CUBIC_STEPS = 1024


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: np.ndarray, b: float, c: float) -> np.ndarray:
    """Evaluate the cubics of 'Reconstruction Filters in Computer Graphics' (1988)."""
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
def compute_weights(new: int, old: int, method: str, antialias: bool) -> np.ndarray:
    """Compute the resize weights.

    Args:
      new: Number of output pixels.
      old: Number of input pixels.
      method: One of `METHODS` except 'nearest'.
      antialias: Whether the kernel widens if there are fewer output pixels than input pixels.

    Returns:
      float64 array [new, old] with rows that sum to 1.
    """
    scale = old / new
    if method == "area":
        low = np.arange(new)[:, None] * scale
        pixels: np.ndarray = np.arange(old)[None, :]
        covered = np.minimum(low + scale, pixels + 1) - np.maximum(low, pixels)
        kernel_weights = np.maximum(covered, 0.0)
    elif method == "bicubic" and not antialias:
        positions = (np.arange(new) + 0.5) * scale - 0.5
        first = np.floor(positions)
        fraction = np.rint((positions - first) * _CUBIC_STEPS) / _CUBIC_STEPS
        kernel_weights = _cubic(np.arange(old)[None, :] - (first + fraction)[:, None], 0.0, 0.5)
    else:
        # TensorFlow computes in float32, and rounding determines which pixels at the edge of a
        # kernel count.
        step = np.float32(scale)
        if antialias or method != "bilinear":
            step = np.float32(1) / np.float32(new / old)
        shrinkage = np.float32(1) / max(step, np.float32(1)) if antialias else np.float32(1)
        centers = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * step
        pixels = np.arange(old, dtype=np.float32) + np.float32(0.5)
        kernel_weights = _KERNELS[method]((pixels[None, :] - centers[:, None]) * shrinkage).astype(
            np.float64
        )
    total = kernel_weights.sum(1, keepdims=True)
    return kernel_weights / np.where(np.abs(total) < math.ulp(1000.0), 1.0, total)


def resize_array(image: np.ndarray, height: int, width: int, method: str) -> np.ndarray:
    """Resize an image with NumPy.

    Input pipelines use this function, because XLA would compile a program for every image size.

    Args:
      image: Array [height, width, channels].
      height: Height of the result.
      width: Width of the result.
      method: One of `METHODS`.

    Returns:
      float32 array, or an array of the image's dtype for 'nearest'.

    Raises:
      InvalidArgumentError: If the image has no pixels.
    """
    if not image.size:
        raise InvalidArgumentError(
            f"input image must be of non-zero size, got shape {list(image.shape)}."
        )
    if method == "nearest":
        rows, columns = (
            _find_nearest(n, o) for n, o in zip((height, width), image.shape, strict=False)
        )
        return image[rows[:, None], columns]
    if (height, width) == image.shape[:2] and method in ("bilinear", "area"):
        return np.ascontiguousarray(image, np.float32)
    if method == "bilinear":
        return resize.resize_bilinear(image, height, width)
    array = np.ascontiguousarray(image, np.float32)
    array = np.tensordot(
        compute_weights(height, len(array), method, False).astype(np.float32), array, 1
    )
    column_weights = compute_weights(width, array.shape[1], method, False).astype(np.float32)
    return np.ascontiguousarray(np.moveaxis(np.tensordot(column_weights, array, (1, 1)), 0, 1))


def _find_nearest(output_size: int, input_size: int) -> np.ndarray:
    positions = (np.arange(output_size, dtype=np.float32) + np.float32(0.5)) * np.float32(
        input_size / output_size
    )
    return np.minimum(positions.astype(np.int64), input_size - 1)
