"""Reader of NumPy's .npy files that checks their headers against the file size."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any, Literal

import numpy as np

__all__ = ["load_array"]


def load_array(file: Any, mmap_mode: Literal["r+", "r", "w+", "c"] | None = None) -> np.ndarray:
    """Load an array from a .npy file without unpickling.

    Args:
      file: Path, or a seekable binary file.
      mmap_mode: Mode of memory mapping, as in `numpy.load`.

    Raises:
      OSError: The file cannot be read.
      ValueError: The file is not a .npy file, contains objects, or is truncated.
    """
    try:
        with contextlib.nullcontext(file) if hasattr(file, "read") else open(file, "rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            version = np.lib.format.read_magic(stream)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}", None)
            if read is None:
                raise ValueError(f"version {version} of the .npy format is not supported")
            shape, _, dtype = read(stream)
            available = size - stream.tell()
    except (OSError, ValueError):
        raise
    # The header is the source of a Python dictionary, and its parsers raise errors of many types.
    except Exception as error:
        raise ValueError(f"the header is damaged: {error}") from None
    if dtype.hasobject:
        raise ValueError("the array contains Python objects, which are not loaded")
    sizes = [int(n) for n in shape]
    if any(n < 0 for n in sizes) or math.prod(sizes) * dtype.itemsize > available:
        raise ValueError(
            f"the header declares shape {sizes} of {dtype}, but the file has only {available} bytes of data"
        )
    if hasattr(file, "read"):
        file.seek(0)
    return np.load(file, mmap_mode=mmap_mode)
