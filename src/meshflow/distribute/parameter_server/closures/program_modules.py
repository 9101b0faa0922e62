"""Modules of the program that workers must not import.

Such a module holds an object that must exist only once: the strategy, the coordinator, or a model
created in its scope. A worker that imported it would start a cluster of its own. Functions and
classes of these modules are pickled by value, as those of `__main__` always are.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import sysconfig
from types import FunctionType, ModuleType

from meshflow.distribute.parameter_server.closures.stubs import CoordinatorOnly


def find_unimportable_modules(strategy: object) -> list[ModuleType]:
    """Return the modules that hold the strategy or its objects, and the modules that import them.

    Args:
      strategy: The strategy.
    """
    program_modules = {
        name: module
        for name, module in list(sys.modules.items())
        if _is_program_module(name, module)
    }
    unimportable: dict[str, ModuleType] = {}
    while True:
        shared_ids = {
            id(v)
            for module in unimportable.values()
            for v in vars(module).values()
            if _has_state(v)
        }
        new_modules = {
            name: module
            for name, module in program_modules.items()
            if name not in unimportable
            and any(
                v is strategy or issubclass(type(v), CoordinatorOnly)
                or id(v) in shared_ids or _get_module_name(v) in unimportable
                for v in list(vars(module).values())
            )
        }  # fmt: skip
        if not new_modules:
            return list(unimportable.values())
        unimportable.update(new_modules)


def _has_state(value: object) -> bool:
    """Check whether a value is an object with attributes, and no module, function or class."""
    return hasattr(value, "__dict__") and not isinstance(value, ModuleType | FunctionType | type)


def _get_module_name(value: object) -> str:
    """Return the name of the module that defines a function or class, or of a module itself."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(value.__module__) if isinstance(value, FunctionType | type) else ""


def _is_program_module(name: str, module: ModuleType) -> bool:
    """Check whether a module belongs to the program, and is neither `__main__` nor a library's."""
    file = getattr(module, "__file__", None)
    return name != "__main__" and isinstance(file, str) and not _is_library(file)


@functools.cache
def _is_library(file: str) -> bool:
    path = pathlib.Path(file)
    return "dist-packages" in path.parts or any(p in path.parents for p in _get_library_paths())


@functools.cache
def _get_library_paths() -> tuple[pathlib.Path, ...]:
    """Return the paths of Python's standard library, of installed packages and of this package."""
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    # This package need not be installed.
    return (*map(pathlib.Path, libraries), pathlib.Path(__file__).parents[2])
