"""Placeholders for strings of a batch whose layers of strings run before the traced step.

A traced step receives the results of these layers, and placeholders in place of the strings. Code
that reads a placeholder raises `WithheldTextError`, so that the step can run again as plain Python.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np


class WithheldTextError(Exception):
    """Error for code that reads strings which a traced step does not have."""

    def __init__(self) -> None:
        super().__init__(
            "A traced step reads strings of its batch outside of the layers that run before it."
        )


class _TextSource:
    """Representative of an array of strings.

    Args:
      count: Number of strings.
    """

    def __init__(self, count: int) -> None:
        self.count = count


class _WithheldString:
    """Placeholder for one string.

    Args:
      source: Representative of the array of strings.
      index: Position of the string in the flattened array.
    """

    __slots__ = ("index", "source")

    def __init__(self, source: _TextSource, index: int) -> None:
        self.source, self.index = source, index

    def _raise(self, *_: object) -> NoReturn:
        raise WithheldTextError

    # Attributes such as `decode`, and operators of strings.
    __getattr__ = __hash__ = __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _raise
    __len__ = __iter__ = __getitem__ = __contains__ = __add__ = __radd__ = __mod__ = _raise
    __bytes__ = __str__ = __repr__ = __bool__ = __buffer__ = _raise


def make_withheld_text(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of placeholders for strings.

    Args:
      shape: Shape of the array.
    """
    source = _TextSource(math.prod(shape))
    array = np.empty(source.count, object)
    for index in range(source.count):
        array[index] = _WithheldString(source, index)
    return array.reshape(shape)


def find_text_source(value: Any) -> object:
    """Return an object that identifies the values of an array, whatever its shape.

    Args:
      value: Array.

    Returns:
      The source of a complete array of placeholders in their order; for other values, the array.
    """
    if not isinstance(value, np.ndarray) or value.dtype != object or not value.size:
        return value
    flat = value.reshape(-1)
    if type(flat[0]) is not _WithheldString:
        return value
    source = flat[0].source
    is_complete = flat.size == source.count and all(
        type(v) is _WithheldString and v.source is source and v.index == i
        for i, v in enumerate(flat)
    )
    return source if is_complete else value


def check_text(array: np.ndarray, count: int | None = 1) -> None:
    """Check that an array of strings has values.

    Args:
      array: The array.
      count: Number of elements to check, None for all.

    Raises:
      WithheldTextError: If one of these elements is a placeholder.
    """
    if array.dtype == object and any(type(v) is _WithheldString for v in array.reshape(-1)[:count]):
        raise WithheldTextError
