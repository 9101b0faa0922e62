"""Reader of NumPy's .npy files that checks their headers against the file size."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any, Literal

import numpy as np


def can_hold(dtype: np.typing.DTypeLike, stored: np.typing.DTypeLike) -> bool:
    """Check whether a dtype can hold stored values: integers cannot hold floats, nor floats complex numbers."""
    return _get_rank(dtype) >= _get_rank(stored)


def _get_rank(dtype: np.typing.DTypeLike) -> int:
    kind = np.dtype(dtype).kind
    return 0 if kind in "biu" else 2 if kind == "c" else 1


def parse_dtype(name: str) -> np.dtype:
    """Convert the name of a dtype in a file to a NumPy dtype.

    Raises:
      TypeError: If there is no such dtype.
      ValueError: If it is no name.
    """
    try:
        return np.dtype(name)
    except SyntaxError:  # NumPy evaluates names with commas as Python literals.
        raise ValueError(f"{name!r:.100} is not the name of a dtype") from None


def cast_weight(value: np.ndarray, dtype: np.typing.DTypeLike, label: str) -> np.ndarray:
    """Cast a weight to the dtype of its variable.

    Args:
      value: The weight.
      dtype: The dtype of the variable.
      label: Name of the weight, for errors.

    Raises:
      ValueError: If the weight is no array of numbers (or strings, like its variable), or the imaginary parts of complex numbers
        would be lost.

    Example:
      >>> cast_weight(np.arange(2), np.float32, "bias")
      array([0., 1.], dtype=float32)
    """
    if np.dtype(dtype) == object and value.dtype.kind in "OSU":
        return value
    # The kind of bfloat16 is V; only structures have fields.
    if value.dtype.kind not in "biufcV" or value.dtype.fields:
        raise ValueError(f"{label} is an array of {value.dtype}, expected an array of numbers.")
    if value.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise ValueError(
            f"{label} is complex, but its variable has dtype {np.dtype(dtype)}, which would lose the imaginary parts. "
            "Load it into a complex variable."
        )
    return value.astype(dtype, copy=False)


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
