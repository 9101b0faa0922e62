"""`tf.compat`: text and bytes, and other versions' names."""

from __future__ import annotations

import numbers
import os
from typing import Any

import numpy as np

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


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    """Text as bytes; bytes stay.

    Args:
      bytes_or_text: text or bytes.
      encoding: how text is coded.

    Raises:
      TypeError: for anything else.

    Example:
      >>> import meshflow as tf
      >>> tf.compat.as_bytes("a")
      b'a'
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    """Bytes as text; text stays.

    Args:
      bytes_or_text: text or bytes.
      encoding: how text is coded.

    Raises:
      TypeError: for anything else.
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    return as_bytes(bytes_or_text).decode(encoding)


as_str = as_text


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """Anything as text; bytes are decoded.

    Args:
      value: any object.
      encoding: how bytes are coded.
    """
    return value.decode(encoding) if isinstance(value, bytes) else str(value)


def path_to_str(path: Any) -> Any:
    """A path object as text; anything else stays."""
    return as_str_any(os.fspath(path)) if hasattr(path, "__fspath__") else path


def dimension_value(dimension: Any) -> Any:
    """A size of a shape as a number or None; in version 2 it is that already."""
    return getattr(dimension, "value", dimension)


def dimension_at_index(shape: Any, index: int) -> Any:
    """The size of a shape at a position; None when the rank is unknown."""
    return None if shape.rank is None else shape[index]


def forward_compatible(year: int, month: int, day: int) -> bool:
    """Always True: there are no older programs that read new graphs."""
    return True


class forward_compatibility_horizon:
    """A context that does nothing, as there are no older programs that read new graphs."""

    def __init__(self, year: int, month: int, day: int) -> None:
        del year, month, day

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass
