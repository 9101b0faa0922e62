"""Encoded images, opened by Pillow after a check of the size in their headers.

A small file can declare a huge image, so the declared size is checked before memory for the pixels
is allocated.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import struct
from collections.abc import Iterator
from typing import Any

from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnimplementedError,
)
from meshflow.environment.limits import IMAGE_VARIABLE, MAX_DEFLATE_RATIO, get_image_limit

# Number of pixels that one byte of a JPEG file may represent, as in image_sizes.h.
_MAX_JPEG_PIXELS_PER_BYTE = 8 * 32 * 32
# Names of Pillow's plugins by the signatures of the formats. No other plugin of Pillow reads a
# file: some of them start other programs.
_PLUGINS = {b"\xff\xd8\xff": "Jpeg", b"\x89PNG\r\n\x1a\n": "Png", b"GIF8": "Gif", b"BM": "Bmp"}
# Samples per pixel by the color type of PNG.
_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def import_pillow() -> Any:
    """Import the module `PIL.Image`, or raise UnimplementedError if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: PLC0415 - optional, with an error of TensorFlow's
    except ImportError:
        raise UnimplementedError(
            "Decoding and encoding images needs the package Pillow: pip install pillow."
        ) from None
    return PIL.Image


@contextlib.contextmanager
def translate_errors(format_name: str) -> Iterator[None]:
    """Translate the exceptions of Pillow's decoders, which may have any type, to TensorFlow's errors.

    Args:
      format_name: Name of the image format.
    """
    try:
        yield
    except OpError:
        raise
    except MemoryError:
        raise ResourceExhaustedError(f"Out of memory for the pixels of a {format_name}.") from None
    except Exception as error:
        raise InvalidArgumentError(f"Invalid {format_name} data: {error}.") from None


def check_size(format_name: str, height: int, width: int, channels: int, frames: int = 1) -> None:
    """Raise if an image is empty, or its pixels require more than `get_image_limit()` bytes.

    Args:
      format_name: Name of the image format.
      height: Height that the file declares.
      width: Width that the file declares.
      channels: Bytes per pixel.
      frames: Number of frames.

    Raises:
      InvalidArgumentError: If the image is empty or too large.
    """
    limit = get_image_limit()
    if height < 1 or width < 1:
        raise InvalidArgumentError(
            f"Invalid {format_name} data: a size of {height} x {width} pixels."
        )
    if height * width * channels * frames > limit:
        raise InvalidArgumentError(
            f"Invalid {format_name} data: {frames} x {height} x {width} pixels of {channels} bytes are more than the "
            f"{limit:,} bytes that an image may take. If you trust its author, set the environment variable "
            f"{IMAGE_VARIABLE} to a larger number."
        )


def open_image(contents: bytes) -> Any:
    """Return an image of Pillow with a checked size; its pixels are not decoded yet.

    Args:
      contents: Contents of a JPEG, PNG, GIF, BMP or WebP file.

    Raises:
      InvalidArgumentError: If the file is damaged or has another format, or declares a size above
        `get_image_limit()` or above the size that its bytes can represent.
      UnimplementedError: If Pillow is not installed.
    """
    module = import_pillow()
    name = next((n for signature, n in _PLUGINS.items() if contents.startswith(signature)), None)
    if contents[:4] == b"RIFF" and contents[8:12] == b"WEBP":
        name = "WebP"
        # Pillow allocates the pixels of WebP files when it opens them.
        check_size(name, *_read_webp_size(contents), 4)
    if name is None:
        raise InvalidArgumentError(
            "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP required."
        )
    format_name = name.upper() if name != "WebP" else name
    # `Image.open` is not used, because its size limit is a process-wide setting.
    importlib.import_module(f"PIL.{name}ImagePlugin")
    with translate_errors(format_name):
        image = module.OPEN[format_name.upper()][0](io.BytesIO(contents), "")
        width, height = image.size
        # Pillow uses four bytes for a color pixel.
        check_size(format_name, height, width, 1 if image.mode in ("1", "L") else 4)
        min_bytes = _compute_min_bytes(format_name, contents, height, width)
    if min_bytes > len(contents):
        raise InvalidArgumentError(
            f"Invalid {format_name} data: {len(contents)} bytes cannot hold {height} x {width} pixels."
        )
    return image


def _compute_min_bytes(format_name: str, contents: bytes, height: int, width: int) -> int:
    """Compute the minimum size in bytes of a file with such an image."""
    if format_name == "PNG":
        depth, colours = contents[24:26]
        return height * width * depth * _PNG_SAMPLES.get(colours, 1) // 8 // MAX_DEFLATE_RATIO
    if format_name == "JPEG":
        return height * width // _MAX_JPEG_PIXELS_PER_BYTE
    if format_name == "BMP" and struct.unpack_from("<I", contents, 14)[0] >= 40:
        bits, compression = struct.unpack_from("<HI", contents, 28)
        return height * width * bits // 8 if compression in (0, 3) else 0
    return 0


def _read_webp_size(contents: bytes) -> tuple[int, int]:
    """Return the height and width in the header of a WebP file, or 0 if it has none."""
    chunk, header = contents[12:16], contents[20:30]
    if len(header) < 10:
        return 0, 0
    if chunk == b"VP8X":
        width, height = (int.from_bytes(header[i : i + 3], "little") + 1 for i in (4, 7))
    elif chunk == b"VP8L":
        bits = int.from_bytes(header[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif chunk == b"VP8 ":
        width, height = (n & 0x3FFF for n in struct.unpack_from("<HH", header, 6))
    else:
        return 0, 0
    return height, width
