"""NumPy's files of arrays, whose headers are checked against what the file holds."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np

__all__ = ["load_array"]


def load_array(file: Any, mmap_mode: Any = None) -> np.ndarray:
    """An array from a `.npy` file; nothing pickled is read.

    Args:
      file: its path, or an object like a file.
      mmap_mode: as in `numpy.load`.

    Raises:
      OSError: when it cannot be read.
      ValueError: for another file, objects, or a header that declares more than the file holds.
    """
    try:
        with contextlib.nullcontext(file) if hasattr(file, "read") else open(file, "rb") as opened:
            size = opened.seek(0, io.SEEK_END)
            opened.seek(0)
            version = np.lib.format.read_magic(opened)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}", None)
            if read is None:
                raise ValueError(f"version {version} of the format is not known")
            shape, _, dtype = read(opened)
            held = size - opened.tell()
    except (OSError, ValueError):
        raise
    # The header is Python's text for a dictionary; its parsers raise what they meet.
    except Exception as error:
        raise ValueError(f"its header is damaged: {error}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    sizes = [int(n) for n in shape]
    if any(n < 0 for n in sizes) or math.prod(sizes) * dtype.itemsize > held:
        raise ValueError(
            f"its header declares {sizes} numbers of {dtype}, and {held} bytes are there"
        )
    if hasattr(file, "read"):
        file.seek(0)
    return np.load(file, mmap_mode=mmap_mode)
