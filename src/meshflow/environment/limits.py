"""How much may come out of a file: limits that the environment can raise."""

from __future__ import annotations

import os

__all__ = [
    "IMAGE_VARIABLE",
    "INFLATED",
    "UNPACKED_VARIABLE",
    "image_limit",
    "unpacked_limit",
]

UNPACKED_VARIABLE = "MESHFLOW_MAX_UNPACKED_BYTES"
IMAGE_VARIABLE = "MESHFLOW_MAX_IMAGE_BYTES"
# Deflate makes at most so much of a byte.
INFLATED = 1032
_SMALLEST_UNPACKED = 1 << 30
_UNPACKED_RATIO = 20
# Where TensorFlow's decoders stop, too.
_IMAGE = 1 << 29


def unpacked_limit(size: int) -> int:
    """How many bytes a file may hold when unpacked: 1 GiB, or 20 times its size where that is more.

    Args:
      size: the size of the file in bytes.

    Returns:
      The limit, which the environment's MESHFLOW_MAX_UNPACKED_BYTES sets otherwise.

    Raises:
      ValueError: where that is no number.
    """
    given = _given(UNPACKED_VARIABLE)
    return max(_SMALLEST_UNPACKED, _UNPACKED_RATIO * size) if given is None else given


def image_limit() -> int:
    """How many bytes the pixels of an image may take, all frames together: 2 ** 29.

    Returns:
      The limit, which the environment's MESHFLOW_MAX_IMAGE_BYTES sets otherwise.

    Raises:
      ValueError: where that is no number.
    """
    given = _given(IMAGE_VARIABLE)
    return _IMAGE if given is None else given


def _given(variable: str) -> int | None:
    given = os.environ.get(variable)
    if given is None:
        return None
    try:
        return int(float(given))
    except (ValueError, OverflowError):
        raise ValueError(f"{variable}={given!r} is no number of bytes.") from None
