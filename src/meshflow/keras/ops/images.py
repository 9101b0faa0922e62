"""Sizes, colors and patches of images.

Example:
  >>> ops.image.resize(ops.ones([4, 4, 3]), (2, 2)).shape
  TensorShape([2, 2, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops import windows
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Sizes, as_float, as_tensor, promote
from meshflow.keras.settings import normalize_data_format
from meshflow.ops import array as array_ops
from meshflow.ops import casting, math
from meshflow.ops import image as image_ops

__all__ = [
    "crop_images",
    "extract_patches",
    "extract_patches_3d",
    "gaussian_blur",
    "hsv_to_rgb",
    "pad_images",
    "resize",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "sobel_edges",
    "ssim",
]


def apply_channels_last(
    function: Callable[[Tensor], Tensor], images: Tensor, data_format: str | None
) -> Tensor:
    """Apply a function of channels-last images to images of any data format."""
    if normalize_data_format(data_format) == "channels_last":
        return function(images)
    rank = len(images.shape)
    order = [*range(rank - 3), rank - 2, rank - 1, rank - 3]
    inverse_order = [*range(rank - 3), rank - 1, rank - 3, rank - 2]
    return array_ops.transpose(function(array_ops.transpose(images, order)), inverse_order)


def check_images(images: TensorLike, name: str) -> Tensor:
    """Convert images to a tensor, and check that its rank is 3 or 4."""
    images = as_tensor(images)
    if len(images.shape) not in (3, 4):
        raise ValueError(
            f"Invalid images rank: expected rank 3 (single image) or rank 4 (batch of images). Received input with "
            f"shape: images.shape={tuple(images.shape)} ({name})"
        )
    return images


@as_single_layer("image")
def rgb_to_grayscale(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Convert RGB images to grayscale.

    Args:
      images: [..., height, width, 3] (or channels first).
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.rgb_to_grayscale(ops.ones([2, 2, 3])).shape
      TensorShape([2, 2, 1])
    """
    images = check_images(images, "rgb_to_grayscale")
    is_channels_last = normalize_data_format(data_format) == "channels_last"
    if images.shape[-1 if is_channels_last else -3] == 1:
        return array_ops.identity(images)
    gray = apply_channels_last(image_ops.rgb_to_grayscale, as_float(images), data_format)
    return casting.cast(gray, images.dtype)


def _check_float_images(images: TensorLike, name: str) -> Tensor:
    images = check_images(images, name)
    if not dtypes.as_dtype(images.dtype).is_floating:
        raise ValueError(
            f"Invalid images dtype: expected float dtype. Received: images.dtype={dtypes.as_dtype(images.dtype).name}"
        )
    return images


