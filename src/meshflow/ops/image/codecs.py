"""Image decoding and encoding on the host, with the compiled JPEG decoder and Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from meshflow.core.dispatch.shape_probing import vary_sizes
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, uint8
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels import images, jpeg
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.deferred_host_values import defer_host_values
from meshflow.ops.files import add_path_to_errors, to_host_strings
from meshflow.ops.image.color import convert_image_dtype
from meshflow.ops.image.geometry import crop_to_bounding_box
from meshflow.ops.image.pillow_files import check_size, import_pillow, open_image, translate_errors

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

_CHANNELS_TO_MODE = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_PNG_GRAY_WEIGHTS = np.array([9797, 19234, 3737])
_JPEG_PREFIX = b"\xff\xd8\xff"
_PNG_PREFIX = b"\x89PNG\r\n\x1a\n"
_MODE_TO_CHANNELS = {mode: count for count, mode in _CHANNELS_TO_MODE.items()}


def _get_bytes(contents: TensorLike) -> bytes:
    array = to_host_strings(contents, "an encoded image")
    if array.ndim:
        raise InvalidArgumentError(f"contents must be scalar, got shape {list(array.shape)}")
    return array[()]


def _open_image(contents: TensorLike) -> Any:
    return open_image(_get_bytes(contents))


def _decode_pillow_image(image: Any, channels: int) -> np.ndarray:
    """Return the pixels [height, width, channels] of the first frame."""
    if channels not in (0, *_CHANNELS_TO_MODE):
        raise ValueError(f"channels must be 0, 1, 2, 3 or 4, got {channels}.")
    with translate_errors(image.format):
        return _convert_pixels(image, channels)


def _convert_pixels(image: Any, channels: int) -> np.ndarray:
    if image.mode.startswith("I;16") or image.mode == "I":
        array = np.asarray(image).astype(np.uint16)[..., None]
        return np.repeat(array, max(channels, 1), axis=-1)
    if channels:
        mode = _CHANNELS_TO_MODE[channels]
    elif image.mode in _MODE_TO_CHANNELS:
        mode = image.mode
    else:
        has_alpha = "transparency" in image.info or image.mode in ("PA", "RGBa", "La")
        mode = "L" if image.mode == "1" else "RGBA" if has_alpha else "RGB"
    if image.format == "PNG" and mode == "L" and image.mode in ("RGB", "RGBA", "P"):
        # libpng rounds the weights of the colors in another way than Pillow.
        weighted = np.asarray(image.convert("RGB")).astype(np.int64) @ _PNG_GRAY_WEIGHTS
        return (weighted >> 15).astype(np.uint8)[..., None]
    array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array[..., None] if array.ndim == 2 else array


def _decode_jpeg_pixels(
    contents: bytes, channels: int, ratio: int = 1, fast: bool = True, fancy: bool = True
) -> np.ndarray | None:
    """Return the pixels of a JPEG image, or None for images that Pillow must decode."""
    if not contents.startswith(_JPEG_PREFIX):
        return None
    if channels not in (0, 1, 3):
        raise InvalidArgumentError(f"channels must be 0, 1, or 3 for JPEG, got {channels}.")
    return jpeg.decode(contents, channels, ratio, fast, fancy)


def _decode_compiled(contents: bytes, channels: int, dtype: DTypeLike = uint8) -> np.ndarray | None:
    """Return the pixels of a JPEG or PNG image, or None for images that Pillow must decode."""
    is_png = contents.startswith(_PNG_PREFIX)
    if is_png and channels in (1, 3) and as_dtype(dtype).name != "uint16":
        return images.decode_png(contents, channels)
    return _decode_jpeg_pixels(contents, channels)


def decode_pixels(contents: bytes, channels: int) -> np.ndarray:
    """Decode an image to a uint8 host array [height, width, channels].

    Args:
      contents: Contents of the file.
      channels: Number of channels; 0 for that of the file.

    Raises:
      InvalidArgumentError: If the contents are not an image.
    """
    pixels = _decode_compiled(contents, channels)
    array = _decode_pillow_image(_open_image(contents), channels) if pixels is None else pixels
    return (array >> 8).astype(np.uint8) if array.dtype == np.uint16 else array


def _to_dtype(array: np.ndarray, dtype: DTypeLike) -> Tensor:
    array = vary_sizes(array, *range(array.ndim - 1))
    if array.dtype == as_dtype(dtype).dtype:
        # An op would be compiled by XLA for every image size.
        return Tensor(np.ascontiguousarray(array))
    return convert_image_dtype(convert_to_tensor(np.ascontiguousarray(array)), as_dtype(dtype))


def _decode_to_dtype(image: Any, channels: int, dtype: DTypeLike) -> Tensor:
    array = _decode_pillow_image(image, channels)
    if image.format == "PNG" and array.dtype == np.uint8 and as_dtype(dtype).name == "uint16":
        # White must remain white; the conversion of other formats appends zero bits.
        return convert_to_tensor(vary_sizes(array, 0, 1).astype(np.uint16) * np.uint16(257))
    return _to_dtype(array, dtype)


def _make_image_spec(
    contents: object, channels: int | None = 0, dtype: DTypeLike = uint8, *_: object, **__: object
) -> TensorSpec:
    """Return the spec of a decoded image."""
    return TensorSpec([None, None, channels or None], as_dtype(dtype))


def _make_decode_image_spec(
    contents: object,
    channels: int | None = None,
    dtype: DTypeLike = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> TensorSpec:
    if expand_animations:
        return TensorSpec(None, as_dtype(dtype))
    return _make_image_spec(contents, channels, dtype)


def _make_jpeg_spec(contents: object, channels: int = 0, *_: object, **__: object) -> TensorSpec:
    return _make_image_spec(contents, channels)


@defer_host_values(_make_decode_image_spec)
@add_path_to_errors
def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: DTypeLike = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """Decode a JPEG, PNG, GIF, BMP or WebP image.

    Args:
      contents: Contents of the file.
      channels: Number of channels; default (0) that of the file.
      dtype: uint8, uint16 or float32 (scaled to [0, 1]).
      name: Ignored.
      expand_animations: Whether to return all frames of an animated GIF, [frames, height, width,
        3].

    Returns:
      Tensor of shape [height, width, channels].

    Raises:
      InvalidArgumentError: If the contents are not an image, or declare a decoded size of more than
        512 MiB. The environment variable MESHFLOW_MAX_IMAGE_BYTES sets another limit.
      UnimplementedError: If Pillow is not installed.

    Example:
      >>> png = tf.io.encode_png(tf.zeros([2, 3, 1], tf.uint8))
      >>> tf.io.decode_image(png).shape, tf.io.decode_image(png, channels=3).shape
      (TensorShape([2, 3, 1]), TensorShape([2, 3, 3]))
    """
    pixels = _decode_compiled(_get_bytes(contents), channels or 0, dtype)
    if pixels is not None:
        return _to_dtype(pixels, dtype)
    image = _open_image(contents)
    if image.format == "GIF" and expand_animations:
        return _to_dtype(_decode_frames(image), dtype)
    return _decode_to_dtype(image, channels or 0, dtype)


def _decode_frames(image: Any) -> np.ndarray:
    frames = []
    with translate_errors(image.format):
        count = getattr(image, "n_frames", 1)
        for index in range(count):
            image.seek(index)
            # A frame may enlarge the image.
            check_size(image.format, image.height, image.width, 3, count)
            frames.append(np.asarray(image.convert("RGB")))
        return np.stack(frames)


@defer_host_values(_make_image_spec)
@add_path_to_errors
def decode_png(
    contents: TensorLike, channels: int = 0, dtype: DTypeLike = uint8, name: str | None = None
) -> Tensor:
    """Decode the first frame of an image, with shape (height, width, channels).

    Args:
      contents: Contents of the file, in any format that `decode_image` supports.
      channels: Number of channels; default (0) that of the file.
      dtype: Uint8 or uint16.
      name: Ignored.

    Example:
      >>> png = tf.io.encode_png(tf.constant([[[1], [200]]], tf.uint8))
      >>> print(tf.io.decode_png(png)[..., 0].numpy())
      [[  1 200]]
    """
    pixels = _decode_compiled(_get_bytes(contents), channels, dtype)
    return (
        _decode_to_dtype(_open_image(contents), channels, dtype)
        if pixels is None
        else _to_dtype(pixels, dtype)
    )


@defer_host_values(_make_jpeg_spec)
def decode_bmp(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """Decode the first frame of an image, with shape (height, width, channels)."""
    return decode_png(contents, channels)


@add_path_to_errors
def decode_gif(contents: TensorLike, name: str | None = None) -> Tensor:
    """Decode all frames of a GIF image, with shape [frames, height, width, 3]."""
    return _to_dtype(_decode_frames(_open_image(contents)), uint8)


@defer_host_values(_make_jpeg_spec)
@add_path_to_errors
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
    """Decode a JPEG image.

    Args:
      contents: Contents of the file.
      channels: 1 or 3; default (0) that of the file.
      ratio: Factor by which the result is downscaled: 1, 2, 4 or 8.
      fancy_upscaling: Whether to interpolate chroma of half resolution; Pillow always does.
      try_recover_truncated: Ignored; a truncated file is an error.
      acceptable_fraction: Ignored.
      dct_method: 'INTEGER_FAST' (the default) or 'INTEGER_ACCURATE', which Pillow always uses if
        the compiled kernels or Pillow's libjpeg are missing.
      name: Ignored.

    Returns:
      Tensor of shape [height, width, channels].

    Example:
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
    pixels = _decode_jpeg_pixels(_get_bytes(contents), channels, ratio, fast, fancy_upscaling)
    if pixels is not None:
        return Tensor(pixels)
    image = _open_image(contents)
    if ratio > 1:
        width, height = image.size
        if min(width, height) >= ratio:
            image.draft(None, (width // ratio, height // ratio))
        else:
            # Pillow cannot scale images that are thinner than a block.
            with translate_errors("JPEG"):
                image = image.reduce(ratio)
    return Tensor(np.ascontiguousarray(_decode_pillow_image(image, channels)))


def decode_and_crop_jpeg(
    contents: TensorLike,
    crop_window: StaticInts,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """Decode a window of a JPEG image.

    Args:
      contents: Contents of the file.
      crop_window: (top, left, height, width).
      channels: 1 or 3; default (0) that of the file.
      ratio: Factor by which the full image is downscaled before cropping: 1, 2, 4 or 8.
      fancy_upscaling: As in `decode_jpeg`.
      try_recover_truncated: Ignored.
      acceptable_fraction: Ignored.
      dct_method: As in `decode_jpeg`.
      name: Ignored.

    Example:
      >>> jpeg = tf.io.encode_jpeg(tf.zeros([16, 16, 3], tf.uint8))
      >>> tf.io.decode_and_crop_jpeg(jpeg, crop_window=[2, 4, 5, 6]).shape
      TensorShape([5, 6, 3])
    """
    window = [int(v) for v in np.asarray(convert_to_tensor(crop_window).array)]
    full_image = decode_jpeg(contents, channels, ratio, fancy_upscaling, dct_method=dct_method)
    return crop_to_bounding_box(full_image, *window)


def _to_pillow_image(image: TensorLike, op: str) -> Any:
    array = convert_to_tensor(image).require_value("an image to be encoded")
    if array.ndim != 3 or array.shape[-1] not in _CHANNELS_TO_MODE:
        raise InvalidArgumentError(
            f"{op}: image must have shape [height, width, 1 to 4 channels], got {list(array.shape)}"
        )
    if array.dtype == np.uint16 and array.shape[-1] == 1:
        return import_pillow().fromarray(array[..., 0])
    if array.dtype != np.uint8:
        raise InvalidArgumentError(f"{op}: image must be uint8, got {array.dtype}")
    return import_pillow().fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def _encode(image: Any, format: str, **options: Any) -> Tensor:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return convert_to_tensor(buffer.getvalue())


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """Encode an image as PNG.

    Args:
      image: uint8 (or, with one channel, uint16) [height, width, channels].
      compression: Level from 0 to 9; default (-1) the encoder's choice.
      name: Ignored.

    Returns:
      A string scalar.

    Example:
      >>> tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()[1:4]
      b'PNG'
    """
    options = {} if compression < 0 else {"compress_level": compression}
    return _encode(_to_pillow_image(image, "encode_png"), "PNG", **options)


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
    """Encode an image as JPEG.

    Args:
      image: Uint8 [height, width, 1 or 3].
      format: '', 'grayscale' or 'rgb'; must match the number of channels.
      quality: 0 to 100.
      progressive: Whether to write a progressive file.
      optimize_size: Whether to spend more time for a smaller file.
      chroma_downsampling: Whether to store chroma with half the resolution.
      density_unit: 'in' or 'cm'.
      x_density: Pixels per unit.
      y_density: Pixels per unit.
      xmp_metadata: XMP data to store.
      name: Ignored.

    Returns:
      A string scalar.

    Example:
      >>> grey = tf.fill([8, 8, 1], tf.constant(128, tf.uint8))
      >>> tf.io.is_jpeg(tf.io.encode_jpeg(grey, quality=80)).numpy().item()
      True
    """
    source = _to_pillow_image(image, "encode_jpeg")
    if source.mode not in ("L", "RGB") or (
        format and {"L": "grayscale"}.get(source.mode, "rgb") != format
    ):
        raise InvalidArgumentError(
            f"encode_jpeg: format {format!r} does not fit an image with mode {source.mode}"
        )
    scale = 2.54 if density_unit == "cm" else 1
    xmp_options = {"xmp": xmp_metadata.encode()} if xmp_metadata else {}
    return _encode(
        source,
        "JPEG",
        quality=quality,
        progressive=progressive,
        optimize=optimize_size,
        subsampling=2 if chroma_downsampling else 0,
        dpi=(round(x_density * scale), round(y_density * scale)),
        **xmp_options,
    )


@add_path_to_errors
def extract_jpeg_shape(
    contents: TensorLike, output_type: DTypeLike = "int32", name: str | None = None
) -> Tensor:
    """Return the shape [height, width, channels] of an encoded image as a vector.

    Args:
      contents: Contents of the file.
      output_type: Int32 or int64.
      name: Ignored.

    Example:
      >>> jpeg = tf.io.encode_jpeg(tf.zeros([16, 8, 3], tf.uint8))
      >>> print(tf.io.extract_jpeg_shape(jpeg).numpy())
      [16  8  3]
    """
    image = _open_image(contents)
    shape = [image.height, image.width, _MODE_TO_CHANNELS.get(image.mode, 3)]
    return Tensor(np.array(shape, as_dtype(output_type).dtype))


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """Check whether a string scalar starts with the signature of JPEG files.

    Example:
      >>> print(tf.io.is_jpeg(tf.constant(b"a text")).numpy())
      False
    """
    return Tensor(np.array(_get_bytes(contents)[:3] == b"\xff\xd8\xff"))


def adjust_jpeg_quality(
    image: TensorLike, jpeg_quality: int | Tensor, name: str | None = None
) -> Tensor:
    """Encode an image as JPEG and decode it again, which adds the artifacts of compression.

    Args:
      image: [height, width, 1 or 3].
      jpeg_quality: 0 to 100.
      name: Ignored.

    Example:
      >>> x = tf.random.uniform([8, 8, 3])
      >>> tf.image.adjust_jpeg_quality(x, 30).shape
      TensorShape([8, 8, 3])
    """
    image = convert_to_tensor(image)
    quality = int(convert_to_tensor(jpeg_quality).require_value("a quality"))
    if not 0 <= quality <= 100:
        raise InvalidArgumentError(
            f"adjust_jpeg_quality: quality must be in [0,100], got {quality}."
        )
    coded = encode_jpeg(
        convert_image_dtype(image, uint8, saturate=True),
        quality=quality,
    )
    return convert_image_dtype(decode_jpeg(coded), image.dtype, saturate=True)
