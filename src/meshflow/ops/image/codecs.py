"""Encoded images, by the package Pillow, on the host."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, uint8
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels import jpeg
from meshflow.ops.deferred_host_values import waits
from meshflow.ops.files import host_bytes, names_file
from meshflow.ops.image.color import convert_image_dtype
from meshflow.ops.image.geometry import crop_to_bounding_box
from meshflow.ops.image.opening import check_size, decoding, opened, pillow

__all__ = [
    "adjust_jpeg_quality",
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "is_jpeg",
]

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_PNG_GRAY = np.array([9797, 19234, 3737])
_JPEG = b"\xff\xd8\xff"
_CHANNELS = {mode: count for count, mode in _MODES.items()}


def _bytes(contents: TensorLike) -> bytes:
    array = host_bytes(contents, "an encoded image")
    if array.ndim:
        raise InvalidArgumentError(f"contents must be scalar, got shape {list(array.shape)}")
    return array[()]


def _open(contents: TensorLike) -> Any:
    return opened(_bytes(contents))


def _pixels(image: Any, channels: int) -> np.ndarray:
    """Pixels [height, width, channels] of the first frame."""
    if channels not in (0, *_MODES):
        raise ValueError(f"channels must be 0, 1, 2, 3 or 4, got {channels}.")
    with decoding(image.format):
        return _converted_pixels(image, channels)


def _converted_pixels(image: Any, channels: int) -> np.ndarray:
    if image.mode.startswith("I;16") or image.mode == "I":
        array = np.asarray(image).astype(np.uint16)[..., None]
        return np.repeat(array, max(channels, 1), axis=-1)
    if channels:
        mode = _MODES[channels]
    elif image.mode in _CHANNELS:
        mode = image.mode
    else:
        has_alpha = "transparency" in image.info or image.mode in ("PA", "RGBa", "La")
        mode = "L" if image.mode == "1" else "RGBA" if has_alpha else "RGB"
    if image.format == "PNG" and mode == "L" and image.mode in ("RGB", "RGBA", "P"):
        # libpng's rounding of the colours' weights, which is not Pillow's.
        weighted = np.asarray(image.convert("RGB")).astype(np.int64) @ _PNG_GRAY
        return (weighted >> 15).astype(np.uint8)[..., None]
    array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array[..., None] if array.ndim == 2 else array


def _jpeg_pixels(
    contents: bytes, channels: int, ratio: int = 1, fast: bool = True, fancy: bool = True
) -> np.ndarray | None:
    """The pixels of a JPEG image; None for other images, and those that are left to Pillow."""
    if not contents.startswith(_JPEG):
        return None
    if channels not in (0, 1, 3):
        raise InvalidArgumentError(f"channels must be 0, 1, or 3 for JPEG, got {channels}.")
    return jpeg.decoded(contents, channels, ratio, fast, fancy)


def pixels_of(contents: bytes, channels: int) -> np.ndarray:
    """The pixels of an encoded image as a host array [height, width, channels].

    Args:
      contents: the file's bytes.
      channels: how many channels; 0 as in the file.

    Raises:
      InvalidArgumentError: when the bytes are no image.
    """
    found = _jpeg_pixels(contents, channels)
    array = _pixels(_open(contents), channels) if found is None else found
    return (array >> 8).astype(np.uint8) if array.dtype == np.uint16 else array


def _as_dtype(array: np.ndarray, dtype: Any) -> Tensor:
    if array.dtype == as_dtype(dtype).dtype:
        # No op is needed, which XLA would compile for every size of images.
        return Tensor(np.ascontiguousarray(array))
    return convert_image_dtype(convert_to_tensor(np.ascontiguousarray(array)), as_dtype(dtype))


def _converted(image: Any, channels: int, dtype: Any) -> Tensor:
    array = _pixels(image, channels)
    if image.format == "PNG" and array.dtype == np.uint8 and as_dtype(dtype).name == "uint16":
        # White stays white, where other formats fill up with zero bits.
        return convert_to_tensor(array.astype(np.uint16) * np.uint16(257))
    return _as_dtype(array, dtype)


def _image_spec(
    contents: Any, channels: int | None = 0, dtype: Any = uint8, *_: Any, **__: Any
) -> TensorSpec:
    """The spec of a decoded image."""
    return TensorSpec([None, None, channels or None], as_dtype(dtype))


def _first_frame_spec(
    contents: Any,
    channels: int | None = None,
    dtype: Any = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> TensorSpec:
    if expand_animations:
        return TensorSpec(None, as_dtype(dtype))
    return _image_spec(contents, channels, dtype)


def _jpeg_spec(contents: Any, channels: int = 0, *_: Any, **__: Any) -> TensorSpec:
    return _image_spec(contents, channels)


@waits(_first_frame_spec)
@names_file
def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: Any = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """Pixels of a JPEG, PNG, GIF, BMP or WebP image.

    Args:
      contents: the file's bytes.
      channels: how many channels; default (0) as in the file.
      dtype: uint8, uint16 or float32 (then from 0 to 1).
      name: ignored.
      expand_animations: whether an animated GIF gives all frames, [frames, height, width, 3].

    Returns:
      Tensor of shape [height, width, channels].

    Raises:
      InvalidArgumentError: when the bytes are no image, or declare one that would take more than 512 MiB; the
        environment's MESHFLOW_MAX_IMAGE_BYTES sets another number of bytes.
      UnimplementedError: when Pillow is not installed.

    Example:
      >>> import meshflow as tf
      >>> png = tf.io.encode_png(tf.zeros([2, 3, 1], tf.uint8))
      >>> tf.io.decode_image(png).shape, tf.io.decode_image(png, channels=3).shape
      (TensorShape([2, 3, 1]), TensorShape([2, 3, 3]))
    """
    found = _jpeg_pixels(_bytes(contents), channels or 0)
    if found is not None:
        return _as_dtype(found, dtype)
    image = _open(contents)
    if image.format == "GIF" and expand_animations:
        return _as_dtype(_frames(image), dtype)
    return _converted(image, channels or 0, dtype)


def _frames(image: Any) -> np.ndarray:
    frames = []
    with decoding(image.format):
        count = getattr(image, "n_frames", 1)
        for index in range(count):
            image.seek(index)
            # A frame may enlarge the image.
            check_size(image.format, image.height, image.width, 3, count)
            frames.append(np.asarray(image.convert("RGB")))
        return np.stack(frames)


@waits(_image_spec)
@names_file
def decode_png(
    contents: TensorLike, channels: int = 0, dtype: Any = uint8, name: str | None = None
) -> Tensor:
    """`decode_image` without animations.

    The result has the shape (height, width, channels).

    Args:
      contents: the file's bytes.
      channels: how many channels; default (0) as in the file.
      dtype: uint8 or uint16.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> png = tf.io.encode_png(tf.constant([[[1], [200]]], tf.uint8))
      >>> print(tf.io.decode_png(png)[..., 0].numpy())
      [[  1 200]]
    """
    found = _jpeg_pixels(_bytes(contents), channels)
    return (
        _converted(_open(contents), channels, dtype) if found is None else _as_dtype(found, dtype)
    )


@waits(_jpeg_spec)
def decode_bmp(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """`decode_image` without animations.

    The result has the shape (height, width, channels).
    """
    return decode_png(contents, channels)


@names_file
def decode_gif(contents: TensorLike, name: str | None = None) -> Tensor:
    """All frames, [frames, height, width, 3]."""
    return convert_to_tensor(_frames(_open(contents)))


@waits(_jpeg_spec)
@names_file
def decode_jpeg(
    contents: TensorLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """Pixels of a JPEG image.

    Args:
      contents: the file's bytes.
      channels: 1 or 3; default (0) as in the file.
      ratio: 1, 2, 4 or 8: how much smaller the result is.
      fancy_upscaling: whether colours at half the resolution are interpolated; Pillow always does it.
      try_recover_truncated: accepted; a cut file is an error.
      acceptable_fraction: accepted, likewise.
      dct_method: 'INTEGER_FAST' (the default) or 'INTEGER_ACCURATE', which is what Pillow does where
        the compiled kernels or Pillow's own libjpeg are missing.
      name: ignored.

    Returns:
      Tensor of shape [height, width, channels].

    Example:
      >>> import meshflow as tf
      >>> jpeg = tf.io.encode_jpeg(tf.fill([8, 16, 3], tf.constant(128, tf.uint8)))
      >>> tf.io.decode_jpeg(jpeg).shape, tf.io.decode_jpeg(jpeg, ratio=2).shape
      (TensorShape([8, 16, 3]), TensorShape([4, 8, 3]))
    """
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"ratio must be 1, 2, 4 or 8, got {ratio}.")
    if dct_method not in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
        raise InvalidArgumentError(
            f"dct_method must be one of '', 'INTEGER_FAST', 'INTEGER_ACCURATE', got {dct_method!r}."
        )
    fast = dct_method != "INTEGER_ACCURATE"
    pixels = _jpeg_pixels(_bytes(contents), channels, ratio, fast, fancy_upscaling)
    if pixels is not None:
        return Tensor(pixels)
    image = _open(contents)
    if ratio > 1:
        width, height = image.size
        image.draft(None, (width // ratio, height // ratio))
    return Tensor(np.ascontiguousarray(_pixels(image, channels)))


def decode_and_crop_jpeg(
    contents: TensorLike,
    crop_window: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """Part of a JPEG image's pixels.

    The result has the shape (height, width, channels).

    Args:
      contents: the file's bytes.
      crop_window: (top, left, height, width).
      channels: 1 or 3; default (0) as in the file.
      ratio: 1, 2, 4 or 8: how much smaller the whole image is.
      fancy_upscaling: accepted, as in `decode_jpeg`.
      try_recover_truncated: accepted, as in `decode_jpeg`.
      acceptable_fraction: accepted, as in `decode_jpeg`.
      dct_method: accepted, as in `decode_jpeg`.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> jpeg = tf.io.encode_jpeg(tf.zeros([16, 16, 3], tf.uint8))
      >>> tf.io.decode_and_crop_jpeg(jpeg, crop_window=[2, 4, 5, 6]).shape
      TensorShape([5, 6, 3])
    """
    window = [int(v) for v in np.asarray(convert_to_tensor(crop_window)._value)]
    whole = decode_jpeg(contents, channels, ratio, fancy_upscaling, dct_method=dct_method)
    return crop_to_bounding_box(whole, *window)


def _image(image: TensorLike, op: str) -> Any:
    array = convert_to_tensor(image)._concrete("an image to be encoded")
    if array.ndim != 3 or array.shape[-1] not in _MODES:
        raise InvalidArgumentError(
            f"{op}: image must have shape [height, width, 1 to 4 channels], got {list(array.shape)}"
        )
    if array.dtype == np.uint16 and array.shape[-1] == 1:
        return pillow().fromarray(array[..., 0])
    if array.dtype != np.uint8:
        raise InvalidArgumentError(f"{op}: image must be uint8, got {array.dtype}")
    return pillow().fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def _save(image: Any, kind: str, **options: Any) -> Tensor:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return convert_to_tensor(buffer.getvalue())


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """A PNG file's bytes.

    Args:
      image: uint8 (or, with one channel, uint16) [height, width, channels].
      compression: 0 to 9; default (-1) the encoder's choice.
      name: ignored.

    Returns:
      A string scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()[1:4]
      b'PNG'
    """
    options = {} if compression < 0 else {"compress_level": compression}
    return _save(_image(image, "encode_png"), "PNG", **options)


def encode_jpeg(
    image: TensorLike,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """A JPEG file's bytes.

    Args:
      image: uint8 [height, width, 1 or 3].
      format: '', 'grayscale' or 'rgb'; must agree with the number of channels.
      quality: 0 to 100.
      progressive: whether a coarse image comes first.
      optimize_size: whether time is spent on a smaller file.
      chroma_downsampling: whether colours have half the resolution.
      density_unit: 'in' or 'cm'.
      x_density: pixels per unit.
      y_density: pixels per unit.
      xmp_metadata: XMP data to store.
      name: ignored.

    Returns:
      A string scalar.

    Example:
      >>> import meshflow as tf
      >>> grey = tf.fill([8, 8, 1], tf.constant(128, tf.uint8))
      >>> tf.io.is_jpeg(tf.io.encode_jpeg(grey, quality=80)).numpy().item()
      True
    """
    source = _image(image, "encode_jpeg")
    if source.mode not in ("L", "RGB") or (
        format and {"L": "grayscale"}.get(source.mode, "rgb") != format
    ):
        raise InvalidArgumentError(
            f"encode_jpeg: format {format!r} does not fit an image with mode {source.mode}"
        )
    scale = 2.54 if density_unit == "cm" else 1
    extra = {"xmp": xmp_metadata.encode()} if xmp_metadata else {}
    return _save(
        source,
        "JPEG",
        quality=quality,
        progressive=progressive,
        optimize=optimize_size,
        subsampling=2 if chroma_downsampling else 0,
        dpi=(round(x_density * scale), round(y_density * scale)),
        **extra,
    )


@names_file
def extract_jpeg_shape(
    contents: TensorLike, output_type: Any = "int32", name: str | None = None
) -> Tensor:
    """The shape [height, width, channels] of an encoded image, as a vector.

    Args:
      contents: the file's bytes.
      output_type: int32 or int64.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> jpeg = tf.io.encode_jpeg(tf.zeros([16, 8, 3], tf.uint8))
      >>> print(tf.io.extract_jpeg_shape(jpeg).numpy())
      [16  8  3]
    """
    image = _open(contents)
    shape = [image.height, image.width, _CHANNELS.get(image.mode, 3)]
    return Tensor(np.array(shape, as_dtype(output_type).dtype))


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """Whether bytes start as a JPEG file does.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> print(tf.io.is_jpeg(tf.constant(b"a text")).numpy())
      False
    """
    return Tensor(np.array(_bytes(contents)[:3] == b"\xff\xd8\xff"))


def adjust_jpeg_quality(image: TensorLike, jpeg_quality: Any, name: str | None = None) -> Tensor:
    """The image as it is after JPEG coding.

    Args:
      image: [height, width, 1 or 3].
      jpeg_quality: 0 to 100.
      name: ignored.

    Returns:
      An image of the same shape and dtype.

    Example:
      >>> import meshflow as tf
      >>> x = tf.random.uniform([8, 8, 3])
      >>> tf.image.adjust_jpeg_quality(x, 30).shape
      TensorShape([8, 8, 3])
    """
    image = convert_to_tensor(image)
    coded = encode_jpeg(
        convert_image_dtype(image, uint8, saturate=True),
        quality=int(convert_to_tensor(jpeg_quality)),
    )
    return convert_image_dtype(decode_jpeg(coded), image.dtype, saturate=True)
