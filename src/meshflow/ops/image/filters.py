"""Ops on neighborhoods of pixels: patches, edges, structural similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidValueError, OutOfRangeError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32
from meshflow.core.values.symbolic_sizes import make_range
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.image.color import convert_image_dtype, to_float_range

__all__ = ["extract_patches", "image_gradients", "sobel_edges", "ssim", "ssim_multiscale"]


@op(same=(), name="extract_patches")
def _extract_patches(
    images: TensorLike,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    rates: tuple[int, ...],
    padding: str,
) -> Tensor:
    index_grids = []
    pads = [(0, 0)]
    for input_size, size, stride, rate in zip(
        images.shape[1:-1], sizes, strides, rates, strict=True
    ):
        dilated_size = (size - 1) * rate + 1
        if padding == "SAME":
            count = -(-input_size // stride)
            total = max((count - 1) * stride + dilated_size - input_size, 0)
            pads.append((total // 2, total - total // 2))
        else:
            count = (input_size - dilated_size) // stride + 1
            pads.append((0, 0))
        index_grids.append(make_range(count)[:, None] * stride + np.arange(size)[None, :] * rate)
    padded = jnp.pad(images, [*pads, (0, 0)])
    # The axes of the counts precede those of the sizes.
    last, grid_axis = len(sizes) - 1, slice(None)
    indices = [
        grid[(*[None] * i, grid_axis, *[None] * last, grid_axis, *[None] * (last - i))]
        for i, grid in enumerate(index_grids)
    ]
    patches = padded[(slice(None), *indices)]
    count = math.prod(sizes) * images.shape[-1]
    return patches.reshape(*patches.shape[: len(sizes) + 1], count)


def extract_patches(
    images: TensorLike,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """Extract patches of images, flattened into the last dimension.

    Args:
      images: [batch, height, width, channels].
      sizes: [1, rows, columns, 1], the size of a patch.
      strides: [1, rows, columns, 1], the distance between the first pixels of patches.
      rates: [1, rows, columns, 1], the distance between pixels of a patch.
      padding: 'VALID' or 'SAME' (padded with zeros).
      name: Ignored.

    Returns:
      Tensor of shape [batch, patch rows, patch columns, sizes[1] * sizes[2] * channels].

    Raises:
      ValueError: If sizes, strides or rates do not start and end with 1.

    Example:
      >>> x = tf.reshape(tf.range(16), [1, 4, 4, 1])
      >>> patches = tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
      >>> print(patches[0, 1].numpy())
      [[ 8  9 12 13]
       [10 11 14 15]]
    """
    for argument, value in (("sizes", sizes), ("strides", strides), ("rates", rates)):
        if len(value) != 4 or value[0] != 1 or value[3] != 1:
            raise InvalidValueError(
                f"extract_patches: {argument} must be [1, rows, columns, 1], got {value}."
            )
        if min(value) < 1:
            raise OutOfRangeError(
                f"extract_patches: {argument} is out of range: it must be positive, got {value}."
            )
    if padding not in ("VALID", "SAME"):
        raise InvalidValueError(
            f"extract_patches: padding must be 'VALID' or 'SAME', got {padding!r}."
        )
    images = convert_to_tensor(images)
    if len(images.shape) != 4:
        raise InvalidValueError(
            f"extract_patches: input must be 4-dimensional, got shape {images.shape}."
        )
    return _extract_patches(
        images, tuple(sizes[1:3]), tuple(strides[1:3]), tuple(rates[1:3]), padding
    )


def extract_volume_patches(
    input: TensorLike, ksizes: Sequence[int], strides: Sequence[int], padding: str
) -> Tensor:
    """Extract patches of volumes, flattened into the last dimension: the raw op `ExtractVolumePatches`.

    Args:
      input: [batch, planes, rows, columns, channels].
      ksizes: [1, planes, rows, columns, 1], the size of a patch.
      strides: [1, planes, rows, columns, 1], the distance between patches.
      padding: 'VALID' or 'SAME' (padded with zeros).

    Raises:
      InvalidArgumentError: If an argument has another form.
    """
    input = convert_to_tensor(input)
    forms = [len(v) == 5 and v[0] == v[4] == 1 and min(v) > 0 for v in (ksizes, strides)]
    if not all(forms) or len(input.shape) != 5 or padding not in ("VALID", "SAME"):
        raise InvalidValueError(
            "extract_volume_patches: expected ksizes and strides [1, planes, rows, columns, 1], 5-dimensional input and "
            f"padding 'VALID' or 'SAME', got {ksizes}, {strides}, shape {input.shape} and {padding!r}."
        )
    return _extract_patches(input, tuple(ksizes[1:4]), tuple(strides[1:4]), (1, 1, 1), padding)


@op(name="image_gradients")
def _compute_gradients(image: TensorLike) -> tuple[jax.Array, jax.Array]:
    below = jnp.pad(jnp.diff(image, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])
    right = jnp.pad(jnp.diff(image, axis=2), [(0, 0), (0, 0), (0, 1), (0, 0)])
    return below, right


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the differences to the pixel below and to the right; zero in the last row and column.

    Args:
      image: [batch, height, width, channels].

    Returns:
      (dy, dx), both of the image's shape.

    Raises:
      ValueError: If the rank is not 4.

    Example:
      >>> x = tf.reshape([1.0, 2.0, 4.0, 7.0], [1, 2, 2, 1])
      >>> dy, dx = tf.image.image_gradients(x)
      >>> dy[0, ..., 0].numpy().tolist(), dx[0, ..., 0].numpy().tolist()
      ([[3.0, 5.0], [0.0, 0.0]], [[1.0, 0.0], [3.0, 0.0]])
    """
    if len(image.shape) != 4:
        raise ValueError(
            f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {tuple(image.shape)}."
        )
    return tuple(_compute_gradients(image))


