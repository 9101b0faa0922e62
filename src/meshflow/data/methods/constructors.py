"""The classes and functions that the methods of datasets call to create datasets.

The classes derive from `Dataset`, so the modules that define its methods cannot import them.
`meshflow.data` calls `register` once, which binds them in this module. The stub `constructors.pyi`
imports them under the same names: type checkers see the classes themselves, and "go to definition"
on `constructors.Map` leads to the class.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def register(*modules: ModuleType) -> None:
    """Bind the public names of modules in this module.

    Args:
      *modules: Modules that list the names in `__all__`.
    """
    for module in modules:
        globals().update((name, getattr(module, name)) for name in module.__all__)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"There is no dataset constructor {name!r}: add it to the `__all__` of a module that `meshflow.data` registers, "
        "and to constructors.pyi."
    )
