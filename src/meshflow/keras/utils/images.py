"""Conversion of images between files, Pillow and arrays."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import ArrayLike, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string
from meshflow.keras import settings
from meshflow.keras.literals import DataFormat, Interpolation
from meshflow.keras.utils.directories import crop_to_ratio
from meshflow.ops.image import resize
from meshflow.ops.image.pillow_files import import_pillow as _pillow

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}


def _is_channels_first(data_format: DataFormat | None) -> bool:
    layout = settings.image_data_format() if data_format is None else data_format
    if layout not in ("channels_first", "channels_last"):
        raise ValueError(f"Invalid data_format: {layout!r}.")
    return layout == "channels_first"


def _default_to_floatx(dtype: DTypeLike | None) -> DTypeLike:
    return settings.floatx() if dtype is None else dtype


def load_img(
    path: StrPath | io.BytesIO,
    grayscale: bool = False,
    color_mode: Literal["grayscale", "rgb", "rgba"] = "rgb",
    target_size: Sequence[int] | None = None,
    interpolation: Interpolation | Literal["hamming", "box", "lanczos"] = "nearest",
    keep_aspect_ratio: bool = False,
) -> Image:
    """Load an image file with Pillow.

    Args:
      path: Path, or an `io.BytesIO` with the content.
      grayscale: Whether to set color_mode='grayscale'; a former argument.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      target_size: (height, width) of the result; None for the size of the image.
      interpolation: 'nearest', 'bilinear', 'bicubic', 'lanczos', 'box' or 'hamming'.
      keep_aspect_ratio: Whether to crop the image at the center instead of distorting it.

    Returns:
      A `PIL.Image.Image`.

    Raises:
      ValueError: If the color mode or interpolation is unknown.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "image.png")
      ...     tf.keras.utils.save_img(path, tf.zeros([4, 6, 3]))
      ...     tf.keras.utils.load_img(path, color_mode="grayscale", target_size=(2, 3)).size
      (3, 2)
    """
    pillow = _pillow()
    if grayscale:
        color_mode = "grayscale"
    if color_mode not in _MODES:
        raise ValueError(f"color_mode must be 'grayscale', 'rgb' or 'rgba', got {color_mode!r}.")
    if not isinstance(path, io.BytesIO):
        with gfile.GFile(path, "rb") as file:
            path = io.BytesIO(file.read())
    image = pillow.open(path)
    if image.format == "EPS":
        raise ValueError(
            "load_img does not run EPS images, which are programs: convert the image to PNG."
        )
    accepted_modes = ("L", "I;16", "I") if color_mode == "grayscale" else (_MODES[color_mode],)
    if image.mode not in accepted_modes:
        image = image.convert(_MODES[color_mode])
    if target_size is None:
        return image
    height, width = (int(n) for n in target_size)
    if image.size == (width, height):
        return image
    methods = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
    if interpolation not in methods:
        raise ValueError(
            f"Invalid interpolation method {interpolation!r}; known: {', '.join(methods)}."
        )
    method = getattr(pillow.Resampling, interpolation.upper())
    box = None
    if keep_aspect_ratio:
        crop_width = min(image.width, image.height * width // height)
        crop_height = min(image.height, image.width * height // width)
        left, top = (image.width - crop_width) // 2, (image.height - crop_height) // 2
        box = (left, top, left + crop_width, top + crop_height)
    return image.resize((width, height), method, box=box)


def img_to_array(
    img: Image, data_format: DataFormat | None = None, dtype: DTypeLike | None = None
) -> np.ndarray:
    """Convert an image of Pillow to an array of rank 3.

    Args:
      img: The image.
      data_format: 'channels_last' or 'channels_first'; `image_data_format()` by default.
      dtype: Dtype of the array; `floatx()` by default.

    Raises:
      ValueError: If the format is unknown, or `img` is not an image.

    Example:
      >>> from PIL import Image
      >>> tf.keras.utils.img_to_array(Image.new("RGB", (3, 2), (0, 128, 255))).shape
      (2, 3, 3)
    """
    channels_first = _is_channels_first(data_format)
    array = np.asarray(img).astype(_default_to_floatx(dtype))
    if array.ndim == 2:
        return array[None] if channels_first else array[..., None]
    if array.ndim != 3:
        raise ValueError(f"Unsupported image shape: {array.shape}.")
    return array.transpose(2, 0, 1) if channels_first else array


def array_to_img(
    x: ArrayLike,
    data_format: DataFormat | None = None,
    scale: bool = True,
    dtype: DTypeLike | None = None,
) -> Image:
    """Convert an array to an image of Pillow.

    Args:
      x: Array [height, width, channels] with 1, 3 or 4 channels.
      data_format: 'channels_last' or 'channels_first'; `image_data_format()` by default.
      scale: Whether to scale the values to the range from 0 to 255.
      dtype: Dtype of the computation; `floatx()` by default.

    Returns:
      A `PIL.Image.Image`.

    Raises:
      ValueError: If the format, rank or number of channels is invalid.

    Example:
      >>> import numpy as np
      >>> tf.keras.utils.array_to_img(np.ones([2, 3, 3]), scale=False).size
      (3, 2)
    """
    pillow = _pillow()
    array = np.array(x).astype(_default_to_floatx(dtype))
    if array.ndim != 3:
        raise ValueError(f"Expected an array of one image, of rank 3, got shape {array.shape}.")
    if _is_channels_first(data_format):
        array = array.transpose(1, 2, 0)
    if scale:
        array = array - array.min()
        # The quotient is at most 1, so no rounding error exceeds 255, which would need mode I.
        array = array / (array.max() or 1) * 255
    if array.shape[2] not in (1, 3, 4):
        raise ValueError(f"Unsupported number of channels: {array.shape[2]}.")
    if array.shape[2] == 1:
        return pillow.fromarray(array[..., 0].astype("int32" if array.max() > 255 else "uint8"))
    return pillow.fromarray(array.astype("uint8"))


def save_img(
    path: StrPath | IO[bytes],
    x: ArrayLike,
    data_format: DataFormat | None = None,
    file_format: str | None = None,
    scale: bool = True,
    **kwargs: Any,
) -> None:
    """Write an array to an image file.

    Args:
      path: Path or file object.
      x: Array [height, width, channels].
      data_format: 'channels_last' or 'channels_first'; `image_data_format()` by default.
      file_format: Format; by default that of the extension of the file.
      scale: Whether to scale the values to the range from 0 to 255.
      **kwargs: Other arguments of Pillow's `save`.

    Raises:
      ValueError: If the format is missing or unknown.

    Example:
      >>> import io
      >>> file = io.BytesIO()
      >>> tf.keras.utils.save_img(file, [[[0.0], [2.0]]], file_format="png")
      >>> tf.io.decode_png(file.getvalue()).numpy().tolist()
      [[[0], [255]]]
    """
    image = array_to_img(x, data_format, scale)
    if image.mode == "RGBA" and file_format in ("jpg", "jpeg"):
        warnings.warn("JPEG has no transparency; the image is converted to RGB.", stacklevel=2)
        image = image.convert("RGB")
    file_format = "jpeg" if file_format == "jpg" else file_format
    if hasattr(path, "write"):
        image.save(path, format=file_format, **kwargs)
        return
    name = to_path_string(path)
    formats = _pillow().registered_extensions()
    file_format = file_format or formats.get(os.path.splitext(name)[1].lower())
    if file_format is None:
        raise ValueError(f"{name}: unknown extension of an image file. Pass file_format.")
    with replace_file(name) as file:
        image.save(file, format=file_format, **kwargs)


def smart_resize(
    x: TensorLike, size: Sequence[int], interpolation: str = "bilinear"
) -> Tensor | np.ndarray:
    """Crop an image at the center to an aspect ratio and resize it.

    Args:
      x: Image or images, an array or tensor [..., height, width, channels].
      size: (height, width).
      interpolation: Method of `tf.image.resize`.

    Returns:
      An array for an array, and a tensor for a tensor.

    Raises:
      ValueError: If the size or rank is invalid.

    Example:
      >>> import numpy as np
      >>> tf.keras.preprocessing.image.smart_resize(np.ones([20, 10, 3]), (4, 4)).shape
      (4, 4, 3)
    """
    if len(size) != 2:
        raise ValueError(f"Expected `size` to be a tuple of 2 integers, got {size!r}.")
    image: Any = x if hasattr(x, "_keras_history") else convert_to_tensor(x)
    if len(image.shape) not in (3, 4):
        raise ValueError(
            f"Expected an image [height, width, channels] or a batch of them, got shape {tuple(image.shape)}."
        )
    resized = resize(crop_to_ratio(image, size), size, method=interpolation.lower())
    return resized.numpy() if isinstance(x, np.ndarray) else resized
