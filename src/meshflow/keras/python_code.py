"""Python functions without a name in files: their code, as Keras 2 writes that of `Lambda` layers.

What is written is Python's byte code. It runs whatever it says, so a file from others is a program from
others; and another Python may not understand it.
"""

from __future__ import annotations

import base64
import contextvars
import marshal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["dumped", "loaded", "safe_mode"]

_safe: contextvars.ContextVar[bool] = contextvars.ContextVar("safe_mode", default=False)


@contextmanager
def safe_mode(on: bool) -> Iterator[None]:
    """A context in which functions' code is refused, or not."""
    token = _safe.set(on)
    try:
        yield
    finally:
        _safe.reset(token)


def dumped(function: Callable[..., Any]) -> tuple[str, Any, Any]:
    """A function's code as text, its defaults, and the values of its closure.

    Raises:
      TypeError: for a callable that is no Python function.
    """
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"Only Python functions have code to be saved, got {function!r}.")
    code = base64.encodebytes(marshal.dumps(function.__code__)).decode("ascii")
    closure = function.__closure__ and tuple(cell.cell_contents for cell in function.__closure__)
    return code, function.__defaults__, closure


def loaded(config: Any, module: str | None, names: dict[str, Any]) -> Callable[..., Any]:
    """The function of what `dumped` gave.

    Args:
      config: code, defaults, closure.
      module: the module whose names the code uses, if it is there.
      names: further names.

    Raises:
      ValueError: in safe mode, and for code that this Python cannot read.
    """
    if _safe.get():
        raise ValueError(
            "The file has a Lambda layer with a Python `lambda` inside it, whose code would run. If "
            "you trust its source, load it with `safe_mode=False`."
        )
    text, defaults, closure = config
    try:
        code = marshal.loads(base64.b64decode(text))
    except (ValueError, EOFError, TypeError) as error:
        raise ValueError(
            "The code of a Lambda layer cannot be read: it was written by another version of Python. "
            "Make the model anew and load only its weights."
        ) from error
    known = dict(vars(sys.modules[module])) if module in sys.modules else {}
    cells = tuple(types.CellType(_tupled(value)) for value in closure or ())
    return types.FunctionType(
        code, {**known, **names}, code.co_name, _tupled(defaults), cells or None
    )


def _tupled(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value
