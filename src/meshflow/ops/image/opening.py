"""Encoded images, opened by Pillow: what their headers declare is checked before pixels are made room for."""

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
from meshflow.environment.limits import IMAGE_VARIABLE, INFLATED, image_limit

__all__ = ["check_size", "decoding", "opened", "pillow"]

# Pixels that a byte of a JPEG file may stand for, as image_sizes.h has it.
_JPEG_PIXELS = 8 * 32 * 32
# The formats by what their files begin with. No other code of Pillow's ever sees a file: some formats of its
# are left to programs that it starts.
_FORMATS = {b"\xff\xd8\xff": "Jpeg", b"\x89PNG\r\n\x1a\n": "Png", b"GIF8": "Gif", b"BM": "Bmp"}
_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def pillow() -> Any:
    """Pillow's module of images.

    Raises:
      UnimplementedError: where it is not installed.
    """
    try:
        import PIL.Image  # noqa: PLC0415 - optional, with an error of TensorFlow's
    except ImportError:
        raise UnimplementedError(
            "Decoding and encoding images needs the package Pillow: pip install pillow."
        ) from None
    return PIL.Image


@contextlib.contextmanager
def decoding(kind: str) -> Iterator[None]:
    """Turns what Pillow's decoders raise, which may be anything, into TensorFlow's errors.

    Args:
      kind: the format's name.
    """
    try:
        yield
    except OpError:
        raise
    except MemoryError:
        raise ResourceExhaustedError(f"There is no memory for the pixels of a {kind}.") from None
    except Exception as error:
        raise InvalidArgumentError(f"Invalid {kind} data: {error}.") from None


def check_size(kind: str, height: int, width: int, channels: int, frames: int = 1) -> None:
    """Refuses an image that is empty, or whose pixels would take more than `image_limit`.

    Args:
      kind: the format's name.
      height: as the file declares it.
      width: likewise.
      channels: bytes of a pixel.
      frames: how many images there are.

    Raises:
      InvalidArgumentError: with the numbers.
    """
    limit = image_limit()
    if height < 1 or width < 1:
        raise InvalidArgumentError(f"Invalid {kind} data: a size of {height} x {width} pixels.")
    if height * width * channels * frames > limit:
        raise InvalidArgumentError(
            f"Invalid {kind} data: {frames} x {height} x {width} pixels of {channels} bytes are more than the "
            f"{limit:,} bytes that an image may take. If you trust its author, set the environment variable "
            f"{IMAGE_VARIABLE} to a larger number."
        )


def opened(contents: bytes) -> Any:
    """An image of Pillow's, whose size is sound; its pixels are not decoded yet.

    Args:
      contents: a JPEG, PNG, GIF, BMP or WebP file.

    Raises:
      InvalidArgumentError: for other files, damaged ones, and sizes that their bytes cannot stand for or
        that are over `image_limit`.
      UnimplementedError: where Pillow is not installed.
    """
    module = pillow()
    name = next((n for mark, n in _FORMATS.items() if contents.startswith(mark)), None)
    if contents[:4] == b"RIFF" and contents[8:12] == b"WEBP":
        name = "WebP"
        # Pillow makes room for the pixels of these when it opens them.
        check_size(name, *_webp_size(contents), 4)
    if name is None:
        raise InvalidArgumentError(
            "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP required."
        )
    kind = name.upper() if name != "WebP" else name
    # Without `Image.open`, which has a limit of its own for all of the program.
    importlib.import_module(f"PIL.{name}ImagePlugin")
    with decoding(kind):
        image = module.OPEN[kind.upper()][0](io.BytesIO(contents), "")
        width, height = image.size
        # Pillow takes four bytes for a pixel of colours.
        check_size(kind, height, width, 1 if image.mode in ("1", "L") else 4)
        needed = _least_bytes(kind, contents, height, width)
    if needed > len(contents):
        raise InvalidArgumentError(
            f"Invalid {kind} data: {len(contents)} bytes cannot hold {height} x {width} pixels."
        )
    return image


def _least_bytes(kind: str, contents: bytes, height: int, width: int) -> int:
    """How large a file of such an image is at least."""
    if kind == "PNG":
        depth, colours = contents[24:26]
        return height * width * depth * _PNG_SAMPLES.get(colours, 1) // 8 // INFLATED
    if kind == "JPEG":
        return height * width // _JPEG_PIXELS
    if kind == "BMP" and struct.unpack_from("<I", contents, 14)[0] >= 40:
        bits, packing = struct.unpack_from("<HI", contents, 28)
        return height * width * bits // 8 if packing in (0, 3) else 0
    return 0


def _webp_size(contents: bytes) -> tuple[int, int]:
    """Height and width in the header of a WebP file; 0 where there are none."""
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
