"""What configurations may do: those of files are data, those of this program may hold its functions.

`get_config` puts functions of the program into a configuration as `HeldName` and `HeldCode`, which are text
and lists to whoever writes the configuration to a file, and which no file can make. What comes back without
them comes from a file: it may not bring code, nor make the program read another file, until somebody says
that its author is trusted.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = [
    "HeldCode",
    "HeldName",
    "enable_unsafe_deserialization",
    "in_safe_mode",
    "refuse",
    "safe_mode",
]

HOW_TO_TRUST = (
    "If you trust the author, load it with `safe_mode=False`, or call "
    "`tf.keras.config.enable_unsafe_deserialization()` before."
)

_safe: contextvars.ContextVar[bool] = contextvars.ContextVar("safe_mode", default=True)
_trusting = False


class UnsafeConfigError(ValueError):
    """A configuration that may come from a file wants to run code, or to read another file."""


class HeldName(str):
    """The name of something in a configuration made in this program, with the thing itself.

    Args:
      name: the name.
      value: what it names.
    """

    value: Any

    def __new__(cls, name: str, value: Any) -> HeldName:
        self = super().__new__(cls, name)
        self.value = value
        return self

    def __copy__(self) -> HeldName:
        return self

    def __deepcopy__(self, memo: Any) -> HeldName:
        return self

    def __reduce__(self) -> Any:
        return str, (str(self),)


class HeldCode(list[Any]):
    """A function's code in a configuration made in this program, with the function itself.

    Args:
      code: the code as data.
      value: the function.
    """

    def __init__(self, code: Iterable[Any], value: Callable[..., Any]) -> None:
        super().__init__(code)
        self.value = value

    def __copy__(self) -> HeldCode:
        return self

    def __deepcopy__(self, memo: Any) -> HeldCode:
        return self

    def __reduce__(self) -> Any:
        return list, (list(self),)


@contextlib.contextmanager
def safe_mode(value: bool) -> Iterator[None]:
    """Whether configurations are those of strangers inside.

    Args:
      value: as `safe_mode` of `load_model`.
    """
    token = _safe.set(bool(value))
    try:
        yield
    finally:
        _safe.reset(token)


def in_safe_mode() -> bool:
    """Whether configurations are those of strangers: they are, until somebody says otherwise."""
    return _safe.get() and not _trusting


def enable_unsafe_deserialization() -> None:
    """Trusts all files from now on: code in them runs, and files that they name are read.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.config.enable_unsafe_deserialization()  # doctest: +SKIP
    """
    global _trusting
    _trusting = True


def refuse(what: str, consequence: str) -> None:
    """Stops in safe mode.

    Args:
      what: what the configuration holds.
      consequence: what that would do.

    Raises:
      ValueError: in safe mode.
    """
    if in_safe_mode():
        raise UnsafeConfigError(
            f"Requested the deserialization of {what}. {consequence} {HOW_TO_TRUST}"
        )
