"""Encoding of string arrays as bytes, which NumPy's format would store as pickled objects."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def pack_strings(array: np.ndarray) -> np.ndarray:
    """Pack strings into one array of bytes: the length of each as 8 bytes, then all contents.

    Args:
      array: Array of bytes or text.

    Raises:
      TypeError: If an element is another object.
    """
    contents = []
    for item in array.reshape(-1).tolist():
        if not isinstance(item, (bytes, str)):
            raise TypeError(
                f"Arrays of Python objects cannot be saved, only bytes and text; got {item!r}."
            )
        contents.append(item.encode() if isinstance(item, str) else item)
    lengths = np.array([len(c) for c in contents], "<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(contents), np.uint8)


def unpack_strings(raw: np.ndarray, shape: list[int]) -> np.ndarray:
    """Unpack an array that `pack_strings` returned into an array of bytes objects.

    Args:
      raw: Packed array.
      shape: Shape of the result.

    Raises:
      ValueError: If the lengths are inconsistent.
    """
    size = int(np.prod(shape, dtype=np.int64))
    data = raw.tobytes()
    if raw.dtype != np.uint8 or len(data) < 8 * size:
        raise ValueError(f"{len(data)} bytes of dtype {raw.dtype} cannot hold {size} strings")
    ends = [8 * size]
    for length in np.frombuffer(data, "<u8", size).tolist():
        ends.append(ends[-1] + length)
    if ends[-1] != len(data):
        raise ValueError(f"{size} strings end at byte {ends[-1]} of {len(data)}")
    array = np.empty(size, object)
    array[:] = [data[a:b] for a, b in pairwise(ends)]
    return array.reshape(shape)
