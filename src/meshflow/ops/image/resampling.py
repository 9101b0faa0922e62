"""Resizing along one dimension: the input pixels that contribute to each output pixel, with weights.

The center of output pixel i is at (i + 1/2) * old / new in the input. Input pixels within the radius
of the kernel are weighted by their distance, and the weights of an output pixel are scaled to sum
to 1. No other pixel is read, so NaN and Inf affect the same output pixels as in TensorFlow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.types import Array
from meshflow.kernels import resize

# Cubic interpolation without antialiasing rounds positions to 1/1024 of a pixel.
_CUBIC_STEPS = 1024
# Above this number of taps, finite elements are multiplied by a matrix, and others added in a loop.
_MAX_UNROLLED_TAPS = 16


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: np.ndarray, b: float, c: float) -> np.ndarray:
    """Evaluate the cubics of 'Reconstruction Filters in Computer Graphics' (1988).

    Horner's method is exact where a float32 weight is 0, which matters for NaN.
    """
    x = np.abs(x)
    near = ((2 - 1.5 * b - c) * x - (3 - 2 * b - c)) * x * x + (1 - b / 3)
    far = ((-(b / 6 + c) * x + (b + 5 * c)) * x - (2 * b + 8 * c)) * x + (4 / 3 * b + 4 * c)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: np.ndarray, radius: float) -> np.ndarray:
    return np.where(np.abs(x) <= radius, np.sinc(x) * np.sinc(x / radius), 0.0)


def _gaussian(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1.5, np.exp(-2.0 * x * x), 0.0)


# The kernels and their radii.
_KERNELS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (lambda x: _cubic(x, 0.0, 0.5), 2.0),
    "mitchellcubic": (lambda x: _cubic(x, 1 / 3, 1 / 3), 2.0),
    "lanczos3": (lambda x: _lanczos(x, 3.0), 3.0),
    "lanczos5": (lambda x: _lanczos(x, 5.0), 5.0),
    "gaussian": (_gaussian, 1.5),
}
METHODS = (*_KERNELS, "area", "nearest")


class Taps:
    """The input pixels that contribute to each output pixel along one axis.

    Attributes:
      indices: Indices of input pixels, int32 [new, count].
      weights: Weights of these pixels, float64 [new, count].
      is_linear: Whether to interpolate between the first and the second pixel by the second weight.
    """

    def __init__(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        old: int,
        compute: Callable[[np.ndarray], np.ndarray],
        skips_zeros: bool = False,
    ) -> None:
        """Create the taps of windows of pixels.

        Args:
          starts: Index of the first pixel of each window, [new].
          stops: Index after the last pixel. If a window is empty, the output pixel is zero.
          old: Number of input pixels.
          compute: Computes the weights from indices [new, count].
          skips_zeros: Whether pixels of weight 0 contribute nothing to gradients.
        """
        count = max(int((stops - starts).max()), 1)
        indices = starts[:, None] + np.arange(count)
        is_inside = indices < stops[:, None]
        # A tap outside the window repeats the last pixel, with weight 0.
        indices = np.clip(np.minimum(indices, stops[:, None] - 1), 0, old - 1)
        self.indices = indices.astype(np.int32)
        self.weights = np.where(is_inside, compute(indices), 0.0)
        self.is_linear = False
        self._is_empty = stops <= starts
        self._old = old
        self._skips_zeros = skips_zeros

    @classmethod
    def from_positions(cls, positions: np.ndarray, old: int) -> Taps:
        """Create the taps of linear interpolation at positions."""
        low, high = np.floor(positions), np.ceil(positions)
        bounded = [np.clip(p, 0, old - 1).astype(np.int64) for p in (low, high)]
        taps = cls(bounded[0], bounded[0] + 2, old, np.zeros_like)
        taps.indices = np.stack(bounded, 1).astype(np.int32)
        fractions = (positions - low).astype(np.float64)
        taps.weights = np.stack([1 - fractions, fractions], 1)
        taps.is_linear = True
        return taps

    @classmethod
    def from_pixels(cls, pixels: np.ndarray, weights: np.ndarray, old: int) -> Taps:
        """Create the taps of pixels with weights; pixels outside repeat the first or the last one.

        Args:
          pixels: Indices of pixels, [new, count].
          weights: Their weights, [new, count].
          old: Number of input pixels.
        """
        first = np.clip(pixels[:, 0], 0, old - 1)
        taps = cls(first, first + pixels.shape[1], old, np.zeros_like)
        taps.indices = np.clip(pixels, 0, old - 1).astype(np.int32)
        taps.weights = weights.astype(np.float64)
        return taps

    @functools.cached_property
    def transposed(self) -> Taps:
        """The taps of the gradient: the output pixels to which each input pixel contributes."""
        new, count = self.indices.shape
        reads = self.weights != 0 if self._skips_zeros else ~self._is_empty[:, None]
        rows, columns = np.nonzero(np.broadcast_to(reads, (new, count)))
        pixels, weights = self.indices[rows, columns], self.weights[rows, columns]
        starts, stops = np.full(self._old, new), np.zeros(self._old, np.int64)
        np.minimum.at(starts, pixels, rows)
        np.maximum.at(stops, pixels, rows + 1)
        starts = np.where(stops > 0, starts, 0)
        if self._skips_zeros:
            longest = (stops - starts).max()
            stops = np.where(stops > 0, np.minimum(starts + longest, new), 0)
        matrix = np.zeros((self._old, max(int((stops - starts).max()), 1)))
        np.add.at(matrix, (pixels, rows - starts[pixels]), weights)
        return Taps(starts, stops, new, lambda _: matrix)

    def multiply(self, x: jax.Array, axis: int) -> jax.Array:
        """Return the weighted sums along an axis, a negative number, of finite elements."""
        new, count = self.indices.shape
        matrix = np.zeros((new, self._old))
        np.add.at(
            matrix, (np.arange(new).repeat(count), self.indices.ravel()), self.weights.ravel()
        )
        product = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), (axis, 1), precision="highest")
        return jnp.moveaxis(product, -1, axis)

    def apply(self, x: jax.Array, axis: int) -> jax.Array:
        """Return the weighted sums along an axis, a negative number, without a custom gradient."""
        if self.is_linear:
            low, high = self.indices.T
            return interpolate_linearly(x, axis, low, high, self.weights[:, 1])
        expand = lambda v: jnp.expand_dims(jnp.asarray(v, x.dtype), range(1, -axis))
        add_tap = lambda index, weight: jnp.take(x, index, axis, mode="clip") * expand(weight)
        taps = list(zip(self.indices.T, self.weights.T, strict=True))
        total = add_tap(*taps[0])
        if len(taps) <= _MAX_UNROLLED_TAPS:
            for index, weight in taps[1:]:
                total += add_tap(index, weight)
        else:
            others = jnp.asarray(self.indices.T[1:]), jnp.asarray(self.weights.T[1:], x.dtype)
            total, _ = jax.lax.scan(lambda sums, tap: (sums + add_tap(*tap), None), total, others)
        if self._is_empty.any():
            total = jnp.where(expand(self._is_empty), 0, total)
        return total


def interpolate_linearly(
    x: jax.Array, axis: int, low: Array, high: Array, fractions: Array
) -> jax.Array:
    """Interpolate along an axis between two pixels, rounded as in TensorFlow.

    Args:
      x: Floating array.
      axis: The axis, a negative number.
      low: Indices of the first pixels, [new].
      high: Indices of the second pixels, [new].
      fractions: Weights of the second pixels, [new].
    """
    left, right = (jnp.take(x, index, axis, mode="clip") for index in (low, high))
    return left + (right - left) * jnp.expand_dims(jnp.asarray(fractions, x.dtype), range(1, -axis))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def apply_taps(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """Resize an array along one axis.

    The gradient reads its neighbors, too: to scatter it would take several times as long on CPUs.

    Args:
      x: Floating array.
      taps: The taps.
      axis: The axis, a negative number.
    """
    if taps.weights.shape[1] <= _MAX_UNROLLED_TAPS:
        return taps.apply(x, axis)
    # A product with all weights is faster, but spreads NaN and Inf.
    return jax.lax.cond(
        jnp.isfinite(x).all(),
        lambda: taps.multiply(x, axis),
        lambda: taps.apply(x, axis),
    )


def _apply_taps_forward(x: jax.Array, taps: Taps, axis: int) -> tuple[jax.Array, None]:
    return apply_taps(x, taps, axis), None


def _apply_taps_backward(taps: Taps, axis: int, _: None, cotangent: jax.Array) -> tuple[jax.Array]:
    # Forward accumulators transpose this function, so it has no custom gradient.
    return (taps.transposed.apply(cotangent, axis),)


apply_taps.defvjp(_apply_taps_forward, _apply_taps_backward)


@functools.lru_cache(1024)
def compute_taps(new: int, old: int, method: str, antialias: bool) -> Taps:
    """Compute the taps of a resize.

    Args:
      new: Number of output pixels.
      old: Number of input pixels.
      method: One of `METHODS` except 'nearest'.
      antialias: Whether the kernel widens if there are fewer output pixels than input pixels.

    Returns:
      Taps with weights that sum to 1 for each output pixel.
    """
    scale = old / new
    # TensorFlow computes positions in float32, and rounding determines which pixels are read.
    step = np.float32(scale)
    outputs = np.arange(new, dtype=np.float32)
    if method == "area":
        low = np.arange(new)[:, None] * scale
        starts = np.floor(outputs * step)
        stops = np.minimum(np.ceil((outputs + 1) * step), old)

        def compute(pixels: np.ndarray) -> np.ndarray:
            covered = np.minimum(low + scale, pixels + 1) - np.maximum(low, pixels)
            return np.maximum(covered, 0.0)

        return _make_taps(starts, stops, old, compute)
    if method == "bilinear" and not antialias:
        return Taps.from_positions((outputs + np.float32(0.5)) * step - np.float32(0.5), old)
    if method == "bicubic" and not antialias:
        positions = (np.arange(new) + 0.5) * scale - 0.5
        first = np.floor(positions)
        fraction = np.rint((positions - first) * _CUBIC_STEPS) / _CUBIC_STEPS
        centers = (first + fraction)[:, None]
        starts, stops = (np.clip(first + i, 0, old - 1) for i in (-1, 2))
        return _make_taps(starts, stops + 1, old, lambda pixels: _cubic(pixels - centers, 0.0, 0.5))
    step = np.float32(1) / np.float32(new / old)
    half, one = np.float32(0.5), np.float32(1)
    kernel, radius = _KERNELS[method]
    kernel_scale = max(step, one) if antialias else one
    samples = (outputs + half) * step
    reach = np.float32(radius) * kernel_scale
    starts, last = (
        np.clip(p, 0, old - 1)
        for p in (np.ceil(samples - reach - half), np.floor(samples + reach - half))
    )
    # All windows have one size, as in TensorFlow, which reads pixels of weight 0, too.
    stops = np.minimum(starts + min(2 * math.ceil(reach) + 1, old), old)

    def compute_kernel(pixels: np.ndarray) -> np.ndarray:
        distances = (pixels.astype(np.float32) + half - samples[:, None]) * (one / kernel_scale)
        return np.where(pixels <= last[:, None], kernel(distances).astype(np.float64), 0.0)

    return _make_taps(starts, stops, old, compute_kernel, skips_zeros=True)


def _make_taps(
    starts: np.ndarray,
    stops: np.ndarray,
    old: int,
    compute: Callable[[np.ndarray], np.ndarray],
    skips_zeros: bool = False,
) -> Taps:
    """Create taps with weights that sum to 1."""
    taps = Taps(starts.astype(np.int64), stops.astype(np.int64), old, compute, skips_zeros)
    total = taps.weights.sum(1, keepdims=True)
    taps.weights /= np.where(np.abs(total) < math.ulp(1000.0), 1.0, total)
    return taps


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
    for axis, new in enumerate((height, width)):
        taps = compute_taps(new, array.shape[axis], method, False)
        weights = taps.weights.astype(np.float32).T.reshape(
            len(taps.weights.T), -1, *[1] * (2 - axis)
        )
        array = sum(
            array.take(index, axis) * weight
            for index, weight in zip(taps.indices.T, weights, strict=True)
        )
    return np.ascontiguousarray(array)


def _find_nearest(output_size: int, input_size: int) -> np.ndarray:
    positions = (np.arange(output_size, dtype=np.float32) + np.float32(0.5)) * np.float32(
        input_size / output_size
    )
    return np.minimum(positions.astype(np.int64), input_size - 1)
