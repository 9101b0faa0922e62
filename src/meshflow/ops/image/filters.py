"""Neighbourhoods of pixels: patches, edges, structural similarity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.image.color import as_range, convert_image_dtype

__all__ = [
    "extract_patches",
    "image_gradients",
    "sobel_edges",
    "ssim",
    "ssim_multiscale",
]


@op(same=(), name="extract_patches")
def _patches(images: TensorLike, sizes: Any, strides: Any, rates: Any, padding: str) -> Tensor:
    places = []
    pads = [(0, 0)]
    for old, size, stride, rate in zip(images.shape[1:3], sizes, strides, rates, strict=True):
        reach = (size - 1) * rate + 1
        if padding == "SAME":
            count = -(-old // stride)
            total = max((count - 1) * stride + reach - old, 0)
            pads.append((total // 2, total - total // 2))
        else:
            count = (old - reach) // stride + 1
            pads.append((0, 0))
        places.append(np.arange(count)[:, None] * stride + np.arange(size)[None, :] * rate)
    padded = jnp.pad(images, [*pads, (0, 0)])
    rows, columns = places
    found = padded[:, rows[:, None, :, None], columns[None, :, None, :], :]
    return found.reshape(*found.shape[:3], -1)


def extract_patches(
    images: TensorLike, sizes: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """Patches of images, flattened into the last dimension.

    Args:
      images: [batch, height, width, channels].
      sizes: [1, rows, columns, 1] of a patch.
      strides: [1, rows, columns, 1] between the patches' first pixels.
      rates: [1, rows, columns, 1] between pixels of a patch.
      padding: 'VALID' or 'SAME' (with zeros around).
      name: ignored.

    Returns:
      Tensor of shape [batch, patch rows, patch columns, sizes[1] * sizes[2] * channels].

    Raises:
      ValueError: when sizes, strides or rates do not start and end with 1.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape(tf.range(16), [1, 4, 4, 1])
      >>> patches = tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
      >>> print(patches[0, 1].numpy())
      [[ 8  9 12 13]
       [10 11 14 15]]
    """
    for what, value in (("sizes", sizes), ("strides", strides), ("rates", rates)):
        if len(value) != 4 or value[0] != 1 or value[3] != 1:
            raise ValueError(f"extract_patches: {what} must be [1, rows, columns, 1], got {value}.")
    if padding not in ("VALID", "SAME"):
        raise ValueError(f"extract_patches: padding must be 'VALID' or 'SAME', got {padding!r}.")
    return _patches(images, tuple(sizes[1:3]), tuple(strides[1:3]), tuple(rates[1:3]), padding)


@op(name="image_gradients")
def _gradients(image: TensorLike) -> Any:
    below = jnp.pad(jnp.diff(image, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])
    right = jnp.pad(jnp.diff(image, axis=2), [(0, 0), (0, 0), (0, 1), (0, 0)])
    return below, right


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """Differences to the pixel below and to the right; zero in the last row and column.

    Args:
      image: [batch, height, width, channels].

    Returns:
      (dy, dx), of the image's shape.

    Raises:
      ValueError: for another rank.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape([1.0, 2.0, 4.0, 7.0], [1, 2, 2, 1])
      >>> dy, dx = tf.image.image_gradients(x)
      >>> dy[0, ..., 0].numpy().tolist(), dx[0, ..., 0].numpy().tolist()
      ([[3.0, 5.0], [0.0, 0.0]], [[1.0, 0.0], [3.0, 0.0]])
    """
    if len(image.shape) != 4:
        raise ValueError(
            f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {tuple(image.shape)}."
        )
    return tuple(_gradients(image))


@op(kinds="f")
def sobel_edges(image: TensorLike) -> Tensor:
    """Edges by Sobel's filters, down and across, in a new last dimension of size 2.

    Args:
      image: [batch, height, width, channels].

    Returns:
      Tensor of shape [batch, height, width, channels, 2].

    Example:
      >>> import meshflow as tf
      >>> ramp = tf.broadcast_to(tf.reshape(tf.range(3.0), [1, 1, 3, 1]), [1, 3, 3, 1])
      >>> print(tf.image.sobel_edges(ramp)[0, 1, 1, 0].numpy())
      [0. 8.]
    """
    padded = jnp.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    height, width = image.shape[1:3]

    def at(row: int, column: int) -> Any:
        return padded[:, row : row + height, column : column + width]

    down = at(2, 0) + 2 * at(2, 1) + at(2, 2) - at(0, 0) - 2 * at(0, 1) - at(0, 2)
    across = at(0, 2) + 2 * at(1, 2) + at(2, 2) - at(0, 0) - 2 * at(1, 0) - at(2, 0)
    return jnp.stack([down, across], -1)


def _blur(x: Any, size: int, sigma: float) -> Any:
    """Means weighted by a Gauss window, without padding."""
    distance = np.arange(size) - (size - 1) / 2
    window = np.exp(-(distance**2) / (2 * sigma**2))
    window = jnp.asarray(window / window.sum(), x.dtype)
    batch, height, width, channels = x.shape
    rows = x.transpose(0, 3, 1, 2).reshape(-1, 1, height, width)
    dimensions = ("NCHW", "OIHW", "NCHW")
    for kernel in (window.reshape(1, 1, size, 1), window.reshape(1, 1, 1, size)):
        rows = jax.lax.conv_general_dilated(
            rows, kernel, (1, 1), "VALID", dimension_numbers=dimensions, precision="highest"
        )
    return rows.reshape(batch, channels, *rows.shape[2:]).transpose(0, 2, 3, 1)


def _similarity(
    x: Any, y: Any, max_val: float, size: int, sigma: float, k1: float, k2: float
) -> tuple[Any, Any]:
    """Structural similarity and its contrast-structure part, for each pixel and channel."""
    c1, c2 = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    mean_x, mean_y = _blur(x, size, sigma), _blur(y, size, sigma)
    products, squares = 2 * mean_x * mean_y, mean_x**2 + mean_y**2
    luminance = (products + c1) / (squares + c1)
    structure = (2 * _blur(x * y, size, sigma) - products + c2) / (
        _blur(x**2 + y**2, size, sigma) - squares + c2
    )
    return luminance * structure, structure


@op(name="ssim", kinds="f")
def _ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float,
    filter_size: int,
    filter_sigma: float,
    k1: float,
    k2: float,
    as_map: bool,
) -> Tensor:
    found, _ = _similarity(*_batched(img1, img2), max_val, filter_size, filter_sigma, k1, k2)
    found = jnp.mean(found, -1) if as_map else jnp.mean(found, (-3, -2, -1))
    return found.reshape(*_leading(img1, img2), *found.shape[1:])


def _leading(a: Any, b: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(a.shape, b.shape)[:-3]


def _batched(a: Any, b: Any) -> tuple[Any, Any]:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return tuple(jnp.broadcast_to(v, shape).reshape(-1, *shape[-3:]) for v in (a, b))


def _floats(a: TensorLike, b: TensorLike, max_val: Any, size: int, op_name: str) -> Any:
    a, b = convert_to_tensor(a), convert_to_tensor(b)
    for image in (a, b):
        if image.ndim < 3 or min(image.shape[-3:-1]) < size:
            raise ValueError(
                f"tf.image.{op_name}: images must have shape [..., height, width, channels] with height and "
                f"width at least {size}, got {tuple(image.shape)}."
            )
    largest = as_range(max_val, a.dtype)
    return convert_image_dtype(a, float32), convert_image_dtype(b, float32), largest


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: Any,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> Tensor:
    """Structural similarity of images (Wang et al., 'Image Quality Assessment', 2004).

    Args:
      img1: [..., height, width, channels].
      img2: likewise.
      max_val: range of the pixels, such as 255 or 1.0.
      filter_size: size of the Gauss window.
      filter_sigma: its width.
      k1: constant that keeps the luminance part stable.
      k2: constant that keeps the contrast part stable.
      return_index_map: whether the similarity of each pixel is returned, not the mean.

    Returns:
      Similarities at most 1, one for each pair of images (or pixel).

    Raises:
      ValueError: when the images are smaller than the window.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.uniform([1, 16, 16, 1])
      >>> print(tf.image.ssim(x, x, max_val=1.0).numpy().round(3))
      [1.]
    """
    a, b, largest = _floats(img1, img2, max_val, filter_size, "ssim")
    return _ssim(a, b, largest, filter_size, filter_sigma, k1, k2, return_index_map)


MULTISCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


@op(name="ssim_multiscale", kinds="f")
def _multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float,
    powers: Any,
    filter_size: int,
    filter_sigma: float,
    k1: float,
    k2: float,
) -> Tensor:
    pair = _batched(img1, img2)
    total: Any = 1.0
    for scale, power in enumerate(powers):
        if scale:
            pair = tuple(map(_halved, pair))
        whole, structure = _similarity(*pair, max_val, filter_size, filter_sigma, k1, k2)
        part = whole if scale == len(powers) - 1 else structure
        total = total * jnp.maximum(jnp.mean(part, (-3, -2)), 0) ** power
    return jnp.mean(total, -1).reshape(_leading(img1, img2))


def _halved(x: Any) -> Any:
    """Means of blocks of four pixels; the last row or column counts twice when it is alone."""
    batch, height, width, channels = x.shape
    x = jnp.pad(x, [(0, 0), (0, height % 2), (0, width % 2), (0, 0)], mode="symmetric")
    return x.reshape(batch, -(-height // 2), 2, -(-width // 2), 2, channels).mean((2, 4))


def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: Any,
    power_factors: Any = MULTISCALE_WEIGHTS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """Structural similarity at several scales (Wang, Simoncelli and Bovik, 2003).

    Args:
      img1: [..., height, width, channels].
      img2: likewise.
      max_val: range of the pixels, such as 255 or 1.0.
      power_factors: weight of each scale, finest first.
      filter_size: size of the Gauss window.
      filter_sigma: its width.
      k1: constant that keeps the luminance part stable.
      k2: constant that keeps the contrast part stable.

    Returns:
      Similarities from 0 to 1, one for each pair of images.

    Raises:
      ValueError: when the images, halved for each scale, get smaller than the window.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.uniform([1, 32, 32, 1])
      >>> y = tf.image.ssim_multiscale(x, x, max_val=1.0, power_factors=[0.5, 0.5])
      >>> print(y.numpy().round(3))
      [1.]
    """
    least = (filter_size - 1) * 2 ** (len(power_factors) - 1) + 1
    a, b, largest = _floats(img1, img2, max_val, least, "ssim_multiscale")
    powers = tuple(float(p) for p in power_factors)
    return _multiscale(a, b, largest, powers, filter_size, filter_sigma, k1, k2)
