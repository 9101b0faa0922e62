"""CRC-32C, the checksum of TensorFlow's files, and the form of it that may itself be summed."""

from __future__ import annotations

from typing import Any

import google_crc32c

# The checksum is computed with Python's lock held; other threads get their turn between pieces.
_PIECE = 4 << 20


def crc32c(data: Any, start: int = 0) -> int:
    """The checksum of bytes.

    Args:
      data: bytes, or a contiguous uint8 array.
      start: checksum of what came before.

    Example:
      >>> hex(crc32c(b"123456789"))
      '0xe3069283'
      >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
      True
    """
    extend: Any = google_crc32c.extend
    for begin in range(0, len(data), _PIECE):
        start = extend(start, data[begin : begin + _PIECE])
    return start


def masked(checksum: int) -> int:
    """A checksum that may be part of what is summed.

    Args:
      checksum: what `crc32c` gave.

    Example:
      >>> hex(masked(0))
      '0xa282ead8'
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