@op(kinds="f")
def sobel_edges(image: TensorLike) -> Tensor:
    """Compute vertical and horizontal Sobel filters, in a new last dimension of size 2.

    Args:
      image: [batch, height, width, channels].

    Example:
      >>> ramp = tf.broadcast_to(tf.reshape(tf.range(3.0), [1, 1, 3, 1]), [1, 3, 3, 1])
      >>> print(tf.image.sobel_edges(ramp)[0, 1, 1, 0].numpy())
      [0. 8.]
    """
    if image.ndim != 4:
        raise InvalidValueError(
            f"sobel_edges: the image must have shape [batch, height, width, channels], got {list(image.shape)}."
        )
    padded = jnp.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    height, width = image.shape[1:3]

    def shift(row: int, column: int) -> jax.Array:
        return padded[:, row : row + height, column : column + width]

    down = shift(2, 0) + 2 * shift(2, 1) + shift(2, 2)
    down = down - shift(0, 0) - 2 * shift(0, 1) - shift(0, 2)
    across = shift(0, 2) + 2 * shift(1, 2) + shift(2, 2)
    across = across - shift(0, 0) - 2 * shift(1, 0) - shift(2, 0)
    return jnp.stack([down, across], -1)


def _apply_gaussian_filter(x: jax.Array, size: int, sigma: float) -> jax.Array:
    """Filter images with a Gaussian window, without padding."""
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


