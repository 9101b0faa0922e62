"""Limits on the sizes of data in files, which protect against decompression bombs.

A file may also refer to the same bytes many times. All readers of one load therefore subtract what they
allocate from one budget. Environment variables can raise the limits.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Hashable, Iterator

UNPACKED_VARIABLE = "MESHFLOW_MAX_UNPACKED_BYTES"
IMAGE_VARIABLE = "MESHFLOW_MAX_IMAGE_BYTES"
# Estimated memory of a short string with its reference, in bytes.
STRING_BYTES = 64
# Deflate expands a byte to at most this number of bytes.
MAX_DEFLATE_RATIO = 1032
_MIN_UNPACKED_LIMIT = 1 << 30
_UNPACKED_RATIO = 20
# TensorFlow's image decoders have the same limit, in bytes.
_DEFAULT_IMAGE_LIMIT = 1 << 29


class FileTooLargeError(ValueError):
    """Error for a file that holds more bytes than may be unpacked."""


class UnpackedBudget:
    """Bytes that may be unpacked from a file or folder.

    Args:
      label: Name of the file or folder.
      size: Its size in bytes.
      min_limit: Smallest default limit, in bytes.
    """

    def __init__(self, label: str, size: int, min_limit: int = _MIN_UNPACKED_LIMIT) -> None:
        self._label, self._limit = label, get_unpacked_limit(size, min_limit)
        self._spent = 0
        # Identify the bytes that were read already.
        self.keys: set[Hashable] = set()

    def spend(self, size: int, content: str) -> None:
        """Subtract the size of a content of the file; raise FileTooLargeError if too few bytes remain."""
        self._spent += size
        if self._spent > self._limit:
            raise FileTooLargeError(
                f"{self._label} holds more than {self._limit:,} bytes when unpacked ({content} takes {size:,} bytes), "
                "the limit for a file of its size. If you trust its author, set the environment variable "
                f"{UNPACKED_VARIABLE} to a larger number."
            )


_budget: contextvars.ContextVar[UnpackedBudget | None] = contextvars.ContextVar(
    "budget", default=None
)


@contextlib.contextmanager
def load_budget_scope(label: str, size: int | Callable[[], int]) -> Iterator[None]:
    """Give the readers in a `with` block one budget, unless they have the budget of an outer load.

    Args:
      label: Name of the file or folder that is loaded.
      size: Its size in bytes, which determines the budget, or a function that measures it.
    """
    if _budget.get() is not None:
        yield
        return
    token = _budget.set(UnpackedBudget(label, size if isinstance(size, int) else size()))
    try:
        yield
    finally:
        _budget.reset(token)


def spend_load_budget(size: int, content: str) -> None:
    """Subtract bytes from the budget of the current load, if there is one.

    Args:
      size: Number of bytes that the caller allocates next.
      content: Description of the data, for errors.

    Raises:
      FileTooLargeError: If too few bytes remain. It is a `ValueError`.
    """
    budget = _budget.get()
    if budget is not None:
        budget.spend(size, content)


def spend_for_repeated_read(key: Hashable, size: int, content: str) -> None:
    """Subtract bytes from the budget of the current load if it reads them again.

    The first read is limited by the size of the file.

    Args:
      key: Identifies the bytes.
      size: Number of bytes.
      content: Description of the data, for errors.

    Raises:
      FileTooLargeError: If too few bytes remain. It is a `ValueError`.
    """
    budget = _budget.get()
    if budget is not None:
        if key in budget.keys:
            budget.spend(size, content)
        budget.keys.add(key)


def get_unpacked_limit(size: int, min_limit: int = _MIN_UNPACKED_LIMIT) -> int:
    """Return the maximum size of a file's unpacked content.

    Args:
      size: Size of the packed file, in bytes.
      min_limit: Smallest default limit, in bytes.

    Returns:
      The value of the environment variable MESHFLOW_MAX_UNPACKED_BYTES, in bytes. By default 1 GiB
      (`min_limit`), or 20 times `size` if that is more.

    Raises:
      ValueError: If the environment variable is not a number.
    """
    explicit_limit = _read_byte_count(UNPACKED_VARIABLE)
    return max(min_limit, _UNPACKED_RATIO * size) if explicit_limit is None else explicit_limit


def get_image_limit() -> int:
    """Return the maximum size of an image's pixels, for all frames together.

    Returns:
      The value of the environment variable MESHFLOW_MAX_IMAGE_BYTES, in bytes. By default 2**29.

    Raises:
      ValueError: If the environment variable is not a number.
    """
    explicit_limit = _read_byte_count(IMAGE_VARIABLE)
    return _DEFAULT_IMAGE_LIMIT if explicit_limit is None else explicit_limit


def _read_byte_count(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{variable} must be a number of bytes, got {text!r}.") from None