@as_single_layer("image")
def rgb_to_hsv(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Convert RGB images to hue, saturation and value.

    Args:
      images: Floating-point images, [..., height, width, 3] (or channels first), from 0 to 1.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.rgb_to_hsv([[[1.0, 0.0, 0.0]]]).numpy().tolist()
      [[[0.0, 1.0, 1.0]]]
    """
    return apply_channels_last(
        image_ops.rgb_to_hsv, _check_float_images(images, "rgb_to_hsv"), data_format
    )


@as_single_layer("image")
def hsv_to_rgb(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Convert hue, saturation and value to RGB images.

    Args:
      images: Floating-point images, [..., height, width, 3] (or channels first).
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.hsv_to_rgb([[[0.0, 1.0, 1.0]]]).numpy().tolist()
      [[[1.0, 0.0, 0.0]]]
    """
    return apply_channels_last(
        image_ops.hsv_to_rgb, _check_float_images(images, "hsv_to_rgb"), data_format
    )


@as_single_layer("image")
def resize(
    images: TensorLike,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> Tensor:
    """Resize images.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      size: New (height, width).
      interpolation: 'nearest', 'bilinear', 'bicubic', 'lanczos3' or 'lanczos5'.
      antialias: Whether to widen the filter when images get smaller.
      crop_to_aspect_ratio: Whether to crop images to the new aspect ratio first.
      pad_to_aspect_ratio: Whether to pad images to the new aspect ratio first.
      fill_mode: Only 'constant' is supported.
      fill_value: Value of the padding.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Returns:
      Images of the dtype of `images`.

    Example:
      >>> ops.image.resize(ops.ones([1, 4, 4, 3]), (2, 8)).shape
      TensorShape([1, 2, 8, 3])
    """
    if interpolation not in ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5"):
        raise ValueError(
            f"Invalid `interpolation` argument. Expected one of 'bilinear', 'nearest', 'lanczos3', 'lanczos5', 'bicubic'. Received: interpolation={interpolation}"
        )
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        raise ValueError(
            "Only one of `crop_to_aspect_ratio` & `pad_to_aspect_ratio` can be `True`."
        )
    if fill_mode != "constant":
        raise ValueError(
            f"Invalid `fill_mode` argument. Only `'constant'` is supported. Received: fill_mode={fill_mode}"
        )
    images = check_images(images, "resize")
    new = tuple(int(s) for s in size)
    if len(new) != 2:
        raise ValueError(f"`size` must be (height, width). Received: size={size}")
    kind = dtypes.as_dtype(images.dtype)

    def resize_channels_last(x: Tensor) -> Tensor:
        if crop_to_aspect_ratio:
            x = _crop_to_aspect(x, new)
        elif pad_to_aspect_ratio:
            x = _pad_to_aspect(x, new, fill_value)
        result = image_ops.resize(x, new, interpolation, antialias=antialias)
        if dtypes.as_dtype(result.dtype) is kind:
            return result
        return (
            casting.saturate_cast(math.round(result), kind)
            if kind.is_integer
            else casting.cast(result, kind)
        )

    return apply_channels_last(resize_channels_last, images, data_format)


def _crop_to_aspect(x: Tensor, new: tuple[int, int]) -> Tensor:
    height, width = int(x.shape[-3]), int(x.shape[-2])
    rows = min(height, int(float(width * new[0]) / new[1]))
    columns = min(width, int(float(height * new[1]) / new[0]))
    top, left = int(float(height - rows) / 2), int(float(width - columns) / 2)
    return x[..., top : top + rows, left : left + columns, :]


def _pad_to_aspect(x: Tensor, new: tuple[int, int], value: float) -> Tensor:
    height, width = int(x.shape[-3]), int(x.shape[-2])
    rows = max(height, int(float(width * new[0]) / new[1]))
    columns = max(width, int(float(height * new[1]) / new[0]))
    # Both sides get the same padding, as in Keras; it is zero if a single row or column is missing.
    top, left = int(float(rows - height) / 2), int(float(columns - width) / 2)
    pairs = [[top, top], [left if not top else 0] * 2, [0, 0]]
    return array_ops.pad(x, [[0, 0]] * (len(x.shape) - 3) + pairs, constant_values=value)


@as_single_layer("image")
def pad_images(
    images: TensorLike,
    top_padding: int | None = None,
    left_padding: int | None = None,
    bottom_padding: int | None = None,
    right_padding: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Pad images with zeros. Exactly two of three sizes are required for each axis.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      top_padding: Number of rows above.
      left_padding: Number of columns on the left.
      bottom_padding: Number of rows below.
      right_padding: Number of columns on the right.
      target_height: Number of rows of the result.
      target_width: Number of columns of the result.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.pad_images(ops.ones([2, 2, 1]), 1, 0, target_height=4, target_width=3).shape
      TensorShape([4, 3, 1])
    """
    images = check_images(images, "pad_images")

    def pad(x: Tensor) -> Tensor:
        height, width = int(x.shape[-3]), int(x.shape[-2])
        sizes = (top_padding, bottom_padding, target_height)
        rows = _resolve_margins("top_padding, bottom_padding, target_height", sizes, height)
        sizes = (left_padding, right_padding, target_width)
        columns = _resolve_margins("left_padding, right_padding, target_width", sizes, width)
        return array_ops.pad(x, [[0, 0]] * (len(x.shape) - 3) + [rows, columns, [0, 0]])

    return apply_channels_last(pad, images, data_format)


def _resolve_margins(
    names: str, sizes: tuple[int | None, int | None, int | None], size: int, sign: int = 1
) -> list[int]:
    """Return the sizes before and after, one of which may follow from the target size."""
    before, after, target = sizes
    if sum(v is None for v in (before, after, target)) != 1:
        raise ValueError(
            f"Must specify exactly two of {names}. Received: {before}, {after}, target size {target}."
        )
    if before is None:
        before = sign * (target - size) - after  # type: ignore[operator]
    if after is None:
        after = sign * (target - size) - before  # type: ignore[operator]
    if before < 0 or after < 0:
        raise ValueError(
            f"{names}: must be >= 0. Received: {before} and {after} for a size of {size}."
        )
    return [before, after]


@as_single_layer("image")
def crop_images(
    images: TensorLike,
    top_cropping: int | None = None,
    left_cropping: int | None = None,
    bottom_cropping: int | None = None,
    right_cropping: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Crop images. Exactly two of three sizes are required for each axis.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      top_cropping: Number of rows to remove above.
      left_cropping: Number of columns to remove on the left.
      bottom_cropping: Number of rows to remove below.
      right_cropping: Number of columns to remove on the right.
      target_height: Number of rows of the result.
      target_width: Number of columns of the result.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.crop_images(ops.ones([4, 4, 1]), 1, 1, target_height=2, target_width=2).shape
      TensorShape([2, 2, 1])
    """
    images = check_images(images, "crop_images")

    def crop(x: Tensor) -> Tensor:
        height, width = int(x.shape[-3]), int(x.shape[-2])
        sizes = (top_cropping, bottom_cropping, target_height)
        rows = _resolve_margins("top_cropping, bottom_cropping, target_height", sizes, height, -1)
        sizes = (left_cropping, right_cropping, target_width)
        columns = _resolve_margins("left_cropping, right_cropping, target_width", sizes, width, -1)
        return x[..., rows[0] : height - rows[1], columns[0] : width - columns[1], :]

    return apply_channels_last(crop, images, data_format)


def _extract_patches(
    x: TensorLike,
    size: Sizes,
    strides: Sizes | None,
    rate: Sizes,
    padding: str,
    data_format: str | None,
    rank: int,
) -> Tensor:
    """Extract patches by a convolution with filters that each select one element."""
    x = as_tensor(x)
    is_single = len(x.shape) == rank + 1
    if is_single:
        x = array_ops.expand_dims(x, 0)
    is_channels_first = normalize_data_format(data_format) == "channels_first"
    window = (size,) * rank if isinstance(size, int) else tuple(size)
    channels = int(x.shape[1 if is_channels_first else -1])
    count = int(np.prod(window)) * channels
    kernel = casting.cast(
        as_tensor(np.eye(count, dtype="float32").reshape(*window, channels, count)), x.dtype
    )
    patches = windows.conv(
        x, kernel, window if strides is None else strides, padding, data_format, rate
    )
    return array_ops.squeeze(patches, 0) if is_single else patches


@as_single_layer("image")
def extract_patches(
    images: TensorLike,
    size: Sizes,
    strides: Sizes | None = None,
    dilation_rate: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Extract windows of images as channels.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      size: Size of the window.
      strides: Step of the window; default the window size.
      dilation_rate: Distance between neighboring elements of a window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.extract_patches(ops.ones([1, 4, 4, 3]), 2).shape
      TensorShape([1, 2, 2, 12])
    """
    return _extract_patches(images, size, strides, dilation_rate, padding, data_format, 2)


def extract_patches_3d(
    volumes: TensorLike,
    size: Sizes,
    strides: Sizes | None = None,
    dilation_rate: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Extract windows of volumes as channels.

    Args:
      volumes: [depth, height, width, channels] or a batch of them (or channels first).
      size: Size of the window.
      strides: Step of the window; default the window size.
      dilation_rate: Distance between neighboring elements of a window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.extract_patches_3d(ops.ones([1, 4, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 2, 8])
    """
    return _extract_patches(volumes, size, strides, dilation_rate, padding, data_format, 3)


@as_single_layer("image")
def gaussian_blur(
    images: TensorLike,
    kernel_size: Sequence[int] = (3, 3),
    sigma: Sequence[float] = (1.0, 1.0),
    data_format: str | None = None,
) -> Tensor:
    """Blur images with a Gaussian filter.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      kernel_size: (height, width) of the filter.
      sigma: Standard deviations along x and y.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.gaussian_blur(ops.ones([1, 4, 4, 1])).shape
      TensorShape([1, 4, 4, 1])
    """
    images = as_float(check_images(images, "gaussian_blur"))
    if any(np.shape(pair) != (2,) for pair in (kernel_size, sigma)):
        raise InvalidValueError(
            f"gaussian_blur: `kernel_size` and `sigma` must be pairs of numbers, got {kernel_size} and {sigma}."
        )

    def blur(x: Tensor) -> Tensor:
        batch = array_ops.expand_dims(x, 0) if len(x.shape) == 3 else x
        gaussians = []
        # The deviations have the order (x, y), the sizes (height, width), as in Keras.
        for size, deviation in zip(kernel_size, reversed(sigma), strict=True):
            offset = np.arange(size, dtype="float32") - (size - 1) / 2
            gaussian = np.exp(-(offset**2) / (2 * float(deviation) ** 2))
            gaussians.append(gaussian / gaussian.sum())
        kernel = np.tile(np.outer(*gaussians)[:, :, None, None], (1, 1, int(batch.shape[-1]), 1))
        result = windows.depthwise_conv(
            batch,
            casting.cast(as_tensor(kernel.astype("float32")), batch.dtype),
            1,
            "same",
            "channels_last",
        )
        return array_ops.squeeze(result, 0) if len(x.shape) == 3 else result

    return apply_channels_last(blur, images, data_format)


def sobel_edges(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Compute vertical and horizontal gradients with Sobel filters.

    Args:
      images: [batch, height, width, channels] (or channels first).
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Returns:
      [batch, height, width, channels, 2] (or channels first).

    Example:
      >>> ops.image.sobel_edges(ops.ones([1, 4, 4, 1])).shape
      TensorShape([1, 4, 4, 1, 2])
    """
    images = as_float(check_images(images, "sobel_edges"))
    if normalize_data_format(data_format) == "channels_last":
        return image_ops.sobel_edges(images)
    edges = image_ops.sobel_edges(array_ops.transpose(images, [0, 2, 3, 1]))
    return array_ops.transpose(edges, [0, 3, 1, 2, 4])


def ssim(
    image1: TensorLike,
    image2: TensorLike,
    max_val: float = 1.0,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    data_format: str | None = None,
) -> Tensor:
    """Compute the structural similarity of images.

    Args:
      image1: [batch, height, width, channels] (or channels first).
      image2: Images of the same shape.
      max_val: Maximum possible value.
      filter_size: Size of the window.
      filter_sigma: Standard deviation of the window.
      k1: Constant of the formula.
      k2: Constant of the formula.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.ssim(ops.ones([1, 16, 16, 1]), ops.ones([1, 16, 16, 1])).numpy().tolist()
      [1.0]
    """
    first, second = promote(image1, image2, also=float)
    if normalize_data_format(data_format) == "channels_first":
        first, second = (array_ops.transpose(v, [0, 2, 3, 1]) for v in (first, second))
    return image_ops.ssim(first, second, max_val, filter_size, filter_sigma, k1, k2)
