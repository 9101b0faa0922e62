"""`tf.compat`: conversions between text and bytes, and the namespaces `v1` and `v2`."""

from __future__ import annotations

import numbers
import os
from typing import Any

import numpy as np

from meshflow.core.values.dimensions import Dimension
from meshflow.core.values.shapes import TensorShape
from meshflow.legacy.compat import v1, v2

__all__ = [
    "as_bytes",
    "as_str",
    "as_str_any",
    "as_text",
    "bytes_or_text_types",
    "complex_types",
    "dimension_at_index",
    "dimension_value",
    "forward_compatibility_horizon",
    "forward_compatible",
    "integral_types",
    "path_to_str",
    "real_types",
    "v1",
    "v2",
]

bytes_or_text_types = (bytes, str)
integral_types = (numbers.Integral, np.integer)
real_types = (numbers.Real, np.integer, np.floating)
complex_types = (numbers.Complex, np.number)


def as_bytes(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> bytes:
    """Encode text as bytes; bytes are returned unchanged.

    Args:
      bytes_or_text: Text or bytes.
      encoding: Encoding of the text.

    Raises:
      TypeError: If the argument is neither text nor bytes.

    Example:
      >>> tf.compat.as_bytes("a")
      b'a'
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


def as_text(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> str:
    """Decode bytes as text; text is returned unchanged.

    Args:
      bytes_or_text: Text or bytes.
      encoding: Encoding of the bytes.

    Raises:
      TypeError: If the argument is neither text nor bytes.
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    return as_bytes(bytes_or_text).decode(encoding)


as_str = as_text


def as_str_any(value: object, encoding: str = "utf-8") -> str:
    """Convert any object to text; bytes are decoded."""
    return value.decode(encoding) if isinstance(value, bytes) else str(value)


def path_to_str(path: Any) -> Any:
    """Convert a path object to text; other objects are returned unchanged."""
    return as_str_any(os.fspath(path)) if hasattr(path, "__fspath__") else path


def dimension_value(dimension: object) -> Any:
    """Return a dimension as an integer or None; dimensions of version 2 already are."""
    return getattr(dimension, "value", dimension)


def dimension_at_index(shape: TensorShape, index: int) -> Dimension:
    """Return one size of a shape as an object with a `value`, which is None if it is unknown."""
    return Dimension(None if shape.rank is None else shape[index])


def forward_compatible(year: int, month: int, day: int) -> bool:
    """Return True: no older program has to read new graphs."""
    return True


class forward_compatibility_horizon:
    """Context without effect, because no older program has to read new graphs."""

    def __init__(self, year: int, month: int, day: int) -> None:
        del year, month, day

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
