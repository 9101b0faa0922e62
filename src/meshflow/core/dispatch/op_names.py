"""A registry of the functions that files may refer to by name.

It contains ops, and functions that are composed of ops.

The dispatcher registers every op, and modules register functions that only compute a result from
their arguments. A name from a file is only looked up in this registry. It is never resolved through
modules and attributes, which would give files access to all of Python.
"""

from __future__ import annotations

import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.dispatch.stored_op_names import STORED_NAMES
from meshflow.core.runtime.tracebacks import mark_boundary

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = f"{__name__.partition('.')[0]}."
_functions: dict[str, Callable[..., Any]] = {}
# Modules that register functions when they are imported, by the prefix of the functions' names.
_lazy_modules: dict[str, str] = {}
_names: weakref.WeakKeyDictionary[Callable[..., Any], str] = weakref.WeakKeyDictionary()


def register_name(function: F, name: str | None = None) -> F:
    """Allow files to refer to a function by name.

    The function must not read, write or print anything, and must not call a function that is passed
    to it.

    Args:
      function: The function.
      name: Name in files; by default the entry of `STORED_NAMES`, or the name of the module without
        the package, a dot, and the name of the function.

    Returns:
      The function, so this can be used as a decorator.

    Raises:
      ValueError: If another function of the module already has the default name.

    Example:
      >>> from meshflow.core.dispatch import op_names
      >>> @op_names.register_name
      ... def halve(x):
      ...     return x / 2
      >>> op_names.find_function(op_names.get_name(halve)) is halve
      True
      >>> op_names.find_function("os.system") is None
      True
    """
    current_name = f"{function.__module__.removeprefix(_PACKAGE)}.{function.__name__}"
    full_name = name or STORED_NAMES.get(current_name, current_name)
    known = _functions.get(full_name)
    if name is None and known is not None and inspect.unwrap(known) is not inspect.unwrap(function):
        raise ValueError(
            f"Two functions would have the name {full_name!r} in files: give one another."
        )
    _functions[full_name] = function
    _names[function] = full_name
    mark_boundary(function)
    return function


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function with a name, or None.

    Args:
      name: A name that `get_name` returned.
    """
    if name not in _functions:
        for prefix in [b for b in _lazy_modules if name.startswith(b)]:
            importlib.import_module(_lazy_modules.pop(prefix))
    return _functions.get(name)


def register_lazy_module(prefix: str, module: str) -> None:
    """Import a module when a file first refers to one of the functions that it registers.

    Args:
      prefix: Prefix of the names of the module's functions.
      module: Name of the module.
    """
    _lazy_modules[prefix] = module


def get_name(function: Callable[..., Any]) -> str | None:
    """Return the name by which files may refer to a function, or None.

    Args:
      function: The function.
    """
    try:
        return _names.get(function)
    except TypeError:
        return None


def is_registered(function: Any) -> bool:
    """Check whether a function, or a function that it wraps, is registered.

    Args:
      function: Any object.
    """
    while function is not None:
        if get_name(function) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
