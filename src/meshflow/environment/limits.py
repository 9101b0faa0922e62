"""Limits on the sizes of data in files, which protect against decompression bombs.

Environment variables can raise the limits.
"""

from __future__ import annotations

import os

__all__ = [
    "IMAGE_VARIABLE",
    "MAX_DEFLATE_RATIO",
    "UNPACKED_VARIABLE",
    "get_image_limit",
    "get_unpacked_limit",
]

UNPACKED_VARIABLE = "MESHFLOW_MAX_UNPACKED_BYTES"
IMAGE_VARIABLE = "MESHFLOW_MAX_IMAGE_BYTES"
# Deflate expands a byte to at most this number of bytes.
MAX_DEFLATE_RATIO = 1032
_MIN_UNPACKED_LIMIT = 1 << 30
_UNPACKED_RATIO = 20
# TensorFlow's image decoders have the same limit, in bytes.
_DEFAULT_IMAGE_LIMIT = 1 << 29


def get_unpacked_limit(size: int, min_limit: int = _MIN_UNPACKED_LIMIT) -> int:
    """Return the maximum size of a file's unpacked content.

    Args:
      size: Size of the packed file, in bytes.
      min_limit: Smallest default limit, in bytes.

    Returns:
      The value of the environment variable MESHFLOW_MAX_UNPACKED_BYTES, in bytes. By default 1 GiB
      (`min_limit`), or 20 times `size` if that is more.

    Raises:
      ValueError: If the environment variable is not a number.
    """
    explicit_limit = _read_byte_count(UNPACKED_VARIABLE)
    return max(min_limit, _UNPACKED_RATIO * size) if explicit_limit is None else explicit_limit


def get_image_limit() -> int:
    """Return the maximum size of an image's pixels, for all frames together.

    Returns:
      The value of the environment variable MESHFLOW_MAX_IMAGE_BYTES, in bytes. By default 2**29.

    Raises:
      ValueError: If the environment variable is not a number.
    """
    explicit_limit = _read_byte_count(IMAGE_VARIABLE)
    return _DEFAULT_IMAGE_LIMIT if explicit_limit is None else explicit_limit


def _read_byte_count(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{variable} must be a number of bytes, got {text!r}.") from None
