"""Safe mode, in which configurations from files must be pure data.

`get_config` returns functions of the program as `BoundName` and `BoundCode`. These are strings and
lists when the configuration is written to a file, and no file can create them. A configuration
without them is from a file. In safe mode, which is the default, it must not contain code or make
the program read another file.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

HOW_TO_TRUST = (
    "If you trust the author, load it with `safe_mode=False`, or call "
    "`tf.keras.config.enable_unsafe_deserialization()` before."
)

_safe_mode: contextvars.ContextVar[bool] = contextvars.ContextVar("safe_mode", default=True)
_is_disabled = False


class UnsafeConfigError(ValueError):
    """Error for a configuration from a file that would run code or read another file."""


class BoundName(str):
    """Name in a configuration that was made in this program, with the object that it names.

    Args:
      name: The name.
      value: The named object.
    """

    value: Any

    def __new__(cls, name: str, value: Any) -> BoundName:
        """Create the string."""
        self = super().__new__(cls, name)
        self.value = value
        return self

    def __copy__(self) -> BoundName:
        return self

    def __deepcopy__(self, memo: object) -> BoundName:
        return self

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return str, (str(self),)


class BoundCode(list[Any]):
    """Byte code in a configuration that was made in this program, with its function.

    Args:
      code: The code as plain data.
      value: The function.
    """

    def __init__(self, code: Iterable[Any], value: Callable[..., Any]) -> None:
        super().__init__(code)
        self.value = value

    def __copy__(self) -> BoundCode:
        return self

    def __deepcopy__(self, memo: object) -> BoundCode:
        return self

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return list, (list(self),)


@contextlib.contextmanager
def safe_mode_scope(value: object) -> Iterator[None]:
    """Set safe mode within a `with` block.

    Args:
      value: Argument `safe_mode` of `load_model`. Only `False` disables safe mode: None, 0 and other
        values that are false do not.
    """
    token = _safe_mode.set(value is not False)
    try:
        yield
    finally:
        _safe_mode.reset(token)


def is_in_safe_mode() -> bool:
    """Check whether configurations are untrusted."""
    return _safe_mode.get() and not _is_disabled


def enable_unsafe_deserialization() -> None:
    """Disable safe mode for the rest of the program.

    Code in files is loaded, and files that they name are read.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.config.enable_unsafe_deserialization()  # doctest: +SKIP
    """
    global _is_disabled
    _is_disabled = True


def require_unsafe_mode(content: str, consequence: str) -> None:
    """Raise an error in safe mode.

    Args:
      content: Description of the unsafe content of the configuration.
      consequence: Sentence on the effect of loading it.

    Raises:
      ValueError: In safe mode.
    """
    if is_in_safe_mode():
        raise UnsafeConfigError(
            f"Requested the deserialization of {content}. {consequence} {HOW_TO_TRUST}"
        )
