"""The functions that a file may name: a closed table of ops, and of functions made of ops, by name.

The dispatcher enters every op, and modules enter functions that only compute a result from their arguments.
A name from a file is a key of this table and nothing else: it is never followed through modules and attributes,
which would lead to all of Python.
"""

from __future__ import annotations

import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["find", "is_entered", "later", "name_of", "nameable"]

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = f"{__name__.partition('.')[0]}."
_functions: dict[str, Callable[..., Any]] = {}
# Modules that enter functions when they are loaded, by the beginnings of these functions' names.
_later: dict[str, str] = {}
_names: weakref.WeakKeyDictionary[Callable[..., Any], str] = weakref.WeakKeyDictionary()


def nameable(function: F, name: str | None = None) -> F:
    """Lets files name a function that reads, writes and prints nothing, and calls no function that it is given.

    Args:
      function: the function.
      name: its name; default its module's, without the package, and its own.

    Returns:
      The function, so that this is a decorator.

    Raises:
      ValueError: for a second function of a module with one name, which would be taken for the first.

    Example:
      >>> from meshflow.core.dispatch import op_names
      >>> @op_names.nameable
      ... def halved(x):
      ...     return x / 2
      >>> op_names.find(op_names.name_of(halved)) is halved
      True
      >>> op_names.find("os.system") is None
      True
    """
    full = name or f"{function.__module__.removeprefix(_PACKAGE)}.{function.__name__}"
    known = _functions.get(full)
    if name is None and known is not None and inspect.unwrap(known) is not inspect.unwrap(function):
        raise ValueError(f"Two functions would have the name {full!r} in files: give one another.")
    _functions[full] = function
    _names[function] = full
    return function


def find(name: str) -> Callable[..., Any] | None:
    """The function with a name, or None.

    Args:
      name: a name as `name_of` gives it.
    """
    if name not in _functions:
        for beginning in [b for b in _later if name.startswith(b)]:
            importlib.import_module(_later.pop(beginning))
    return _functions.get(name)


def later(beginning: str, module: str) -> None:
    """Has a module be loaded, which enters functions, when a file first names one of them.

    Args:
      beginning: of their names.
      module: the module.
    """
    _later[beginning] = module


def name_of(function: Callable[..., Any]) -> str | None:
    """The name under which a file may name a function, or None.

    Args:
      function: the function.
    """
    try:
        return _names.get(function)
    except TypeError:
        return None


def is_entered(function: Any) -> bool:
    """Whether a function is in the table, itself or as what it wraps.

    Args:
      function: any object.
    """
    while function is not None:
        if name_of(function) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