def _compute_similarity(
    x: jax.Array, y: jax.Array, max_val: float, size: int, sigma: float, k1: float, k2: float
) -> tuple[jax.Array, jax.Array]:
    """Compute the structural similarity and its contrast-structure part for each pixel and channel."""
    c1, c2 = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    mean_x, mean_y = _apply_gaussian_filter(x, size, sigma), _apply_gaussian_filter(y, size, sigma)
    products, squares = 2 * mean_x * mean_y, mean_x**2 + mean_y**2
    luminance = (products + c1) / (squares + c1)
    structure = (2 * _apply_gaussian_filter(x * y, size, sigma) - products + c2) / (
        _apply_gaussian_filter(x**2 + y**2, size, sigma) - squares + c2
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
    similarity, _ = _compute_similarity(
        *_flatten_batch(img1, img2), max_val, filter_size, filter_sigma, k1, k2
    )
    similarity = jnp.mean(similarity, -1) if as_map else jnp.mean(similarity, (-3, -2, -1))
    return similarity.reshape(*_get_batch_shape(img1, img2), *similarity.shape[1:])


def _get_batch_shape(a: jax.Array, b: jax.Array) -> tuple[int, ...]:
    return np.broadcast_shapes(a.shape, b.shape)[:-3]


def _flatten_batch(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return tuple(jnp.broadcast_to(v, shape).reshape(-1, *shape[-3:]) for v in (a, b))


def _prepare_images(
    a: TensorLike, b: TensorLike, max_val: float | Tensor, size: int, op_name: str
) -> tuple[Tensor, Tensor, float]:
    a, b = convert_to_tensor(a), convert_to_tensor(b)
    for image in (a, b):
        if image.ndim < 3 or min(image.shape[-3:-1]) < size:
            raise ValueError(
                f"tf.image.{op_name}: images must have shape [..., height, width, channels] with height and "
                f"width at least {size}, got {tuple(image.shape)}."
            )
    float_range = float(to_float_range(max_val, a.dtype))
    return convert_image_dtype(a, float32), convert_image_dtype(b, float32), float_range


@record_in_graph
def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float | Tensor,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> Tensor:
    """Compute the structural similarity of images (Wang et al., 'Image Quality Assessment', 2004).

    Args:
      img1: [..., height, width, channels].
      img2: Images of the same shape.
      max_val: Range of the pixels, such as 255 or 1.0.
      filter_size: Size of the Gaussian window.
      filter_sigma: Standard deviation of the Gaussian window.
      k1: Constant that stabilizes the luminance term.
      k2: Constant that stabilizes the contrast term.
      return_index_map: Whether to return the similarity of each pixel instead of the mean.

    Returns:
      Similarities of at most 1, one for each pair of images (or pixel).

    Raises:
      ValueError: If the images are smaller than the window.

    Example:
      >>> x = tf.random.uniform([1, 16, 16, 1])
      >>> print(tf.image.ssim(x, x, max_val=1.0).numpy().round(3))
      [1.]
    """
    a, b, float_range = _prepare_images(img1, img2, max_val, filter_size, "ssim")
    return _ssim(a, b, float_range, filter_size, filter_sigma, k1, k2, return_index_map)


MULTISCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


@op(name="ssim_multiscale", kinds="f")
def _compute_multiscale_ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float,
    powers: Sequence[float],
    filter_size: int,
    filter_sigma: float,
    k1: float,
    k2: float,
) -> Tensor:
    a, b = _flatten_batch(img1, img2)
    total: Any = 1.0
    for scale, power in enumerate(powers):
        if scale:
            a, b = _downsample(a), _downsample(b)
        similarity, structure = _compute_similarity(
            a, b, max_val, filter_size, filter_sigma, k1, k2
        )
        part = similarity if scale == len(powers) - 1 else structure
        total = total * jnp.maximum(jnp.mean(part, (-3, -2)), 0) ** power
    return jnp.mean(total, -1).reshape(_get_batch_shape(img1, img2))


def _downsample(x: jax.Array) -> jax.Array:
    """Compute means of blocks of four pixels; an odd last row or column is repeated."""
    batch, height, width, channels = x.shape
    x = jnp.pad(x, [(0, 0), (0, height % 2), (0, width % 2), (0, 0)], mode="symmetric")
    return x.reshape(batch, -(-height // 2), 2, -(-width // 2), 2, channels).mean((2, 4))


@record_in_graph
def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float | Tensor,
    power_factors: Sequence[float] = MULTISCALE_WEIGHTS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """Compute the structural similarity at several scales (Wang, Simoncelli and Bovik, 2003).

    Args:
      img1: [..., height, width, channels].
      img2: Images of the same shape.
      max_val: Range of the pixels, such as 255 or 1.0.
      power_factors: Weight of each scale, finest first.
      filter_size: Size of the Gaussian window.
      filter_sigma: Standard deviation of the Gaussian window.
      k1: Constant that stabilizes the luminance term.
      k2: Constant that stabilizes the contrast term.

    Returns:
      Similarities in [0, 1], one for each pair of images.

    Raises:
      ValueError: If the images, halved for each scale, become smaller than the window.

    Example:
      >>> x = tf.random.uniform([1, 32, 32, 1])
      >>> y = tf.image.ssim_multiscale(x, x, max_val=1.0, power_factors=[0.5, 0.5])
      >>> print(y.numpy().round(3))
      [1.]
    """
    min_size = (filter_size - 1) * 2 ** (len(power_factors) - 1) + 1
    a, b, float_range = _prepare_images(img1, img2, max_val, min_size, "ssim_multiscale")
    powers = tuple(float(p) for p in power_factors)
    return _compute_multiscale_ssim(a, b, float_range, powers, filter_size, filter_sigma, k1, k2)
