"""Images turned, shifted, sheared, zoomed, and made brighter, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.environment import extras
from meshflow.keras.utils.images import array_to_img, img_to_array

__all__ = [
    "apply_affine_transform",
    "apply_brightness_shift",
    "apply_channel_shift",
    "random_brightness",
    "random_channel_shift",
    "random_rotation",
    "random_shear",
    "random_shift",
    "random_zoom",
]


def apply_affine_transform(
    x: np.ndarray,
    theta: float = 0,
    tx: float = 0,
    ty: float = 0,
    shear: float = 0,
    zx: float = 1,
    zy: float = 1,
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    order: int = 1,
) -> np.ndarray:
    """An image turned, shifted, sheared and zoomed about its middle.

    Args:
      x: an image of three dimensions.
      theta: degrees to turn.
      tx: pixels to shift along rows.
      ty: pixels to shift along columns.
      shear: degrees to shear.
      zx: factor of zoom along rows; below 1 things get larger.
      zy: factor of zoom along columns.
      row_axis: which dimension rows are.
      col_axis: which dimension columns are.
      channel_axis: which dimension channels are, the first or the last.
      fill_mode: what is outside: 'constant', 'nearest', 'reflect' or 'wrap'.
      cval: the number outside for 'constant'.
      order: degree of the splines between pixels.

    Raises:
      ValueError: for axes that are not three different ones, or another rank.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
      >>> turn = tf.keras.preprocessing.image.apply_affine_transform
      >>> turn(np.array([[[1, 2], [3, 4]]]), theta=90)[0]
      array([[2, 4],
             [1, 3]])
    """
    if {row_axis, col_axis, channel_axis} != {0, 1, 2} or channel_axis == 1:
        raise ValueError(
            f"row_axis, col_axis and channel_axis must be 0, 1 and 2 in some order, channels first or last; got "
            f"{row_axis}, {col_axis} and {channel_axis}."
        )
    if x.ndim != 3:
        raise ValueError(f"Expected one image of three dimensions, got shape {x.shape}.")
    if not (theta or tx or ty or shear) and zx == zy == 1:
        return x
    from scipy import ndimage  # noqa: PLC0415 - JAX brings SciPy, whose images few programs need

    turn, lean = np.deg2rad(theta), np.deg2rad(shear)
    rotation = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    shift = np.array([[1, 0, tx], [0, 1, ty], [0, 0, 1]])
    shearing = np.array([[1, -np.sin(lean), 0], [0, np.cos(lean), 0], [0, 0, 1]])
    matrix = rotation @ shift @ shearing @ np.diag([zx, zy, 1])
    middle = np.eye(3)
    middle[:2, 2] = x.shape[row_axis] / 2 - 0.5, x.shape[col_axis] / 2 - 0.5
    matrix = middle @ matrix @ np.linalg.inv(middle)
    if col_axis > row_axis:
        # The first coordinate of a matrix is x, that of an array is the row.
        matrix = matrix[[1, 0, 2]][:, [1, 0, 2]]
    channels = [
        ndimage.affine_transform(
            channel, matrix[:2, :2], matrix[:2, 2], order=order, mode=fill_mode, cval=cval
        )
        for channel in np.moveaxis(x, channel_axis, 0)
    ]
    return np.stack(channels, channel_axis)


def apply_channel_shift(x: np.ndarray, intensity: float, channel_axis: int = 0) -> np.ndarray:
    """An image with a number added, within the range of its numbers.

    Args:
      x: the image.
      intensity: the number.
      channel_axis: accepted.

    Example:
      >>> import meshflow as tf
      >>> import numpy as np
      >>> image = np.array([[[0.0, 100.0]]])
      >>> tf.keras.preprocessing.image.apply_channel_shift(image, 30.0).tolist()
      [[[30.0, 100.0]]]
    """
    return np.clip(x + intensity, x.min(), x.max())


def apply_brightness_shift(x: np.ndarray, brightness: float, scale: bool = True) -> np.ndarray:
    """An image made brighter by a factor, through Pillow's images of 8 bits.

    Args:
      x: the image.
      brightness: the factor.
      scale: whether its range becomes 0 to 255 first.
    """
    enhance = extras.load("PIL.ImageEnhance", "images", "Brighter images need Pillow")
    low, high = x.min(), x.max()
    outside = bool(low < 0 or high > 255)
    image = enhance.Brightness(array_to_img(x, scale=outside or scale)).enhance(brightness)
    found = img_to_array(image)
    return found / 255 * (high - low) + low if outside and not scale else found


def random_rotation(
    x: np.ndarray,
    rg: float,
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    interpolation_order: int = 1,
) -> np.ndarray:
    """An image turned by a random angle.

    Args:
      x: the image.
      rg: the largest angle in degrees.
      row_axis: as for `apply_affine_transform`.
      col_axis: as for `apply_affine_transform`.
      channel_axis: as for `apply_affine_transform`.
      fill_mode: as for `apply_affine_transform`.
      cval: as for `apply_affine_transform`.
      interpolation_order: degree of the splines between pixels.

    Example:
      >>> import meshflow as tf
      >>> import numpy as np
      >>> tf.keras.preprocessing.image.random_rotation(np.ones([8, 8, 3]), 20, 0, 1, 2).shape
      (8, 8, 3)
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    outside = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    return apply_affine_transform(x, theta=np.random.uniform(-rg, rg), **axes, **outside)  # type: ignore[arg-type]


