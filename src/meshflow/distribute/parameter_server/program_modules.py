"""Modules of a program that hold what there is once: the strategy, the coordinator, models in its scope.

A worker that imported such a module would begin a cluster of its own. So their functions and classes are sent as they are,
as those of the main program always are.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import sysconfig
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["not_to_be_imported"]


def not_to_be_imported(strategy: Any) -> list[ModuleType]:
    """The imported modules that a worker is not to import, and those that import them.

    Args:
      strategy: the strategy.
    """
    own = {name: module for name, module in list(sys.modules.items()) if _is_own(name, module)}
    found: dict[str, ModuleType] = {}
    while True:
        held = {id(v) for module in found.values() for v in vars(module).values() if _is_object(v)}
        more = {
            name: module
            for name, module in own.items()
            if name not in found
            and any(
                v is strategy or hasattr(type(v), "_stays_with_coordinator")
                or id(v) in held or _module_of(v) in found
                for v in list(vars(module).values())
            )
        }  # fmt: skip
        if not more:
            return list(found.values())
        found.update(more)


def _is_object(value: Any) -> bool:
    """Whether something is an object with a state, of which there may be one."""
    return hasattr(value, "__dict__") and not isinstance(value, ModuleType | FunctionType | type)


def _module_of(value: Any) -> str:
    """The module that is to be there for a value."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(value.__module__) if isinstance(value, FunctionType | type) else ""


def _is_own(name: str, module: Any) -> bool:
    """Whether a module is of the program, and no library. The main program's is sent in any case."""
    file = getattr(module, "__file__", None)
    return name != "__main__" and isinstance(file, str) and not _is_library(file)


@functools.cache
def _is_library(file: str) -> bool:
    path = pathlib.Path(file)
    return "dist-packages" in path.parts or any(place in path.parents for place in _libraries())


@functools.cache
def _libraries() -> tuple[pathlib.Path, ...]:
    """Where Python's own library is, and what was installed."""
    kinds: Mapping[str, str] = sysconfig.get_paths()
    places = [kinds[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    # And this package, which need not be installed.
    return (*map(pathlib.Path, places), pathlib.Path(__file__).parents[2])
