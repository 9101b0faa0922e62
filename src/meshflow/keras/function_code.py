"""Python functions as plain data, for `Lambda` layers of functions that have no name.

As in Keras 2 a function is its byte code. Whoever loads it runs it, which needs somebody to say that the
file's author is trusted.
"""

from __future__ import annotations

import base64
import builtins
import marshal
import types
from collections.abc import Callable
from typing import Any

import numpy

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.import_paths import public_face
from meshflow.keras.safe_mode import HeldCode, refuse

__all__ = ["from_data", "to_data"]


def to_data(function: types.FunctionType) -> HeldCode:
    """A function's code in base 64, its defaults, and the values that it closes over.

    Args:
      function: the function, which stays with the data in this program.
    """
    code = base64.b64encode(marshal.dumps(function.__code__)).decode()
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = function.__defaults__
    data = [code, None if defaults is None else list(defaults), closure or None]
    return HeldCode(data, function)


def from_data(data: Any, names: dict[str, Any], what: str) -> Callable[..., Any]:
    """The function that `to_data`, or Keras 2, described.

    Args:
      data: code, defaults, closure.
      names: global names of the function, besides `tf`, `keras`, `K` and `np`.
      what: what has the function, for errors.

    Raises:
      ValueError: in safe mode, or for code of another version of Python.
    """
    if isinstance(data, HeldCode):
        return data.value
    refuse(
        f"{what} with a Python function inside it",
        "This runs code of the file's author (arbitrary code execution).",
    )
    code, defaults, closure = data
    try:
        body = marshal.loads(base64.b64decode(code))
    except (ValueError, EOFError, TypeError) as error:
        raise InvalidValueError(
            f"The function of {what} cannot be read: it was saved with another version of Python. Pass it in "
            f"`custom_objects`, or write a Layer. ({error})"
        ) from None
    tf = public_face()
    known = {"tf": tf, "keras": tf.keras, "K": tf.keras.backend, "np": numpy}
    scope = {"__builtins__": builtins, **known, **names}
    values = tuple(tuple(v) if isinstance(v, list) else v for v in defaults) if defaults else None
    cells = tuple(types.CellType(value) for value in closure) if closure else None
    return types.FunctionType(body, scope, body.co_name, values, cells)
