"""Affine transforms and color shifts of images, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.environment import optional_packages
from meshflow.keras.utils.images import array_to_img, img_to_array


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
    """Rotate, shift, shear and zoom an image about its center.

    Args:
      x: Image with three dimensions.
      theta: Rotation in degrees.
      tx: Shift along rows, in pixels.
      ty: Shift along columns, in pixels.
      shear: Shear angle in degrees.
      zx: Zoom factor along rows; a factor below 1 enlarges the image.
      zy: Zoom factor along columns.
      row_axis: Axis of the rows.
      col_axis: Axis of the columns.
      channel_axis: Axis of the channels, the first or the last.
      fill_mode: How to fill pixels outside the image: 'constant', 'nearest', 'reflect' or 'wrap'.
      cval: Value of pixels outside the image for 'constant'.
      order: Degree of the splines that interpolate between pixels.

    Raises:
      ValueError: If the axes are not 0, 1 and 2 in some order, or the image has another rank.

    Example:
      >>> import numpy as np
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
    from scipy import ndimage  # noqa: PLC0415 - the import is slow, and few programs need it

    rotation_angle, shear_angle = np.deg2rad(theta), np.deg2rad(shear)
    rotation = np.array(
        [
            [np.cos(rotation_angle), -np.sin(rotation_angle), 0],
            [np.sin(rotation_angle), np.cos(rotation_angle), 0],
            [0, 0, 1],
        ]
    )
    shift = np.array([[1, 0, tx], [0, 1, ty], [0, 0, 1]])
    shear_matrix = np.array([[1, -np.sin(shear_angle), 0], [0, np.cos(shear_angle), 0], [0, 0, 1]])
    matrix = rotation @ shift @ shear_matrix @ np.diag([zx, zy, 1])
    center = np.eye(3)
    center[:2, 2] = x.shape[row_axis] / 2 - 0.5, x.shape[col_axis] / 2 - 0.5
    matrix = center @ matrix @ np.linalg.inv(center)
    if col_axis > row_axis:
        # The first coordinate of the matrix is x, but that of an array is the row.
        matrix = matrix[[1, 0, 2]][:, [1, 0, 2]]
    channels = [
        ndimage.affine_transform(
            channel, matrix[:2, :2], matrix[:2, 2], order=order, mode=fill_mode, cval=cval
        )
        for channel in np.moveaxis(x, channel_axis, 0)
    ]
    return np.stack(channels, channel_axis)


def apply_channel_shift(x: np.ndarray, intensity: float, channel_axis: int = 0) -> np.ndarray:
    """Add a value to an image, and clip to the range of the image.

    Args:
      x: The image.
      intensity: The value.
      channel_axis: Ignored.

    Example:
      >>> import numpy as np
      >>> image = np.array([[[0.0, 100.0]]])
      >>> tf.keras.preprocessing.image.apply_channel_shift(image, 30.0).tolist()
      [[[30.0, 100.0]]]
    """
    return np.clip(x + intensity, x.min(), x.max())


def apply_brightness_shift(x: np.ndarray, brightness: float, scale: bool = True) -> np.ndarray:
    """Multiply the brightness of an image by a factor, through 8-bit Pillow images.

    Args:
      x: The image.
      brightness: The factor.
      scale: Whether to scale the image to [0, 255] first.
    """
    enhance = optional_packages.import_extra(
        "PIL.ImageEnhance", None, "Brighter images need Pillow"
    )
    low, high = x.min(), x.max()
    is_out_of_range = bool(low < 0 or high > 255)
    image = enhance.Brightness(array_to_img(x, scale=is_out_of_range or scale)).enhance(brightness)
    shifted = img_to_array(image)
    return shifted / 255 * (high - low) + low if is_out_of_range and not scale else shifted


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
    """Rotate an image by a random angle of at most `rg` degrees.

    The other arguments are as in `apply_affine_transform`.

    Example:
      >>> import numpy as np
      >>> tf.keras.preprocessing.image.random_rotation(np.ones([8, 8, 3]), 20, 0, 1, 2).shape
      (8, 8, 3)
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    fill = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    return apply_affine_transform(x, theta=np.random.uniform(-rg, rg), **axes, **fill)  # type: ignore[arg-type]


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
    """Shift an image by random fractions of at most `wrg` of the width and `hrg` of the height.

    The other arguments are as in `apply_affine_transform`.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    fill = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    tx = np.random.uniform(-hrg, hrg) * x.shape[row_axis]
    ty = np.random.uniform(-wrg, wrg) * x.shape[col_axis]
    return apply_affine_transform(x, tx=tx, ty=ty, **axes, **fill)  # type: ignore[arg-type]


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
    """Shear an image by a random angle of at most `intensity` degrees.

    The other arguments are as in `apply_affine_transform`.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    fill = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    shear = np.random.uniform(-intensity, intensity)
    return apply_affine_transform(x, shear=shear, **axes, **fill)  # type: ignore[arg-type]


def random_zoom(
    x: np.ndarray,
    zoom_range: Sequence[float],
    row_axis: int = 1,
    col_axis: int = 2,
    channel_axis: int = 0,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    interpolation_order: int = 1,
) -> np.ndarray:
    """Zoom an image by random factors in `zoom_range`.

    The other arguments are as in `apply_affine_transform`.

    Raises:
      ValueError: If `zoom_range` does not hold two numbers.
    """
    axes = {"row_axis": row_axis, "col_axis": col_axis, "channel_axis": channel_axis}
    fill = {"fill_mode": fill_mode, "cval": cval, "order": interpolation_order}
    if len(zoom_range) != 2:
        raise ValueError(f"`zoom_range` should be two floats, got {zoom_range}.")
    low, high = zoom_range
    zx, zy = (1, 1) if low == high == 1 else np.random.uniform(low, high, 2)
    return apply_affine_transform(x, zx=zx, zy=zy, **axes, **fill)  # type: ignore[arg-type]


def random_channel_shift(
    x: np.ndarray, intensity_range: float, channel_axis: int = 0
) -> np.ndarray:
    """Add a random value of at most `intensity_range` to an image; see `apply_channel_shift`."""
    intensity = np.random.uniform(-intensity_range, intensity_range)
    return apply_channel_shift(x, intensity, channel_axis)


def random_brightness(
    x: np.ndarray, brightness_range: Sequence[float], scale: bool = True
) -> np.ndarray:
    """Multiply the brightness of an image by a random factor.

    Args:
      x: The image.
      brightness_range: Minimum and maximum factor.
      scale: Whether to scale the image to [0, 255] first.

    Raises:
      ValueError: If `brightness_range` does not hold two numbers.
    """
    if len(brightness_range) != 2:
        raise ValueError(f"`brightness_range` should be two floats, got {brightness_range}.")
    low, high = brightness_range
    return apply_brightness_shift(x, np.random.uniform(low, high), scale)
