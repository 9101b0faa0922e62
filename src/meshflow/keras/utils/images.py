"""Images as Pillow's objects and as arrays."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.keras import settings
from meshflow.keras.utils.directories import cropped
from meshflow.ops.image import resize
from meshflow.ops.image.opening import pillow as _pillow

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["array_to_img", "img_to_array", "load_img", "save_img", "smart_resize"]

_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}


def _channels_first(data_format: str | None) -> bool:
    chosen = settings.image_data_format() if data_format is None else data_format
    if chosen not in ("channels_first", "channels_last"):
        raise ValueError(f"Invalid data_format: {chosen!r}.")
    return chosen == "channels_first"


def _floatx(dtype: Any) -> Any:
    return settings.floatx() if dtype is None else dtype


def load_img(
    path: Any,
    grayscale: bool = False,
    color_mode: str = "rgb",
    target_size: Any = None,
    interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Image:
    """An image file as Pillow's image.

    Args:
      path: the file, or an `io.BytesIO` of its bytes.
      grayscale: an older way to say color_mode='grayscale'.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      target_size: (height, width) to resize to; None for the image's own.
      interpolation: 'nearest', 'bilinear', 'bicubic', 'lanczos', 'box' or 'hamming'.
      keep_aspect_ratio: whether the image is cropped in the middle instead of distorted.

    Returns:
      A `PIL.Image.Image`.

    Raises:
      ValueError: for another colour mode or interpolation.

    Example:
      >>> import meshflow as tf
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
        raise ValueError("An image in EPS is a program, which is not run: convert it to PNG.")
    kept = ("L", "I;16", "I") if color_mode == "grayscale" else (_MODES[color_mode],)
    if image.mode not in kept:
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
        wide = min(image.width, image.height * width // height)
        tall = min(image.height, image.width * height // width)
        left, top = (image.width - wide) // 2, (image.height - tall) // 2
        box = (left, top, left + wide, top + tall)
    return image.resize((width, height), method, box=box)


def img_to_array(img: Any, data_format: str | None = None, dtype: Any = None) -> np.ndarray:
    """Pillow's image as an array of three dimensions.

    Args:
      img: the image.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dtype: default `tf.keras.backend.floatx()`.

    Raises:
      ValueError: for another format, or something that is no image.

    Example:
      >>> import meshflow as tf
      >>> from PIL import Image
      >>> tf.keras.utils.img_to_array(Image.new("RGB", (3, 2), (0, 128, 255))).shape
      (2, 3, 3)
    """
    first = _channels_first(data_format)
    array = np.asarray(img).astype(_floatx(dtype))
    if array.ndim == 2:
        return array[None] if first else array[..., None]
    if array.ndim != 3:
        raise ValueError(f"Unsupported image shape: {array.shape}.")
    return array.transpose(2, 0, 1) if first else array


def array_to_img(
    x: Any, data_format: str | None = None, scale: bool = True, dtype: Any = None
) -> Image:
    """An array as Pillow's image.

    Args:
      x: array [height, width, channels] with 1, 3 or 4 channels.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      scale: whether the smallest number becomes 0 and the largest 255.
      dtype: of the computation; default `tf.keras.backend.floatx()`.

    Returns:
      A `PIL.Image.Image`.

    Raises:
      ValueError: for another format, rank or number of channels.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
      >>> tf.keras.utils.array_to_img(np.ones([2, 3, 3]), scale=False).size
      (3, 2)
    """
    pillow = _pillow()
    array = np.array(x).astype(_floatx(dtype))
    if array.ndim != 3:
        raise ValueError(f"Expected an array of one image, of rank 3, got shape {array.shape}.")
    if _channels_first(data_format):
        array = array.transpose(1, 2, 0)
    if scale:
        array = array - array.min()
        largest = array.max()
        array = array * (255 / largest if largest else 255)
    if array.shape[2] not in (1, 3, 4):
        raise ValueError(f"Unsupported number of channels: {array.shape[2]}.")
    if array.shape[2] == 1:
        return pillow.fromarray(array[..., 0].astype("int32" if array.max() > 255 else "uint8"))
    return pillow.fromarray(array.astype("uint8"))


def save_img(
    path: Any,
    x: Any,
    data_format: str | None = None,
    file_format: str | None = None,
    scale: bool = True,
    **kwargs: Any,
) -> None:
    """Writes an array as an image file.

    Args:
      path: the file, or a file object.
      x: array [height, width, channels].
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      file_format: default by the file's name.
      scale: whether the smallest number becomes 0 and the largest 255.
      **kwargs: further arguments of Pillow's `save`.

    Raises:
      ValueError: when neither `file_format` nor the file's name says which format.

    Example:
      >>> import meshflow as tf
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
    name = text(path)
    known = _pillow().registered_extensions()
    file_format = file_format or known.get(os.path.splitext(name)[1].lower())
    if file_format is None:
        raise ValueError(f"{name}: its ending says no format of images; give file_format.")
    with replacing(name) as file:
        image.save(file, format=file_format, **kwargs)


def smart_resize(x: Any, size: Any, interpolation: str = "bilinear") -> Tensor | np.ndarray:
    """An image cropped in the middle to an aspect ratio, then resized to it.

    Args:
      x: image or images, an array or tensor [..., height, width, channels].
      size: (height, width).
      interpolation: method of `tf.image.resize`.

    Returns:
      An array for an array, a tensor for a tensor.

    Raises:
      ValueError: for another size or rank.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
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
    found = resize(cropped(image, size), size, method=interpolation.lower())
    return found.numpy() if isinstance(x, np.ndarray) else found