def random_shift(
    x: np.ndarray,
    wrg: float,
    hrg: float,
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    interpolation_order: int = 1,
) -> np.ndarray:
    """An image shifted by random distances.

    Args:
      x: the image.
      wrg: the largest shift, as a part of the width.
      hrg: the largest shift, as a part of the height.
      row_axis: as for `apply_affine_transform`.
      col_axis: as for `apply_affine_transform`.
      channel_axis: as for `apply_affine_transform`.
      fill_mode: as for `apply_affine_transform`.
      cval: as for `apply_affine_transform`.
      interpolation_order: degree of the splines between pixels.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    outside = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    tx = np.random.uniform(-hrg, hrg) * x.shape[row_axis]
    ty = np.random.uniform(-wrg, wrg) * x.shape[col_axis]
    return apply_affine_transform(x, tx=tx, ty=ty, **axes, **outside)  # type: ignore[arg-type]


def random_shear(
    x: np.ndarray,
    intensity: float,
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    interpolation_order: int = 1,
) -> np.ndarray:
    """An image sheared by a random angle.

    Args:
      x: the image.
      intensity: the largest angle in degrees.
      row_axis: as for `apply_affine_transform`.
      col_axis: as for `apply_affine_transform`.
      channel_axis: as for `apply_affine_transform`.
      fill_mode: as for `apply_affine_transform`.
      cval: as for `apply_affine_transform`.
      interpolation_order: degree of the splines between pixels.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    outside = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    shear = np.random.uniform(-intensity, intensity)
    return apply_affine_transform(x, shear=shear, **axes, **outside)  # type: ignore[arg-type]


def random_zoom(
    x: np.ndarray,
    zoom_range: Any,
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    interpolation_order: int = 1,
) -> np.ndarray:
    """An image zoomed by random factors.

    Args:
      x: the image.
      zoom_range: the smallest and the largest factor.
      row_axis: as for `apply_affine_transform`.
      col_axis: as for `apply_affine_transform`.
      channel_axis: as for `apply_affine_transform`.
      fill_mode: as for `apply_affine_transform`.
      cval: as for `apply_affine_transform`.
      interpolation_order: degree of the splines between pixels.

    Raises:
      ValueError: when `zoom_range` is not two numbers.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    outside = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    if len(zoom_range) != 2:
        raise ValueError(f"`zoom_range` should be two floats, got {zoom_range}.")
    low, high = zoom_range
    zx, zy = (1, 1) if low == high == 1 else np.random.uniform(low, high, 2)
    return apply_affine_transform(x, zx=zx, zy=zy, **axes, **outside)  # type: ignore[arg-type]


def random_channel_shift(
    x: np.ndarray, intensity_range: float, channel_axis: int = 0
) -> np.ndarray:
    """An image with a random number added.

    Args:
      x: the image.
      intensity_range: the largest number.
      channel_axis: accepted.
    """
    intensity = np.random.uniform(-intensity_range, intensity_range)
    return apply_channel_shift(x, intensity, channel_axis)


def random_brightness(x: np.ndarray, brightness_range: Any, scale: bool = True) -> np.ndarray:
    """An image made brighter by a random factor.

    Args:
      x: the image.
      brightness_range: the smallest and the largest factor.
      scale: whether its range becomes 0 to 255 first.

    Raises:
      ValueError: when `brightness_range` is not two numbers.
    """
    if len(brightness_range) != 2:
        raise ValueError(f"`brightness_range` should be two floats, got {brightness_range}.")
    low, high = brightness_range
    return apply_brightness_shift(x, np.random.uniform(low, high), scale)
