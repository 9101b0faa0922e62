"""CRC-32C checksums of TensorFlow's file formats, plain and masked."""

from __future__ import annotations

import google_crc32c
import numpy as np

# The checksum is computed with Python's lock held, so other threads can run between chunks.
_CHUNK_BYTES = 4 << 20


def crc32c(data: bytes | np.ndarray, start: int = 0) -> int:
    """Return the checksum of bytes.

    Args:
      data: Bytes, or a contiguous uint8 array.
      start: Checksum of the preceding bytes, to compute the checksum of both.

    Example:
      >>> hex(crc32c(b"123456789"))
      '0xe3069283'
      >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
      True
    """
    if len(data) <= _CHUNK_BYTES:
        return google_crc32c.extend(start, data)
    for begin in range(0, len(data), _CHUNK_BYTES):
        start = google_crc32c.extend(start, data[begin : begin + _CHUNK_BYTES])
    return start


def mask_checksum(checksum: int) -> int:
    """Mask a checksum, so that it can be part of data that has a checksum itself.

    Example:
      >>> hex(mask_checksum(0))
      '0xa282ead8'
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
