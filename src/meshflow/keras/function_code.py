"""Python functions as plain data, for `Lambda` layers with functions that have no name.

As in Keras 2, the data is the byte code. Loading runs the code of the file's author, so it is
refused in safe mode.
"""

from __future__ import annotations

import base64
import builtins
import marshal
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.keras.safe_mode import BoundCode, require_unsafe_mode


def serialize_code(function: types.FunctionType) -> BoundCode:
    """Convert a function to its byte code in base 64, its defaults, and its closure values.

    Args:
      function: The function, to which the result keeps a reference.
    """
    code = base64.b64encode(marshal.dumps(function.__code__)).decode()
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = function.__defaults__
    data = [code, None if defaults is None else list(defaults), closure or None]
    return BoundCode(data, function)


def deserialize_code(data: Sequence[Any], names: dict[str, Any], owner: str) -> Callable[..., Any]:
    """Create the function that `serialize_code` or Keras 2 described.

    Args:
      data: Byte code, defaults and closure.
      names: Global names of the function, in addition to `tf`, `keras`, `K` and `np`.
      owner: The object that has the function, for error messages.

    Raises:
      ValueError: In safe mode, or if the byte code is from another version of Python.
    """
    if isinstance(data, BoundCode):
        return data.value
    require_unsafe_mode(
        f"{owner} with a Python function inside it",
        "This runs code of the file's author (arbitrary code execution).",
    )
    code, defaults, closure = data
    try:
        body = marshal.loads(base64.b64decode(code))
    except (ValueError, EOFError, TypeError) as error:
        raise InvalidValueError(
            f"The function of {owner} cannot be read: it was saved with another version of Python. Pass it in "
            f"`custom_objects`, or write a Layer. ({error})"
        ) from None
    tf = get_public_package()
    standard_names = {"tf": tf, "keras": tf.keras, "K": tf.keras.backend, "np": numpy}
    scope = {"__builtins__": builtins, **standard_names, **names}
    values = tuple(tuple(v) if isinstance(v, list) else v for v in defaults) if defaults else None
    cells = tuple(types.CellType(value) for value in closure) if closure else None
    return types.FunctionType(body, scope, body.co_name, values, cells)
